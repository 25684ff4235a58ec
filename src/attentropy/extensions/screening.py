"""A cheap probe that shortlists candidates: larger distances without longer texts."""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn

from attentropy.extensions.candidates import Setting, Task, applied, why_unscaled
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.paired import Paired, stretches
from attentropy.models.losses.probes import (
    WINDOW,
    jumped_losses,
    jumped_positions,
    no_distance,
    windows_of,
)
from attentropy.models.losses.tokens import token_losses

WINDOWS = 3  # for fitting, and as many for judging


class Screened(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of the probe for a candidate.

    Attributes:
        candidate: its name.
        change: the loss of the untouched model -> with the candidate.
    """

    candidate: str
    change: Paired


@dataclass(frozen=True)
class Probe:
    """Losses that show within seconds whether a candidate may help.

    Attributes:
        task: what candidates are for.
        rows: windows [W, n] of calibration text.
        gap: positions left out in the middle of a window; None for windows of the whole length.
        last: tokens at the end of a whole window that are judged.
    """

    task: Task
    rows: Tensor
    gap: int | None
    last: int

    @classmethod
    def of(
        cls, model: nn.Module, task: Task, text: Tensor, *, last: int, begin: tuple[int, ...] = ()
    ) -> "Probe":
        """Short windows with a gap where the model takes positions, else windows of full length.

        Args:
            model: the model.
            task: what candidates are for.
            text: tokens [n] for calibration.
            last: tokens at the end of a whole window that are judged.
            begin: special tokens that every window begins with.
        """
        jumps = no_distance(model) is None and why_unscaled(model) is None
        size = min(WINDOW, task.trained // 2) if jumps else task.to
        rows = windows_of(text, size, 2 * WINDOWS).clone()
        rows[:, : len(begin)] = torch.tensor(begin, dtype=torch.long)
        return cls(task, rows, task.to - size, size // 2) if jumps else cls(task, rows, None, last)

    @property
    def judge(self) -> "Probe":
        """The second half of the windows, which nothing is fitted to."""
        return self.on(self.rows[len(self.rows) // 2 :])

    @property
    def fit(self) -> "Probe":
        """The first half of the windows; all of a single one."""
        return self.on(self.rows[: max(1, len(self.rows) // 2)])

    def on(self, rows: Tensor) -> "Probe":
        """The same probe on other windows.

        Args:
            rows: windows [W, n].
        """
        return Probe(self.task, rows, self.gap, self.last)

    def inside(self) -> "Probe":
        """The same windows inside the trained range, for comparison."""
        if self.gap is None:
            return Probe(self.task, self.rows[:, : self.task.trained], None, self.last)
        return Probe(
            self.task, self.rows, max(0, self.task.trained - self.rows.shape[1]), self.last
        )

    def placed(self, model: nn.Module) -> dict[str, Tensor]:
        """Arguments of the model that say where tokens stand; {} without a gap.

        Args:
            model: the model.
        """
        if self.gap is None:
            return {}
        device = device_of(model)
        places = jumped_positions(self.rows.shape[1], self.gap).expand(self.rows.shape)
        return {
            "position_ids": places.to(device),
            "attention_mask": torch.ones_like(self.rows).to(device),
        }

    def losses(self, model: nn.Module) -> Tensor:
        """Token losses [W, last] of the model as it is.

        Args:
            model: the model, steered or not.
        """
        if self.gap is None:
            return token_losses(model, self.rows, chunk=self.rows.shape[1])[:, -self.last :]
        return jumped_losses(model, self.rows, self.gap)

    def of_candidate(self, candidate: Setting, model: nn.Module) -> Tensor:
        """A mean loss for each stretch of 64 tokens, [S].

        Args:
            candidate: how to steer the model.
            model: the model.
        """
        handle = applied(candidate, model, self.task)
        try:
            found = stretches(self.losses(model)).mean(1).cpu()
            handle.require()
            return found
        finally:
            handle.undo()
