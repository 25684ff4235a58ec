"""A file of measured tile sizes takes the place of the table."""

import pytest

from attentropy.core.errors import ArgumentError
from attentropy.kernels.triton.configs import TileSizes, tile_sizes
from attentropy.kernels.triton.measured import VARIABLE, MeasuredTiles, best_sizes, load, save

ASKED = {"arch": 90, "width": 64, "precise": False, "laden": False}
TILES = TileSizes(64, 32, 4, 4, registers=168)


def entry(kernel="forward", tiles=TILES):
    return MeasuredTiles(kernel=kernel, **ASKED, tiles=tiles, milliseconds=1.5)


def test_measured_sizes_come_first(tmp_path, monkeypatch):
    path = tmp_path / "tiles.json"
    save(path, [entry()])
    monkeypatch.setenv(VARIABLE, str(path))
    assert best_sizes("forward", **ASKED) == TILES
    assert best_sizes("keys", **ASKED) == tile_sizes("keys", **ASKED)
    assert best_sizes("forward", **ASKED | {"arch": 80}) == tile_sizes(
        "forward", **ASKED | {"arch": 80}
    )


def test_without_a_file_the_table(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert best_sizes("forward", **ASKED) == tile_sizes("forward", **ASKED)


def test_a_file_keeps_what_it_holds_for_other_calls(tmp_path):
    path = tmp_path / "tiles.json"
    save(path, [entry("keys")])
    other = TileSizes(16, 16, 4, 1)
    save(path, [entry(tiles=other)])
    assert {x.kernel: x.tiles for x in load(path)} == {"keys": TILES, "forward": other}


@pytest.mark.parametrize("text", ["{", '[{"kernel": 3}]'])
def test_another_file_is_refused_by_its_name(tmp_path, text):
    path = tmp_path / "tiles.json"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=r"ATTENTROPY_TILES must be a file .*tiles.json: "):
        load(path)
    with pytest.raises(ArgumentError, match="ATTENTROPY_TILES must be a file"):
        load(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"kernel": "onward"}, r"entry 1: kernel must be one of .*, got 'onward'"),
        ({"tiles": TileSizes(48, 32, 4, 1)}, "block must be a power of two between 16 and 256"),
        ({"tiles": TileSizes(64, -1, 4, 1)}, "tile must be a power of two .*, got -1"),
        ({"tiles": TileSizes(64, 32, 4, 1, part=8)}, "part must be a power of two .*, got 8"),
        ({"tiles": TileSizes(64, 32, 0, 1)}, "warps must be a power of two .*, got 0"),
        ({"tiles": TileSizes(64, 32, 4, 0)}, "stages must be >= 1, got 0"),
        ({"tiles": TileSizes(64, 32, 4, 1, registers=300)}, "registers must be .*, got 300"),
    ],
)
def test_sizes_that_no_kernel_takes_are_refused(tmp_path, changed, said):
    path = tmp_path / "tiles.json"
    save(path, [entry("keys"), entry(**changed)])
    with pytest.raises(ArgumentError, match=f"tiles.json: .*{said}"):
        load(path)
