import numpy as np
import pytest
import torch

from attentropy.lab.subjects.retriever import Retriever, adaptive, sets


def test_adaptive_temperature_is_the_published_polynomial():
    h = torch.tensor([0.0, 0.5, 0.6, 1.0, 2.0, 3.0])
    want = np.maximum(np.polyval([-0.037, 0.481, -2.3, 4.917, -1.791], h.numpy()), 1.0)
    want[:2] = 1.0
    assert torch.allclose(adaptive(h), torch.tensor(want).float(), atol=1e-5)


def test_the_target_is_the_class_of_the_largest():
    priority, kind, target = sets(50, 7, torch.Generator().manual_seed(0))
    for row in range(50):
        assert target[row] == kind[row, priority[row].argmax()]


def test_scores_are_affine_in_the_priority_and_the_leak_is_their_spread_over_classes():
    model = Retriever(16, None)
    kinds = torch.arange(10)
    with torch.no_grad():
        low, high = (
            model.encoded(torch.full((10, 1), x), kinds[:, None])[0][:, 0, 0] @ model.query
            for x in (0.0, 1.0)
        )
    slope = high - low
    torch.testing.assert_close(slope, slope[:1].expand(10), atol=1e-5, rtol=1e-4)
    want = (low.std(correction=0) / slope[0].abs()).item()
    assert model.leak() == pytest.approx(want, rel=1e-3)
