"""Errors of a scan; messages use the names that the caller used."""

from collections.abc import Callable
from string import Formatter

from attentropy.core.errors import AttentropyError


class ScanError(AttentropyError, ValueError):
    """A scan file or a request for a scan cannot be used; the message is one sentence.

    A message names arguments in braces, so that Python and the command line can both say it:

    >>> error = ScanError("{lengths} must increase, got {found}", found=[64, 32])
    >>> str(error)
    'lengths must increase, got [64, 32]'
    >>> error.said(lambda argument: f"--{argument}")
    '--lengths must increase, got [64, 32]'

    Args:
        template: the message.
        values: text for the braces that do not name arguments.
    """

    def __init__(self, template: str, **values: object) -> None:
        self.template, self.values = template, values
        super().__init__(self.said(str))

    @property
    def arguments(self) -> list[str]:
        """The arguments that the message names, which the caller can change.

        >>> ScanError("{lengths} must increase, got {found}", found=[64, 32]).arguments
        ['lengths']
        """
        fields = [field for _, field, _, _ in Formatter().parse(self.template) if field]
        return [field for field in fields if field not in self.values]

    def said(self, name: Callable[[str], str]) -> str:
        """The message, with the names that `name` gives to arguments.

        Args:
            name: gives the name of an argument in the message.
        """
        return self.template.format_map(_Words(self.values, name))


class NoSuchScan(ScanError):
    """The file of a scan that was named is not there."""

    @property
    def arguments(self) -> list[str]:
        """What the caller can change: the path."""
        return ["path"]


class _Words(dict[str, object]):
    def __init__(self, values: dict[str, object], name: Callable[[str], str]) -> None:
        super().__init__(values)
        self.name = name

    def __missing__(self, argument: str) -> str:
        return self.name(argument)
