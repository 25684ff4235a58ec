"""Of equal keys the first is named, however a product has rounded them."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.kernels.tiled.ties import by_keys, floor, lowest_of_equal


def settled(s, k):
    m, argmax = s.max(-1)
    near = (s >= floor(m)[..., None]).to(torch.uint8).argmax(-1)
    return lowest_of_equal(s, m, argmax, near, k).tolist()


def test_copies_that_rounding_has_parted_are_one_key():
    above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    s = torch.tensor([[0.0, 1.0, above], [-torch.inf, -torch.inf, 1.0], [2.0, 1.0, above]])
    k = torch.tensor([[3.0, 4.0], [1.0, 2.0], [1.0, 2.0]])
    assert settled(s, k) == [1, 2, 0]


def test_other_keys_are_told_apart_by_a_unit_of_rounding():
    above = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0)).item()
    assert settled(torch.tensor([[1.0, above]]), torch.tensor([[1.0], [2.0]])) == [1]


@pytest.mark.parametrize("top", [torch.inf, -torch.inf, torch.nan])
def test_what_is_not_finite_stays_where_it_is(top):
    s = torch.tensor([[-torch.inf, 0.0, top]])
    assert settled(s, torch.ones(3, 2)) == [s.argmax().item()]


@pytest.mark.parametrize(
    ("option", "value"),
    [("bias", torch.zeros(3)), ("bias", at.ALiBi()), ("weights", at.Gumbel(1.0))],
)
def test_what_is_added_parts_equal_keys(option, value):
    q = torch.ones(1, 1, 3, 2)
    assert by_keys(resolve(q, q, q, Options()))
    assert not by_keys(resolve(q, q, q, Options(**{option: value})))
