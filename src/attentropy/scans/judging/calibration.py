"""Scales that hold the entropy of the trained length, and what they do to the text's perplexity."""

import json
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.models.calibrate import as_they_are, calibrate
from attentropy.models.plan import Plan
from attentropy.models.steer.steer import steer
from attentropy.scans.judging import words
from attentropy.scans.measuring.lengths import Windows
from attentropy.scans.measuring.measure import has_decoder_beside, logits_of, read, text_loss
from attentropy.scans.schema import Calibration, CalibrationRow, Model, Scan, ScanError

CALL = 'at.steer(model, at.Plan.load("plan.json"))'


def check(model: nn.Module, about: Model, tokens: Tensor, lengths: list[int]) -> None:
    """Refuse before anything is measured what cannot be calibrated."""
    _check_reach(about, lengths)
    _check_one_text(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    _check_steerable(model, tokens[None, : lengths[0]].to(device))


def _check_reach(model: Model, lengths: list[int]) -> None:
    """Calibration needs a length beyond the trained one; say so before anything is measured."""
    if len(lengths) < 2 or lengths[-1] <= (model.trained_length or lengths[0]):
        limit = model.trained_length or lengths[0]
        raise ScanError(f"--calibrate needs a length beyond {limit:,}, got {lengths}")


def _check_one_text(model: nn.Module) -> None:
    """Lengths of an encoder and of a decoder are two things; say so before anything is measured."""
    if has_decoder_beside(model):
        raise ScanError(
            f"--calibrate takes models that read one text, and {type(model).__name__} has an "
            "encoder and a decoder: scan without it, and use at.calibrate with your own batches"
        )


def _check_steerable(model: nn.Module, ids: Tensor) -> None:
    """A model that cannot be changed is told by one short pass, before anything is measured."""
    handle = steer(model, qk_norm=as_they_are)
    try:
        with torch.no_grad(), warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
            read(model, ids)
    except UnsupportedError as error:
        raise ScanError(
            f"--calibrate takes models whose attention can be changed, and {type(model).__name__} "
            "computes it by hand or with a kernel of its own: scan without it"
        ) from error
    except Exception:  # a model that cannot read is told when it is measured
        return
    finally:
        handle.undo()


def calibrated(model: nn.Module, text: Windows, scan: Scan) -> Calibration:
    """The plan for the lengths beyond the trained one, solved and measured on the same text."""
    home = words.home(scan)
    assert home is not None
    lengths = [length for length in scan.lengths if length >= home.length]
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batches = [window.to(device) for window in text.cut(lengths[-1])]
    plan = calibrate(model, batches, lengths, loss=_loss)
    return _record(plan, [layer.name for layer in scan.layers])


def _loss(output: Any, ids: Tensor) -> tuple[float, int]:
    return text_loss(logits_of(output, ids), ids)


def _record(plan: Plan, names: list[str]) -> Calibration:
    rows = [
        CalibrationRow(
            length=effect.length,
            entropy_before=effect.entropy_before,
            entropy_after=effect.entropy_after,
            perplexity_before=effect.perplexity_before,
            perplexity_after=effect.perplexity_after,
        )
        for effect in plan.effects
    ]
    unheld = [(names.index(layer), head) for layer, head in plan.unheld if layer in names]
    return Calibration(
        reference=plan.reference,
        hold=plan.hold,
        call=CALL,
        plan=json.loads(plan.to_json()),
        rows=rows,
        unheld=unheld,
    )
