"""Final logits of rows and of pairs are those of the reference."""

import pytest
import torch

import attentropy as at
from attentropy.core.resolve import Options, resolve
from attentropy.core.visibility import Span
from attentropy.kernels import noise, reference
from attentropy.kernels.tiled.logits import Terms, columns, distances, pair_logits, row_logits, wide
from tests.cases import Shape, masks, options

SHAPE = Shape(queries=9, keys=13)
NAMES = ["plain", "log length", "scale tensor", "cosine", "additive", "bias", "relative", "alibi",
         "softcap", "gumbel"]  # fmt: skip


def made(**given):
    torch.manual_seed(3)
    return resolve(*(x.detach() for x in SHAPE.tensors()), Options(**given))


def dense(call):
    """Logits of all pairs by the reference, hidden ones -inf."""
    hidden = ~call.seen.dense()
    s = reference.logits(call, hidden)
    if isinstance(call.weights, at.Gumbel):
        drawn = noise.gumbel(int(call.seed), call.seen.where, dtype=torch.float64)
        s = (s + drawn) / call.weights.tau
    return s.masked_fill(hidden, -torch.inf)


@pytest.mark.parametrize("name", NAMES)
def test_options(name):
    check(made(**options(SHAPE)[name]))


@pytest.mark.parametrize("name", masks(SHAPE))
def test_masks(name):
    check(made(mask=masks(SHAPE)[name]))


def check(call):
    want = dense(call)
    for queries in (slice(2, 7), torch.tensor([8, 0, 3])):
        torch.testing.assert_close(row_logits(call, queries), want[:, :, queries])
    for keys in ([0] * 9, [12, 3, 1, 0, 5, 5, 2, 11, 7]):
        key = torch.tensor(keys).view(1, 1, 9)
        picked = want.gather(-1, key.expand(2, 4, 9)[..., None])[..., 0]
        torch.testing.assert_close(pair_logits(call, key), picked)


def test_keys_of_each_batch_entry_and_head():
    call = made(mask=at.causal, bias=torch.randn(1, 4, 9, 13))
    key = torch.randint(0, 13, (2, 4, 9))
    want = dense(call).gather(-1, key[..., None])[..., 0]
    torch.testing.assert_close(pair_logits(call, key), want)


def test_keys_that_do_not_exist_are_hidden():
    call = made()
    got = pair_logits(call, torch.tensor([-1, 13, 99, 0, 0, 0, 0, 0, 0]).view(1, 1, 9))
    assert got[..., :3].isneginf().all()
    assert got[..., 3:].isfinite().all()


def test_terms_of_a_part_keep_their_distances():
    call = made(bias=at.Relative(torch.randn(4, 5)))
    part = Terms.of(call).select(Span(heads=slice(1, 3), queries=slice(2, 4), keys=slice(5, 8)))
    assert part.relative.shape == (2, 5)
    want = torch.arange(5, 8) - (torch.arange(2, 4)[:, None] + 4)
    assert torch.equal(distances(part.seen)[0, 0], want)
    assert torch.equal(columns(part)[0, 0], want.clamp(-2, 2) + 2)


def test_tensors_in_float32_or_better_without_gradient():
    x = torch.randn(2, requires_grad=True)
    assert not wide(x).requires_grad
    assert wide(x.bfloat16()).dtype == torch.float32
    assert wide(x.double()).dtype == torch.float64
