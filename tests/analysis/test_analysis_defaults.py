"""Results have the device and the precision of the tensors, whatever torch has as defaults."""

import pytest
import torch
from torch import Tensor

import attentropy as at
from attentropy import analysis as an
from tests.cases import Shape

SHAPE = Shape(queries=12, keys=12)
Q, K, V = (x.detach() for x in SHAPE.tensors(torch.float32))
CALLS = {
    "compare_heads": lambda: an.compare_heads(Q, K, mask=at.causal),
    "divergence": lambda: an.divergence(Q, K),
    "duplicate_heads": lambda: Q.new_tensor(an.duplicate_heads(Q, K, threshold=0.5)),
    "mutual_information": lambda: an.mutual_information(Q, K),
    "positional_share": lambda: an.positional_share(Q, K),
    "positional_share causal": lambda: an.positional_share(Q, K, mask=at.causal & at.lookback(4)),
    "flow_by_scale": lambda: an.flow_by_scale(Q, K, V, [0.5, 1.0]),
    "live_keys": lambda: an.live_keys(Q, K, mask=at.causal),
    "jacobian_norm": lambda: an.jacobian_norm(Q, K, V),
    "compare_errors": lambda: an.compare_errors(Q, K, V, 0.1, mask=at.causal),
    "worst_error": lambda: an.worst_error(Q, K, V, 0.1),
    "causal_rank": lambda: an.causal_rank_dense(Q, K, mask=at.causal),
    **{
        f"measured_error {kind}": lambda kind=kind: an.measured_error(Q, K, V, an.Noise(0.1, kind))
        for kind in ("gaussian", "uniform", "laplace")
    },
}


@pytest.fixture(params=["meta device", "float64"])
def other_defaults(request):
    if request.param == "float64":
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)
    else:
        with torch.device("meta"):
            yield


@pytest.mark.parametrize("name", CALLS)
def test_analysis_follows_its_tensors(name, other_defaults):
    got = _flat(CALLS[name]())
    torch.set_default_dtype(torch.float32)
    with torch.device("cpu"):
        want = _flat(CALLS[name]())
    for a, b in zip(got, want, strict=True):
        assert a.device.type == "cpu"
        torch.testing.assert_close(a, b)


def _flat(found):
    return [found] if isinstance(found, Tensor) else list(found)
