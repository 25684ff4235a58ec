import pytest
import torch

from attentropy.attention.attend import attend
from attentropy.lab.subjects import score_laws


def test_scores_along_one_axis_are_the_logits_of_the_plain_scale():
    scores = score_laws.planted(5.0)(3, 9, torch.Generator().manual_seed(0))
    q, k = score_laws.along_one_axis(scores, 4)
    _, stats = attend(q, k, k)
    assert torch.allclose(stats.lse[:, 0, 0], scores.logsumexp(-1))
    assert (scores[:, 0] == 5).all()


@pytest.mark.parametrize("law", [score_laws.gaussian, score_laws.bounded])
def test_laws_have_variance_one(law):
    scores = law(10, 10000, torch.Generator().manual_seed(0))
    assert scores.mean().item() == pytest.approx(0, abs=0.02)
    assert scores.std().item() == pytest.approx(1, abs=0.02)
