"""The parts of key_mass that kernels share."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels import reference
from attentropy.kernels.mass import counted, receiving, shares


def call(dtype=torch.float32, **given):
    q, k = torch.randn(2, 4, 3, 8, dtype=dtype), torch.randn(2, 2, 5, 8, dtype=dtype)
    return resolve(q, k, k, Options(**given))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_keys_for_every_head_and_ones_for_values(dtype):
    made = call(dtype)
    wide = receiving(made)
    want = torch.float64 if dtype == torch.float64 else torch.float32
    assert wide.q.dtype == wide.k.dtype == wide.v.dtype == want
    assert wide.k.shape == (2, 4, 5, 8)
    assert wide.v.shape == (2, 4, 5, 1)
    assert (wide.v == 1).all()
    torch.testing.assert_close(wide.k[:, 1], made.k[:, 0].to(want))
    torch.testing.assert_close(wide.k[:, 2], made.k[:, 1].to(want))


def test_what_a_sink_leaves():
    made = receiving(call(sink=torch.tensor([0.0, -torch.inf, 50.0, 1.0])))
    rows = reference.attend(made)
    kept = shares(made, rows)
    assert kept.shape == (2, 4, 3, 1)
    torch.testing.assert_close(
        kept[..., 0],
        1 - at.attend(made.q, made.k, made.v, sink=made.sink, kernel="reference").stats.sink_mass,
    )
    assert (kept[:, 1] == 1).all()
    plain = receiving(call())
    assert (shares(plain, reference.attend(plain)) == 1).all()


def test_one_hot_rows_are_counted_and_blind_ones_are_not():
    argmax = torch.tensor([[[0, 2, 2], [-1, -1, 4]]])
    q = torch.randn(1, 2, 3, 4)
    made = resolve(q, torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4), Options())
    assert counted(made, argmax).tolist() == [[[1, 0, 2, 0, 0], [0, 0, 0, 0, 1]]]
