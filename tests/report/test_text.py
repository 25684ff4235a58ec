"""The page of a text: its numbers, and the page in a browser."""

import json

import numpy as np
import pytest
import torch

import attentropy as at
from attentropy.report import scan_page
from attentropy.report.text import fitted, text_page, text_payload
from attentropy.scans.texts.pictures import of_picture
from attentropy.scans.texts.records import check
from attentropy.scans.texts.table import table_of
from attentropy.scans.texts.view import text_view, view_of
from tests.scans.small_llama import llama
from tests.scans.texts.test_pictures import vit
from tests.scans.texts.test_view import t5

EVIL = '</script><img src=x onerror="window.hacked=1">'
N = 41


@pytest.fixture(scope="module")
def view():
    ids = torch.randint(97, (N,), generator=torch.Generator().manual_seed(5))
    labels = {int(ids[3]): EVIL, int(ids[5]): "a\nb", int(ids[7]): "\u2028"}
    return text_view(llama(), ids, label=lambda token: labels.get(token, f" w{token}"))


@pytest.fixture(scope="module")
def page(view, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.html"
    path.write_text(text_page(table_of(view), name=EVIL), encoding="utf-8")
    return path


def test_a_scan_keeps_what_has_room(view):
    table = table_of(view)
    assert fitted(table, room=10**7) == table
    little = fitted(table, room=1)
    assert set(little.scopes) == {"all", *little.looks}
    assert len(little.looks) == 1
    assert little.unshown == 11
    some = fitted(table, room=sum(len(t) for p in table.scopes.values() for t in p.values()))
    assert {"all", "0", "1"} <= set(some.scopes)
    assert 2 <= len(some.looks) < 12
    check(some)


def test_statistics_are_named(view):
    names = [one["name"] for one in text_payload(table_of(view), name="x")["statistics"]]
    wanted = {"entropy", "surprise", "received", "distance", "varentropy", "sink_mass"}
    assert wanted <= set(names)


whole = pytest.mark.whole


def listed(opened, show):
    rows = opened.page.locator(f"#looks-{show} .look")
    return [
        (
            int(rows.nth(i).get_attribute("data-token")),
            float(rows.nth(i).locator("b").inner_text().replace("< 6e-8", "0")),
        )
        for i in range(rows.count())
    ]


def wait(opened, state):
    opened.page.wait_for_selector(f'#text[data-painted="{state}"]')


@whole
def test_a_click_shows_the_keys_and_who_looks(open_page, page, view):
    opened = open_page(page)
    opened.page.select_option("#head", "1.4")
    opened.page.click('.token[data-token="20"]')
    wait(opened, "1.4 20 keys entropy")
    look, at = view.looks[1], view.looks[1].heads.index(4)
    keys = listed(opened, "keys")
    assert [place for place, _ in keys] == look.keys[at, 20].tolist()
    np.testing.assert_allclose([w for _, w in keys], look.weights[at, 20], rtol=6e-3, atol=6e-8)
    readers = listed(opened, "readers")
    assert [place for place, _ in readers] == look.readers[at, 20].tolist()
    assert "all others together" in opened.page.locator("#looks-keys .rest").inner_text()
    colours = opened.page.evaluate(
        "[...document.querySelectorAll('.token')].map((t) => t.style.background)"
    )
    assert colours[keys[0][0]] != colours[30] == colours[40]
    assert opened.page.evaluate("window.hacked") is None
    assert opened.errors == []
    assert all(url.startswith(("file:", "data:")) for url in opened.requests)


@whole
def test_keys_of_the_keyboard(open_page, page):
    opened = open_page(page)
    first = opened.page.input_value("#head")
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft"):
        opened.page.keyboard.press(key)
    wait(opened, f"{first} 1 keys entropy")
    opened.page.keyboard.press("]")
    second = opened.page.input_value("#head")
    assert second != first
    opened.page.keyboard.press("[")
    wait(opened, f"{first} 1 keys entropy")
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowUp")
    wait(opened, f"{first} 1 keys entropy")
    assert opened.errors == []


@whole
def test_every_statistic_and_scope_shades_the_text(open_page, page):
    opened = open_page(page)
    seen = set()
    for scope in ("all", "0", "1.4"):
        opened.page.select_option("#head", scope)
        for name in ("entropy", "surprise", "received", "distance", "varentropy", "sink_mass"):
            opened.page.select_option("#statistic", name)
            wait(opened, f"{scope} null statistic {name}")
            seen.add(
                json.dumps(
                    opened.page.evaluate(
                        "[...document.querySelectorAll('.token')].map((t) => t.style.background)"
                    )
                )
            )
    assert len(seen) == 16  # surprise is the same for all three
    assert opened.errors == []


@whole
@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (1440, "light"),
        (390, "dark"),
        *(
            pytest.param(width, scheme, marks=pytest.mark.slow)
            for width, scheme in ((1440, "dark"), (1024, "light"), (1024, "dark"), (390, "light"))
        ),
    ],
)
def test_the_address_restores_what_was_chosen(open_page, page, width, scheme):
    opened = open_page(page, color_scheme=scheme)
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.page.goto(page.as_uri() + "#statistic=distance&scope=0.3&token=9&show=readers")
    opened.page.reload()
    wait(opened, "0.3 9 readers distance")
    assert opened.page.locator(".token.chosen").get_attribute("data-token") == "9"
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert opened.page.evaluate(overflow) <= 0
    assert opened.errors == []


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A page of generated tokens."""
    model = llama()
    model.generation_config.eos_token_id = None
    view = text_view(model, torch.arange(3, 12), generate=6, label=lambda token: f" w{token}")
    path = tmp_path_factory.mktemp("generated") / "text.html"
    path.write_text(text_page(table_of(view), name="m"), encoding="utf-8")
    return path, view


@whole
def test_generated_tokens_have_rows_that_choose_them(open_page, spoken):
    path, view = spoken
    opened = open_page(path)
    assert opened.page.locator(".token.made").count() == 6
    opened.page.select_option("#head", "1.4")
    opened.page.wait_for_selector('#generated[data-painted="1.4"]')
    cells = opened.page.locator('#generated tr[data-step="3"] td')
    row = view.generated[3]
    wanted = [row.surprise, row.entropy[1][4], row.varentropy[1][4], row.top_probability[1][4]]
    got = [float(cells.nth(i).inner_text()) for i in range(2, 6)]
    np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=6e-4)
    opened.page.click('#generated tr[data-step="3"] button')
    wait(opened, "1.4 12 keys entropy")
    assert opened.page.get_attribute('#generated tr[data-step="3"]', "aria-selected") == "true"
    assert opened.errors == []


@whole
def test_patches_lie_over_the_picture(open_page, tmp_path):
    view = view_of(of_picture(vit()))
    path = tmp_path / "text.html"
    path.write_text(text_page(table_of(view), name="vit"), encoding="utf-8")
    opened = open_page(path)
    assert opened.page.locator(".patches .token").count() == 16
    opened.page.select_option("#head", "1.2")
    opened.page.click('.patches .token[data-token="6"]')
    wait(opened, "1.2 6 keys entropy")
    at = view.looks[1].heads.index(2)
    assert [place for place, _ in listed(opened, "keys")] == view.looks[1].keys[at, 6].tolist()
    assert opened.page.locator("#token h2").inner_text() == "row 2, column 2"
    opened.page.keyboard.press("ArrowDown")
    wait(opened, "1.2 10 keys entropy")
    assert opened.errors == []


@whole
def test_cross_attention_shades_the_other_text(open_page, tmp_path):
    view = text_view(
        t5(), torch.arange(3, 20), target=[0, 5, 6, 7], label=lambda token: f" w{token}"
    )
    path = tmp_path / "text.html"
    path.write_text(text_page(table_of(view), name="t5"), encoding="utf-8")
    opened = open_page(path)
    opened.page.select_option("#head", "2.1")
    opened.page.click('[data-side="target"] .token[data-token="19"]')
    wait(opened, "2.1 19 keys entropy")
    assert {place for place, _ in listed(opened, "keys")} <= set(range(17))
    shades = opened.page.evaluate(
        "[...document.querySelectorAll('.token')].map((t) => t.style.background)"
    )
    assert "transparent" not in shades[:17]
    assert set(shades[17:]) == {"transparent"}
    assert opened.errors == []


@whole
def test_tokens_and_heads_are_found_and_back_works(open_page, spoken):
    path, view = spoken
    opened = open_page(path)
    opened.page.fill("#find", view.labels[4].strip())
    opened.page.press("#find", "Enter")
    first = opened.page.input_value("#head")
    wait(opened, f"{first} 4 keys entropy")
    opened.page.fill("#find", "1.5")
    opened.page.press("#find", "Enter")
    wait(opened, "1.5 4 keys entropy")
    opened.page.go_back()
    wait(opened, f"{first} 4 keys entropy")
    opened.page.fill("#find", "nowhere")
    opened.page.press("#find", "Enter")
    assert opened.page.get_attribute("#find", "aria-invalid") == "true"
    assert opened.errors == []


@whole
@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
def test_the_text_is_a_tab_of_a_scan(open_page, tmp_path, width):
    model = llama()
    ids = torch.randint(97, (200,), generator=torch.Generator().manual_seed(5))
    scan = at.scan(model, ids, lengths=[16, 32])
    path = tmp_path / "report.html"
    path.write_text(scan_page(scan), encoding="utf-8")
    opened = open_page(path)
    opened.page.set_viewport_size({"width": width, "height": 900})
    opened.page.get_by_role("tab", name="Text").click()
    opened.page.select_option("#text-head", "1.4")
    opened.page.click('.token[data-token="20"]')
    wait(opened, "1.4 20 keys entropy")
    assert len(listed(opened, "keys")) == 16
    address = opened.page.url
    again = open_page(path)
    again.page.goto(address)
    again.page.reload()
    wait(again, "1.4 20 keys entropy")
    assert again.page.locator("#page-text").is_visible()
    overflow = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert again.page.evaluate(overflow) <= 0
    assert opened.errors == again.errors == []
