"""extrapolate/language: byte models trained at 64 (masked) or 128 (causal), tested up to 16x."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attentropy.lab.experiment import Experiment, Figure, Row, Table
from attentropy.lab.populations import sample
from attentropy.lab.rows import Results
from attentropy.lab.small_model import MASK, ByteModel, held, set_scales, spreads, windows
from attentropy.masks import causal
from attentropy.nn.multihead import MultiheadAttention
from attentropy.nn.positions import ALiBi, Positions
from attentropy.nn.rotary import NTK, RotaryPositions
from attentropy.scales import LogLength, LogLengthFrom, Mixed, ScaleRule

PLAIN = "1/sqrt d"
TASKS = {"masked": 64, "causal": 128}
UNLEARNED = 20.0  # %: the commonest byte, a blank, is one in six
JUDGED = 64  # last bytes of a window that are scored, whatever its length


@dataclass(frozen=True)
class Config:
    """`trained` is by "task positions rule"; tests are at `times` the trained length."""

    width: int = 64
    heads: int = 4
    layers: int = 2
    steps: int = 1500
    tokens: int = 2048  # bytes in a batch
    rate: float = 3e-3
    hidden: float = 0.15
    times: tuple[int, ...] = (1, 2, 4, 8, 16)
    tested: int = 16384  # bytes read in the test of one length
    target: float = 2.6  # nats, for the steps that training needs
    positions: tuple[str, ...] = ("RoPE", "ALiBi", "no positions")
    rules: tuple[str, ...] = (PLAIN, "log n", "mixed", "QK-norm")


def conditions(config: Config) -> Sequence[str]:
    """Masked rows all see the same n, where log n is 1/sqrt d in training: not trained twice."""
    return [
        f"{task}, {positions}, {rule}"
        for rule in config.rules
        for task in TASKS
        for positions in config.positions
        if not (task == "masked" and rule == "log n")
    ]


def _positions(name: str, heads: int, factor: float = 1.0) -> Positions | None:
    if name == "RoPE":
        return RotaryPositions(scaling=NTK(factor) if factor > 1 else None)
    return ALiBi(heads) if name == "ALiBi" else None


def _model(config: Config, task: str, positions: str, rule: str) -> ByteModel:
    scales: dict[str, Callable[[], ScaleRule]] = {
        "log n": lambda: LogLength((config.width // config.heads) ** 0.5 / math.log(TASKS[task])),
        "mixed": Mixed,
    }
    scale = scales[rule]() if rule in scales else None
    return ByteModel(
        config.width,
        config.layers,
        lambda: MultiheadAttention(
            config.width,
            config.heads,
            mask=causal if task == "causal" else None,
            positions=_positions(positions, config.heads),
            scale=scale,
            qk_norm="rms" if rule == "QK-norm" else None,
        ),
    )


def _posed(task: str, tokens: Tensor, hidden: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """What the model sees, and the bytes asked for (-100 where nothing is asked)."""
    if task == "causal":
        return tokens[:, :-1], tokens[:, 1:]
    tokens = tokens[:, :-1]
    hide = torch.rand(tokens.shape, generator=rng) < hidden
    return tokens.masked_fill(hide, MASK), tokens.masked_fill(~hide, -100)


def _trained(
    config: Config, model: ByteModel, task: str, text: Tensor, rng: torch.Generator
) -> float:
    """Train; returns the first step at which the smoothed loss is below the target."""
    n = TASKS[task]
    optimiser = torch.optim.AdamW(model.parameters(), config.rate)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimiser, config.rate, config.steps, pct_start=0.1)
    smooth, reached = math.log(256), math.nan
    for step in range(config.steps):
        tokens = windows(text, n + 1, config.tokens // n, rng)
        seen, asked = _posed(task, tokens, config.hidden, rng)
        loss = F.cross_entropy(model(seen)[0].flatten(0, 1), asked.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        plan.step()
        smooth = 0.9 * smooth + 0.1 * loss.item()
        if smooth < config.target and math.isnan(reached):
            reached = step
    return reached


def measure(config: Config, condition: str, seed: int) -> list[Row]:
    """Train one model, test it at every length as trained and under rules of the test."""
    task, positions, rule = condition.split(", ")
    rng = torch.Generator().manual_seed(seed)
    text = sample()
    model = _model(config, task, positions, rule)
    reached = _trained(config, model, task, text[:-20480], rng)
    model.eval()
    about = {"task": task, "positions": positions}
    rows: list[Row] = [{**about, "rule": rule, "kind": "training", "steps_to_target": reached}]
    judged, n0 = text[-20480:], TASKS[task]
    layers = model.stack.attentions
    trained = [layer.scale for layer in layers]
    with torch.no_grad():
        plan = held(spreads(model, layers, windows(judged, n0, 16, rng)), n0)
        for times in config.times:
            for name, scales, factor in _at_test(rule, positions, trained, plan, n0, times):
                set_scales(layers, scales)
                for layer in layers:
                    layer.positions = _positions(positions, config.heads, factor)
                shown = {**about, "rule": name, "n": n0 * times}
                rows.append({**shown, **_judge(config, model, task, judged, n0 * times)})
    return rows


def _at_test(
    rule: str, positions: str, trained: list, plan: list, n0: int, times: int
) -> list[tuple[str, list, float]]:
    """Names, scales of the layers and stretch of the positions."""
    found: list[tuple[str, list, float]] = [(rule, trained, 1.0)]
    if rule not in (PLAIN, "QK-norm"):
        return found
    log = [LogLengthFrom(n0)] * len(trained)
    found += [(f"{rule}, log n at test", log, 1.0), (f"{rule}, calibrated", plan, 1.0)]
    if positions == "RoPE":
        found += [(f"{rule}, NTK", trained, times), (f"{rule}, NTK, log n at test", log, times)]
    return found


def _judge(config: Config, model: ByteModel, task: str, text: Tensor, n: int) -> Row:
    """Accuracy, loss and entropy over the last bytes (causal) or the hidden ones (masked)."""
    rng = torch.Generator().manual_seed(7)
    count = max(2, config.tested // n)
    ends = torch.linspace(n + 1, len(text), count).long()
    tokens = text[ends[:, None] - torch.arange(n + 1, 0, -1)]
    logits, entropy = [], []
    seen, asked = _posed(task, tokens, config.hidden, rng)
    for part in seen.split(max(1, 8192 // n)):
        out, stats = model(part)
        logits.append(out)
        entropy.append(torch.stack([s.normalized_entropy[..., -JUDGED:].nanmean() for s in stats]))
    whole = torch.cat(logits)
    if task == "causal":
        whole, asked = whole[:, -JUDGED:], asked[:, -JUDGED:]
    wanted = asked != -100
    loss = F.cross_entropy(whole[wanted], asked[wanted]).item()
    right = (whole.argmax(-1)[wanted] == asked[wanted]).float().mean().item()
    return {
        "accuracy": 100 * right,
        "perplexity": math.exp(min(loss, 30.0)),
        "entropy": torch.stack(entropy).mean().item(),
    }


def _level(results: Results, rule: str, n: int) -> float:
    return results.mean("accuracy", rule=rule, n=n)


def conclude(results: Results) -> list[str]:
    """Does log n help, for which positions, and what does it cost at the trained length?"""
    lines = []
    tested = results.where(task=tuple(TASKS))
    for task in tested.values("task"):
        n0 = TASKS[task]
        for positions in tested.where(task=task).values("positions"):
            chosen = tested.where(task=task, positions=positions)
            at = [n for n in chosen.values("n") if n in (n0, 4 * n0, 16 * n0)]
            log = PLAIN + ", log n at test"
            gain = {n: _level(chosen, log, n) - _level(chosen, PLAIN, n) for n in at}
            gains = ", ".join(f"{n // n0}x {points:+.1f}" for n, points in gain.items())
            far = max(at)
            levels = {r: _level(chosen, r, far) for r in chosen.values("rule")}
            levels = {r: x for r, x in levels.items() if math.isfinite(x)}
            best = max(levels, key=levels.__getitem__)
            if _level(chosen, PLAIN, n0) < UNLEARNED:
                lines.append(
                    f"{task}, {positions}: at the trained length {_level(chosen, PLAIN, n0):.1f} % "
                    "right, hardly more than always naming the commonest byte. These models have "
                    "not begun to look at their context, so nothing can be said of length."
                )
                continue
            lines.append(
                f"{task}, {positions}: log n at test time gains {gains} points of accuracy; best "
                f"at {far // n0}x is {best} ({levels[best]:.1f} %, "
                f"1/sqrt d {levels[PLAIN]:.1f} %)."
            )
    lines.append(
        "Published (masked, trained at 64, words, a far larger model): 1/sqrt d 43.27/36.53/23.02/"
        "15.12/11.54 and log n 43.11/41.17/34.04/20.15/13.58 at 64/128/256/512/1024."
    )
    return lines


EXPERIMENT = Experiment(
    name="extrapolate/language",
    question="Byte language models beyond their trained length: when does log n help?",
    full=Config(),
    quick=Config(
        width=32, heads=2, steps=150, tokens=1024, times=(1, 4), tested=8192, rules=(PLAIN,),
        positions=("RoPE", "no positions"),
    ),
    conditions=conditions,
    measure=measure,
    tables=(
        Table("Accuracy, %, masked", "accuracy", ("positions", "rule"), "n", {"task": "masked"}, 1),
        Table("Accuracy, %, causal", "accuracy", ("positions", "rule"), "n", {"task": "causal"}, 1),
        Table("Perplexity, causal", "perplexity", ("positions", "rule"), "n", {"task": "causal"}),
        Table("Entropy / log n", "entropy", ("task", "positions", "rule"), "n"),
        Table("Steps to the target loss", "steps_to_target", ("positions", "rule"), "task",
              {"kind": "training"}, 0),
    ),
    figures=(
        Figure("masked", "Masked bytes, trained at 64", "n", "accuracy", "rule",
               panels="positions", where={"task": "masked"}, log="x",
               labels=("bytes", "accuracy, %")),
        Figure("causal", "Next byte, trained at 128", "n", "accuracy", "rule",
               panels="positions", where={"task": "causal"}, log="x",
               labels=("bytes", "accuracy, %")),
    ),
    conclude=conclude,
)  # fmt: skip
