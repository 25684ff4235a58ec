"""Scales that hold the entropy of the trained length, and what they do to the text's perplexity."""

import warnings

import torch
from torch import Tensor, nn

from attentropy.core.errors import UnsupportedError
from attentropy.distributed.team import ALONE, Team
from attentropy.models.calibrate import calibrate
from attentropy.models.losses.reading import device_of, has_decoder_beside, read
from attentropy.models.plan import Plan
from attentropy.models.steer.steer import steer
from attentropy.scans.errors import ScanError
from attentropy.scans.judging import words
from attentropy.scans.measuring.lengths import Windows
from attentropy.scans.schema import Scan, ScannedModel


def check(model: nn.Module, about: ScannedModel, tokens: Tensor, lengths: list[int]) -> None:
    """Refuse before anything is measured what cannot be calibrated.

    Args:
        model: the model.
        about: the record of it.
        tokens: one row of ids.
        lengths: those that will be measured.
    """
    _check_reach(about, lengths)
    _check_one_text(model)
    _check_steerable(model, tokens[None, : lengths[0]].to(device_of(model)))


def _check_reach(model: ScannedModel, lengths: list[int]) -> None:
    """Calibration needs a length beyond the trained one; say so before anything is measured."""
    if len(lengths) < 2 or lengths[-1] <= (model.trained_length or lengths[0]):
        limit = model.trained_length or lengths[0]
        text = "{calibrate} needs a length beyond {limit:,}, got {found}"
        raise ScanError(text, limit=limit, found=lengths)


def _check_one_text(model: nn.Module) -> None:
    """Lengths of an encoder and of a decoder are two things; say so before anything is measured."""
    if has_decoder_beside(model):
        text = (
            "{calibrate} takes models that read one text, and {name} has an encoder and a decoder: "
            "scan without it, and use at.calibrate with your own batches"
        )
        raise ScanError(text, name=type(model).__name__)


def _check_steerable(model: nn.Module, ids: Tensor) -> None:
    """A model that cannot be changed is told by one short pass, before anything is measured."""
    handle = steer(model, temperature=1.0)
    try:
        with torch.no_grad(), warnings.catch_warnings(category=RuntimeWarning, action="ignore"):
            read(model, ids)
    except UnsupportedError as error:
        text = (
            "{calibrate} takes models whose attention can be changed, and {name} computes it by "
            "hand or with a kernel of its own: scan without it"
        )
        raise ScanError(text, name=type(model).__name__) from error
    except Exception:  # a model that cannot read is told when it is measured
        return
    finally:
        handle.undo()


def calibrated(model: nn.Module, text: Windows, scan: Scan, *, team: Team = ALONE) -> Plan:
    """The plan for the lengths beyond the trained one, solved and measured on the same text.

    Args:
        model: the model.
        text: what it read, cut into windows.
        scan: what was measured.
        team: processes that share the lengths out.
    """
    home = words.home(scan)
    assert home is not None
    lengths = [length for length in scan.lengths if length >= home.length]
    batches = [window.to(device_of(model)) for window in text.cut(lengths[-1])]
    return calibrate(model, batches, lengths, team=team)
