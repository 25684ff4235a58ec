import importlib.util
import re
from pathlib import Path

import pytest

from attentropy.models import diagnose
from attentropy.report.findings.texts import EXPLAINED, explained
from attentropy.training import alarms

ROOT = Path(__file__).parents[3]


def names_of(module):
    """The first word after `_finding(` or `name: str =` in the source."""
    text = Path(module.__file__).read_text(encoding="utf-8")
    return set(re.findall(r'_finding\(\s*"([^"]+)"', text)) | set(
        re.findall(r'^    name: str = "([^"]+)"', text, re.MULTILINE)
    )


def test_every_finding_and_alarm_is_explained():
    wanted = names_of(diagnose) | names_of(alarms)
    assert len(names_of(diagnose)) == 12
    assert wanted == set(EXPLAINED)


@pytest.mark.parametrize("one", EXPLAINED.values(), ids=lambda one: one.slug)
def test_every_part_is_said_in_sentences(one):
    for words in (one.meaning, one.measured, one.threshold, one.harmless, one.remedy):
        assert re.fullmatch(r"[A-Z0-9e|].*\.|[a-zH1].*\.", words), words
    for picture in (one.healthy, one.ill):
        assert picture.caption.endswith(".")
        assert picture.svg.startswith("<svg")


def test_thresholds_are_those_that_are_used():
    limits = diagnose.Thresholds()
    assert f"{limits.most_logit:g} in bfloat16" in EXPLAINED["exploding logits"].threshold
    assert f"{limits.collapsed_perplexity:g} keys" in EXPLAINED["collapsed"].threshold
    assert f"{alarms.LogitGrowth().window} samples" in EXPLAINED["logit growth"].threshold
    assert f"{alarms.EntropyCollapse().floor:g} nats" in EXPLAINED["entropy collapse"].threshold


def test_a_page_gets_what_it_shows_once():
    found = explained(["sink", "sink", "an alarm of a user"])
    assert list(found) == ["sink"]
    assert found["sink"]["ill"]["caption"] == EXPLAINED["sink"].ill.caption


def test_the_pages_of_the_documentation_are_written_from_the_same_texts():
    spec = importlib.util.spec_from_file_location("findings_pages", ROOT / "docs/findings_pages.py")
    writer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(writer)
    stored = {path.name: path.read_text("utf-8") for path in (ROOT / "docs/findings").glob("*.md")}
    assert stored == writer.pages()
