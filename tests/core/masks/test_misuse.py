import re

import pytest
import torch

import attentropy as at

CALLED = {
    "without arguments": (
        at.causal,
        (),
        "causal must be passed as it is, mask=at.causal: it is a mask already, "
        "and is called with index tensors (b, h, q, k) only, got ()",
    ),
    "with a size": (
        at.full,
        (8,),
        "full must be passed as it is, mask=at.full: it is a mask already, "
        "and is called with index tensors (b, h, q, k) only, got (int)",
    ),
    "a window": (at.lookback(3), (torch.ones(1), 2), "mask=lookback(3): "),
    "two together": (at.causal & at.prefix(2), (), "mask=(causal & prefix(2)): "),
}


@pytest.mark.parametrize("name", CALLED)
def test_a_mask_that_is_called_like_a_function_says_what_to_write(name):
    mask, arguments, message = CALLED[name]
    with pytest.raises(at.ArgumentTypeError, match=re.escape(message)):
        mask(*arguments)


def test_indices_may_be_named():
    q, k = torch.arange(4)[:, None], torch.arange(4)
    seen = at.causal(b=torch.tensor(0), h=torch.tensor(0), q=q, k=k, shift=1)
    assert torch.equal(seen, k <= q + 1)


def test_flex_attention_takes_a_mask():
    from torch.nn.attention.flex_attention import create_block_mask

    blocks = create_block_mask(at.causal, None, None, 256, 256, device="cpu")
    assert torch.equal(blocks.to_dense()[0, 0].bool(), torch.tensor([[True, False], [True, True]]))
