"""The backward pass of few queries, which goes row by row: every feature, blocks of keys, NaN."""

import pytest
import torch

from tests.kernels.fused.cases import EXTRAS, ISAS, by_fused, make, run, serving
from tests.kernels.fused.test_kernel import judge

pytestmark = pytest.mark.skipif(not ISAS, reason="no fused kernel for this CPU")


@pytest.fixture(params=[1, 3])
def threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize("isa", ISAS)
def test_every_feature_over_several_blocks_of_keys(isa, extra, threads):
    with serving(isa):
        judge(make((1, 6, 2, 3, 600, 37, 20), {extra}, seed=1), slack=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("isa", ISAS)
def test_all_features_together(isa, dtype):
    together = {"intervals", "mask", "bias", "relative", "alibi", "softcap", "row scale"}
    with serving(isa):
        for queries in (1, 2, 4):
            judge(make((2, 3, 1, queries, 193, 32, 16), together, dtype=dtype, seed=2), slack=3)


@pytest.mark.parametrize("name", ["q", "dout"])
@pytest.mark.parametrize("extras", [{"window", "causal"}, {"mask"}])
@pytest.mark.parametrize("isa", ISAS)
def test_keys_that_a_row_of_nan_does_not_see_keep_their_gradients(isa, extras, name):
    call = make((1, 2, 1, 4, 40, 16, 16), extras, seed=3)
    seen = call.seen.dense()[0, :, 1].any(0)  # by the row that becomes NaN, in any head
    with serving(isa):
        clean = _gradients(call)
        q, dout = call.q.clone(), torch.ones(call.q.shape)
        {"q": q, "dout": dout}[name][:, :, 1] = torch.nan
        found = _gradients(call._replace(q=q), dout)
    for mine, want in zip(found, clean, strict=True):
        torch.testing.assert_close(mine[:, :, ~seen], want[:, :, ~seen], rtol=1e-5, atol=1e-6)
        assert mine[:, :, seen].isnan().all()


def _gradients(call, dout=None):
    """dk and dv."""
    leaves = [x.detach().requires_grad_() for x in (call.k, call.v)]
    out = by_fused(call._replace(k=leaves[0], v=leaves[1]))[0]
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if dout is None else dout)


@pytest.mark.parametrize("name", ["k", "v"])
@pytest.mark.parametrize("extras", [{"window", "causal"}, {"mask"}, {"hiding bias"}])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_that_do_not_see_a_key_of_nan_keep_their_gradients(isa, extras, name):
    call = make((1, 2, 1, 4, 40, 16, 16), extras, seed=5)
    seen = call.seen.dense()[:, :, :, 37].expand(1, 2, 4)
    spoilt = getattr(call, name).clone()
    spoilt[:, :, 37] = torch.nan
    with serving(isa):
        clean = run(call, by_fused, flowing=("out",))["dq"]
        found = run(call._replace(**{name: spoilt}), by_fused, flowing=("out",))["dq"]
    torch.testing.assert_close(found[~seen], clean[~seen], rtol=1e-5, atol=1e-6)
    assert found[seen].isnan().any(-1).all()
    assert (~seen).any()
