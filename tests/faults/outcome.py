"""What a fault did: how often it was tried, survived, and what was lost."""

from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Trials of one fault.

    Attributes:
        fault: what was done.
        tried: number of trials.
        survived: trials after which everything that was promised was there.
        lost: one sentence for each trial after which it was not.
    """

    fault: str
    tried: int = 0
    survived: int = 0
    lost: list[str] = field(default_factory=list)

    def note(self, wrong: str | None) -> None:
        """Count a trial; `wrong` says what was lost, None if nothing was."""
        self.tried += 1
        if wrong is None:
            self.survived += 1
        else:
            self.lost.append(wrong)


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a table for docs/reliability.md."""
    rows = [f"| {o.fault} | {o.tried} | {o.survived} | {len(o.lost)} |" for o in outcomes]
    return "\n".join(["| fault | tried | survived | lost |", "|---|---|---|---|", *rows])
