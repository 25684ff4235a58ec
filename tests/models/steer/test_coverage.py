"""What steer() could not change is told by name; what it could is changed."""

import copy
import gc
import pickle
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import attentropy as at
from attentropy.core.errors import ArgumentError, UnsupportedError
from attentropy.models.steer.coverage import each
from attentropy.models.watch import NothingRecorded
from tests.models.zoo import build, inputs


def longt5(kind):
    if not transformers.T5Model._supports_sdpa:
        pytest.skip("both halves of LongT5 attend by hand before transformers 5.15")
    config = transformers.LongT5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4, local_radius=3,
        encoder_attention_type=kind,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LongT5Model(config).eval()


def both(length=9):
    torch.manual_seed(1)
    ids = torch.randint(3, 60, (1, length))
    return {"input_ids": ids, "decoder_input_ids": ids}


class HandAttention(nn.Module):
    """One layer of attention, by hand or by torch."""

    def __init__(self, *, hand):
        super().__init__()
        self.mixed, self.hand = nn.Linear(8, 24), hand

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.split(x))
        if self.hand:
            out = torch.softmax(q @ k.mT / 2, -1) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v)
        return x + out.transpose(1, 2).flatten(2)

    def split(self, x):
        return self.mixed(x).chunk(3, -1)


def half():
    torch.manual_seed(0)
    return nn.Sequential(HandAttention(hand=True), HandAttention(hand=False))


X = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(2))


class ExpAttention(HandAttention):
    """A softmax that no function of torch computes."""

    def __init__(self):
        super().__init__(hand=True)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.split(x))
        p = (q @ k.mT / 2).exp()
        return x + (p / p.sum(-1, keepdim=True) @ v).transpose(1, 2).flatten(2)


NEEDS_SCORES = {"qk_norm": True}  # which cannot act where only logits are known


@pytest.mark.parametrize(
    ("kind", "layer"),
    [("local", "LocalSelfAttention"), ("transient-global", "TransientGlobalSelfAttention")],
)
def test_layers_of_longt5_that_stay_as_they_are_are_named(kind, layer):
    model, names = longt5(kind), [f"encoder.block.{i}.layer.0.{layer}" for i in (0, 1)]
    before = F.softmax, torch.softmax
    handle = at.steer(model, **NEEDS_SCORES)
    why = rf"left alone {names[0]}, {names[1]} \(attention computed by hand, where qk_norm finds no"
    with pytest.warns(RuntimeWarning, match=why):
        model(**both())
    assert handle.left_alone == tuple(names)
    assert handle.applied
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**both())  # told once
    handle.undo()
    assert (F.softmax, torch.softmax) == before


def test_layers_of_longt5_get_a_temperature():
    model = longt5("local")
    with torch.no_grad(), at.watch(model) as w:
        model(**both())
    handle = at.steer(model, temperature=1e6)
    with torch.no_grad(), at.watch(model) as steered:
        model(**both())
    handle.undo()
    assert handle.left_alone == ()
    assert {row.layer.partition(".")[0] for row in w.heads()} == {"encoder", "decoder"}
    assert all(row.normalized_entropy < 0.999 for row in w.heads())
    assert all(row.normalized_entropy == pytest.approx(1) for row in steered.heads())


def test_generating_tells_of_the_encoder_too():
    config = longt5("local").config
    model = transformers.LongT5ForConditionalGeneration(config).eval()
    handle = at.steer(model, **NEEDS_SCORES)
    with pytest.warns(RuntimeWarning, match=r"left alone encoder.block.0.layer.0.LocalSelf"):
        model.generate(both()["input_ids"], max_new_tokens=2, decoder_start_token_id=0)
    handle.undo()


def test_only_what_was_to_be_changed_is_told():
    for options in ({"layers": ["1"]}, {"temperature": {"1": 2.0}}):
        model = half()
        handle = at.steer(model, **{"temperature": 2.0, **options})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            model(X)
        assert handle.left_alone == ()
        handle.undo()


def test_undo_before_any_pass_listens_no_longer():
    before = F.softmax
    handle = at.steer(half(), temperature=2.0)
    assert F.softmax is not before
    handle.undo()
    assert F.softmax is before


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_tell_too(copied):
    before = F.softmax
    model = half()
    handle = at.steer(model, **NEEDS_SCORES)
    other = copied(model)
    handle.undo()
    with pytest.warns(RuntimeWarning, match=r"left alone 0 \(attention computed by hand"):
        other(X)
    del other
    gc.collect()
    assert F.softmax is before


def test_calls_of_sdpa_that_attend_does_not_take_are_told():
    class Mixed(nn.Module):
        def forward(self, x):
            return F.scaled_dot_product_attention(x[:, None], x, x)[:, 0]

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = HandAttention(hand=False), Mixed()

        def forward(self, x):
            return self.two(self.one(x))

    model, why = Twice(), r"two \(scaled_dot_product_attention of tensors that attend\(\) does not"
    handle = at.steer(model, temperature=2.0)
    with pytest.warns(RuntimeWarning, match=rf"left alone {why}"):
        model(X)
    handle.undo()
    with pytest.warns(RuntimeWarning, match=rf"nothing was recorded of {why}"), at.watch(model):
        model(X)


def test_a_model_out_of_reach_answers_itself_and_is_told_once():
    model = nn.Sequential(ExpAttention(), ExpAttention())
    plain = model(X)
    why = r"reached no attention call of Sequential, .*: 0, 1 \(exp\(s\) / sum\(exp\(s\)\)\)"
    for _ in range(2):  # a census is taken once for all changes of a model
        handle = at.steer(model, temperature=2.0)
        with pytest.warns(RuntimeWarning, match=why):
            assert torch.equal(model(X), plain)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert torch.equal(model(X), plain)
        assert [(one.module, one.status) for one in handle.coverage()] == [
            ("0", "unchanged"),
            ("1", "unchanged"),
        ]
        assert not handle.applied
        with pytest.raises(UnsupportedError, match=why):
            handle.require()
        handle.undo()
    with pytest.raises(NothingRecorded, match="nothing was recorded of 0, 1"):
        at.calibrate(model, [X.repeat(1, 4, 1)], [5, 20])


def test_a_layer_out_of_reach_is_told_beside_others():
    model = nn.Sequential(HandAttention(hand=False), ExpAttention())
    handle = at.steer(model, temperature=2.0, layers=["1"])
    with pytest.warns(RuntimeWarning, match=r"no attention call of Sequential, .*: 1 \(exp"):
        model(X)
    handle.undo()
    handle = at.steer(model, temperature=2.0)
    with pytest.warns(RuntimeWarning, match=r"left alone 1 \(exp\(s\) / sum"):
        model(X)
    assert [one.status for one in handle.coverage()] == ["changed", "unchanged"]
    handle.undo()


class Wrong:
    """A rule of a user's own that fails."""

    def __call__(self, head_dim, visible):
        raise ValueError("no such length")


@pytest.mark.parametrize("hand", [False, True])
@pytest.mark.parametrize(
    ("steering", "said"),
    [
        ({"temperature": [1.0, 2.0, 3.0]}, "the change cannot be made"),
        ({"mask": at.dense(torch.ones(3, 3, dtype=torch.bool))}, "the change cannot be made"),
        ({"scale": Wrong()}, "ValueError: no such length|finds no scores"),
    ],
)
def test_a_change_that_fails_leaves_the_call_to_the_model(hand, steering, said):
    model = nn.Sequential(HandAttention(hand=hand))
    plain = model(X)
    handle = at.steer(model, **steering)
    with pytest.warns(RuntimeWarning, match=rf"no attention call of Sequential.* 0 \(.*({said})"):
        torch.testing.assert_close(model(X), plain)
    handle.undo()
    with torch.no_grad(), at.watch(model) as w:  # what failed says nothing about the model
        model(X)
    assert [row.status for row in w.coverage() if row.module == "0"] != ["unseen"]


def test_calls_of_a_module_that_cannot_be_changed_are_told_when_they_come():
    model = nn.Sequential(HandAttention(hand=False))
    handle = at.steer(model, mask=at.dense(torch.ones(5, 5, dtype=torch.bool).tril()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(X)
    with pytest.warns(RuntimeWarning, match=r"left alone 0 \(the change cannot be made"):
        model(X[:, :3])
    assert [(one.status, bool(one.why)) for one in handle.coverage()] == [("partly", True)]
    handle.undo()


def test_an_interrupt_in_the_first_pass_leaves_nothing_behind():
    class Stops(nn.Module):
        def forward(self, x):
            raise KeyboardInterrupt

    model = nn.Sequential(HandAttention(hand=False), Stops())
    handle = at.steer(model, temperature=2.0)
    with pytest.raises(KeyboardInterrupt):
        model(X)
    assert torch._C._len_torch_dispatch_stack() == 0
    handle.undo()
    assert not any("_attentropy_tracked" in vars(m) for m in model.modules())


def test_a_plan_reaches_attention_by_hand_too():
    plan = at.calibrate(longt5("local"), [both(32)], [16, 32])
    assert {name.partition(".")[0] for name in plan.factors} == {"encoder", "decoder"}
    plan = at.calibrate(half(), [X.repeat(1, 4, 1)], [5, 20])
    assert set(plan.factors) == {"0", "1"}
    ids = inputs("bloom", padded=False)["input_ids"]
    assert len(at.calibrate(build("bloom"), [ids], [4, ids.shape[1]]).factors) == 2


@pytest.mark.parametrize("argument", ["plan", "temperature"])
def test_layers_that_the_model_does_not_have_are_refused(argument):
    plan = at.calibrate(half(), [X.repeat(1, 4, 1)], [5, 20])
    given = plan if argument == "plan" else {"1": 2.0}
    model = nn.Sequential(half())
    with pytest.raises(ArgumentError, match=f"{argument} must be by names of modules .* got 1"):
        at.steer(model, **{argument: given})


def test_a_reason_is_told_once_for_all_its_modules():
    assert each({"": "by hand", "b": "by hand"}) == "the model, b (by hand)"


class SideBySide(HandAttention):
    """Logits [B * H,Q,K] in a module whose name does not say that it attends."""

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.split(x))
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        p = (q @ k.mT / 2).softmax(-1)
        return x + (p @ v).unflatten(0, (-1, 2)).transpose(1, 2).flatten(2)


@torch.no_grad()
def test_a_watch_does_not_change_what_is_steered():
    model = nn.Sequential(SideBySide(hand=True), HandAttention(hand=False))
    model[0].__class__ = type("Mixes", (SideBySide,), {})
    handle = at.steer(model, temperature=2.0)
    with pytest.warns(RuntimeWarning, match="which neither its shape nor a name tells"):
        plain = model(X)
    with at.watch(model):
        for _ in range(3):
            torch.testing.assert_close(model(X), plain)
    handle.undo()


def test_threads_that_run_a_model_for_the_first_time_do_not_stop_each_other():
    class Waits(nn.Module):
        def forward(self, x):
            barrier.wait(timeout=60)
            return x

    def run():
        try:
            found.append(model(X))
        except BaseException as error:
            found.append(error)

    for start in (lambda m: at.watch(m).start().stop, lambda m: at.steer(m, temperature=1.0).undo):
        barrier, found = threading.Barrier(2), []
        model = nn.Sequential(Waits(), HandAttention(hand=False), Waits())
        stop = start(model)
        threads = [threading.Thread(target=run) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        stop()
        assert [type(one) for one in found] == [torch.Tensor] * 2, found
