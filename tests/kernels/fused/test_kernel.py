"""The fused kernel against the float64 reference: every feature, every build, all gradients."""

import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from attentropy.kernels import reference
from attentropy.kernels.fused import kernel as fused
from tests.kernels.fused.cases import (
    ISAS,
    by_fused,
    by_reference,
    calls,
    error,
    make,
    naive,
    run,
    serving,
    uncertainty,
)

pytestmark = pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")
# `make sanitize`, where everything is slow, asks for fewer
EXAMPLES = int(os.environ.get("ATTENTROPY_EXAMPLES", "100"))
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
some = settings(many, max_examples=max(1, EXAMPLES // 3))


STATISTICS = ("entropy", "lse", "collision", "varentropy")  # in float32 whatever the inputs


def statistics(call):
    results = naive(call)
    return dict(zip(STATISTICS, results[1:], strict=True))


def judge(call, slack):
    """No error above `slack` times that of the naive computation, plus a few roundings."""
    wide = {n: getattr(call, n) for n in ("q", "k", "v")}
    exact = run(
        call._replace(**{n: x.double() for n, x in wide.items()}), by_reference, dtype=torch.float64
    )
    plain, ours = run(call, naive), run(call, by_fused)
    plain |= statistics(call._replace(**{n: x.float() for n, x in wide.items()}))
    for name, x in ours.items():
        y = exact[name]
        eps = torch.finfo(torch.float32 if name in STATISTICS else call.q.dtype).eps
        size = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 0.0
        budget = slack * error(plain[name], y) + 8 * eps * (size + uncertainty(call, name))
        assert error(x, y) <= budget, (name, error(x, y), budget)


@pytest.mark.parametrize("isa", ISAS)
class TestAgainstReference:
    @many
    @given(call=calls())
    def test_float32(self, isa, call):
        with serving(isa):
            judge(call, slack=3)

    @some
    @given(call=calls(dtype=torch.bfloat16))
    def test_bfloat16(self, isa, call):
        with serving(isa):
            judge(call, slack=3)

    @settings(some, max_examples=max(1, EXAMPLES // 8))
    @given(call=calls(dtype=torch.float16))
    def test_float16(self, isa, call):
        with serving(isa):
            judge(call, slack=3)

    @some
    @given(call=calls())
    def test_statistics_without_gradient(self, isa, call):
        with serving(isa), torch.inference_mode():
            ours = fused.attend(call)
        exact = reference.attend(
            call._replace(q=call.q.double(), k=call.k.double(), v=call.v.double())
        )
        size = _logits(call).nan_to_num(neginf=0.0).abs().max().item()
        assert error(ours.max_logit, exact.max_logit) < 2e-6 * (1 + size)
        top = torch.gather(_logits(call), -1, ours.argmax.clamp(min=0)[..., None])[..., 0]
        seen = ours.argmax >= 0
        torch.testing.assert_close(top[seen].float(), ours.max_logit[seen], rtol=1e-5, atol=1e-5)
        assert torch.equal(seen, call.visible.expand(seen.shape) > 0)
        assert (ours.entropy >= 0).all()
        limit = call.visible.clamp(min=1).double().log() + 1e-6
        assert (ours.entropy <= limit).all()


def _logits(call):
    s = reference.logits(call, ~call.seen.dense())
    return s.masked_fill(~call.seen.dense(), -torch.inf)


@pytest.mark.parametrize("isa", ISAS)
def test_entropy_is_right_to_two_millionths(isa):
    call = make((2, 4, 4, 512, 512, 64, 64), ("causal",), seed=3)
    with serving(isa):
        ours = fused.attend(call).entropy
    wide = call._replace(q=call.q.double(), k=call.k.double(), v=call.v.double())
    assert error(ours, reference.attend(wide).entropy) <= 2e-6


@pytest.mark.parametrize(
    "flowing", [["out"], ["entropy"], ["lse"], ["collision"], ["out", "entropy"]]
)
def test_each_result_has_its_own_gradient(flowing):
    call = make((1, 2, 1, 70, 90, 24, 16), ("causal", "bias", "relative", "softcap"))
    wide = call._replace(q=call.q.double(), k=call.k.double(), v=call.v.double())
    ours = run(call, by_fused, flowing=flowing)
    exact = run(wide, by_reference, dtype=torch.float64, flowing=flowing)
    for name in ("dq", "dk", "dv", "dscale", "dbias", "drelative"):
        x, y = ours[name], exact[name]
        if y is None:  # values have no part in the statistics
            assert name == "dv"
            assert not x.any()
            continue
        torch.testing.assert_close(x.double(), y, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("heads", [1, 3])
def test_backward_splits_keys_among_threads(threads, heads):
    call = make((1, heads, 1, 300, 700, 32, 32), ("causal",))
    wide = call._replace(q=call.q.double(), k=call.k.double(), v=call.v.double())
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        ours = run(call, by_fused)
    finally:
        torch.set_num_threads(before)
    exact = run(wide, by_reference, dtype=torch.float64)
    for name in ("dq", "dk", "dv"):
        torch.testing.assert_close(ours[name].double(), exact[name], rtol=1e-4, atol=1e-5)


def test_output_follows_the_layout_of_queries():
    call = make((2, 3, 3, 20, 20, 8, 8), layouts=("tokens first",) * 3)
    out = fused.attend(call).out
    assert out.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"additive": torch.ones(1, 8)}, "the additive score"),
        ({"q": torch.ones(1, 1, 4, 8, dtype=torch.float64)}, "float64 inputs"),
        ({"q": torch.ones(1, 1, 4, 8, device="meta")}, "inputs on meta"),
    ],
)
def test_says_what_it_lacks(change, reason):
    call = make((1, 1, 1, 4, 4, 8, 8))
    assert fused.lacks(call) is None
    assert fused.lacks(call._replace(**change)) == reason
