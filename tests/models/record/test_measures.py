import torch

from attentropy.core.masks import Extent
from attentropy.models.record import measures
from attentropy.models.record.measures import CountedRows
from attentropy.models.record.model_masks import everything


def counts(mask, visible, *, start=1):
    found = measures._counts(mask, visible, CountedRows(start), dtype=torch.float32)
    return found.sums


def test_what_one_layer_counted_serves_only_calls_of_its_shape():
    mask = everything(Extent(2, 4, 3, 3, torch.device("cpu")))
    one = torch.tensor([[[1, 2, 3]]])
    two = one.expand(2, 4, 3).clone()
    assert counts(mask, two).shape == (3, 2, 4)
    assert counts(mask, one).shape == (3, 1, 1)
    assert counts(mask, one)[0].item() == 2
    assert counts(mask, one, start=2)[0].item() == 1
