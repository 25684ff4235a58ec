"""The report in two languages: every text has its phrase, and the page can switch."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import attentropy.report
from attentropy.core.language.phrases import Phrases
from attentropy.core.language.speaking import speaking
from attentropy.report import comparison_page, run_page, scan_page
from attentropy.report.comparison import NamedScan
from attentropy.report.findings.texts import EXPLAINED
from attentropy.report.page import page_phrases, size_of
from attentropy.report.payload import ALL_DESCRIBED, scan_payload
from attentropy.report.predictions import METHODS, RULES
from attentropy.report.text import STATISTICS
from attentropy.scans import schema
from attentropy.scans.judging.judge import judge
from tests.core.language.reading import NEARLY, english
from tests.report.synthetic import make_scan
from tests.report.synthetic_run import make_run

ASSETS = Path(attentropy.report.__file__).parent / "assets"
KNOWN = Phrases(page_phrases())
NAMES = ("chapter", "one", "synthetic", "decoder", "run", "SyntheticForCausalLM")


def literal(text, start):
    """The string or template that begins at `start`, with 7 in place of what is filled in."""
    quote, out, at = text[start], "", start + 1
    while text[at] != quote:
        if quote == "`" and text.startswith("${", at):
            at, out = _after(text, at + 2), out + "7"
            continue
        out, at = out + text[at], at + 1
    return out


def _after(text, at):
    """Where the braces that are open at `at` close."""
    depth = 1
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return at


def said():
    """(file, text) of every literal that a script gives to `said`."""
    for path in sorted(ASSETS.glob("*.js")):
        text = path.read_text(encoding="utf-8")
        for call in re.finditer(r"\bsaid\((?=[\"`])", text):
            yield path.name, literal(text, call.end())


def test_literals_are_read():
    assert literal('x("a `b`")', 2) == "a `b`"
    assert literal("`n ${f({a: `x`})} of ${m}`", 0) == "n 7 of 7"
    assert len(list(said())) > 120


# the words of these are filled in, and the browser reads them below
FILLED = ("7, 7 over 7", "7 7", "7 7s", "7 tokens7", "Click 7", "The largest weights 7")


@pytest.mark.parametrize("allowed", NEARLY)
def test_every_text_of_the_scripts_has_a_phrase(allowed):
    asked = [pair for pair in said() if english(pair[1]) and not pair[1].startswith(FILLED)]
    lacking = [pair for pair in asked if KNOWN.known(pair[1]) is None]
    assert len(lacking) <= allowed * len(asked), lacking


@pytest.mark.parametrize("allowed", NEARLY)
def test_explanations_of_findings_have_phrases(allowed):
    shown = []
    for one in EXPLAINED.values():
        shown += [one.meaning, one.measured, one.threshold, one.harmless, one.remedy]
        shown += [one.healthy.caption, one.ill.caption]
    lacking = [text for text in shown if KNOWN.known(text) is None]
    assert len(lacking) <= allowed * len(shown), lacking


def test_what_python_says_of_statistics_and_rules_has_a_phrase():
    shown = [
        one[name] for one in ALL_DESCRIBED for name in ("label", "meaning", "low", "high", "unit")
    ]
    shown += [text for one in STATISTICS for text in (one.label, one.meaning, one.low, one.high)]
    shown += [text for name, _, meaning in METHODS for text in (name, meaning)] + list(RULES)
    assert [text for text in shown if english(KNOWN(text))] == []


def test_a_page_is_made_in_the_language_that_is_spoken():
    page = scan_page(make_scan(layers=1, heads=2, lengths=(16,)))
    assert '<html lang="en">' in page
    with speaking("zh"):
        page = scan_page(make_scan(layers=1, heads=2, lengths=(16,)))
    assert '<html lang="zh-CN">' in page


def test_without_scripts_both_languages_are_there():
    page = scan_page(make_scan(layers=1, heads=2, lengths=(16,)))
    shown = page.partition("<noscript>")[2].partition("</noscript>")[0]
    assert '<p lang="en">The charts need JavaScript' in shown
    assert '<p lang="zh">图表需要 JavaScript' in shown


def test_the_payload_is_the_same_in_both_languages():
    scan = make_scan(layers=1, heads=2, lengths=(16,))
    with speaking("zh"):
        assert scan_payload(scan) == scan_payload(scan)
        told = scan_payload(scan)
    assert told == scan_payload(scan)


def test_phrases_count_as_part_of_the_page():
    payload = scan_payload(make_scan(layers=1, heads=2, lengths=(16,)))
    assert (
        abs(size_of(payload) - len(scan_page(make_scan(layers=1, heads=2, lengths=(16,))))) < 5000
    )


READ = """() => {
  const found = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const skip = "script, style, noscript, .code, .module, .top-model, .brand, .formula, .text-side, .token, .look-token, #language, #text-find";
  for (let node = walk.nextNode(); node; node = walk.nextNode())
    if (!node.parentElement.closest(skip)) found.push(node.textContent.trim());
  for (const node of document.querySelectorAll("[aria-label], [title], [placeholder]"))
    if (!node.closest(skip)) for (const name of ["aria-label", "title", "placeholder"]) found.push(node.getAttribute(name) ?? "");
  return [...new Set(found)].filter(Boolean);
}"""


def judged(**options):
    """A scan with the sentences of a real one."""
    scan = make_scan(maps=0, **options)
    scan.skipped = [schema.Skipped(length=4096, reason="the model takes at most 512 tokens")]
    scan.input.description = "the embedded sample text"
    judge(scan)
    assert len(scan.findings) == 2
    return scan


def pages():
    scan = judged()
    run = make_run(name="run")
    texts = (
        "logits of blocks.2 will pass 20 at about step 2900",
        "entropy collapsed to 0.05 nats in x.1",
    )
    alerts = [replace(a, text=text) for a, text in zip(run.alerts, texts, strict=True)]
    return {
        "scan": scan_page(scan, judged(sharpen=1.5), names=("甲", "乙")),
        "run": run_page(replace(run, alerts=alerts)),
        "comparison": comparison_page(
            [NamedScan("甲", scan), NamedScan("乙", judged(sharpen=1.5))]
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["scan", "run", "comparison"])
def test_nothing_is_left_in_english_by_the_browser(open_page, tmp_path, kind):
    path = tmp_path / "page.html"
    path.write_text(pages()[kind], encoding="utf-8")
    opened = open_page(path)
    opened.page.locator("#language").click()
    opened.page.wait_for_selector("html[lang=zh-CN][data-ready=true]")
    for tab in opened.page.locator("[role=tab]").all():
        tab.click()
        opened.page.wait_for_timeout(150)
        for details in opened.page.locator("details:visible > summary").all():
            details.click()
        left = [(text, english(text, NAMES)) for text in opened.page.evaluate(READ)]
        assert [one for one in left if one[1]] == []
    assert opened.errors == []


def test_the_language_is_in_the_address_by_the_browser(open_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(scan_page(make_scan(layers=2, heads=2, lengths=(16, 32))), encoding="utf-8")
    opened = open_page(path)
    page = opened.page
    page.locator("#tab-length").click()
    page.locator("#language").click()
    page.wait_for_selector("html[lang=zh-CN][data-ready=true]")
    assert (
        page.evaluate("location.hash") == "#tab=length&lang=zh"
        or page.evaluate("location.hash") == "#lang=zh&tab=length"
    )
    assert page.locator("#tab-length").get_attribute("aria-selected") == "true"
    assert page.locator("#language").inner_text() == "English"
    page.locator("#language").click()
    page.wait_for_selector("html[lang=en][data-ready=true]")
    assert page.locator("#tab-length").inner_text() == "Length"
    assert opened.errors == []


def test_an_address_with_an_unknown_language_is_english_by_the_browser(open_page, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(scan_page(make_scan(layers=1, heads=2, lengths=(16,))), encoding="utf-8")
    opened = open_page(path)
    opened.page.goto(f"{path.as_uri()}#lang=fr")
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready=true]")
    assert opened.page.locator("#tab-overview").inner_text() == "Overview"
