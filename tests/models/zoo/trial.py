"""One model, plain, watched, steered by nothing and undone; and what it shows.

`verdict(model, run)` compares outputs, and the entropies of `at.watch` with those of the oracle.
"""

import math
import re
import warnings
from collections import defaultdict
from dataclasses import dataclass, field

import torch
from torch.utils._pytree import tree_leaves

import attentropy as at
from attentropy.models.watch import NothingRecorded
from tests.models.zoo.oracle import attentions, listen

SAME = {torch.float64: 1e-6, torch.float32: 1e-3}  # relative difference of outputs
CLOSE = 2e-5  # absolute difference of entropies


@dataclass
class Verdict:
    """What a trial shows.

    Attributes:
        verdict: "exact", or the worst of what is wrong.
        why: what is wrong, in words; empty for exact models.
        kinds: kinds of attention that were recorded.
        operators: number of attention operators that ran.
        changed: relative change of the output, watched and steered; undone must be bit-exact.
        error: largest difference of an entropy.
        told: what the library said in warnings.
    """

    verdict: str
    why: str = ""
    kinds: list = field(default_factory=list)
    operators: int = 0
    changed: dict = field(default_factory=dict)
    error: float | None = None
    told: list = field(default_factory=list)
    steered: str = ""


def outputs(out):
    return [x.detach().clone() for x in _leaves(out) if isinstance(x, torch.Tensor) and x.numel()]


def _leaves(out):
    for leaf in tree_leaves(out):
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif hasattr(leaf, "layers") and hasattr(leaf, "get_seq_length"):
            continue
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, torch.nn.Module):
            yield from (x for x in vars(leaf).values() if isinstance(x, torch.Tensor))


def change(before, after):
    """The largest difference of two outputs, relative to the largest value of each tensor."""
    if len(before) != len(after) or any(a.shape != b.shape for a, b in zip(before, after)):
        return math.inf
    return max((_change(a, b) for a, b in zip(before, after)), default=0.0)


def _change(a, b):
    if not a.is_floating_point():
        return 0.0 if torch.equal(a, b) else math.inf
    a, b = a.double(), b.double()
    if not torch.equal(a.isfinite(), b.isfinite()):
        return math.inf
    a, b = (x[x.isfinite()] for x in (a, b))
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) if a.numel() else 0.0


def verdict(model, run, *, dtype=torch.float64, tokens=None):
    """Watch, steer and undo a model, and compare.

    Args:
        model: any module.
        run: calls the model once, the same way each time, and returns its output.
        dtype: of the model, which bounds rounding.
        tokens: True where a token is no padding [B,N], as `run` tells the model.
    """
    same = SAME[dtype]
    plain, again = _seeded(run), _seeded(run)
    if change(plain, again) > same:
        return Verdict("not repeatable", f"two plain runs differ by {change(plain, again):.1e}")
    with listen(model) as found:
        heard = _seeded(run)
    unfit = _unfit(plain, heard, found, same=same)
    if unfit and tokens is None:  # the fast path of torch fills padding in otherwise
        return Verdict("harness", unfit)
    must, may = attentions(without(found, tokens))
    watched, rows, told, crash = _watched(model, run)
    if crash:
        return Verdict("crash", crash, operators=len(must), told=told)
    steered, undone, refusal = _steered(model, run)
    result = Verdict("exact", operators=len(must), told=told, steered=refusal)
    result.changed = {"watched": change(plain, watched)}
    if steered is not None:
        result.changed["steered"] = change(plain, steered)
    result.kinds = sorted({row.kind if row.phase == "forward" else row.phase for row in rows})
    _judge(result, rows, must, may, same=same, plain=plain, undone=undone)
    return result


def _unfit(plain, heard, found, *, same):
    """Why what was heard is not what a plain run computes; None if it is."""
    if any(bool(w.entropy.isnan().all()) for w in found):
        return "weights are NaN"
    if change(plain, heard) > same:
        return f"torch's fused kernel differs from its plain one by {change(plain, heard):.1e}"
    return None


def without(found, tokens):
    """The softmaxes with rows of padding left out: those whose queries are the padded tokens."""
    for w in found:
        batch, queries = w.entropy.shape[0], w.entropy.shape[-1]
        if tokens is not None and (batch, queries) == tuple(tokens.shape):
            real = tokens.reshape(batch, *[1] * (w.entropy.dim() - 2), queries)
            w.visible = w.visible * real
    return found


def _seeded(run):
    torch.manual_seed(5)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return outputs(run())


def _watched(model, run):
    """Outputs, head rows, warnings of the library and the error that ended the pass."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        watch = at.watch(model, sample=None)
        try:
            watch.start()
            torch.manual_seed(5)
            with torch.no_grad():
                out = outputs(run())
        except Exception as error:
            return [], [], [], f"{type(error).__name__}: {error}"[:300]
        finally:
            watch.stop()
        rows = watch.heads() if watch.places() else []
    told = [str(w.message) for w in said if "attentropy" in str(w.message)]
    told += [
        f"{row.module}: {row.status}, {row.why}"
        for row in watch.coverage()
        if row.status in ("partly", "unseen")
    ]
    if not rows:
        told.append(_refused(watch))
    return out, rows, told, None


def _refused(watch):
    try:
        watch.require()
    except NothingRecorded as error:
        return str(error)
    return ""


def _steered(model, run):
    """Outputs with temperature one, outputs after undo, and what steer said."""
    said, steered, handle = "", None, None
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            handle = at.steer(model, temperature=1.0)
            torch.manual_seed(5)
            with torch.no_grad():
                steered = outputs(run())
        except Exception as error:
            said = f"{type(error).__name__}: {error}"[:200]
        finally:
            if handle is not None:
                handle.undo()
    said = said or " ".join(str(w.message)[:200] for w in told if "attentropy" in str(w.message))
    return steered, _seeded(run), said


def _judge(result, rows, must, may, *, same, plain, undone):
    """Fill in the verdict, the worst first."""
    faults = {}
    worst = {k: v for k, v in result.changed.items() if v > same}
    if worst:
        faults["changed output"] = ", ".join(f"{k} {v:.1e}" for k, v in worst.items())
    if not all(torch.equal(a, b) or a.isnan().any() for a, b in zip(plain, undone)):
        faults["not undone"] = f"differs by {change(plain, undone):.1e}"
    faults |= matched(result, rows, must, may)
    if faults:
        result.verdict = next(iter(faults))
        result.why = "; ".join(f"{k}: {v}" for k, v in faults.items())[:600]
    elif not must:
        result.verdict = "no attention"


def matched(result, rows, must, may):
    """Match the slots of a watch with the operators that ran; returns the faults by name."""
    left, others, wrong, false, pooled, errors = list(must), list(may), [], [], [], [0.0]
    for place, heads in _slots(rows).items():
        near = [w for w in left + others if place[0] in w.path]
        off, taken = min(
            ((distance(heads, g), g) for g in groups(near)), key=_first, default=(None, [])
        )
        if off is None:
            false.append(place)
        elif off > CLOSE:
            wrong.append((place, off, near))
        else:
            errors.append(off)
            left, others = (
                [w for w in g if all(w is not t for t in taken)] for g in (left, others)
            )
            if len({w.shape[-2:] for w in taken}) > 1:
                pooled.append(place)
    result.error = max(errors)
    return _faults(result, left, wrong, false, pooled)


def _first(pair):
    return pair[0]


def groups(near):
    """Operators that one slot may stand for: each alone, and those of one call of a module together."""
    yield from ([w] for w in near)
    calls = defaultdict(list)
    for w in near:
        calls[w.path, w.call].append(w)
        calls[w.path, w.call, w.shape].append(w)
    yield from (together for together in calls.values() if len(together) > 1)


def _faults(result, left, wrong, false, pooled):
    faults = {}
    if wrong:
        place, off, near = wrong[0]
        shapes = sorted({str(list(w.shape)) for w in near})[:3]
        faults["wrong number"] = (
            f"{len(wrong)} of {_name(place)} off by {off:.2g}, operators {', '.join(shapes)}"
        )
        left = left[len(wrong) :] if len(left) >= len(wrong) else []
    silent = [w for w in left if not any(_named(w, text) for text in result.told)]
    if silent:
        faults["unseen in silence"] = (
            f"{len(silent)} of {silent[0].path[-1] if silent[0].path else ''} {list(silent[0].shape)}"
        )
    named = len(left) - len(silent)
    if named:
        faults["unseen, named"] = f"{named} operators"
    if pooled:
        faults["pooled"] = f"{len(pooled)} slots hold several operators, as {_name(pooled[0])}"
    if false:
        faults["false rows"] = f"{len(false)} of {_name(false[0])}"
    return faults


def _named(weights, text):
    """Does the text have the name of the module that attends, or of the one around it?"""
    words = {word.strip(".") for word in re.split(r"[^\w.]+", text)}
    return any(name in words for name in weights.path[-2:] if name)


def _name(place):
    return f"{place[0]} (call {place[1]}, {place[2]}, {place[3]})"


def _slots(rows):
    slots = defaultdict(list)
    for row in rows:
        slots[row.layer, row.call, row.phase, row.kind, row.index].append(row)
    return slots


def distance(heads, together):
    """How far the rows of a slot are from some operators: entropies and numbers of rows, per head."""
    got = torch.tensor([r.entropy for r in heads], dtype=torch.float64)
    rows = torch.tensor([r.rows for r in heads], dtype=torch.float64)
    choices = [list(readings(w, len(heads))) for w in together]
    best = math.inf
    for parts in zip(*choices, strict=False):
        total = sum((entropy * counted).sum(1) for entropy, counted in parts)
        count = sum(counted.sum(1) for _, counted in parts)
        off = (got - total / count).abs()[count > 0]
        error = float(off.max()) if off.numel() else 0.0
        best = min(best, error if torch.equal(rows, count.double()) else max(error, 1.0))
    return best


def readings(weights, heads):
    """Entropies and rows that had a choice, [heads, rest], for each axis that may be the heads.

    A sink that scales the output after the softmax may count as an outcome or not.
    """
    entropies, counted = [weights.entropy], weights.visible >= 2
    if weights.sink is not None:
        both = torch.special.entr(weights.sink) + torch.special.entr(1 - weights.sink)
        entropies.append((1 - weights.sink) * weights.entropy + both)
    for entropy in entropies:
        for axis, size in enumerate(entropy.shape):
            if size % heads == 0:
                yield _by_head(entropy, axis, heads), _by_head(counted, axis, heads)
        if heads == 1:
            yield entropy.reshape(1, -1), counted.reshape(1, -1)


def _by_head(x, axis, heads):
    """x with the heads of one axis, the innermost part of it, in front: [heads, rest]."""
    x = x.movedim(axis, 0)
    return x.reshape(x.shape[0] // heads, heads, -1).movedim(1, 0).reshape(heads, -1)
