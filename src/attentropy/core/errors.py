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
    """An argument is of a kind that is not understood.

    Args:
        name: of the argument.
        rule: what it must be.
        value: what it is.
    """

    def __init__(self, name: str, rule: str, value: object) -> None:
        super().__init__(f"{name} must be {rule}, got {value}")


class UnsupportedError(AttentropyError, NotImplementedError):
    """The request is meaningful, but not for the kernel or transform that was asked."""


class DistributedError(AttentropyError, RuntimeError):
    """Another process of the group failed, stalled, or was called with other arguments."""
