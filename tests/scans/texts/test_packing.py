import base64
import zlib

import numpy as np
import pytest
import torch

from attentropy.scans.texts.packing import packed, packed_places


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
