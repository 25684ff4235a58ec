"""scan.json, version 1: what a scan measured, typed; docs/scan-schema.md describes every field.

Tables of heads are lists of layers, each a list of heads: `table[layer][head]`. A number that
does not exist (a row without a choice, a perplexity of an encoder) is None, in JSON null.
"""

from typing import Any, Literal

import msgspec

from attentropy.core.errors import AttentropyError
from attentropy.scans.judging.statistics import DIAGNOSTIC, STATISTIC

VERSION = 1

Number = float | None
Table = list[list[Number]]
Curves = list[list[list[Number]]]
Head = tuple[int, int]


class ScanError(AttentropyError, ValueError):
    """A scan file or a request for a scan is not usable; the message is one sentence."""


class _Part(msgspec.Struct, forbid_unknown_fields=True):
    """A part of the file: unknown fields are refused, so that misspellings show."""


class Model(_Part):
    """What was scanned."""

    name: str
    source: str
    kind: Literal["embedded", "transformers", "gguf", "factory", "module"]
    architecture: str
    parameters: int
    dtype: str
    device: str
    trained_length: int | None = None
    maximum_length: int | None = None
    note: str = ""


class Input(_Part):
    """What it read."""

    description: str
    files: list[str]
    tokens: int
    tokenizer: str
    sha256: str


class Layer(_Part):
    """One attention module; `name` is its name in the model."""

    name: str
    heads: int
    head_dim: int
    kind: Literal["self", "cross"] = "self"
    causal: bool = True


class Profile(_Part):
    """Statistics along the sequence, averaged over bins of query positions.

    `positions` are the centres of the bins, `visible` the mean number of visible keys in each;
    `entropy` and `distance` are `[layer][head][bin]`.
    """

    positions: list[float]
    visible: list[float]
    entropy: Curves
    distance: Curves


class Measure(_Part):
    """Everything measured at one length."""

    length: int
    sequences: int
    tokens: int
    seconds: float
    statistics: dict[str, Table]
    profile: Profile
    loss: Number = None
    perplexity: Number = None


class Skipped(_Part):
    """A length that was asked for and not measured."""

    length: int
    reason: str


class Finding(_Part):
    """Something to know about some heads."""

    name: str
    severity: Literal["critical", "warning", "note"]
    heads: list[Head]
    evidence: str
    advice: str
    call: str = ""


class Advice(_Part):
    """One thing to do: why, and the exact call."""

    text: str
    call: str


class CalibrationRow(_Part):
    """One length before and after calibration; entropies are means over heads."""

    length: int
    entropy_before: Number
    entropy_after: Number
    perplexity_before: Number = None
    perplexity_after: Number = None


class Calibration(_Part):
    """What `--calibrate` found: the plan that `steer` takes, and its honest effect."""

    reference: int
    hold: str
    call: str
    plan: dict[str, Any]
    rows: list[CalibrationRow]
    unheld: list[Head]


class Maps(_Part):
    """Small attention maps of the sample, one per head, at most 256 x 256.

    `data` maps "layer.head" to base64 of zlib-compressed bytes, side*side of them, row by row:
    255 * sqrt(weight / largest weight). Each cell is the mean weight of its block of tokens.
    """

    length: int
    side: int
    labels: list[str]
    data: dict[str, str]
    peak: dict[str, float]


class Scan(_Part, kw_only=True):
    """A whole scan; `complete` is False while lengths are still to be measured."""

    schema: Literal["attentropy.scan"] = "attentropy.scan"
    version: int = VERSION
    attentropy: str
    torch: str
    created: str
    seconds: float
    threads: int
    command: str
    call: str
    complete: bool
    model: Model
    input: Input
    layers: list[Layer]
    lengths: list[int]
    measures: list[Measure]
    skipped: list[Skipped]
    slopes: Table
    findings: list[Finding]
    advice: list[Advice]
    calibration: Calibration | None = None
    maps: Maps | None = None


def encode(scan: Scan) -> bytes:
    """The file's bytes. Numbers that are not finite become null."""
    check(scan)
    return msgspec.json.encode(scan) + b"\n"


def decode(data: bytes, *, name: str = "scan.json") -> Scan:
    """Read the file's bytes strictly; `name` is how an error calls the file."""
    try:
        head = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ScanError(f"{name} is not JSON: {error}") from error
    if not isinstance(head, dict) or head.get("schema") != "attentropy.scan":
        raise ScanError(f"{name} is not a scan: its field 'schema' is not 'attentropy.scan'")
    if head.get("version") != VERSION:
        found = head.get("version")
        raise ScanError(f"{name} has schema version {found!r}; this attentropy reads {VERSION}")
    try:
        scan = msgspec.convert(head, Scan)
        check(scan)
    except (msgspec.ValidationError, ScanError) as error:
        raise ScanError(f"{name} breaks the scan schema: {error}") from error
    return scan


def check(scan: Scan) -> None:
    """What types cannot say: shapes agree with the layers, lengths increase, heads exist."""
    heads = [layer.heads for layer in scan.layers]
    if min(heads, default=0) < 1:
        raise ScanError("layers must be non-empty and have at least one head each")
    if scan.lengths != sorted(set(scan.lengths)):
        raise ScanError(f"lengths must increase, got {scan.lengths}")
    if [measure.length for measure in scan.measures] != scan.lengths:
        raise ScanError("measures must hold one entry for each of lengths, in order")
    for measure in scan.measures:
        _check_measure(measure, heads)
    _check_table("slopes", scan.slopes, heads)
    for finding in scan.findings:
        _check_heads(f"finding {finding.name!r}", finding.heads, heads)
    if scan.calibration is not None:
        _check_heads("calibration.unheld", scan.calibration.unheld, heads)
    if scan.maps is not None and not 1 <= scan.maps.side <= 256:
        raise ScanError(f"maps.side must be between 1 and 256, got {scan.maps.side}")


def _check_measure(measure: Measure, heads: list[int]) -> None:
    where = f"measure of length {measure.length}"
    for key, table in measure.statistics.items():
        if key not in STATISTIC and key not in DIAGNOSTIC:
            raise ScanError(f"{where}: unknown statistic {key!r}")
        _check_table(f"{where}: {key}", table, heads)
    bins = len(measure.profile.positions)
    if len(measure.profile.visible) != bins:
        raise ScanError(f"{where}: profile.visible must have {bins} entries")
    for name in ("entropy", "distance"):
        curves = getattr(measure.profile, name)
        _check_table(f"{where}: profile.{name}", curves, heads)
        if any(len(curve) != bins for layer in curves for curve in layer):
            raise ScanError(f"{where}: every curve of profile.{name} must have {bins} entries")


def _check_table(where: str, table: list[list[Any]], heads: list[int]) -> None:
    if [len(layer) for layer in table] != heads:
        raise ScanError(f"{where} must have one number per head of every layer")


def _check_heads(where: str, found: list[Head], heads: list[int]) -> None:
    for layer, head in found:
        if not (0 <= layer < len(heads) and 0 <= head < heads[layer]):
            raise ScanError(f"{where} names head ({layer}, {head}), which is not in layers")
