import numpy as np

from attentropy.report.curves import tables
from attentropy.theory import bounds, gaussian, sparsity


def test_columns_are_equally_long_and_finite():
    for make in (
        tables.relu2,
        tables.identity,
        tables.decay,
        tables.worst_deficit,
        tables.freezing,
    ):
        table = make()
        assert len({len(column) for column in table.values()}) == 1
        assert all(np.isfinite(column).all() for column in table.values())


def test_sparsity_of_the_documents():
    table = tables.relu2()
    np.testing.assert_array_equal(table["beta=-1"], sparsity.relu2(-1.0, table["gamma"]))
    np.testing.assert_allclose(table["beta=0"], 6**-0.5)
    assert (np.diff(table["beta=-1"]) >= 0).all()
    assert (np.diff(tables.identity()["beta=1"]) <= 0).all()


def test_rules_meet_at_the_reference_length():
    table = tables.entropy_length()
    at = table["n"] == 1024
    wanted = gaussian.expected_entropy(1024, 2.0)
    for rule in gaussian.RULES:
        np.testing.assert_allclose(table[rule][at], wanted, rtol=1e-9)
    assert np.ptp(table["exact"][table["n"] >= 256]) < 1e-8


def test_the_heat_capacity_rises_to_freezing_and_falls_beyond():
    table = tables.heat_capacity()
    x = table["x/x_c"]
    for n in tables.HEATED:
        heat = table[f"n={n}"]
        assert heat[0] == 0
        assert 0.4 < x[heat.argmax()] < 1
        assert heat[-1] < 0.35 * heat.max()
    np.testing.assert_allclose(
        table["n=1000000000000"][x < 0.5], table["limit"][x < 0.5], rtol=0.01
    )
    assert table["limit"].max() == 2


def test_temperature_of_contrastive_models():
    table = tables.worst_deficit()
    at = np.argmin(np.abs(table["tau"] - 0.07))
    assert table["deficit"][at] == bounds.worst_deficit_at(table["tau"][at])


def test_light_noise_has_slope_one_half_and_heavy_noise_has_not():
    table = tables.noise_error()

    def slope(name):
        return np.polyfit(np.log(table["n"][4:]), np.log(table[name][4:]), 1)[0]

    for name in ("gaussian 1", "uniform 1.7", "laplace 0.3"):
        assert abs(slope(name) + 0.5) < 0.04
        np.testing.assert_allclose(table[name][4:], table[f"{name} predicted"][4:], rtol=0.15)
    assert slope("laplace 0.9") > -0.25
    assert np.isnan(table["laplace 0.9 predicted"]).all()


def test_positions_collapse_on_themselves():
    table = tables.position_amplitude(16, 16)
    assert table["entropy, no content"][0] > 0.999
    assert table["entropy, no content"][-1] < 0.05
    assert table["own position, content"][-1] > 0.9
