import numpy as np
import pytest

from attentropy.report.curves import FIGURES, plots, write

FAST = ("sparsity_relu2", "sparsity_identity", "sparsity_decay", "worst_deficit")


@pytest.mark.parametrize(
    "name", [FAST[0], *(pytest.param(name, marks=pytest.mark.slow) for name in FAST[1:])]
)
def test_figures_are_drawn_and_repeat_exactly(name, tmp_path):
    first, second = (write(FIGURES[name], tmp_path / part) for part in "ab")
    for a, b in zip(first, second, strict=True):
        assert a.stat().st_size > 1000
        assert a.read_bytes() == b.read_bytes()
    assert b"<svg" in first[1].read_bytes()


@pytest.mark.parametrize("name", [name for name in FIGURES if name not in FAST])
def test_other_figures_draw_small_tables(name, tmp_path):
    """The numbers are tested with the tables; here any numbers under the right names will do."""
    from attentropy.report.curves import tables

    columns = {
        "sparsity_exp": ["gamma", "population", "n=100", "n=1000", "n=10000"],
        "entropy_spread": [
            "spread",
            *(f"{a}n={n}" for n in tables.SIZES for a in ("", "annealed ")),
        ],
        "heat_capacity": ["x/x_c", "limit", *(f"n={n}" for n in tables.HEATED)],
        "entropy_length": ["n", "log n", "constant", "sqrt_log", "log", "hold", "exact"],
        "noise_error": [
            "n",
            *(f"{k} {s:g}{e}" for k, s in tables.LAWS for e in ("", " predicted")),
        ],
        "gradient_flow": ["entropy/log n", "n=16", "n=256", "n=4096", "n=1000000"],
        "position_amplitude": [
            "amplitude",
            *(
                f"{what}, {who}"
                for who in ("no content", "content")
                for what in ("entropy", "own position")
            ),
        ],
    }[name]
    table = {column: np.linspace(0.1, 1, 11) for column in columns}
    path = tmp_path / "figure.png"
    plots.save(FIGURES[name].draw, table, FIGURES[name].title, [path])
    assert path.stat().st_size > 1000


def test_colours_are_distinct():
    assert len(set(plots.PALETTE)) == len(plots.PALETTE) == 7
