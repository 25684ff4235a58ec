"""A title, sentences and a table as HTML that fits light and dark notebooks.

Colours are those of the notebook; there are no scripts, nothing is fetched, and text is escaped.
"""

import html
import math
from collections.abc import Iterable, Sequence
from itertools import islice

MOST = 40
_BOX = "border:1px solid rgba(128,128,128,.45);border-radius:8px;padding:10px 14px;margin:4px 0;"
_FONT = "font:13px/1.5 system-ui,sans-serif;color:inherit;background:transparent;max-width:100%;"
_CELL = "padding:2px 10px;color:inherit;background:transparent;border:0;text-align:"
_LINE = "border-bottom:1px solid rgba(128,128,128,.45);"


def card(
    title: str,
    *,
    notes: Sequence[str] = (),
    head: Sequence[str] = (),
    rows: Iterable[Sequence[object]] = (),
) -> str:
    """HTML of a title, sentences and a table, of which the first 40 rows are shown.

    Args:
        title: what it is.
        notes: sentences below the title.
        head: titles of the columns; none for no table.
        rows: cells; numbers are shown with three digits and stand on the right.

    >>> card("<Plan>", notes=["held at 128"])[-66:]
    '<b>&lt;Plan&gt;</b><div style="opacity:.8">held at 128</div></div>'
    """
    rows = list(rows)
    said = [*notes, f"The first {MOST} of {len(rows):,} rows."] if len(rows) > MOST else notes
    parts = [f"<b>{html.escape(title)}</b>"]
    parts += [f'<div style="opacity:.8">{html.escape(note)}</div>' for note in said]
    if head:
        parts.append(_table(head, islice(rows, MOST)))
    return f'<div class="attentropy-card" style="{_BOX}{_FONT}overflow:auto">{"".join(parts)}</div>'


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    titles = "".join(f'<th style="{_CELL}left;{_LINE}">{html.escape(one)}</th>' for one in head)
    body = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    style = "border-collapse:collapse;margin-top:6px;font-variant-numeric:tabular-nums"
    return f'<table style="{style}"><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>'


def _cell(value: object) -> str:
    side = "right" if isinstance(value, int | float) else "left"
    return f'<td style="{_CELL}{side}">{html.escape(_said(value))}</td>'


def _said(value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
