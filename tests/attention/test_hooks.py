"""The seam that watched and steered models use: what is installed is asked, and nothing else is."""

import pytest
import torch

import attentropy as at
from attentropy.attention import hooks as seam
from attentropy.attention.hooks import changed, hooks, recorded, skipped
from attentropy.core.resolve import Options


@pytest.fixture(autouse=True)
def nothing_installed():
    assert (hooks.change, hooks.record, hooks.skip) == (None, None, None)
    yield
    hooks.change = hooks.record = hooks.skip = None


def tensors():
    return [torch.randn(1, 2, 5, 8) for _ in range(3)]


def test_without_hooks_everything_is_as_asked():
    q, k, _ = tensors()
    options = Options(softcap=2.0)
    assert changed(q, k, options, lambda *given: given) == (q, k, options)
    assert recorded(None, lambda call: "computed") == "computed"
    assert skipped("ring_attend()", lambda: "computed") == "computed"


def test_a_change_is_computed_instead():
    q, k, v = tensors()
    want = at.attend(2 * q, k, v, mask=at.causal).out
    mass = at.key_mass(2 * q, k, mask=at.causal)
    hooks.change = lambda q, k, options, make: make(2 * q, k, options._replace(mask=at.causal))
    assert torch.equal(at.attend(q, k, v).out, want)
    assert torch.equal(at.key_mass(q, k), mass)


def test_calls_are_recorded_resolved_and_with_their_result():
    q, k, v = tensors()
    seen = []

    def record(call, compute):
        seen.append((call, compute()))
        return seen[-1][1]

    hooks.record = record
    attended = at.attend(q, k, v, mask=at.causal, scale=0.5)
    ((call, result),) = seen
    assert result.out is attended.out
    assert result.stats.entropy is attended.stats.entropy
    assert call.seen.shape == "causal"
    assert call.scale.item() == 0.5


@pytest.mark.parametrize(
    ("what", "run"),
    [
        ("ring_attend()", at.ring_attend),
        ("hierarchical()", lambda q, k, v: at.nn.hierarchical(q, k, v, 2)),
    ],
)
def test_what_is_made_of_several_calls_is_skipped(what, run):
    q, k, v = tensors()
    want, named = run(q, k, v).out, []
    hooks.skip = lambda name, compute: named.append(name) or compute()
    hooks.record = lambda call, compute: pytest.fail("recorded a part")
    assert torch.equal(run(q, k, v).out, want)
    assert named == [what]


def test_compiled_calls_see_what_is_installed():
    q, k, v = tensors()
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda q, k, v: at.attend(q, k, v).out, fullgraph=True, backend="aot_eager"
    )
    plain = compiled(q, k, v)
    hooks.change = _doubled
    torch.testing.assert_close(compiled(q, k, v), at.attend(q, k, v).out)
    assert not torch.allclose(compiled(q, k, v), plain)
    hooks.change = None
    torch.testing.assert_close(compiled(q, k, v), plain)


def _doubled(q, k, options, make):
    return make(2 * q, k, options)


def test_there_is_one_set_of_hooks():
    assert seam.hooks is hooks
