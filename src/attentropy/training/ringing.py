"""Which heads an alarm has reported: one alert for each head, and few for one event."""

from collections.abc import Hashable, Iterable

CALM = 10  # samples in a row without ringing, after which a head has recovered


class Ringing:
    """The heads that one alarm has reported so far.

    A head is reported once, until it has recovered: it must be quiet for `calm` samples in a row,
    and for twice as many each time it is reported again, so that a head near the threshold is
    reported less and less often. While heads are ringing, further heads are reported together, once
    there are at least as many as were reported before. So one event gives one alert, or a few if it
    spreads, and not one for every head.

    Args:
        calm: number of quiet samples after which a head has recovered for the first time.

    >>> ringing = Ringing()
    >>> [sorted(ringing.news(heads)) for heads in ("a", "ab", "abc", "abcd", "")]
    [['a'], ['b'], [], ['c', 'd'], []]
    """

    def __init__(self, calm: int = CALM) -> None:
        self.calm = calm
        self._quiet: dict[Hashable, int] = {}  # heads that were reported -> samples without ringing
        self._told: dict[Hashable, int] = {}  # heads -> how often they were reported

    def news(self, ringing: Iterable[Hashable]) -> set[Hashable]:
        """The heads to report now.

        Args:
            ringing: the heads for which the alarm rings in the newest sample.
        """
        now = set(ringing)
        quiet = {head: 0 if head in now else n + 1 for head, n in self._quiet.items()}
        self._quiet = {head: n for head, n in quiet.items() if n < self._patience(head)}
        new = now - self._quiet.keys()
        if len(new) < len(self._quiet):
            return set()
        self._quiet |= dict.fromkeys(new, 0)
        self._told |= {head: self._told.get(head, 0) + 1 for head in new}
        return new

    def _patience(self, head: Hashable) -> int:
        return self.calm << min(self._told[head] - 1, 40)
