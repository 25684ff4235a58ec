"""Which modules may call attention, by class and name."""

import pytest
from torch import nn

from attentropy.models.intercept.candidates import (
    heads_of,
    looks_like_attention,
    looks_like_cross,
    may_attend,
    plain_name,
)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.act = nn.Linear(2, 2), nn.ReLU()


class Own(nn.Module):
    pass


def test_leaves_of_torch_are_left_out():
    net = nn.Sequential(Block(), Own(), nn.Linear(2, 2), nn.MultiheadAttention(4, 2))
    assert [name for name, _ in may_attend(net)] == ["", "0", "1", "3"]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("_orig_mod", ""),
        ("module.layers.0", "layers.0"),
        ("layers.0._fsdp_wrapped_module.attn", "layers.0.attn"),
        ("_orig_mod.module.a._checkpoint_wrapped_module", "a"),
        ("modules.0", "modules.0"),
    ],
)
def test_wrappers_are_no_part_of_a_name(name, plain):
    assert plain_name(name) == plain


def test_attention_and_cross_attention_are_told_by_name():
    assert looks_like_attention("layers.0.self_attn", Own())
    assert looks_like_attention("", nn.MultiheadAttention(4, 2))
    assert not looks_like_attention("attn.project", Own())
    assert looks_like_cross("decoder.encoder_attn", Own())
    assert looks_like_cross("decoder.EncDecAttention", Own())
    assert not looks_like_cross("crossing.attn", Own())
    told = Own()
    told.is_cross_attention = True
    assert looks_like_cross("", told)


def test_the_number_of_heads_is_asked_of_the_module_and_its_configuration():
    module = Own()
    assert heads_of(module) is None
    module.config = Own()
    module.config.n_head = 3
    assert heads_of(module) == 3
    module.num_heads = 5
    assert heads_of(module) == 5
