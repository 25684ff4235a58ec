"""Write the page of statistics from their table.

python docs/statistics_page.py > docs/reference/statistics.md
python docs/statistics_page.py zh > docs/zh/reference/statistics.md
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HEAD = """# Statistics

<!-- written by docs/statistics_page.py from the table in attentropy/core/statistics.py -->

One table defines everything that is measured about an attention head. Which sums a watch keeps, the
fields of [`HeadRow`](models.md), `stats.per_head()`, run stores, [scan.json](../scan-schema.md),
CSV and Parquet exports, the report, terminal tables and names in TensorBoard are read from it. [How
to add one](../contributing/architecture.md#adding-a-statistic).

p is one row of attention (one query), s its final logits, n the number of keys that the query sees,
i and j the positions of query and key. Logarithms are natural. A head's number is taken over its
rows that have a choice, that is, see two keys or more; it is NaN (in files null) where it does not
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


TITLES = ("name", "symbol", "label", "what it is", "low → high", "range", "better",
          "over a head", "logged")  # fmt: skip
CHINESE_HEAD = """# 统计量

<!-- written by docs/statistics_page.py zh from the table in attentropy/core/statistics.py -->

关于一个注意力头知道些什么，由一张表说明。观测时累加哪些和、[`HeadRow`](models.md) 的字段、
`stats.per_head()`、训练记录、
[scan.json](../scan-schema.md)、CSV 和 Parquet 导出、报告、终端表格，以及 TensorBoard 中的名
字，都取自这张表。
[怎样新增一个](../contributing/architecture.md)。

p 是注意力的一行（一个查询），s 是它最终的 logit，n 是该查询看得见的键数，i 和 j 是查询和键的
位置。对数为自然对数。
一个头的数值取自有选择余地的行，即看得见两个以上键的行；不适用时为 NaN（文件中为 null）。
`row["S"]` 与 `row["density"]`
是一回事：符号也可以当名字用。

"""
CHINESE_TITLES = ("名字", "符号", "称呼", "是什么", "低 → 高", "范围", "宜", "在一个头上", "记录")
CHINESE_TAIL = """
*抽样*：需要一行的全部权重，在每次调用中均匀抽取的行上统计，除非 `watch(model, sample=None)`
要求全部。
*不逐行保留时抽样*：`watch(model, keep="rows")`（扫描就是这样）取每一行。*导出*：由别的平均
值，或对成对的头求和得出。
监测器把“记录”一栏的汇总值记为 `attn/<名字>/<汇总>`。

`density` S 就是源文档所说的稀疏度：注意力稠密时为 1。`stats.sparsity` 和 `row.sparsity` 是文
档叫法的同一个数。
"""
CHINESE_WORDS = {"low": "低", "high": "高", "mean": "平均", "maximum": "最大", "derived": "导出"}


def page(language: str = "en") -> str:
    """The text of docs/reference/statistics.md, or of its Chinese page.

    Args:
        language: "en" or "zh".
    """
    from attentropy.core.language.speaking import speaking
    from attentropy.core.statistics import TABLE

    chinese = language == "zh"
    with speaking(language):
        rows = [(_chinese_cells if chinese else _cells)(one) for one in TABLE.values()]
    if chinese:
        return CHINESE_HEAD + _table(CHINESE_TITLES, rows) + CHINESE_TAIL
    return HEAD + _table(TITLES, rows) + TAIL


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


def _chinese_cells(one: Any) -> list[str]:
    from attentropy.core.language.speaking import told

    taken = {"never": "", "always": "，抽样"}.get(one.sampled, "，不逐行保留时抽样")
    least, most = ("" if x is None else f"{x:g}" for x in one.range)
    span = f"{least} 至 {most}" if most else f"不小于 {least}" if least else "任意"
    return [
        f"`{one.name}`",
        one.symbol,
        told(one.label),
        f"{told(one.formula)}。{told(one.meaning)}",
        f"{told(one.low)} → {told(one.high)}",
        span + (f"，单位{told(one.unit)}" if one.unit else ""),
        CHINESE_WORDS.get(one.better, ""),
        CHINESE_WORDS[one.averaging] + taken,
        ", ".join(one.logged),
    ]


def _range(found: tuple[float | None, float | None]) -> str:
    least, most = ("" if x is None else f"{x:g}" for x in found)
    return f"{least} to {most}" if most else f"{least} or more" if least else "any"


def _table(titles: Sequence[str], rows: list[list[str]]) -> str:
    return "".join(_line(cells) for cells in (titles, ["---"] * len(titles), *rows))


def _line(cells: Sequence[str]) -> str:
    escaped = (cell.replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |\n"


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
    sys.stdout.write(page(*sys.argv[1:]))
