"""Tables of rich that plain print() shows as well."""

import io

from rich.console import Console
from rich.table import Table


class Printed(Table):
    """A rich table whose text is the table, as wide as it needs to be."""

    def __str__(self) -> str:
        wide = Console(file=io.StringIO(), color_system=None, width=10_000)
        width = max(wide.measure(self).maximum, 80)
        with wide.capture() as text:
            wide.print(self, width=width)
        return "\n".join(line.rstrip() for line in text.get().splitlines())
