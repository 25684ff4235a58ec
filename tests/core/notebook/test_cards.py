import math
from html.parser import HTMLParser

import torch

import attentropy as at
from attentropy.core.notebook.cards import card
from attentropy.models.diagnose import Findings
from tests.report.synthetic import make_scan
from tests.scans.small_llama import llama

EVIL = "</td><script>window.hacked=1</script>"


class Seen(HTMLParser):
    """Tags that are open, all tags, and the text of every cell."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append((tag, dict(attrs)))
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data


def checked(text):
    """Parsed HTML without scripts, links or colours of its own for text and ground."""
    seen = Seen(text)
    assert {tag for tag, _ in seen.tags} <= {
        "div",
        "b",
        "table",
        "thead",
        "tbody",
        "tr",
        "td",
        "th",
    }
    assert all(set(attrs) <= {"class", "style"} for _, attrs in seen.tags)
    assert "http" not in text
    assert "url(" not in text
    return seen


def test_text_is_escaped_and_numbers_are_short():
    seen = checked(
        card(EVIL, notes=[EVIL], head=["a", EVIL], rows=[(EVIL, 0.123456), (None, math.nan)])
    )
    assert seen.cells == ["a", EVIL, EVIL, "0.123", "–", "–"]


def test_long_tables_are_cut_and_say_so():
    text = card("x", head=["n"], rows=[(i,) for i in range(1000)])
    assert len(checked(text).cells) == 41
    assert "The first 40 of 1,000 rows." in text


def test_stats_show_each_head():
    q = torch.randn(2, 3, 5, 8, generator=torch.Generator().manual_seed(0))
    _, stats = at.attend(q, q, q)
    seen = checked(stats._repr_html_())
    assert "Entropy" in seen.cells
    assert f"{float(stats.per_head().entropy[2]):.3g}" in seen.cells
    _, few = at.attend(q, q, q, stats="none")
    checked(few._repr_html_())


def test_a_watch_its_findings_a_scan_and_a_plan():
    model = llama()
    watch = at.watch(model)
    assert "nothing was recorded" in watch._repr_html_()
    with watch:
        model(torch.arange(20)[None])
    seen = checked(watch._repr_html_())
    row = watch.heads()[7]
    assert "model.layers.1.self_attn" in seen.cells
    assert f"{row.entropy:.3g}" in seen.cells
    found = at.diagnose(watch.heads())
    assert isinstance(found, Findings)
    checked(found._repr_html_())
    assert "every head is healthy" in Findings()._repr_html_()
    scan = make_scan(name=EVIL)
    assert "512" in checked(scan._repr_html_()).cells
    assert checked(scan.plan._repr_html_()).cells
    assert EVIL not in scan._repr_html_()
    checked(scan.findings[0]._repr_html_())
