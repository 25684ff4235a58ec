"""What notebooks show, in a real browser."""

import pytest

from tests.report.synthetic import make_scan


@pytest.mark.whole
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark(scheme, browser):
    context = browser.new_context(offline=True, color_scheme=scheme)
    page = context.new_page()
    text = make_scan()._repr_html_()
    page.set_content(f'<html style="color-scheme:light dark"><body>{text}</body></html>')
    ink, ground = (
        page.evaluate(f"getComputedStyle(document.querySelector('{where}')).{what}")
        for where, what in (("td", "color"), ("td", "backgroundColor"))
    )
    assert ink == ("rgb(0, 0, 0)" if scheme == "light" else "rgb(255, 255, 255)")
    assert ground == "rgba(0, 0, 0, 0)"
    context.close()


CELLS = [
    "import torch, attentropy as at\n"
    "torch.manual_seed(0)\n"
    "layer = torch.nn.MultiheadAttention(16, 4, batch_first=True)\n"
    "x = torch.randn(2, 24, 16)\n"
    "with at.watch(layer) as w:\n"
    "    layer(x, x, x, need_weights=False)\n"
    "w",
    "at.diagnose(w.heads())",
    "at.attend(*(torch.randn(1, 2, 8, 4) for _ in 'qkv'), mask=at.causal).stats",
    "from tests.report.synthetic import make_scan\nmake_scan()",
    "from attentropy.models.plan import Effect\n"
    "at.Plan(\n"
    "    model='Tiny', reference=16, hold='entropy', method='empirical', lengths=(16, 64),\n"
    "    factors={'layers.0': ((1.0, 1.1),)}, entropy={'layers.0': (1.5,)},\n"
    "    spread={'layers.0': (0.3,)}, unheld=(),\n"
    "    effects=(Effect(length=64, entropy_before=2.0, entropy_after=1.5),),\n"
    ")",
]


def shown(cells):
    """The HTML that a notebook shows below each cell, run by a kernel of its own."""
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in cells])
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    return [cell.outputs[-1]["data"]["text/html"] for cell in notebook.cells]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_values_show_themselves_in_a_notebook(browser, tmp_path):
    from PIL import Image

    cards = shown(CELLS)
    titles = [
        "Watch of MultiheadAttention",
        "finding",
        "Attention statistics",
        "Scan of synthetic",
        "Plan",
    ]
    for text, title in zip(cards, titles, strict=True):
        assert title.lower() in text.lower()
        assert "http" not in text
        assert "<script" not in text
    for scheme in ("light", "dark"):
        context = browser.new_context(
            offline=True, color_scheme=scheme, viewport={"width": 900, "height": 1200}
        )
        page = context.new_page()
        page.set_content(f'<html style="color-scheme:light dark"><body>{"".join(cards)}</body>')
        file = tmp_path / f"{scheme}.png"
        page.screenshot(path=str(file), full_page=True)
        colours = Image.open(file).convert("RGB").getcolors(1 << 24)
        brightness = sum(max(colours)[1]) / 3
        assert len(colours) > 30
        assert brightness > 200 if scheme == "light" else brightness < 60
        context.close()
