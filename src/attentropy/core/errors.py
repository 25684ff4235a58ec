"""Exception types. A message names the argument, the rule and the value that broke it."""


class AttentropyError(Exception):
    """Base of every error that attentropy raises on purpose."""


class ArgumentError(AttentropyError, ValueError):
    """An argument breaks a rule: `name` must be `rule`, got `value`.

    Args:
        name: of the argument.
        rule: what it must be.
        value: what it is.
    """

    def __init__(self, name: str, rule: str, value: object) -> None:
        super().__init__(f"{name} must be {rule}, got {value}")


class ArgumentTypeError(AttentropyError, TypeError):
    """An argument has a type that attentropy does not accept.

    Args:
        name: of the argument.
        rule: what it must be.
        value: what it is.
    """

    def __init__(self, name: str, rule: str, value: object) -> None:
        super().__init__(f"{name} must be {rule}, got {value}")


class UnsupportedError(AttentropyError, NotImplementedError):
    """The request makes sense, but this kernel or transform cannot serve it."""


class DistributedError(AttentropyError, RuntimeError):
    """Another process of the group failed, stalled, or was called with other arguments."""
