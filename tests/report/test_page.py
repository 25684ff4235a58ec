"""The page's text: escaping, policy, what is inlined."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attentropy.report import page, scan_page
from tests.report.synthetic import make_scan

EVIL = "</script><script>alert(1)</script>\u2028\u2029<!--&amp;{{app}}"


HARD = st.text() | st.text('<>&\u2028\u2029/!-script"\\')


@given(st.recursive(HARD | st.integers() | st.none(), st.lists, max_leaves=8))
def test_inlined_json_cannot_leave_its_element_and_reads_back(value):
    text = page.inline_json(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == value


def test_hostile_names_add_no_element():
    plain, hostile = make_scan(name="plain"), make_scan(name=EVIL)
    count = lambda text: text.count("<script") + text.count("<!--")  # noqa: E731
    assert count(scan_page(plain)) == count(scan_page(hostile)) == 4


def test_placeholders_in_data_are_not_filled():
    assert page.application() not in scan_page(make_scan(name="{{app}}")).split("</title>")[0]


def test_policy_names_every_script_by_hash_and_forbids_the_network():
    text = scan_page(make_scan())
    found = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    scripts = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        assert page._digest(script) in found
    assert "default-src 'none'" in found
    assert "connect-src 'none'" in found
    assert "unsafe-inline" not in found.split("script-src")[1].split(";")[0]
    assert "connect-src 'self'" in page.policy("", live="/data.json")


def test_nothing_points_outside_the_file():
    text = scan_page(make_scan())
    assert not re.findall(r'(?:src|href)\s*=\s*"(?!#|data:)', text)
    known = "http://www.w3.org/"  # names of XML vocabularies, never fetched
    assert {
        u for u in re.findall(r"https?://[^\s\"'`)]*", text) if not u.startswith(known)
    } == set()


def test_no_script_of_the_page_writes_html():
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write", page.application()
    )


def test_large_scan_stays_under_two_megabytes():
    scan = make_scan(layers=30, heads=9, lengths=(64, 128, 256, 512, 1024, 2048), maps=96)
    assert len(scan_page(scan).encode()) < 2_000_000


@pytest.mark.parametrize("name", page.SCRIPTS)
def test_every_script_says_what_it_is_for(name):
    assert page.asset(f"assets/{name}").startswith("// ")
