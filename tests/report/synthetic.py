"""A made-up but plausible scan, for tests of the report only: nothing here was measured."""

import base64
import math
import random
import zlib
from itertools import pairwise

import msgspec

from attentropy.core.statistics import NAMES, HeadRow
from attentropy.models.diagnose import Finding
from attentropy.models.losses.buckets import Bucket, edges
from attentropy.models.losses.paired import Paired
from attentropy.models.plan import Effect, Plan
from attentropy.models.record.coverage import ModuleCoverage
from attentropy.models.record.profile import Profile
from attentropy.scans import schema
from attentropy.scans.judging.judge import slopes_of

BINS = 24
KINDS = ("previous", "sink", "induction", "broad", "blurring", "uniform", "dead")


def make_scan(
    *,
    layers: int = 6,
    heads: int = 8,
    lengths: tuple[int, ...] = (64, 128, 256, 512),
    trained: int = 128,
    seed: int = 0,
    name: str = "synthetic-decoder",
    maps: int = 64,
    calibrate: bool = True,
    sharpen: float = 1.0,
) -> schema.Scan:
    """A scan of a model that does not exist: every head has one of KINDS."""
    rng = random.Random(seed)
    kinds = [[_kind(rng, layer, layers) for _ in range(heads)] for layer in range(layers)]
    tilt = [[rng.random() for _ in range(heads)] for _ in range(layers)]
    measures = [_measure(n, trained, kinds, tilt, sharpen) for n in lengths]
    scan = schema.Scan(
        attentropy="0.0.0",
        torch="2.13.0",
        created="2026-01-02T03:04:05Z",
        seconds=12.5,
        threads=2,
        command=f"attentropy scan {name} --lengths {','.join(map(str, lengths))}",
        call=f"at.scan(model, tokens, lengths={list(lengths)})",
        complete=True,
        model=schema.ScannedModel(
            name=name,
            source=f"/models/{name}",
            kind="transformers",
            architecture="SyntheticForCausalLM",
            parameters=134_515_008,
            dtype="float32",
            device="cpu",
            trained_length=trained,
            maximum_length=4 * trained,
        ),
        input=schema.ScannedText(
            description="synthetic text",
            files=["chapter one.txt"],
            tokens=65536,
            tokenizer="bytes",
            sha256="0" * 64,
        ),
        measures=measures,
        skipped=[schema.Skipped(length=16 * trained, reason=f"the model takes {4 * trained}")],
        slopes=[],
        findings=_findings(kinds),
        advice=[
            schema.Advice(
                text=f"Scale the logits with log n beyond {trained} tokens.",
                call=f"at.steer(model, scale=at.LogLengthFrom({trained}))",
            )
        ],
        plan=_plan(measures, trained, heads) if calibrate else None,
        remedies=_remedies(measures[-1], trained),
        maps=_maps(kinds, maps) if maps else None,
        coverage=[
            ModuleCoverage(module=layer_name(layer), status="verified", calls=1)
            for layer in range(layers)
        ],
    )
    scan.slopes = slopes_of(scan)
    return scan


def layer_name(layer: int) -> str:
    return f"model.layers.{layer}.self_attn"


def change_heads(measure: schema.Measure, **changes) -> None:
    """Give every head of a measure other numbers: values, or functions of its row."""
    measure.rows = [
        msgspec.structs.replace(
            row, **{name: new(row) if callable(new) else new for name, new in changes.items()}
        )
        for row in measure.rows
    ]


def _kind(rng: random.Random, layer: int, layers: int) -> str:
    depth = layer / max(1, layers - 1)
    chances = (3 * (1 - depth) + 0.3, 1 + 3 * depth, 1 + 2 * depth, 3, 2 + depth, 0.5, 0.2)
    return rng.choices(KINDS, chances)[0]


def _entropy(kind: str, visible: float, tilt: float, trained: int) -> float:
    top = math.log(max(visible, 1.0))
    past = max(0.0, math.log(max(visible, 1.0) / trained))
    level = {
        "previous": 0.25 + 0.4 * tilt,
        "sink": 0.6 + 0.7 * tilt,
        "induction": 1.0 + tilt + 0.25 * top,
        "broad": 0.62 * top + tilt * 0.4,
        "blurring": (0.35 + 0.15 * tilt) * top + 0.9 * past,
        "uniform": 0.97 * top,
        "dead": 0.9 * top,
    }[kind]
    return max(0.0, min(level, 0.995 * top))


def _measure(
    n: int, trained: int, kinds: list[list[str]], tilt: list[list[float]], sharpen: float
) -> schema.Measure:
    positions = [(bin + 0.5) * n / BINS for bin in range(BINS)]
    visible = [position + 1 for position in positions]

    def table(function):
        return [
            [function(kind, t) for kind, t in zip(row, ts, strict=True)]
            for row, ts in zip(kinds, tilt, strict=True)
        ]

    def curve(kind, t):
        return [round(sharpen * _entropy(kind, v, t, trained), 4) for v in visible]

    def distance(kind, t):
        share = {"previous": 0.01, "sink": 0.8, "induction": 0.35}.get(kind, 0.3 + 0.2 * t)
        return [round(max(1.0, share * p), 3) for p in positions]

    entropy = table(lambda kind, t: sum(curve(kind, t)) / BINS)
    statistics = {
        "entropy": entropy,
        "normalized_entropy": [[h / (math.log(n) - 0.9) for h in row] for row in entropy],
        "perplexity": [[math.exp(h) for h in row] for row in entropy],
        "density": [[min(1.0, math.exp(h) / n + 0.1) for h in row] for row in entropy],
        "max_logit": table(lambda kind, t: 18.0 * t + (30.0 if kind == "sink" else 4.0)),
        "top_probability": [[math.exp(-0.8 * h) for h in row] for row in entropy],
        "sink_mass": table(lambda kind, t: 0.6 + 0.3 * t if kind == "sink" else 0.05 * t),
        "output_norm": table(lambda kind, t: 0.01 if kind == "dead" else 0.5 + t),
        "gradient_flow": [[1 - math.exp(-0.9 * h) for h in row] for row in entropy],
        "noise_robustness": [[0.76 * math.exp(0.45 * h) for h in row] for row in entropy],
        "distance": table(lambda kind, t: sum(distance(kind, t)) / BINS),
        "previous_share": table(lambda kind, t: 0.8 if kind == "previous" else 0.1 * t),
        "received_concentration": table(lambda kind, t: 0.5 if kind == "sink" else 0.05),
        "spread": table(lambda kind, t: 0.2 if kind == "uniform" else 1 + 2 * t),
    }
    loss = 1.9 - 0.1 * math.log(n / 64) + 0.5 * max(0.0, math.log(n / trained))
    return schema.Measure(
        length=n,
        sequences=65536 // n,
        tokens=65536,
        seconds=0.01 * n,
        rows=_rows(n, statistics),
        profiles=[
            Profile(
                layer=layer_name(layer),
                call=0,
                phase="forward",
                positions=positions,
                visible=visible,
                entropy=[curve(kind, t) for kind, t in zip(row, ts, strict=True)],
                distance=[distance(kind, t) for kind, t in zip(row, ts, strict=True)],
            )
            for layer, (row, ts) in enumerate(zip(kinds, tilt, strict=True))
        ],
        loss=loss,
        perplexity=math.exp(loss),
        loss_by_position=_buckets(n, trained, loss),
    )


def _rows(n: int, statistics: dict[str, list[list[float]]]) -> list[HeadRow]:
    shape = statistics["entropy"]
    known = dict.fromkeys(NAMES, 0.5) | {"visible": n / 2 + 1}
    return [
        HeadRow(
            layer=layer_name(layer),
            index=layer,
            call=0,
            phase="forward",
            kind="self",
            head=head,
            heads=len(row),
            head_dim=64,
            causal=True,
            length=n,
            rows=65536,
            twin=-1,
            **(known | {name: table[layer][head] for name, table in statistics.items()}),
        )
        for layer, row in enumerate(shape)
        for head in range(len(row))
    ]


def _findings(kinds: list[list[str]]) -> list[Finding]:
    texts = {
        "dead": ("critical", "dead", "output norm below 0.02", "Prune these heads."),
        "blurring": (
            "note",
            "entropy grows with length",
            "entropy grows with log n at a slope above 0.7",
            "This describes the head.",
        ),
        "uniform": (
            "warning",
            "near-uniform",
            "normalised entropy above 0.95",
            "Prune or retrain.",
        ),
        "sink": ("note", "sink", "more than half of the mass on the first token", "Leave it."),
        "previous": ("note", "positional only", "previous-token share above 0.7", "Leave it."),
    }
    found = []
    for kind, (severity, name, evidence, advice) in texts.items():
        heads = [
            (layer, head)
            for layer, row in enumerate(kinds)
            for head, here in enumerate(row)
            if here == kind
        ]
        if heads:
            found.append(
                Finding(
                    name=name,
                    severity=severity,
                    heads=heads,
                    labels=[f"{layer_name(layer)}.{head}" for layer, head in heads],
                    evidence=evidence,
                    advice=advice,
                )
            )
    return found


def _buckets(n: int, trained: int, loss: float) -> list[Bucket]:
    bounds = edges(n)
    return [
        Bucket(start=a, stop=b, loss=loss + max(0.0, 0.5 * math.log(b / trained)), error=0.01)
        for a, b in pairwise(bounds)
    ]


def _remedies(measure: schema.Measure, trained: int) -> list[schema.Remedy]:
    names = {"scale with log n": 0.8, "window of 128 with 4 sinks": 0.9, "plan of calibrate": 1.1}
    return [
        schema.Remedy(
            name=name,
            call=f"at.steer(model, scale=at.LogLengthFrom({trained}))",
            length=measure.length,
            change=Paired(before=2.0, after=2.0 * share, error=0.02, texts=40),
            perplexity_before=measure.perplexity,
            perplexity_after=measure.perplexity * share,
        )
        for name, share in names.items()
    ]


def _plan(measures: list[schema.Measure], trained: int, heads: int) -> Plan:
    effects = []
    for measure in measures:
        mean = sum(row.entropy for row in measure.rows) / len(measure.rows)
        past = max(0.0, math.log(measure.length / trained))
        effects.append(
            Effect(
                length=measure.length,
                entropy_before=mean,
                entropy_after=mean - 0.4 * past,
                perplexity_before=measure.perplexity,
                perplexity_after=measure.perplexity * math.exp(-0.4 * past),
            )
        )
    first = layer_name(0)
    return Plan(
        model="SyntheticForCausalLM",
        reference=trained,
        hold="entropy",
        method="empirical",
        lengths=(trained,),
        factors={first: ((1.0,),) * heads},
        entropy={first: (1.0,) * heads},
        spread={first: (1.0,) * heads},
        unheld=((first, 0),),
        effects=tuple(effects),
    )


def _maps(kinds: list[list[str]], side: int) -> schema.Maps:
    data, peak = {}, {}
    for layer, row in enumerate(kinds):
        for head, kind in enumerate(row):
            cells = bytearray(side * side)
            for i in range(side):
                weights = [_weight(kind, i, j) for j in range(i + 1)]
                total = sum(weights)
                for j, weight in enumerate(weights):
                    cells[i * side + j] = round(255 * math.sqrt(weight / total))
            key = f"{layer}.{head}"
            data[key] = base64.b64encode(zlib.compress(bytes(cells), 9)).decode()
            peak[key] = 1.0
    return schema.Maps(
        length=side, side=side, labels=[chr(97 + i % 26) for i in range(side)], data=data, peak=peak
    )


def _weight(kind: str, i: int, j: int) -> float:
    if kind == "previous":
        return 1.0 if j == max(0, i - 1) else 0.005
    if kind == "sink":
        return 1.0 if j == 0 else 0.03
    if kind == "induction":
        return 1.0 if (i - j) % 17 == 16 else 0.02
    return 1.0 + 0.5 * math.sin(0.9 * j)
