"""What transformers does around its attention: caches, generation, checkpointing, configurations."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import attentropy as at
from attentropy.models.intercept.huggingface import attend_eagerly
from attentropy.models.watch import NothingRecorded
from tests.models.zoo import INTERFACE, build, inputs

transformers = pytest.importorskip("transformers")

GENERATING = ["llama", "qwen3", "gemma2", "gpt2", "gpt_oss", "t5", "bart"]


def tokens(model, name, **options):
    batch = {k: v for k, v in inputs(name).items() if not k.startswith("decoder")}
    if INTERFACE[name].kind == "causal":
        batch["attention_mask"] = torch.ones_like(batch["input_ids"])
        batch["attention_mask"][1, :4] = 0
    torch.manual_seed(3)
    return model.generate(**batch, max_new_tokens=6, do_sample=False, pad_token_id=0, **options)


@pytest.mark.parametrize("name", GENERATING)
def test_generate_gives_the_same_tokens(name):
    model = build(name)
    plain = tokens(model, name)
    with at.watch(model) as w:
        assert torch.equal(tokens(model, name), plain)
    phases = {(row.kind, row.phase) for row in w.heads()}
    assert ("self", "step") in phases
    assert ("self", "forward") in phases or name in ("t5", "bart")


def test_a_static_cache_gives_the_same_tokens_and_counts_filled_keys():
    model = build("llama")
    plain = tokens(model, "llama", cache_implementation="static")
    with at.watch(model) as w:
        assert torch.equal(tokens(model, "llama", cache_implementation="static"), plain)
    with at.watch(model) as v:
        tokens(model, "llama")
    for static, dynamic in zip(w.heads(), v.heads(), strict=True):
        assert (static.layer, static.phase, static.rows) == (
            dynamic.layer,
            dynamic.phase,
            dynamic.rows,
        )
        for name in ("entropy", "sink_mass", "previous_share", "visible"):
            assert getattr(static, name) == pytest.approx(getattr(dynamic, name), rel=1e-4), name


def test_generation_counts_each_step_once():
    model = build("llama")
    with at.watch(model) as w:
        tokens(model, "llama")
    rows = {row.phase: row.rows for row in w.heads()}
    # three prompts of 13 tokens, one with 4 of padding, first rows without a choice; 5 more steps
    assert rows == {"forward": 3 * 13 - 4 - 3, "step": 15}


def test_configurations_stay_as_they_are_and_other_models_of_one_are_not_recorded():
    config = copy.deepcopy(build("llama").config)
    config._attn_implementation = "sdpa"
    first, second = (transformers.LlamaForCausalLM(config).eval() for _ in range(2))
    batch = inputs("llama")
    plain = second(**batch).logits
    with at.watch(first) as w:
        assert config._attn_implementation == "sdpa"
        first(**batch)
        torch.testing.assert_close(second(**batch).logits, plain, atol=1e-5, rtol=1e-5)
        rows = w.heads()[0].rows
    assert config._attn_implementation == "sdpa"
    assert w.heads()[0].rows == rows
    assert "attentropy" not in config.to_json_string()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_gradient_checkpointing(implementation, reentrant, inside):
    model = copy.deepcopy(build("llama")).train()
    model.set_attn_implementation(implementation)
    batch = inputs("llama")
    batch["labels"] = batch["input_ids"]
    model(**batch).loss.backward()
    expected = model.model.layers[0].self_attn.q_proj.weight.grad.clone()
    model.zero_grad()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    with at.watch(model) as w:
        loss = model(**batch).loss
        if inside:
            loss.backward()
    if not inside:
        loss.backward()
    got = model.model.layers[0].self_attn.q_proj.weight.grad
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-3)
    # 3 x 13 tokens less 8 of padding, less the first of each sequence
    assert {row.rows for row in w.heads()} == {28}


def test_packed_sequences_are_told_by_their_positions():
    model = build("llama")
    ids = inputs("llama")["input_ids"][:1]
    positions = torch.cat([torch.arange(5), torch.arange(8)])[None]
    with torch.no_grad():
        plain = model(ids, position_ids=positions, use_cache=False).logits
        with at.watch(model, sample=None) as w:
            packed = model(ids, position_ids=positions, use_cache=False).logits
        parts = [model(part).logits for part in (ids[:, :5], ids[:, 5:])]
    torch.testing.assert_close(packed, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(packed, torch.cat(parts, 1), atol=1e-4, rtol=1e-4)
    assert {row.rows for row in w.heads()} == {4 + 7}
    assert w.heads()[0].visible == pytest.approx((sum(range(2, 6)) + sum(range(2, 9))) / 11)


def test_a_float_mask_of_the_user_is_read():
    model = build("llama")
    ids = inputs("llama")["input_ids"]
    hidden = torch.full((13, 13), torch.finfo(torch.float32).min).triu(1)
    mask = hidden.expand(3, 1, 13, 13)
    with torch.no_grad(), at.watch(model) as w:
        watched = model(ids, attention_mask=mask.clone()).logits
    torch.testing.assert_close(watched, model(ids).logits, atol=1e-5, rtol=1e-5)
    assert w.heads()[0].visible == pytest.approx(sum(range(2, 14)) / 12)
    assert w.heads()[0].causal


def test_a_model_without_attention_says_what_to_do():
    config = transformers.MambaConfig(
        vocab_size=61, hidden_size=16, num_hidden_layers=1, state_size=4
    )
    model = transformers.MambaForCausalLM(config).eval()
    with pytest.raises(NothingRecorded, match="state-space model"), at.watch(model):
        model(torch.ones(1, 4, dtype=torch.int64))
    assert model.config._attn_implementation != "attentropy"


def test_albert_calls_of_its_one_layer_are_told_apart():
    model = build("albert")
    with torch.no_grad(), at.watch(model) as w:
        model(**inputs("albert"))
    assert [row.call for row in w.heads()] == [0] * 4 + [1] * 4
    assert len({row.layer for row in w.heads()}) == 1


def test_encoder_decoder_rows_of_bart():
    model = build("bart")
    with torch.no_grad(), at.watch(model) as w:
        model(**inputs("bart"))
    kinds = {(row.layer, row.kind, row.causal) for row in w.heads()}
    assert ("model.encoder.layers.0.self_attn", "self", False) in kinds
    assert ("model.decoder.layers.1.self_attn", "self", True) in kinds
    assert ("model.decoder.layers.1.encoder_attn", "cross", False) in kinds


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "t5", "gpt_oss"])
@torch.no_grad()
def test_an_eager_model_still_gives_its_weights_when_asked(name):
    model, batch = build(name), inputs(name)
    plain = model(**batch, output_attentions=True)
    with at.watch(model):
        watched = model(**batch, output_attentions=True)
        assert not model(**batch).get("attentions")
    told = [key for key in plain if "attentions" in key]
    assert told
    for key in told:
        assert len(watched[key]) == len(plain[key])
        for ours, theirs in zip(watched[key], plain[key]):
            seen = ours.sum(-1) > 0  # a query that sees nothing
            torch.testing.assert_close(ours[seen], theirs[seen], atol=5e-5, rtol=1e-4)


@torch.no_grad()
def test_steered_weights_are_given_too():
    model, batch = build("llama"), inputs("llama", padded=False)
    handle = at.steer(model, temperature=1e6)
    (first, _) = model(**batch, output_attentions=True).attentions
    handle.undo()
    want = torch.ones_like(first).tril()
    torch.testing.assert_close(first, want / want.sum(-1, keepdim=True), atol=1e-4, rtol=1e-4)


def eager(module, query, key, value, attention_mask, dropout=0.0, scaling=None, **kwargs):
    """What models write, but for one thing: `sharp` multiplies the logits."""
    s = query @ key.mT * query.shape[-1] ** -0.5 * kwargs.get("sharp", 1.0)
    p = F.softmax(s if attention_mask is None else s + attention_mask, dim=-1)
    return (p @ value).transpose(1, 2).contiguous(), p


class Eager(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.num_heads, self.options = 2, options

    def forward(self, x):
        q = x.unflatten(-1, (2, -1)).transpose(1, 2)
        return attend_eagerly(eager, self, q, q, q, None, **self.options)[0].flatten(2)


@pytest.mark.parametrize(("options", "own"), [({}, False), ({"sharp": 3.0}, True)])
@torch.no_grad()
def test_a_function_that_is_not_ours_serves_itself_and_its_softmax_is_recorded(options, own):
    model, x = nn.Sequential(Eager(**options)), torch.randn(2, 7, 8)
    plain = model(x)
    q = x.unflatten(-1, (2, -1)).transpose(1, 2).double()
    p = (q @ q.mT / 2 * options.get("sharp", 1.0)).softmax(-1)
    with at.watch(model) as w:
        first = model(x)
        second = model(x)
    assert torch.equal(first, plain)
    assert torch.equal(second, plain) or not own
    torch.testing.assert_close(second, plain)
    want = torch.special.entr(p).sum(-1).mean((0, 2))
    got = torch.tensor([row.entropy for row in w.heads()], dtype=torch.float64)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)
    assert {row.rows for row in w.heads()} == {28}
    assert [row.head_dim for row in w.heads()] == ([0, 0] if own else [4, 4])
    assert list(w.recorder.beside) == (["0"] if own else [])


def test_kernels_that_are_called_through_the_interface_are_named():
    model = copy.deepcopy(build("llama", "sdpa"))
    plain = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]
    transformers.AttentionInterface.register("a_flash_kernel", plain)
    for layer in model.model.layers[:1]:
        layer.self_attn.config = copy.deepcopy(model.config)
        layer.self_attn.config._attn_implementation_internal = "a_flash_kernel"
    warned = pytest.warns(RuntimeWarning, match=r"layers.0.self_attn \(a_flash_kernel\)")
    with torch.no_grad(), warned, at.watch(model):
        model(**inputs("llama"))
