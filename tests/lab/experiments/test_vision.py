import math

import pytest
import torch

from attentropy.lab.experiments import vision
from attentropy.lab.harness.results import RunResults

pytest.importorskip("sklearn")
TINY = vision.VisionConfig(sides=(8, 16), width=8, heads=2, layers=1, steps=20, batch=8, tested=12)


def test_copied_pictures_repeat_their_pixels():
    pictures = torch.rand(2, 8, 8)
    copied = vision.finer(pictures, 16, vision.COPIED)
    assert torch.equal(copied, pictures.repeat_interleave(2, 1).repeat_interleave(2, 2))
    assert torch.equal(vision.finer(pictures, 8), pictures)


@torch.no_grad()
def test_copies_with_their_places_change_nothing_but_the_entropy():
    model = vision.PixelModel(TINY, "1/sqrt d").eval()
    pictures = torch.rand(3, 8, 8)
    (want, before), (got, after) = (
        model(vision.finer(pictures, side, vision.EXACT), known=True) for side in (8, 16)
    )
    torch.testing.assert_close(got, want)
    rise = after[0].entropy.mean() - before[0].entropy.mean()
    assert rise == pytest.approx(math.log(4), abs=1e-4)
    assert torch.equal(model(pictures)[0], want)
    assert not torch.allclose(model(vision.finer(pictures, 16, vision.COPIED))[0], want)


def test_the_resolution_is_the_length_for_calibrate():
    model = vision.PixelModel(TINY, "1/sqrt d").eval()
    pictures = torch.rand(4, 8, 8)
    which = torch.tensor([2, 0])[:, None].expand(-1, 256)
    got, _ = vision.AtLength(model, pictures)(which)
    assert torch.equal(got, model(vision.finer(pictures[[2, 0]], 16))[0])


@pytest.mark.parametrize("rule", [vision.PLAIN, "mixed 1", "KeyNorm"])
def test_every_rule_is_trained_and_tested(rule):
    torch.manual_seed(0)
    rows = RunResults(vision.measure(TINY, rule, 0))
    assert rows.values("rule")[0] == rule
    assert len(rows.values("rule")) == (1 if "mixed" in rule else 4)
    assert len(rows.values("made")) == (3 if rule == vision.PLAIN else 1)
    at_home = rows.where(patches=64)
    levels = [at_home.mean("loss", rule=r) for r in at_home.values("rule")]
    assert max(levels) == pytest.approx(min(levels), rel=1e-5)
    assert set(rows.values("patches")) == {64, 256}
    if rule == vision.PLAIN:
        said = vision.conclude(rows)
        assert "256 patches, copied with places: 1/sqrt d" in said[3]
        assert "log(4) = 1.39 nats (measured: +1.39)" in said[4]
