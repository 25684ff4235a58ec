"""A run whose learning rate rises too far: when does the alarm ring, and what does clipping do?

Trains a decoder of bytes of 494,000 parameters three times: at a healthy rate, with a rate that
rises to 0.1, and with that rate and an alarm that clips the logits when it rings.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F

import attentropy as at
from attentropy.lab.embedded import sample_bytes
from attentropy.lab.subjects.plain_models import KINDS, PlainModel
from attentropy.training.alarms import Alert, LogitGrowth, clip

STEPS, LENGTH, BATCH = 300, 64, 8


def silent(alert: Alert, monitor: at.Monitor) -> None:
    """Rings are printed below."""


def train(
    rates: list[float], alarm: LogitGrowth, *, loggers: Sequence[Callable[..., None]] = ()
) -> tuple[list[float], at.Monitor]:
    """The loss of every step, and the monitor that watched one step in five."""
    torch.manual_seed(0)
    text, model, losses = torch.tensor(list(sample_bytes())), PlainModel(KINDS["decoder"]), []
    optimizer = torch.optim.Adam(model.parameters())
    with at.Monitor(model, every=5, loggers=list(loggers), alarms=[alarm]) as monitor:
        for rate in rates:
            starts = torch.randint(len(text) - LENGTH - 1, (BATCH, 1))
            ids = text[starts + torch.arange(LENGTH + 1)]
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            monitor.step(loss)
            losses.append(loss.item())
    return losses, monitor


if __name__ == "__main__":
    steady, rising = [1e-3] * STEPS, [0.1 * (i + 1) / STEPS for i in range(STEPS)]
    for name, rates, action in (
        ("rate 0.001", steady, silent),
        ("rate rises to 0.1", rising, silent),
        ("the same, clip(30) when it rings", rising, clip(30.0)),
    ):
        losses, monitor = train(rates, LogitGrowth(action=action))
        means = [sum(losses[i : i + 10]) / 10 for i in range(0, STEPS, 10)]
        best = min(range(len(means)), key=means.__getitem__)
        ring = f"first ring at step {monitor.alerts[0].step}" if monitor.alerts else "no ring"
        print(f"{name}: {ring}; loss {means[best]:.2f} at best, at step {10 * best + 10}, "
              f"{means[-1]:.2f} at the end", flush=True)  # fmt: skip
