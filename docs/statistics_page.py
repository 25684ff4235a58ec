"""Write the page of statistics from their table.

python docs/statistics_page.py > docs/reference/statistics.md
"""

import sys
from pathlib import Path
from typing import Any

HEAD = """# Statistics

<!-- written by docs/statistics_page.py from the table in attentropy/core/statistics.py -->

One table says what is known of an attention head. Which sums a watch keeps, the fields of
[`HeadRow`](models.md), `stats.per_head()`, run stores, [scan.json](../scan-schema.md), CSV and
Parquet exports, the report, terminal tables and names in TensorBoard are read from it.
[How to add one](../contributing/architecture.md#adding-a-statistic).

p is one row of attention (one query), s its final logits, n the number of keys that the query sees,
i and j the positions of query and key. Logarithms are natural. A head's number is taken over its
rows that had a choice, that is, saw two keys or more; it is NaN (in files null) where it does not
apply. `row["S"]` and `row["density"]` are the same: symbols serve as names too.

"""
TAIL = """
*sampled*: needs every weight of a row, and is taken on evenly spaced rows of each call, unless
`watch(model, sample=None)` asks for all. *sampled unless rows are kept*:
`watch(model, keep="rows")`, as a scan does, takes every row. *derived*: made of other means, or of
sums over pairs of heads. Monitors log the aggregates named under *logged* as
`attn/<name>/<aggregate>`.

`density` S is what the source documents call sparsity: it is 1 when attention is dense.
`stats.sparsity` and `row.sparsity` are that number by the documents' name.
"""


def page() -> str:
    """The text of docs/reference/statistics.md."""
    from attentropy.core.statistics import TABLE

    return HEAD + _table([_cells(one) for one in TABLE.values()]) + TAIL


def _cells(one: Any) -> list[str]:
    better = "" if one.better == "neither" else one.better
    taken = {"never": "", "always": ", sampled"}.get(one.sampled, f", sampled {one.sampled}")
    return [
        f"`{one.name}`",
        one.symbol,
        one.label,
        f"{one.formula}. {one.meaning}",
        f"{one.low} → {one.high}",
        _range(one.range) + (f" {one.unit}" if one.unit else ""),
        better,
        one.averaging + taken,
        ", ".join(one.logged),
    ]


def _range(found: tuple[float | None, float | None]) -> str:
    least, most = ("" if x is None else f"{x:g}" for x in found)
    return f"{least} to {most}" if most else f"{least} or more" if least else "any"


def _table(rows: list[list[str]]) -> str:
    titles = ["name", "symbol", "label", "what it is", "low → high", "range", "better",
              "over a head", "logged"]  # fmt: skip
    return "".join(_line(cells) for cells in (titles, ["---"] * len(titles), *rows))


def _line(cells: list[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    sys.stdout.write(page())
