"""Scales that hold the entropy of the trained length, and what they do to the text's perplexity."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.distributed.team import ALONE, Team
from attentropy.models.calibrate import calibrate
from attentropy.models.intercept.candidates import device_of
from attentropy.models.losses.reading import has_decoder_beside, read
from attentropy.models.plan import Plan
from attentropy.models.steer.steer import steer
from attentropy.scans.errors import ScanError
from attentropy.scans.measuring.lengths import Windows
from attentropy.scans.schema import Scan, ScannedModel, Skipped


def check(
    model: nn.Module,
    about: ScannedModel,
    tokens: Tensor,
    lengths: list[int],
    skipped: Sequence[Skipped] = (),
) -> None:
    """Refuse, before any measurement, what cannot be calibrated.

    Args:
        model: the model.
        about: the record of it.
        tokens: one row of ids.
        lengths: those that will be measured.
        skipped: those that will not.
    """
    check_reach(lengths, about.trained_length, skipped)
    _check_one_text(model)
    _check_steerable(model, tokens[None, : lengths[0]].to(device_of(model)))


def check_reach(
    lengths: Sequence[int], trained: int | None, skipped: Sequence[Skipped] = ()
) -> None:
    """Refuse lengths if none is beyond the trained length.

    Args:
        lengths: increasing.
        trained: the trained length, as far as files or the user say it.
        skipped: lengths that were asked for and are left out.
    """
    limit = trained or lengths[0]
    if len(lengths) > 1 and lengths[-1] > limit:
        return
    text = "{calibrate} needs a length beyond {limit:,}, got {found}"
    if skipped:
        text += " ({dropped})"
    dropped = "; ".join(f"{one.length:,} is left out: {one.reason}" for one in skipped)
    raise ScanError(text, limit=limit, found=list(lengths), dropped=dropped)


def _check_one_text(model: nn.Module) -> None:
    """Lengths of an encoder and of a decoder are two things; say so before anything is measured."""
    if has_decoder_beside(model):
        text = (
            "{calibrate} takes models that read one text, and {name} has an encoder and a decoder: "
            "scan without it, and use at.calibrate with your own batches"
        )
        raise ScanError(text, name=type(model).__name__)


def _check_steerable(model: nn.Module, ids: Tensor) -> None:
    """One short pass shows whether a model can be changed, before anything is measured."""
    handle = steer(model, temperature=1.0)
    try:
        with torch.no_grad(), warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
            read(model, ids)
        handle.require()
    except UnsupportedError as error:
        text = (
            "{calibrate} takes models whose attention can be changed, and {name} computes it by "
            "hand or with a kernel of its own: scan without it"
        )
        raise ScanError(text, name=type(model).__name__) from error
    except Exception:  # a model that cannot read fails later, when it is measured
        return
    finally:
        handle.undo()


def lengths_of(lengths: Sequence[int], trained: int | None) -> list[int]:
    """The lengths of a plan, from the one nearest below the trained length, or the first, on.

    Args:
        lengths: increasing.
        trained: the trained length; None if it is not known.

    >>> lengths_of([64, 128, 256, 512], 200)
    [128, 256, 512]
    """
    home = max((n for n in lengths if n <= (trained or 0)), default=lengths[0])
    return [n for n in lengths if n >= home]


def calibrated(model: nn.Module, text: Windows, scan: Scan, *, team: Team = ALONE) -> Plan:
    """The plan for the lengths beyond the trained one, solved and measured on the same text.

    Args:
        model: the model.
        text: what it read, cut into windows.
        scan: what was measured.
        team: processes that share the lengths out.
    """
    lengths = lengths_of(scan.lengths, scan.model.trained_length)
    batches = [window.to(device_of(model)) for window in text.cut(lengths[-1])]
    return calibrate(model, batches, lengths, team=team)
