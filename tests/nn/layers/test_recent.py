"""Layers of the last years against published formulas in plain torch, and against transformers."""

import itertools
import math

import pytest
import torch
from transformers import DiffLlamaConfig, GptOssConfig, Llama4TextConfig, Ministral3Config
from transformers.models.diffllama.modeling_diffllama import DiffLlamaAttention
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssAttention
from transformers.models.llama4.modeling_llama4 import Llama4TextAttention
from transformers.models.ministral3.modeling_ministral3 import Ministral3Attention

import attentropy as at

nn = at.nn
X = torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
HIDDEN = torch.ones(7, 7).triu(1).bool()
OF_FLOAT32 = {"atol": 1e-6, "rtol": 1e-5}  # transformers takes its softmax in float32


def heads(x, number):
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


def parts(layer):
    q, k, v = (X @ layer.in_proj_weight.mT + layer.in_proj_bias).chunk(3, -1)
    return [heads(x, layer.num_heads) for x in (q, k, v)]


def joined(layer, p, v):
    return layer.out_proj((p @ v).transpose(1, 2).flatten(2))


def test_gated_attention():
    layer = nn.GatedAttention(16, 4, mask=at.causal).double()
    q, k, v = parts(layer)
    p = (q @ k.mT / 2).masked_fill(HIDDEN, -torch.inf).softmax(-1)
    gate = 1 / (1 + (-layer.gate(X)).exp())
    want = layer.out_proj((p @ v).transpose(1, 2).flatten(2) * gate)
    out, stats = layer(X)
    torch.testing.assert_close(out, want)
    out.sum().backward()
    assert layer.gate.weight.grad.abs().sum() > 0


def test_selective_attention():
    layer = nn.SelectiveAttention(16, 4).double()
    q, k, v = parts(layer)
    s = (q @ k.mT / 2).masked_fill(HIDDEN, -torch.inf)
    masked = torch.zeros(2, 7, 7, dtype=torch.float64)
    for i in range(7):
        for j in range(1, 7):
            for earlier in range(i):
                if earlier > j:
                    masked[:, i, j] += s[:, 0, earlier, j].relu()
    p = (s - masked[:, None]).softmax(-1)
    out, weights = layer(X, need_weights=True)
    torch.testing.assert_close(out, joined(layer, p, v))
    torch.testing.assert_close(weights + 0, p)
    grads = torch.autograd.grad(out.square().sum(), layer.in_proj_weight, retain_graph=True)[0]
    want = torch.autograd.grad(joined(layer, p, v).square().sum(), layer.in_proj_weight)[0]
    torch.testing.assert_close(grads, want)


def test_scale_invariant_attention():
    layer = nn.ScaleInvariantAttention(16, 4, tau=3.0).double()
    q, k, v = parts(layer)
    s = q @ k.mT / 2
    for i in range(7):
        for j in range(i + 1):
            square = 2 * (math.log((i - j) / 3 + 1) - 0.5 + 1)  # alpha = beta = sqrt(e)
            s[:, :, i, j] = math.sqrt(square) * s[:, :, i, j].clone() - square + 1
    p = s.masked_fill(HIDDEN, -torch.inf).softmax(-1)
    torch.testing.assert_close(layer(X).out, joined(layer, p, v))
    last = layer(X[:, -2:], X).out
    torch.testing.assert_close(last, layer(X).out[:, -2:])


def test_differential_attention():
    layer = nn.DifferentialAttention(16, 2, depth=3, mask=at.causal).double()
    q, k, v = (
        heads(proj(X), n) for proj, n in zip((layer.q_proj, layer.k_proj, layer.v_proj), (4, 4, 2))
    )
    p = (q @ k.mT / 2).masked_fill(HIDDEN, -torch.inf).softmax(-1)
    first = 0.8 - 0.6 * math.exp(-0.9)
    q1, k1, q2, k2 = layer.lambdas.detach()
    share = math.exp(float(q1 @ k1)) - math.exp(float(q2 @ k2)) + first
    maps = p[:, 0::2] - share * p[:, 1::2]
    mixed = maps @ v
    normed = mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (1 - first)
    out, weights = layer(X, need_weights=True)
    torch.testing.assert_close(out, layer.out_proj(normed.transpose(1, 2).flatten(2)))
    torch.testing.assert_close(weights + 0, maps)
    assert layer(X).stats.entropy.shape == (2, 4, 7)
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in layer.parameters())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: nn.SelectiveAttention(16, 4, scale=1.0),
            "scale must be left out: SelectiveAttention",
        ),
        (
            lambda: nn.ScaleInvariantAttention(16, 4, tau=0),
            "tau must be finite and > 0, got 0",
        ),
        (lambda: nn.DifferentialAttention(16, 2, depth=-1), "depth must be >= 0, got -1"),
        (
            lambda: nn.DifferentialAttention(10, 2),
            "2 num_heads must be a divisor of embed_dim = 10, got 4",
        ),
        (lambda: nn.SelectiveAttention(16, 4)(X[:, :3].float(), X.float()), "keys must be as many"),
        (
            lambda: nn.SelectiveAttention(16, 4, positions=at.ALiBi())(X.float()),
            "takes no positions",
        ),
        (
            lambda: nn.ASEntmaxAttention(16, 4, weights=at.Softmax()),
            "weights must be left out: ASEntmaxAttention has its own",
        ),
        (lambda: nn.ASEntmaxAttention(16, 4, alpha=3.0), "Entmax: alpha must be in"),
        (lambda: nn.DifferentialAttention(16, 2)(X[0]), r"x must be of shape \[B,N,16\]"),
    ],
)
def test_what_is_refused(make, message):
    with pytest.raises((ValueError, at.UnsupportedError), match=message):
        make()


def test_asentmax_attention():
    layer = nn.ASEntmaxAttention(16, 4, mask=at.causal, delta=0.5, gamma_range=1.5).double()
    q, k, v = parts(layer)
    beta = torch.log1p((X @ layer.beta.weight.mT).exp()).mT
    gamma = 1.5 * (X @ layer.gamma.weight.mT).tanh().mT
    scale = (0.5 + beta * torch.arange(2.0, 9.0).double().log() ** gamma) / 2
    s = (scale[..., None] * (q @ k.mT)).masked_fill(HIDDEN, -torch.inf)
    p = torch.zeros_like(s)
    for index in itertools.product(range(2), range(4), range(7)):
        p[index] = entmax15(s[index])
    out, weights = layer(X, need_weights=True)
    torch.testing.assert_close(weights + 0, p, atol=1e-7, rtol=1e-6)
    torch.testing.assert_close(out, joined(layer, p, v), atol=1e-7, rtol=1e-6)
    entropy = torch.special.entr(p).sum(-1)
    torch.testing.assert_close(layer(X).stats.entropy, entropy, atol=1e-6, rtol=1e-6)
    out.square().sum().backward()
    assert all(x.grad.abs().sum() > 0 for x in (layer.beta.weight, layer.gamma.weight))


def entmax15(s):
    """Entmax with alpha = 1.5 of one row, its threshold by sorting."""
    z = s.sort(descending=True).values / 2
    for count in range(1, len(z) + 1):
        top = z[:count]
        spread = (1 / count - (top - top.mean()).square().mean()).clamp(min=0)
        threshold = top.mean() - spread.sqrt()
        if count == len(z) or z[count] <= threshold:
            break
    return (s / 2 - threshold).clamp(min=0).square()


def test_scale_invariant_octaves_hold_equal_mass():
    # for standard normal scores E e^(a s + m) = e^(m + a^2 / 2): octaves from t to 2 t, t >> tau
    layer = nn.ScaleInvariantAttention(16, 4, tau=2.0)
    t = torch.arange(8192.0)
    growth = 2 * (t / layer.tau).log1p()
    mass = (-growth + (1 + growth) / 2).exp()
    octaves = [float(mass[start : 2 * start].sum()) for start in (256, 1024, 4096)]
    assert octaves == pytest.approx([octaves[0]] * 3, rel=0.01)


def test_differential_attention_is_that_of_diffllama():
    config = DiffLlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=4, head_dim=8,
        rms_norm_eps=1e-5, attn_implementation="eager",
    )  # fmt: skip
    theirs = DiffLlamaAttention(config, layer_idx=3).double().eval()
    ours = nn.DifferentialAttention(32, 2, depth=3, mask=at.causal).double()
    pairs = torch.tensor([0, 2, 1, 3])  # they pair head h with h + 2, we 2 h with 2 h + 1
    rows = (pairs[:, None] * 8 + torch.arange(8)).flatten()
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            getattr(ours, name).weight.copy_(getattr(theirs, name).weight[rows])
        ours.out_proj.weight.copy_(theirs.o_proj.weight)
        names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
        ours.lambdas.copy_(torch.stack([getattr(theirs, name) for name in names]))
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    still = torch.ones(1, 7, 8, dtype=torch.float64), torch.zeros(1, 7, 8, dtype=torch.float64)
    hidden = torch.zeros(1, 1, 7, 7, dtype=torch.float64).masked_fill(HIDDEN, -torch.inf)
    wanted, _ = theirs(x, still, hidden)
    torch.testing.assert_close(ours(x).out, wanted, **OF_FLOAT32)


def test_step_log_is_that_of_llama_4():
    config = Llama4TextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, floor_scale=3,
        attn_scale=0.4, num_hidden_layers=1, no_rope_layers=[0], attn_implementation="eager",
    )  # fmt: skip
    theirs = Llama4TextAttention(config, layer_idx=0).double().eval()
    assert_scaled(theirs, at.StepLog(3, beta=0.4))


def test_step_log_is_that_of_ministral_3():
    rope = {
        "rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.4,
        "original_max_position_embeddings": 3,
    }  # fmt: skip
    config = Ministral3Config(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        rope_parameters=rope, attn_implementation="eager",
    )  # fmt: skip
    theirs = Ministral3Attention(config, layer_idx=0).double().eval()
    assert_scaled(theirs, at.StepLog(3, beta=0.4, start=1), position_ids=torch.arange(7)[None])


def assert_scaled(theirs, scale, **options):
    """A layer of transformers, without turning, is attend() with a scale rule."""
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    still = torch.ones(1, 7, 8, dtype=torch.float64), torch.zeros(1, 7, 8, dtype=torch.float64)
    hidden = torch.zeros(1, 1, 7, 7, dtype=torch.float64).masked_fill(HIDDEN, -torch.inf)
    wanted = theirs(x, position_embeddings=still, attention_mask=hidden, **options)[0]
    q, k, v = (heads(getattr(theirs, f"{n}_proj")(x), c) for n, c in zip("qkv", (4, 2, 2)))
    out = at.attend(q, k, v, mask=at.causal, scale=scale).out
    torch.testing.assert_close(theirs.o_proj(out.transpose(1, 2).flatten(2)), wanted, **OF_FLOAT32)
    plain = at.attend(q, k, v, mask=at.causal).out
    assert not torch.allclose(plain, out)


def test_a_sink_is_that_of_gpt_oss():
    config = GptOssConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = GptOssAttention(config, layer_idx=1).double().eval()
    torch.nn.init.normal_(theirs.sinks)
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    still = torch.ones(1, 7, 4, dtype=torch.float64), torch.zeros(1, 7, 4, dtype=torch.float64)
    hidden = torch.zeros(1, 1, 7, 7, dtype=torch.float64).masked_fill(HIDDEN, -torch.inf)
    wanted = theirs(x, position_embeddings=still, attention_mask=hidden)[0]
    q, k, v = (heads(getattr(theirs, f"{n}_proj")(x), c) for n, c in zip("qkv", (4, 2, 2)))
    out = at.attend(q, k, v, mask=at.causal, sink=theirs.sinks.detach()).out
    torch.testing.assert_close(theirs.o_proj(out.transpose(1, 2).flatten(2)), wanted, **OF_FLOAT32)
