import pytest
import torch
from torch.nn.attention import SDPBackend

from attentropy.kernels.triton_.contenders import contenders, scaled_dot_product


def test_names():
    assert [*contenders()] == [
        "SDPA flash",
        "SDPA cuDNN",
        "FlexAttention (lse, max)",
        "attentropy triton",
    ]


@pytest.mark.parametrize("causal", [False, True])
def test_contenders_agree(causal):
    q, k, v = torch.randn(3, 1, 2, 20, 16).unbind()
    got = contenders()["attentropy triton"](q, k, v, causal)()
    want = scaled_dot_product(SDPBackend.MATH)(q, k, v, causal)()
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)
