"""scan.json, version 2: what a scan measured, typed; docs/scan-schema.md describes every field.

The head rows of each length are kept whole, and tables, slopes and findings are made from them.
A number that is not finite (a row without a choice, a perplexity of an encoder) is null in JSON.
"""

import math
from typing import Literal

import msgspec

from attentropy.core import formats
from attentropy.core.notebook.cards import card
from attentropy.core.statistics import HeadRow, by_place
from attentropy.models.diagnose import Finding
from attentropy.models.losses.buckets import Bucket
from attentropy.models.losses.cause import Cause
from attentropy.models.losses.paired import Paired
from attentropy.models.plan import Plan
from attentropy.models.record.coverage import ModuleCoverage
from attentropy.models.record.profile import Profile
from attentropy.models.slope import Slope
from attentropy.scans.errors import ScanError
from attentropy.scans.texts import records
from attentropy.scans.texts.records import TextTable

HeadTable = list[list[float | None]]

PLAN = "plan of calibrate"
"""The name of the remedy that a plan is."""


class ScannedModel(msgspec.Struct, forbid_unknown_fields=True):
    """The model that was scanned.

    Attributes:
        name: how people call it.
        source: a path, "embedded", or "package.module:factory".
        kind: where it comes from.
        architecture: the name of its class.
        parameters: the number of its parameters.
        dtype: the precision of its weights.
        device: where it ran.
        device_map: where weights stayed until a module ran: "auto", "cpu" or "disk"; null if all
            were on the device.
        trained_length: the length that it was trained at, if it is known.
        trained_source: who says so: a field of its config, its GGUF file, its tokenizer, the user.
        maximum_length: the longest input that it takes, if there is a limit.
        note: anything else, such as that weights were 4-bit.
    """

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
    trained_source: str = ""
    device_map: str | None = None


class ScannedText(msgspec.Struct, forbid_unknown_fields=True):
    """The text that the model read.

    Attributes:
        description: what it is, in a few words.
        files: the files that it comes from.
        tokens: the number of its tokens.
        tokenizer: what split it into tokens.
        sha256: that of the tokens as little-endian int64.
        special: the special tokens that begin and end every window, in words; "" if there are none.
        warnings: what makes the text a bad sample for this model.
    """

    description: str
    files: list[str]
    tokens: int
    tokenizer: str
    sha256: str
    special: str = ""
    warnings: list[str] = []


class Measure(msgspec.Struct, forbid_unknown_fields=True):
    """Everything measured at one length.

    Attributes:
        length: the number of tokens in a window.
        sequences: the number of windows read.
        tokens: the number of tokens read.
        seconds: how long it took.
        rows: one row per head, in the order of the model.
        profiles: entropy and distance along the sequence, one per layer.
        loss: the mean negative log-likelihood of a token, if the model predicts the next one.
        perplexity: its exponential.
        loss_by_position: the loss in buckets of position; empty if the model predicts nothing.
        stretches: the mean loss of every 64 tokens of the text, in its order, to compare lengths.
    """

    length: int
    sequences: int
    tokens: int
    seconds: float
    rows: list[HeadRow]
    profiles: list[Profile]
    loss: float | None = None
    perplexity: float | None = None
    loss_by_position: list[Bucket] = []
    stretches: list[float | None] = []

    def table(self, name: str) -> HeadTable:
        """A statistic as `table[layer][head]`; None where it is not finite.

        Args:
            name: the name or the symbol of a statistic.
        """
        return [
            [row[name] if math.isfinite(row[name]) else None for row in heads]
            for heads in by_place(self.rows)
        ]


class Skipped(msgspec.Struct, forbid_unknown_fields=True):
    """A length that was asked for and not measured, with the reason."""

    length: int
    reason: str


class Excess(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The loss at some positions beyond the trained length, compared with truncation to it.

    Attributes:
        start: the first position.
        stop: the position after the last.
        change: with truncation (before), and of the whole text (after).
    """

    start: int
    stop: int
    change: Paired


class Remedy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change that was tried on the text.

    Attributes:
        name: what it is, in a few words.
        call: what applies it.
        length: the length that it was tried at.
        change: the loss of the tokens past the trained length, before -> after.
        perplexity_before: over all tokens of the windows.
        perplexity_after: the same with the remedy.
        plan: what `steer` gets, where it is settings of positions.
    """

    name: str
    call: str
    plan: Plan | None = None
    length: int
    change: Paired
    perplexity_before: float
    perplexity_after: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conclusion of a scan.

    Attributes:
        state: "healthy"; "breaks" if the loss rises with the length; "faulty" if heads are broken.
        sentence: the same in words, with the cause.
        breaks_at: the length beyond which it breaks: the trained length, unless the rise shows
            much later; or a shorter length whose windows lose less of the same text.
        noticed_at: the first position at which the loss is certainly above that of truncation.
        excess: the loss beyond the trained length, by position; empty if it was not reached.
        cause: why it breaks, from the two probes; None if it does not break, or if the cause is
            unknown.
    """

    state: Literal["healthy", "breaks", "faulty"]
    sentence: str
    breaks_at: int | None = None
    noticed_at: int | None = None
    excess: list[Excess] = []
    cause: Cause | None = None


class Advice(msgspec.Struct, forbid_unknown_fields=True):
    """One thing to do: why, and the exact call ("" if there is none)."""

    text: str
    call: str


class Maps(msgspec.Struct, forbid_unknown_fields=True):
    """Small attention maps of the sample, one per head, at most 256 x 256.

    Attributes:
        length: the number of tokens that the maps show.
        side: the number of cells in a row; each is one weight, or the mean of a block of tokens
            where `length` is larger.
        labels: the token at the start of each row.
        data: "layer.head" to base64 of zlib-compressed bytes, side * side of them, row by row:
            255 * sqrt(weight / largest weight).
        peak: "layer.head" to the largest weight.
    """

    length: int
    side: int
    labels: list[str]
    data: dict[str, str]
    peak: dict[str, float]


class Scan(
    msgspec.Struct,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="format",
    tag="attentropy.scan",
):
    """A whole scan.

    Attributes:
        version: that of the file format.
        attentropy: the version that made it.
        torch: the version of torch that made it.
        created: when it was made, UTC, ISO 8601.
        seconds: how long it took.
        threads: the number of CPU threads of a process.
        processes: the number of processes that shared the work.
        command: the command line that made it, if one did.
        call: the same from Python.
        complete: False while lengths are still to be measured.
        model: what was scanned.
        input: what it read.
        measures: one entry per length, which increase.
        skipped: lengths that were asked for and not measured.
        slopes: `slopes[layer][head]`, the growth of entropy over the lengths.
        findings: what is notable, the most serious first.
        advice: what helps, of what was tried.
        plan: the scales that hold the entropy, with their effects, if they were asked for.
        maps: small attention maps.
        text: the beginning of the text, and where heads look in it.
        verdict: the conclusion; None while the scan is running.
        remedies: all that was tried, the best first.
        coverage: what was seen of each module with attention, at the last length measured.
    """

    version: Literal[2] = 2
    attentropy: str
    torch: str
    created: str
    seconds: float
    threads: int
    processes: int = 1
    command: str
    call: str
    complete: bool
    model: ScannedModel
    input: ScannedText
    measures: list[Measure]
    skipped: list[Skipped]
    slopes: list[list[Slope]]
    findings: list[Finding]
    advice: list[Advice]
    plan: Plan | None = None
    maps: Maps | None = None
    text: TextTable | None = None
    verdict: Verdict | None = None
    remedies: list[Remedy] = []
    coverage: list[ModuleCoverage] = []

    def _repr_html_(self) -> str:
        from attentropy.scans.judging import words

        if not self.measures:
            return card(f"Scan of {self.model.name}", notes=["nothing is measured yet"])
        return card(
            f"Scan of {self.model.name}",
            notes=[words.headline(self), *words.sentences(self)],
            head=["length", "median entropy", "perplexity"],
            rows=[
                (one.length, words.median_of(one.table("entropy")), one.perplexity)
                for one in self.measures
            ],
        )

    @property
    def lengths(self) -> list[int]:
        """The lengths that were measured."""
        return [measure.length for measure in self.measures]

    @property
    def layers(self) -> list[HeadRow]:
        """The first head of each layer, in the order of the model."""
        return [heads[0] for heads in by_place(self.measures[0].rows)] if self.measures else []

    @property
    def positions(self) -> Plan | None:
        """The best settings of positions that were tried, as a plan; None if none were."""
        return next((one.plan for one in self.remedies if one.plan is not None), None)

    @property
    def heads(self) -> int:
        """The number of heads of all layers."""
        return sum(layer.heads for layer in self.layers)


def encode(scan: Scan) -> bytes:
    """The file's bytes; numbers that are not finite become null.

    Args:
        scan: what to write.
    """
    check(scan)
    return formats.encode(scan)


def decode(data: bytes, *, name: str = "scan.json") -> Scan:
    """Read the file's bytes strictly.

    Args:
        data: what `encode` made.
        name: how an error calls the file.
    """
    scan = formats.decode(data, Scan, name=name, error=_error)
    try:
        check(scan)
    except ScanError as problem:
        raise _error(f"{name} breaks the schema of attentropy.scan: {problem}") from problem
    return scan


def _error(sentence: str) -> ScanError:
    return ScanError("{sentence}", sentence=sentence)


def check(scan: Scan) -> None:
    """Check what types cannot express: lengths increase, all have the same heads, heads exist.

    Args:
        scan: what to check.
    """
    lengths = scan.lengths
    if not lengths or lengths != sorted(set(lengths)):
        raise ScanError("measures must be of increasing lengths, got {found}", found=lengths)
    heads = [layer.heads for layer in scan.layers]
    for measure in scan.measures:
        _check_measure(measure, scan.layers)
    if [len(layer) for layer in scan.slopes] != heads:
        raise ScanError("slopes must have one entry per head of every layer")
    for finding in scan.findings:
        _check_heads(finding, heads)
    if scan.text is not None:
        records.check(scan.text)
    if scan.maps is not None and not 1 <= scan.maps.side <= 256:
        raise ScanError("maps.side must be between 1 and 256, got {side}", side=scan.maps.side)


def _check_measure(measure: Measure, layers: list[HeadRow]) -> None:
    where = f"measure of length {measure.length}"
    wanted = [
        (layer.place, index, head)
        for index, layer in enumerate(layers)
        for head in range(layer.heads)
    ]
    if [(row.place, row.index, row.head) for row in measure.rows] != wanted:
        raise ScanError("{where}: rows must hold every head of every layer, in order", where=where)
    if len(measure.profiles) != len(layers):
        raise ScanError("{where}: profiles must have one entry per layer", where=where)
    for profile, layer in zip(measure.profiles, layers, strict=True):
        _check_profile(profile, layer, where=f"{where}: profile of {layer.place}")


def _check_profile(profile: Profile, layer: HeadRow, *, where: str) -> None:
    bins = len(profile.positions)
    if len(profile.visible) != bins:
        raise ScanError("{where}: visible must have {bins} entries", where=where, bins=bins)
    for name in ("entropy", "distance"):
        curves = getattr(profile, name)
        if [len(curve) for curve in curves] != [bins] * layer.heads:
            text = "{where}: {name} must have {bins} entries for each of {heads} heads"
            raise ScanError(text, where=where, name=name, bins=bins, heads=layer.heads)


def _check_heads(finding: Finding, heads: list[int]) -> None:
    for layer, head in finding.heads:
        if not (0 <= layer < len(heads) and 0 <= head < heads[layer]):
            text = "finding {name!r} names head {head}, which is not in rows"
            raise ScanError(text, name=finding.name, head=(layer, head))
