"""The page of a text: its numbers, and the page in a browser."""

import base64
import json
import zlib

import numpy as np
import pytest
import torch

from attentropy.report.text import OF_HEADS, packed, packed_places, text_page, text_payload
from attentropy.scans.text import text_view
from tests.scans.small_llama import llama

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
    path.write_text(text_page(view, name=EVIL), encoding="utf-8")
    return path


def words(text, dtype):
    raw = np.frombuffer(zlib.decompress(base64.b64decode(text)), np.uint8)
    size = np.dtype(dtype).itemsize
    return np.ascontiguousarray(raw.reshape(size, -1).T).view(dtype)[:, 0]


def test_numbers_survive_packing():
    values = torch.tensor([0.0, 1.0, 0.3333, 7e-6, torch.nan, 1e9, 1.999])
    got = torch.from_numpy(words(packed(values, 10), "<f2").astype(np.float64))
    assert got[4].isnan()
    assert got[5] == 65504
    torch.testing.assert_close(got[:4], values[:4].double(), rtol=5e-4, atol=3e-8)
    coarse = torch.from_numpy(words(packed(values, 6), "<f2").astype(np.float64))
    torch.testing.assert_close(coarse[[1, 2, 6]], values[[1, 2, 6]].double(), rtol=8e-3, atol=0)
    assert coarse[4].isnan()


@pytest.mark.parametrize(
    ("count", "dtype", "none"), [(9, "<u2", 0xFFFF), (65535, "<u4", 2**32 - 1)]
)
def test_places_survive_packing(count, dtype, none):
    places = torch.arange(count)[:, None].expand(-1, 2).clone()
    places[0, 1] = -1
    got = words(packed_places(places), dtype)
    assert got[:count].tolist() == list(range(count))
    assert got[count] == none


def test_payload_holds_what_was_measured(view):
    payload = text_payload(view, name="x")
    assert set(payload["looks"]) == {f"{layer}.{head}" for layer, head in view.heads}
    assert set(payload["scopes"]) == {"all", "0", "1", *payload["looks"]}
    look = payload["looks"]["1.4"]
    at = view.looks[1].heads.index(4)
    weights = words(look["weights"], "<f2").reshape(16, N).T.astype(np.float64)
    assert np.abs(weights - view.looks[1].weights[at].numpy()).max() < 5e-4
    assert (
        words(look["keys"], "<u2").reshape(16, N).T[20] == view.looks[1].keys[at, 20].numpy()
    ).all()
    mean = torch.cat([rows["entropy"] for rows in view.rows]).mean(0).numpy()
    got = words(payload["scopes"]["all"]["entropy"], "<f2").astype(np.float64)
    assert np.abs(got - mean).max() < 8e-3 * mean.max()


def test_heads_without_room_are_counted(view):
    payload = text_payload(view, name="x", room=1)
    assert len(payload["looks"]) == 1
    assert payload["unshown"] == 11
    assert set(payload["scopes"]["all"]) == set(OF_HEADS)


def test_statistics_are_named(view):
    names = [one["name"] for one in text_payload(view, name="x")["statistics"]]
    wanted = {"entropy", "surprise", "received", "distance", "varentropy", "sink_mass"}
    assert wanted <= set(names)


whole = pytest.mark.whole


def listed(opened, show):
    rows = opened.page.locator(f"#looks-{show} .look")
    return [
        (int(rows.nth(i).get_attribute("data-token")), float(rows.nth(i).locator("b").inner_text()))
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
@pytest.mark.parametrize("width", [1440, 1024, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
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
