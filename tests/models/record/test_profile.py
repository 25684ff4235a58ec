import torch

import attentropy as at
from attentropy.models.record.profile import Profile, merged
from tests.models.test_watch import CAUSAL, Model, dense, sharp


def test_rows_are_kept_and_binned_along_the_sequence():
    model = sharp(Model(1))
    x = torch.randn(2, 11, 32)
    with torch.no_grad(), at.watch(model, keep="rows", sample=None) as w:
        model(x, CAUSAL)
    (profile,) = w.profiles(bins=11)
    _, p = dense(model.layers[0], x, CAUSAL)
    entropy = torch.special.entr(p).sum(-1).mean(0)
    assert profile.positions == list(range(11))
    assert profile.entropy[0][0] is None  # the first query has no choice
    got = torch.tensor([curve[1:] for curve in profile.entropy], dtype=torch.float64)
    torch.testing.assert_close(got, entropy[:, 1:], atol=1e-6, rtol=0)
    distance = (p * (torch.arange(11)[:, None] - torch.arange(11)).abs()).sum(-1).mean(0)
    got = torch.tensor([curve[1:] for curve in profile.distance], dtype=torch.float64)
    torch.testing.assert_close(got, distance[:, 1:], atol=1e-5, rtol=0)
    assert profile.visible[1:] == list(range(2, 12))


def profile(visible, *curves):
    return Profile(
        layer="a",
        call=0,
        phase="forward",
        positions=[0.5, 2.5],
        visible=visible,
        entropy=list(curves),
        distance=list(curves),
    )


def test_merging_weighs_passes_and_leaves_empty_bins_out():
    one = profile([2.0, None], [1.0, None], [3.0, 5.0])
    two = profile([4.0, None], [2.0, None], [None, 7.0])
    found = merged([one, two], [3, 1])
    assert found.visible == [2.5, None]
    assert found.entropy == found.distance == [[1.25, None], [3.0, 5.5]]
    assert (found.layer, found.positions) == ("a", [0.5, 2.5])
    assert merged([one], [2]) == one


def test_passes_of_several_sizes_give_the_mean_over_their_sequences():
    model = sharp(Model(1))
    x = torch.randn(5, 11, 32)
    with torch.no_grad(), at.watch(model, keep="rows", sample=None) as w:
        model(x, CAUSAL)
    (whole,) = w.profiles(bins=4)
    parts = []
    for part in x.split(3):
        with torch.no_grad(), at.watch(model, keep="rows", sample=None) as w:
            model(part, CAUSAL)
        parts += w.profiles(bins=4)
    got = merged(parts, [3, 2])
    for name in ("entropy", "distance"):
        torch.testing.assert_close(
            torch.tensor(getattr(got, name)), torch.tensor(getattr(whole, name)), atol=1e-6, rtol=0
        )
