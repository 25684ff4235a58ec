"""entropy_abf(): the plan of Entropy-aware ABF, for models with rotary positions.

A larger base of the frequencies, and logits times log n / log(trained) in rows beyond the trained
length, in all layers but the first ones, whose attention its authors found to be spread by nature
(Zhang et al., 2024, arXiv:2401.07004).
"""

import msgspec
import torch
from torch import nn

from attentropy.core.errors import ArgumentError, ArgumentTypeError, UnsupportedError
from attentropy.extensions.candidates import Setting, plan_of, why_unscaled
from attentropy.extensions.extend import task_of
from attentropy.models.plan import Plan
from attentropy.models.rope import rotary
from attentropy.models.rope.settings import Rope

PROBED = 16  # tokens that show which modules attend


def entropy_abf(
    model: nn.Module,
    *,
    to: int,
    trained: int | None = None,
    base: float = 500_000.0,
    spared: int = 2,
) -> Plan:
    """The plan of Entropy-aware ABF for a model with rotary positions.

    It is made of published constants, not of measurements: its authors fine-tune a model with it
    for a few steps. Without that, compare it with what `at.extend` finds before you use it.

    Args:
        model: a model of transformers with rotary positions that its config sets.
        to: the length that it should read; more than the trained one.
        trained: the trained length; None asks the model and its config.
        base: of the frequencies, in place of the model's own; not smaller than that.
        spared: the number of layers at the beginning whose logits stay as they are.

    Example::

        plan = at.entropy_abf(model, to=16384)
        handle = at.steer(model, plan)
    """
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError("model", "a torch.nn.Module", type(model).__name__)
    why = why_unscaled(model)
    if why is not None:
        raise UnsupportedError(f"entropy_abf needs rotary positions that it can set: {why}")
    own = float(rotary.rope_parameters(model)["rope_theta"])
    if not base >= own:
        raise ArgumentError("base", f">= {own:g}, the base of the model", base)
    if isinstance(spared, bool) or not isinstance(spared, int) or spared < 0:
        raise ArgumentError("spared", "an integer >= 0", repr(spared))
    task = task_of(model, torch.arange(PROBED), to=to, trained=trained)
    if to <= task.trained:
        raise ArgumentError("to", f"> {task.trained}, the trained length", to)
    rope = Rope(rope_type="default", rope_theta=base, max_position_embeddings=to)
    plan = plan_of(Setting(name="Entropy-ABF", rope=rope, log_length=True), task)
    assert plan is not None
    kept = dict(list(plan.factors.items())[spared:])
    return msgspec.structs.replace(plan, factors=kept)
