"""The oracle hears every softmax, however it is written, and tells attention from other uses."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models.zoo.oracle import attentions, listen


def by_exp(s):
    e = (s - s.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


WAYS = {
    "torch": lambda s: torch.softmax(s, -1),
    "functional": lambda s: F.softmax(s, dim=-1),
    "method": lambda s: s.softmax(-1),
    "special": lambda s: torch.special.softmax(s, -1),
    "module": nn.Softmax(-1),
    "log": lambda s: s.log_softmax(-1).exp(),
    "exp": by_exp,
    "second last": lambda s: s.mT.softmax(-2).mT,
}


class Hand(nn.Module):
    def __init__(self, way, use=torch.matmul):
        super().__init__()
        self.project, self.way, self.use = nn.Linear(8, 24).double(), way, use

    def forward(self, x):
        q, k, v = self.project(x).chunk(3, -1)
        return self.use(self.way(q @ k.mT), v)


def heard(model, *inputs):
    with torch.no_grad(), listen(model) as found:
        model(*inputs)
    return attentions(found)


@pytest.fixture
def x():
    torch.manual_seed(0)
    return torch.randn(2, 5, 8, dtype=torch.float64) * 3


def entropy(model, x):
    q, k, _ = model.project(x).chunk(3, -1)
    p = (q @ k.mT).softmax(-1)
    return -(p * p.log()).sum(-1)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_write_a_softmax(way, x):
    model = Hand(WAYS[way])
    must, may = heard(model, x)
    assert len(must) == 1
    assert may == []
    torch.testing.assert_close(must[0].entropy, entropy(model, x))
    assert must[0].path[0] == ""
    assert must[0].call == 1


class Fused(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.project, self.options = nn.Linear(8, 24).double(), options

    def forward(self, x):
        return F.scaled_dot_product_attention(*self.project(x).chunk(3, -1), **self.options)


def test_fused_attention_with_its_mask(x):
    model = Fused(is_causal=True)
    must, _ = heard(model, x)
    q, k, _ = model.project(x).chunk(3, -1)
    hidden = torch.ones(5, 5, dtype=torch.bool).triu(1)
    p = (q @ k.mT / 8**0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    entropy, visible = (
        x.view(2, 5) for x in (must[0].entropy, must[0].visible)
    )  # 2.15 adds a head
    torch.testing.assert_close(entropy, torch.special.entr(p).sum(-1))
    assert visible[0].tolist() == [1, 2, 3, 4, 5]


class Choosing(Fused):
    def forward(self, x):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            q, k, v = self.project(x)[:, None].chunk(3, -1)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_kernel_that_the_model_chooses_itself(x):
    plain, choosing = Fused(is_causal=True), Choosing()
    choosing.load_state_dict(plain.state_dict())
    want, got = heard(plain, x)[0], heard(choosing, x)[0]
    torch.testing.assert_close(*(found[0].entropy.view(2, 5) for found in (got, want)))


def test_weights_that_meet_no_values_are_no_attention(x):
    model = Hand(WAYS["torch"], use=lambda p, v: p.amax(-1))
    assert heard(model, x) == ([], [])


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 4).double()

    def forward(self, x):
        return self.project(x).softmax(-1) @ torch.randn(4, 8, dtype=torch.float64)


def test_weights_of_a_projection_are_told_from_dot_attention(x):
    must, may = heard(Router(), x)
    assert must == []
    assert [w.shape for w in may] == [(2, 5, 4)]


def test_weights_are_followed_through_masks_and_copies(x):
    model = Hand(lambda s: F.pad(s.softmax(-1) * 2, (0, 0))[..., :5].clone() / 2)
    assert len(heard(model, x)[0]) == 1


def test_names_of_calls(x):
    part = Hand(WAYS["torch"])
    model = nn.Sequential(part, part)
    must, _ = heard(model, x)
    assert [(w.path, w.call) for w in must] == [(("", "0"), 1), (("", "0"), 2)]
    assert not part._forward_hooks
    assert not part._forward_pre_hooks


@pytest.mark.parametrize(("lowest", "rows"), [(-1e10, 3), (-1e4, 3), (-1e2, 5)])
def test_a_row_whose_logits_are_all_far_below_zero_sees_nothing(lowest, rows, x):
    lowered = torch.tensor([0.0, 0.0, 0.0, lowest, lowest], dtype=torch.float64)[:, None]
    must, _ = heard(Hand(lambda s: (s + lowered).softmax(-1)), x)
    assert int((must[0].visible > 0).sum()) == 2 * rows
