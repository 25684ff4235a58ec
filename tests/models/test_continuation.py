import pytest
import torch
from torch import nn

from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.models.continuation import continued
from tests.models.test_generated import gpt2, t5
from tests.scans.small_llama import llama

IDS = torch.randint(3, 97, (9,), generator=torch.Generator().manual_seed(4))


class Plain(nn.Module):
    """The same model behind a module that has no generate()."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, ids):
        return self.inner(ids, use_cache=False).logits


def test_generate_and_reading_again_give_the_same_rows():
    model = llama()
    model.generation_config.eos_token_id = None
    ids, rows = continued(model, IDS, 5)
    again, others = continued(Plain(model), IDS, 5)
    assert ids.equal(again)
    assert ids[:9].equal(IDS)
    for row, other in zip(rows, others, strict=True):
        assert (row.step, row.token) == (other.step, other.token)
        assert row.surprise == pytest.approx(other.surprise, abs=1e-4)
        for name in ("entropy", "varentropy", "top_probability"):
            got, want = (torch.tensor(getattr(one, name)) for one in (row, other))
            torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)


def test_a_text_that_ends_is_not_continued():
    model = gpt2()
    first = int(continued(model, IDS, 2)[0][-1])
    model.generation_config.eos_token_id = first
    ids, rows = continued(model, IDS, 20)
    assert len(rows) == len(ids) - 9 < 20
    assert int(ids[-1]) == first


def test_a_decoder_beside_an_encoder_has_its_own_text():
    ids, rows = continued(t5(), IDS, 4)
    assert int(ids[0]) == 0
    assert len(ids) == len(rows) + 1
    assert [kind.split(".")[-1] for kind in rows[0].layers] == ["SelfAttention", "EncDecAttention"]


def test_what_predicts_nothing_is_refused():
    from transformers import BertConfig, BertForMaskedLM, BertModel, T5Model

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    config = BertConfig(vocab_size=97, num_hidden_layers=1, **sizes)
    for model in (BertModel(config), BertForMaskedLM(config), T5Model(t5().config)):
        with pytest.raises(UnsupportedError, match="does not predict the next token"):
            continued(model.eval(), IDS, 2)
    with pytest.raises(ArgumentError, match="count must be an integer >= 1, got 0"):
        continued(llama(), IDS, 0)
