import torch

from attentropy.models.record import measures
from attentropy.models.record.measures import Chosen
from attentropy.models.record.visibility import Sight


def counts(sight, visible, *, start=1):
    found = measures._counts(sight, visible, Chosen(start), dtype=torch.float32)
    return found.sums


def test_what_one_layer_counted_serves_only_calls_of_its_shape():
    sight = Sight(queries=3, keys=3)
    one = torch.tensor([[[1, 2, 3]]])
    two = one.expand(2, 4, 3).clone()
    assert counts(sight, two).shape == (3, 2, 4)
    assert counts(sight, one).shape == (3, 1, 1)
    assert counts(sight, one)[0].item() == 2
    assert counts(sight, one, start=2)[0].item() == 1
