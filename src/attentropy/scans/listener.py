"""How a long job tells what it is doing."""


class Listener:
    """Hears how far the scan is; this one does nothing with it."""

    def stage(self, text: str) -> None:
        """A new part of the work begins."""

    def begin(self, total: int) -> None:
        """The amount of work is known."""

    def advance(self, work: int) -> None:
        """So much of it is done."""

    def say(self, text: str) -> None:
        """Something the user should know now."""
