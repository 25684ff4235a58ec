"""extrapolate/max-retrieval: the class of the item of largest priority, in ever larger sets.

Priorities are iid and bounded, so the gap between the two largest shrinks like 1/n: scores that are
smooth in the priority keep the entropy of their row only if the scale grows like n, and log n falls
behind. Hidden in the scores is a little of the class as well; once the gap is smaller than that, no
scale helps.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attentropy.core.scales import (
    HoldEntropy,
    InverseSqrt,
    LogLength,
    LogLengthFrom,
    Mixed,
    PowerLength,
)
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.retriever import CLASSES, Retriever, Scale, adaptive, sets
from attentropy.nn.scales.learned import LearnedScale, SSMax

PLAIN, HELD = "1/sqrt d", "entropy held, test only"
ONE_CLASS = "entropy held, sets of one class"


@dataclass(frozen=True)
class RetrievalConfig:
    """Sets of at most `longest` items in training, `lengths` in the test."""

    width: int = 16
    steps: int = 2000
    batch: int = 512
    rate: float = 3e-2
    shortest: int = 2
    longest: int = 16
    lengths: tuple[int, ...] = (16, 64, 256, 1024, 4096, 16384)
    sets: int = 512
    items: int = 2**21  # at most so many items in the test of one length
    trained: tuple[str, ...] = (PLAIN, "log n", "mixed", "SSMax", "learned", "n")
    first: int = 200  # the seed of seed 0: smaller ones were used to choose the above


def _scale(name: str, config: RetrievalConfig) -> Scale:
    rules: dict[str, Callable[[], Scale]] = {
        PLAIN: InverseSqrt,
        "log n": lambda: LogLength(config.width**0.5 / math.log(config.longest)),
        "mixed": Mixed,
        "SSMax": lambda: SSMax(1, reference=config.longest),
        "learned": lambda: LearnedScale(1),
        "n": lambda: PowerLength(1.0, config.longest),
    }
    return rules[name]()


def train(config: RetrievalConfig, name: str, seed: int) -> Retriever:
    """A model trained on sets of shortest .. longest items.

    Args:
        config: sizes of the experiment.
        name: rule of the scale.
        seed: of the random numbers.
    """
    rng = torch.Generator().manual_seed(seed)
    model = Retriever(config.width, _scale(name, config))
    optimiser = torch.optim.AdamW(model.parameters(), config.rate, weight_decay=0.01)
    plan = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, config.rate, total_steps=config.steps, pct_start=0.1
    )
    for _ in range(config.steps):
        n = int(torch.randint(config.shortest, config.longest + 1, (), generator=rng))
        priority, kind, target = sets(config.batch, n, rng)
        optimiser.zero_grad()
        F.cross_entropy(model(priority, kind), target).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        plan.step()
    return model.eval()


def holding(model: Retriever, k: Tensor, v: Tensor, wanted: float) -> float:
    """The scale at which unlabelled sets have the mean entropy `wanted`, by bisection.

    Args:
        model: a trained model.
        k: keys of the sets.
        v: values of the sets.
        wanted: mean entropy to reach.
    """
    low, high = -2.0, 24.0  # logarithms of the factor on 1/sqrt d
    root = k.shape[-1] ** -0.5
    for _ in range(24):
        middle = (low + high) / 2
        entropy = model.read(k, v, root * math.exp(middle))[1].mean().item()
        low, high = (middle, high) if entropy > wanted else (low, middle)
    return root * math.exp(high)


@dataclass(frozen=True)
class Reference:
    """What the trained model does at the longest trained sets."""

    spread: float
    entropy: float
    entropy_of_one_class: float


@torch.no_grad()
def reference(model: Retriever, config: RetrievalConfig, rng: torch.Generator) -> Reference:
    """Spread of the scaled logits in a row, and mean entropies, on unlabelled sets.

    Args:
        model: a trained model.
        config: sizes of the experiment.
        rng: source of random numbers.
    """
    priority, kind, _ = sets(1024, config.longest, rng)
    k, v = model.encoded(priority, kind)
    logits = (model.asked(k) @ k.transpose(2, 3)) * config.width**-0.5
    alike = model.encoded(priority, torch.zeros_like(kind))
    each = (model.read(*one, model.scale)[1].mean().item() for one in ((k, v), alike))
    return Reference(logits.std(-1).mean().item(), *each)


def _at_test(
    model: Retriever, known: Reference, config: RetrievalConfig, n: int, rng: torch.Generator
) -> dict[str, Scale]:
    """Rules for a model trained with 1/sqrt d that are applied only when it is tested."""
    longest = config.longest
    k, v = model.encoded(*sets(max(32, 4096 // n), n, rng)[:2])
    return {
        "log n, test only": LogLengthFrom(longest),
        "HoldEntropy, test only": HoldEntropy(longest, known.spread),
        "n^(1/2), test only": PowerLength(0.5, longest),
        "n, test only": PowerLength(1.0, longest),
        HELD: holding(model, k, v, known.entropy),
    }


@torch.no_grad()
def evaluate(
    model: Retriever, name: str, config: RetrievalConfig, known: Reference, rng: torch.Generator
) -> list[Row]:
    """Accuracy and entropy at every length, under every rule, on the same sets.

    Args:
        model: a trained model.
        name: rule that it was trained with.
        config: sizes of the experiment.
        known: what it does at the longest trained sets.
        rng: source of random numbers.
    """
    rows: list[Row] = []
    for n in config.lengths:
        scales: dict[str, Scale] = {name: model.scale}
        if name == PLAIN:
            scales |= _at_test(model, known, config, n, torch.Generator().manual_seed(n))
            rows.append(_one_class(model, known, n, torch.Generator().manual_seed(n)))
        count, piece = min(config.sets, max(64, config.items // n)), max(1, 2**19 // n)
        parts = [
            _answered(model, name, scales, sets(min(piece, count - start), n, rng))
            for start in range(0, count, piece)
        ]
        for rule in parts[0]:
            right, entropy = (torch.cat(x) for x in zip(*(p[rule] for p in parts), strict=True))
            row = {"rule": rule, "n": n, "accuracy": 100 * right.float().mean().item()}
            if not rule.startswith("largest"):
                row["entropy"] = entropy.mean().item()
            if isinstance(scales.get(rule), float):
                row["factor"] = scales[rule] * config.width**0.5
            rows.append(row)
    return rows


def _answered(
    model: Retriever, name: str, scales: dict[str, Scale], asked: tuple[Tensor, Tensor, Tensor]
) -> dict[str, tuple[Tensor, Tensor]]:
    """For every rule, which sets are answered right, and the entropies of their rows."""
    priority, kind, target = asked
    k, v = model.encoded(priority, kind)
    if name == PLAIN:
        plain = model.read(k, v, model.scale)[1]
        scales = {**scales, "adaptive, test only": _adapted(plain, k.shape[-1])}
    found = {}
    for rule, scale in scales.items():
        logits, entropy = model.read(k, v, scale)
        found[rule] = logits.argmax(-1) == target, entropy
    top = (k[:, 0] @ model.query).argmax(-1, keepdim=True)
    # where sharpening ends: the class of the largest score alone
    found[f"largest score ({name})"] = kind.gather(1, top)[:, 0] == target, torch.zeros(0)
    return found


def _adapted(entropy: Tensor, width: int) -> Tensor:
    return adaptive(entropy)[:, None, None] * width**-0.5


def _one_class(model: Retriever, known: Reference, n: int, rng: torch.Generator) -> Row:
    """The factor that holds the entropy where no class can leak into the order of scores."""
    priority, kind, _ = sets(max(32, 4096 // n), n, rng)
    k, v = model.encoded(priority, torch.zeros_like(kind))
    scale = holding(model, k, v, known.entropy_of_one_class)
    return {"rule": ONE_CLASS, "n": n, "factor": scale * k.shape[-1] ** 0.5}


def measure(config: RetrievalConfig, condition: str, seed: int) -> list[Row]:
    """Train with one rule, test with it (and, for 1/sqrt d, with rules of the test).

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: of the random numbers.
    """
    torch.manual_seed(config.first + seed)
    model = train(config, condition, config.first + seed)
    rng = torch.Generator().manual_seed(1000 + config.first + seed)
    known = reference(model, config, rng)
    rows = evaluate(model, condition, config, known, rng)
    return [*rows, {"rule": condition, "kind": "leak", "leak": model.leak()}]


def gains(results: RunResults) -> RunResults:
    """The rows with `gain`: points above 1/sqrt d, on the same sets of the same seed.

    Args:
        results: rows of a run.
    """
    scored = [row for row in results if row.get("accuracy") is not None]
    base = {(row["seed"], row["n"]): row["accuracy"] for row in scored if row["rule"] == PLAIN}
    rows = []
    for row in results:
        start = base.get((row["seed"], row.get("n")))
        known = start is not None and row.get("accuracy") is not None and row["rule"] != PLAIN
        rows.append({**row, "gain": row["accuracy"] - start} if known else row)
    return RunResults(rows)


def _exponent(results: RunResults, rule: str) -> float:
    """The a of factor ~ n^a by which the scale must grow to hold the entropy, from n = 64 on."""
    lengths, factors = results.where(rule=rule).curve("n", "factor")
    points = [(math.log(n), math.log(f.mean)) for n, f in zip(lengths, factors, strict=True)]
    (x, y), (far_x, far_y) = points[min(1, len(points) - 2)], points[-1]
    return (far_y - y) / (far_x - x)


def conclude(results: RunResults) -> list[str]:
    """Say what each rule gains over the baseline, and what limits the rest.

    Args:
        results: rows of a run.
    """
    lines = [_best(results, n) for n in results.values("n") if n >= 256]
    exponent, alone = (_exponent(results, rule) for rule in (HELD, ONE_CLASS))
    leak = results.mean("leak", condition=PLAIN, kind="leak")
    far = max(results.values("n"))
    limit = results.mean("accuracy", rule=f"largest score ({PLAIN})", n=far)
    lines.append(
        "Theory: the n priorities are independent, and their density does not vanish at its upper "
        "edge, so the gap between the two largest is about 1/n. The row keeps its entropy only if "
        "scale * gap stays the same: the scale must grow like n^1. Measured from n = 64 on, it "
        f"must grow like n^{alone:.2f} where all items are of one class, and like n^{exponent:.2f} "
        f"with ten classes. The reason: the class of an item leaks into its score, by {leak:.1e} "
        "in units of priority. Once gaps are smaller than this leak, only items of the class with "
        "the highest score are left near the top, a tenth of all."
    )
    lines.append(
        "log n falls behind from the start: from 16 to 16384 items it multiplies the scale by 3.5, "
        "where a factor of 1024 is needed. HoldEntropy assumes Gaussian tails, which bounded "
        "scores do not have, and hardly changes the scale at this spread. The published polynomial "
        "(adaptive) multiplies it by 2.4 at most, and by 1 from entropies of 6 nats on."
    )
    lines.append(
        "What is still missing is due to the leak, not to the scale: at n = "
        f"{far} the item with the largest score is of the right class in {limit:.1f} % of the "
        "sets, and no sharpening can do better. At 16 items the leak costs next to nothing, so "
        "training hardly removes it."
    )
    lines.append(
        "Other configurations were tried on seeds that are not reported (0 to 2, 100 and 101; "
        "those reported begin at 200). Points gained at 1024 items by the best rule of the test "
        "ranged from +19.7 to +53.5; width 16 without hidden layers was kept."
    )
    return lines


def _best(results: RunResults, n: int) -> str:
    """The best rules at n, with what they gain."""
    rows = gains(results).where(n=n)
    rules = [r for r in rows.values("rule") if rows.over("gain", rule=r).size]
    rules = [r for r in rules if not str(r).startswith("largest")]
    base = results.mean("accuracy", rule=PLAIN, n=n)
    gain = {r: rows.over("gain", rule=r) for r in rules}
    kinds = {
        "changed in the test only": [r for r in rules if r.endswith("test only")],
        "trained with": [r for r in rules if not r.endswith("test only")],
    }
    best = {kind: max(r, key=lambda r: gain[r].mean) for kind, r in kinds.items() if r}
    each = [
        f" The best rule {kind}, {r.removesuffix(', test only')}, gives "
        f"{base + gain[r].mean:.1f} % ({gain[r].mean:+.1f} ± {gain[r].sd:.1f} points)."
        for kind, r in best.items()
    ]
    at_test = gain.get("log n, test only")
    log_n = "" if at_test is None else f" log n in the test only gains {at_test.mean:+.1f} points."
    return f"n = {n}: 1/sqrt d names {base:.1f} % of the classes.{''.join(each)}{log_n}"


SHOWN = (
    PLAIN,
    "log n, test only",
    "HoldEntropy, test only",
    "n^(1/2), test only",
    "n, test only",
    "adaptive, test only",
    "log n",
    "n",
)  # as many lines as there are colours


def conditions(config: RetrievalConfig) -> Sequence[str]:
    """Rules of training.

    Args:
        config: sizes of the experiment.
    """
    return config.trained


EXPERIMENT = Experiment(
    name="extrapolate/max-retrieval",
    question=(
        "One attention head, trained to name the class of the largest of at most 16 items: "
        "which scale lets it answer for 16384?"
    ),
    full=RetrievalConfig(),
    quick=RetrievalConfig(
        steps=250,
        batch=128,
        lengths=(16, 64, 256, 1024),
        sets=128,
        trained=(PLAIN, "log n", "n"),
    ),
    conditions=conditions,
    measure=measure,
    derive=gains,
    tables=(
        TableSpec("Points gained over 1/sqrt d on the same sets", "gain", ("rule",), "n", digits=1),
        TableSpec("Accuracy, %", "accuracy", ("rule",), "n", digits=1),
        TableSpec("Entropy of the row, nats", "entropy", ("rule",), "n"),
        TableSpec("Factor on 1/sqrt d that holds the entropy", "factor", ("rule",), "n", digits=1),
        TableSpec(
            "Leak of the class into the score, in units of priority",
            "leak",
            ("rule",),
            "kind",
            digits=6,
        ),
    ),
    figures=(
        FigureSpec(
            "accuracy",
            "Naming the class of the largest item, trained on at most 16",
            "n",
            "accuracy",
            "rule",
            labels=("items in the set", "accuracy, %"),
            log="x",
            chance=100 / CLASSES,
            where={"rule": SHOWN},
        ),
    ),
    conclude=conclude,
)
