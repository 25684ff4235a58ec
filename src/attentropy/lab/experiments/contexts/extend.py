"""extend: past the trained length, does anything retrieve better than the published settings?

Without a model the embedded one is taken, which suffers dilution: the published setting is log n.
`attentropy lab extend --model MODEL --tokens IDS.npy` takes a model with rotary positions, which
suffers distance: the published setting is YaRN with its own temperature, and passkeys judge. Many
settings read short windows that reach far (`extensions/fits/far_windows.py`); a few read whole
texts. Settings are fitted on the first half of the tokens, and judged on the second.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import NamedTuple

import msgspec
import torch
from torch import Tensor, nn

from attentropy.core.errors import ArgumentError
from attentropy.extensions import candidates, passkeys
from attentropy.extensions.candidates import TRUNCATED, UNTOUCHED, Setting, Task
from attentropy.extensions.extend import task_of
from attentropy.extensions.fits import far_windows, temperatures
from attentropy.extensions.fits.far_windows import FarProbe
from attentropy.extensions.passkeys import Encode, Haystack
from attentropy.extensions.reading import Attempt, tried
from attentropy.extensions.screening import Probe
from attentropy.lab.harness.experiment import Experiment, FigureSpec, Row, TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.subjects.real_heads import EMBEDDED, Given
from attentropy.lab.subjects.sample_text import embedded_model, sample_tokens
from attentropy.models.losses.paired import Paired, paired
from attentropy.models.rope import settings
from attentropy.models.rope.settings import Rope

LOG_N, YARN = "log n", "YaRN"
EACH, LAYER = "temperature per head", "temperature per layer"
BANDS, MIXED = "bands by the distance probe", "bands, temperature per head"
BARE, SQUARED, ABF = "YaRN, no temperature", "YaRN made for the square", "Entropy-ABF"
FIT_LAYERS = "frequencies and layers fitted to retrieval"
FIT_HEADS = "frequencies and heads fitted to retrieval"
FIT_YARN = "YaRN, heads fitted to retrieval"
FIT_SLOW = "slow frequencies and heads fitted to retrieval"
FIT_HALF = "half way from YaRN to the fit"  # of frequencies and heads
TO_RETRIEVAL = {  # frequencies are fitted, layers share a temperature, only slow frequencies
    FIT_LAYERS: (True, True, False),
    FIT_HEADS: (True, False, False),
    FIT_YARN: (False, False, False),
    FIT_SLOW: (True, False, True),
}
ABF_BASE = 500_000.0
LIMITS = (
    (1, 4),
    (1, 8),
    (2, 16),
    (1, 32),
    (4, 32),
    (0.5, 2),
)  # turns between which waves slow down
HALF = "untouched, half the trained length"


@dataclass(frozen=True)
class ExtendConfig:
    """Which model, how far, and what is tried.

    Attributes:
        model: its name.
        trained: the trained length.
        lengths: numbers of tokens to read.
        rules: what is tried, the published setting first.
        last: tokens at the end of a text whose loss is judged.
        screened: what reads short windows that reach as far as the shortest of the lengths.
        keys: passkeys in a text.
    """

    model: str = EMBEDDED
    trained: int = 128
    lengths: tuple[int, ...] = (512, 1024, 2048)
    rules: tuple[str, ...] = (LOG_N, TRUNCATED, UNTOUCHED, "window", EACH, LAYER)
    last: int = 64
    screened: tuple[str, ...] = ()
    keys: int = passkeys.COUNT


ROTARY = (YARN, FIT_HALF, FIT_SLOW, FIT_HEADS, SQUARED, TRUNCATED)
SCREENED = (
    YARN, BARE, SQUARED, ABF, UNTOUCHED, BANDS, LAYER, EACH, MIXED, FIT_LAYERS, FIT_HEADS, FIT_YARN,
    FIT_HALF, FIT_SLOW,
)  # fmt: skip
WITHIN = " in windows to "
JUDGED_WINDOWS = 2  # for each seed


class Subject(NamedTuple):
    """The model and the text of a run.

    Attributes:
        model: the model.
        tokens: a long text, one row of ids.
        encode: a string to ids; None asks for no passkeys.
    """

    model: nn.Module
    tokens: Tensor
    encode: Encode | None = None


def conditions(config: ExtendConfig) -> Sequence[str]:
    """Every rule at every length, the untouched model inside its range, and the short windows.

    Args:
        config: sizes of the experiment.
    """
    short = [f"{rule}{WITHIN}{min(config.lengths)}" for rule in config.screened]
    return [HALF, *(f"{rule} at {n}" for n in config.lengths for rule in config.rules), *short]


def measure(
    config: ExtendConfig, condition: str, seed: int, *, subject: Callable[[], Subject]
) -> list[Row]:
    """Loss of the end of one text, and the loss of the digits of each passkey in it.

    Args:
        config: sizes of the experiment.
        condition: one of conditions(config).
        seed: the number of the text.
        subject: gives model and text.
    """
    if WITHIN in condition:
        return _screened(condition, seed, config, subject)
    reader = subject()
    rule, _, length = condition.rpartition(" at ")
    n = int(length) if rule else config.trained // 2
    task = task_of(reader.model, reader.tokens, to=n, trained=config.trained)
    setting = _setting(rule, task, subject, config.last) if rule else Setting(name=UNTOUCHED)
    text = _text(reader, n, config, seed)
    found = tried(setting, reader.model, task, text, window=seed, last=config.last)
    return _rows(rule or HALF, n, found)


def _rows(rule: str, n: int, found: Attempt) -> list[Row]:
    loss = sum(found.losses) / len(found.losses)
    keys = zip(found.digits, found.hits, strict=True)
    return [
        {"rule": rule, "n": n, "loss": loss},
        *(
            {"rule": rule, "n": n, "depth": i, "digits": digits, "found": float(hit)}
            for i, (digits, hit) in enumerate(keys)
        ),
    ]


def _screened(
    condition: str, seed: int, config: ExtendConfig, subject: Callable[[], Subject]
) -> list[Row]:
    """Losses of short windows of the second half of the tokens."""
    reader = subject()
    rule, _, length = condition.rpartition(WITHIN)
    n = int(length)
    assert reader.encode is not None
    task = task_of(reader.model, reader.tokens, to=n, trained=config.trained)
    setting = _setting(rule, task, subject, config.last)
    text = reader.tokens[len(reader.tokens) // 2 :]
    seeds = range(seed * JUDGED_WINDOWS, (seed + 1) * JUDGED_WINDOWS)
    probe = FarProbe.of(text, reader.encode, task, seeds)
    digits, plain = probe.measured(setting, reader.model)
    return [
        *({"rule": rule, "n": n, "depth": i, "far_loss": loss} for i, loss in enumerate(plain)),
        *({"rule": rule, "n": n, "depth": i, "far_digits": loss} for i, loss in enumerate(digits)),
    ]


def _text(reader: Subject, n: int, config: ExtendConfig, seed: int) -> Haystack:
    """Text number `seed` from the second half of the tokens; the first half is for temperatures."""
    half = len(reader.tokens) // 2
    room = len(reader.tokens) - half - n
    if room < 0:
        raise ArgumentError("tokens", f"at least {2 * n}", len(reader.tokens))
    start = half + int(torch.randint(room + 1, (), generator=torch.Generator().manual_seed(seed)))
    text = reader.tokens[start : start + n]
    if reader.encode is None:
        return passkeys.plain(text, length=n)
    return passkeys.hidden(
        text, reader.encode, length=n, last=config.last, seed=seed, count=config.keys
    )


def _setting(rule: str, task: Task, subject: Callable[[], Subject], last: int) -> Setting:
    """The setting of a rule; fits are made once for each length."""
    plain = {
        UNTOUCHED: Setting(name=UNTOUCHED),
        TRUNCATED: Setting(name=TRUNCATED, truncated=True),
        LOG_N: Setting(name=LOG_N, log_length=True),
        "window": Setting(name="window", window=task.trained - 1, sinks=1),
    }
    if rule in plain:
        return plain[rule]
    return _positions(rule, task) or _fitted(rule, task.to, task.trained, last, subject)


def _positions(rule: str, task: Task) -> Setting | None:
    trained, to = task.trained, task.to
    if rule == YARN:
        return Setting(name=rule, rope=settings.yarn(trained=trained, to=to))
    if rule == BARE:
        rope = settings.yarn(trained=trained, to=to, attention_factor=1.0)
        return Setting(name=rule, rope=rope)
    if rule == SQUARED:
        return Setting(name=rule, rope=settings.yarn(trained=trained, to=to * to // trained))
    if rule == ABF:
        rope = Rope(rope_type="default", rope_theta=ABF_BASE, max_position_embeddings=to)
        return Setting(name=rule, rope=rope, log_length=True)
    return None


@cache
def _fitted(rule: str, to: int, trained: int, last: int, subject: Callable[[], Subject]) -> Setting:
    """What is fitted with the probe, on the first half of the text."""
    reader = subject()
    text = reader.tokens[: len(reader.tokens) // 2]
    task = task_of(reader.model, text, to=to, trained=trained)
    if rule in TO_RETRIEVAL:
        return _to_retrieval(rule, reader, task, text)
    if rule == FIT_HALF:
        base, found = _positions(YARN, task), _fitted(FIT_HEADS, to, trained, last, subject)
        assert base is not None
        return far_windows.between(base, found, reader.model, share=0.5, name=rule)
    probe = Probe.of(reader.model, task, text, last=last)
    turning = candidates.why_unscaled(reader.model) is None
    base = _positions(YARN, task) if turning else Setting(name=LOG_N, log_length=True)
    assert base is not None
    if rule in (BANDS, MIXED):
        base = _best_bands(reader.model, task, probe)
    if rule == BANDS:
        return base
    each = temperatures.one_per_head(base, reader.model, probe.fit, name=rule)
    return _by_layer(each) if rule == LAYER else each


def _to_retrieval(rule: str, reader: Subject, task: Task, text: Tensor) -> Setting:
    """From YaRN on, with the loss of digits and of text in short windows that reach far."""
    base = _positions(YARN, task)
    assert base is not None
    assert reader.encode is not None
    probe = FarProbe.of(text, reader.encode, task, range(far_windows.STEPS))
    waves, shared, slow = TO_RETRIEVAL[rule]
    return far_windows.fitted(
        base, reader.model, probe, name=rule, waves=waves, shared=shared, slow=slow
    )


def _best_bands(model: nn.Module, task: Task, probe: Probe) -> Setting:
    """Of several limits between waves that stay and waves that slow down, the least loss."""
    own = settings.yarn(trained=task.trained, to=task.to).attention_factor
    assert own is not None
    found = [
        Setting(
            name=BANDS,
            rope=settings.bands(
                candidates.ramp(model, task, slow=slow, fast=fast),
                trained=task.trained,
                to=task.to,
                attention_factor=own,
            ),
        )
        for slow, fast in LIMITS
    ]
    return min(found, key=lambda one: float(probe.fit.of_candidate(one, model).mean()))


def _by_layer(setting: Setting) -> Setting:
    """The factors of heads replaced by the geometric mean of their layer."""
    assert setting.heads is not None
    means = {
        layer: (temperatures.typical({layer: heads}),) * len(heads)
        for layer, heads in setting.heads.items()
    }
    return msgspec.structs.replace(setting, heads=means)


def against(results: RunResults, rule: str, published: str, n: int, metric: str) -> Paired | None:
    """The published setting -> a rule, over the texts, and passkeys, that both have read.

    Args:
        results: rows of a run.
        rule: what is compared.
        published: what it is compared with.
        n: tokens.
        metric: "loss" or "digits", or "far_loss" or "far_digits" of short windows.
    """
    one, two = (
        {
            (row["seed"], row.get("depth")): row[metric]
            for row in results.where(rule=name, n=n)
            if row.get(metric) is not None
        }
        for name in (published, rule)
    )
    shared = [key for key in one if key in two]
    return paired([one[k] for k in shared], [two[k] for k in shared]) if shared else None


def conclude(results: RunResults) -> list[str]:
    """Say of each rule whether it beats the published setting by two standard errors.

    Args:
        results: rows of a run.
    """
    rules = results.values("rule")
    published = YARN if YARN in rules else LOG_N
    judges = ["digits" if results.values("digits") else "loss", "far_digits"]
    lines = [
        line
        for metric in judges
        for n in sorted(set(results.values("n")))
        for line in _compared(results, published, n, metric)
    ]
    inside = results.over("digits", rule=HALF)
    if inside.size:
        lines.append(f"Inside, at half the trained length: digits {inside.text(3)}.")
    return lines


WORDS = {
    "loss": ("tokens", "the loss"),
    "digits": ("tokens", "the loss of the digits"),
    "far_digits": ("positions of short windows", "the loss of the digits"),
}


def _compared(results: RunResults, published: str, n: int, metric: str) -> list[str]:
    """A sentence about everything that was compared at a length; none if nothing was."""
    where, what = WORDS[metric]
    rules = [rule for rule in results.values("rule") if rule != published]
    compared = {rule: against(results, rule, published, n, metric) for rule in rules}
    kept = {rule: change for rule, change in compared.items() if change is not None}
    better = [f"{rule} ({change})" for rule, change in kept.items() if change.helps]
    said = ", ".join(better) or "nothing"
    many = "beat" if len(better) > 1 else "beats"
    sentence = f"At {n} {where}, {said} {many} {published} by two standard errors of {what}."
    return [sentence] if kept else []


@cache
def _embedded() -> Subject:
    return Subject(embedded_model(), sample_tokens())


def on(given: Given) -> Experiment:
    """This experiment on a given model, at 1.5 and 2 times its trained length.

    Args:
        given: model, text, tokenizer and name.
    """
    subject = Subject(given.model, given.tokens, given.encode)
    task = task_of(given.model, given.tokens, to=None)
    turning = candidates.why_unscaled(given.model) is None
    trained = task.trained
    full = ExtendConfig(
        model=given.name,
        trained=trained,
        lengths=(trained * 3 // 2, trained * 2),
        rules=_rules(given) if turning else ExtendConfig.rules,
        last=min(1024, trained // 2),
        screened=SCREENED if turning and given.encode is not None else (),
        keys=min(30, max(passkeys.COUNT, trained // 256)),
    )
    quick = replace(full, lengths=full.lengths[:1], rules=full.rules[:1], screened=())
    return replace(
        EXPERIMENT, full=full, quick=quick, measure=partial(measure, subject=lambda: subject)
    )


def _rules(given: Given) -> tuple[str, ...]:
    """Without a tokenizer nothing is fitted to retrieval."""
    return ROTARY if given.encode is not None else (YARN, BANDS, SQUARED, TRUNCATED)


EXPERIMENT = Experiment(
    name="extend",
    question="Past the trained length, does anything read or retrieve better than log n or YaRN?",
    full=ExtendConfig(),
    quick=ExtendConfig(lengths=(256,), rules=(LOG_N, TRUNCATED, UNTOUCHED)),
    conditions=conditions,
    measure=partial(measure, subject=_embedded),
    tables=(
        TableSpec("Loss of the last tokens, nats", "loss", ("rule",), "n", digits=3),
        TableSpec("Loss of the digits of passkeys, nats per token", "digits", ("rule",), "n",
                  digits=3),
        TableSpec("Share of passkeys found", "found", ("rule",), "n"),
        TableSpec("Short windows that reach far: loss of the digits", "far_digits", ("rule",), "n",
                  digits=3),
        TableSpec("Short windows that reach far: loss of the text", "far_loss", ("rule",), "n",
                  digits=3),
    ),
    figures=(
        FigureSpec("loss", "Loss of the last tokens", "n", "loss", "rule",
                   labels=("tokens", "nats per token"), log="x"),
    ),
    conclude=conclude,
    on=on,
)  # fmt: skip
