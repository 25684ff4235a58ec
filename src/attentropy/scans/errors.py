"""What goes wrong with a scan, in the words of whoever asked for it."""

from collections.abc import Callable
from string import Formatter

from attentropy.core.errors import AttentropyError


class ScanError(AttentropyError, ValueError):
    """A scan file or a request for a scan is not usable; the message is one sentence.

    A message names arguments in braces, so that Python and the command line can both say it:

    >>> error = ScanError("{lengths} must increase, got {found}", found=[64, 32])
    >>> str(error)
    'lengths must increase, got [64, 32]'
    >>> error.said(lambda argument: f"--{argument}")
    '--lengths must increase, got [64, 32]'

    Args:
        template: the message.
        values: what stands in the braces that are no arguments.
    """

    def __init__(self, template: str, **values: object) -> None:
        self.template, self.values = template, values
        super().__init__(self.said(str))

    @property
    def arguments(self) -> list[str]:
        """The arguments that the message names, so that whoever called can change them.

        >>> ScanError("{lengths} must increase, got {found}", found=[64, 32]).arguments
        ['lengths']
        """
        fields = [field for _, field, _, _ in Formatter().parse(self.template) if field]
        return [field for field in fields if field not in self.values]

    def said(self, name: Callable[[str], str]) -> str:
        """The message with arguments called as `name` calls them.

        Args:
            name: gives the name of an argument where the message is said.
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
