"""What is launched for gradients."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from attentropy.kernels.packing import INPUTS
from attentropy.kernels.softmax_results import FLOWING
from attentropy.kernels.triton import plan_forward as plans
from attentropy.kernels.triton.plan_backward import empty_gradients, plan_backward
from attentropy.kernels.triton.plan_forward import plan_forward
from tests.kernels.triton.problems import problem, tensors


def planned(*, flowing=FLOWING, needs=("q", "k", "v"), **terms):
    made = problem(*tensors(), **terms)
    written = plan_forward(made)[1]
    grads = {name: torch.ones_like(getattr(written, name)) for name in flowing}
    return plan_backward(made, written, grads, {name: name in needs for name in INPUTS})


def names(launches):
    return [one.kernel.__name__ for one in launches]


def test_coefficients_then_two_sweeps():
    launches, found = planned()
    assert names(launches) == ["coefficients", "queries_backward", "keys_backward"]
    assert set(found) == {"q", "k", "v"}
    assert launches[1].args["dq"] is found["q"]
    assert launches[2].args["dk_out"] is found["k"]


def test_where_keys_may_be_hidden_both_sweeps_come_once_more():
    hi = torch.full((1, 1, 9), 5, dtype=torch.int32)
    launches, _ = planned(hi=hi)
    assert names(launches)[:2] == ["coefficients", "queries_backward"]
    assert names(launches)[2:4] == ["span_table", "keys_backward"]
    assert names(launches)[4:] == ["queries_backward", "keys_backward"]
    assert [one.args["SAFE"] for one in launches[4:]] == [True, True]


def test_the_second_sweep_adds_nothing_to_tables():
    bias = torch.zeros(1, 1, 9, 11)
    launches, found = planned(bias=bias, needs=("q", "bias"))
    assert found["bias"].shape == bias.shape
    assert launches[1].args["dbias"].ptr is found["bias"]
    assert launches[3].args["dbias"] is None


@pytest.mark.parametrize(
    ("shape", "spread"), [((1, 1, 1, 11), (True, False)), ((1, 2, 9, 1), (False, True)),
                          ((1, 1, 1, 1), (True, True)), ((1, 2, 9, 11), (False, False))]
)  # fmt: skip
def test_a_bias_of_one_row_or_column_is_summed_first(shape, spread):
    launches, _ = planned(bias=torch.zeros(shape), needs=("bias",))
    args = launches[1].args
    assert (args["SPREAD_I"], args["SPREAD_J"]) == spread


def test_gradients_that_do_not_flow_are_left_out():
    launches, _ = planned(flowing=("lse",))
    slopes = launches[0].args["slopes"]
    assert slopes.linear is slopes.square is slopes.collision is launches[0].args["dout"] is None
    assert launches[0].args["dlse"] is not None
    assert launches[1].args["dout"].ptr.numel() == 1


def test_room_for_gradients_is_zero_where_tiles_add():
    made = problem(*tensors(), bias=torch.ones(1, 1, 9, 11), relative=torch.ones(2, 5))
    found = empty_gradients(made, dict.fromkeys(INPUTS, True))
    assert set(found) == {"q", "k", "v", "scale", "bias", "relative"}
    assert found["scale"].shape == (1, 2, 9)
    assert not found["bias"].any()
    assert not found["relative"].any()


def test_planning_reads_nothing_back_from_the_card(monkeypatch):
    """Fake tensors have no data: what would wait for it, or allocate by it, raises."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(plans, "processors", lambda device: 132)
    with FakeTensorMode():

        def made(*shape, dtype=torch.bfloat16):
            return torch.empty(shape, device="cuda", dtype=dtype)

        hi = made(1, 1, 40, dtype=torch.int32)
        scale, visible = made(1, 1, 1, dtype=torch.float32), made(1, 1, 40, dtype=torch.int64)
        one = problem(
            made(1, 2, 40, 16), made(1, 1, 50, 16), made(1, 1, 50, 16), hi=hi, scale=scale,
            visible=visible,
        )  # fmt: skip
        ahead, written = plan_forward(one)
        grads = {name: getattr(written, name) for name in FLOWING}
        back, found = plan_backward(one, written, grads, dict.fromkeys(INPUTS, False))
    assert [x.tiles.warps for x in (ahead[0], back[-4])]
    assert written.out.device.type == found["q"].device.type == "cuda"
