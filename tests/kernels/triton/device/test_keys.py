"""The sweep over the queries by itself: gradients of k and v."""

import pytest
import torch

from tests.kernels.triton.device.helpers import interpreted
from tests.kernels.triton.device.test_queries import DRAWN, SIZES, prepared

pytestmark = pytest.mark.interpreter


def sweep_over_queries(launches):
    """What the gradients of k and v take, without the second launch."""
    names = ("coefficients", "span_table", "keys_backward")
    return [x for x in launches if x.kernel.__name__ in names and not x.args.get("SAFE")]


@interpreted
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "terms",
    [
        {},
        {"hi": (torch.arange(21) + 10).int().view(1, 1, 21), "softcap": 2.0},
        {"table": torch.rand(1, 1, 21, 35, generator=DRAWN) > 0.3},
        {
            "lo": (torch.arange(21) // 2).int().view(1, 1, 21),
            "scale": torch.rand(1, 2, 1, generator=DRAWN) / 4,
        },
    ],
    ids=["plain", "causal softcap", "table", "lo"],
)
def test_gradients_are_those_of_the_reference(sizes, terms):
    launches, found, want = prepared(terms, ("k", "v"))
    for one in sweep_over_queries(launches):
        one.start_with(sizes)
    for name in ("k", "v"):
        torch.testing.assert_close(found[name], want[name], atol=2e-5, rtol=1e-4, msg=name)


@interpreted
def test_the_second_launch_leaves_finite_keys_as_they_are():
    launches, found, want = prepared({"table": torch.rand(1, 1, 21, 35) > 0.3}, ("k", "v"))
    for one in sweep_over_queries(launches):
        one.start_with(SIZES[0])
    before = found["k"].clone()
    launches[4].start_with(SIZES[0])
    assert torch.equal(found["k"], before)
    torch.testing.assert_close(found["v"], want["v"], atol=2e-5, rtol=1e-4)
