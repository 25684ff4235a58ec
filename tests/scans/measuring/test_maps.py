import base64
import zlib

import pytest
import torch

from attentropy.scans.measuring import maps
from attentropy.scans.measuring.measure import measure
from tests.scans.small_llama import llama


def test_maps_hold_the_weights_of_the_first_tokens():
    model = llama()
    ids = torch.randint(97, (64,), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        weights = torch.stack(model(ids[None], output_attentions=True).attentions)[:, 0]
    model.set_attn_implementation("sdpa")
    rows = measure(model, [ids[None]]).measure.rows
    layers = [row for row in rows if row.head == 0]
    drawn = maps.draw_maps(model, ids, layers, label=str)
    assert (drawn.length, drawn.side, len(drawn.data)) == (64, 64, 12)
    assert drawn.labels[:3] == [str(int(token)) for token in ids[:3]]
    cells = torch.frombuffer(
        bytearray(zlib.decompress(base64.b64decode(drawn.data["1.4"]))), dtype=torch.uint8
    )
    got = drawn.peak["1.4"] * (cells.view(64, 64).double() / 255) ** 2
    shade = 1 / (maps.LEVELS - 1)
    assert (got.sqrt() - weights[1, 4].double().sqrt()).abs().max() < 0.51 * shade * drawn.peak[
        "1.4"
    ] ** 0.5 + 1e-3


@pytest.mark.parametrize(
    ("heads", "tokens", "side"),
    [(16, 999, 256), (32, 999, 128), (270, 999, 64), (4, 100, 64), (4, 9, None)],
)
def test_maps_shrink_with_the_number_of_heads(heads, tokens, side):
    assert maps.side_for(heads, tokens) == side
