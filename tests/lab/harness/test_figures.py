import matplotlib.image
import pytest

from attentropy.lab.harness.experiment import FigureSpec
from attentropy.lab.harness.figures import draw
from attentropy.lab.harness.results import RunResults

ROWS = [
    {"seed": s, "rule": rule, "n": n, "h": n + s + 1.0, "theory": n + 1.5, "case": case}
    for s in (0, 1)
    for rule in "abcdefghij"
    for n in (16, 64)
    for case in ("first", "second", 3)
]


@pytest.mark.parametrize("panels", [None, "case"])
@pytest.mark.parametrize("log", ["", "xy"])
def test_a_figure_has_ink(tmp_path, panels, log):
    figure = FigureSpec("f", "title", "n", "h", "rule", panels=panels, log=log, theory="theory")
    draw(figure, RunResults(ROWS), tmp_path / "f.png")
    pixels = matplotlib.image.imread(tmp_path / "f.png")
    assert pixels.shape[0] > 300
    assert pixels[..., :3].std() > 0.05


def test_equal_results_give_equal_files(tmp_path):
    figure = FigureSpec("f", "title", "n", "h", "rule")
    for name in ("a.png", "b.png"):
        draw(figure, RunResults(ROWS), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
