import torch

from attentropy.lab.subjects import small_model


def test_windows_are_pieces_of_the_text():
    text = torch.arange(50)
    pieces = small_model.windows(text, 7, 20, torch.Generator().manual_seed(0))
    assert torch.equal(pieces - pieces[:, :1], torch.arange(7).expand(20, -1))
    assert small_model.windows(text, 50, 1, torch.Generator()).shape == (1, 50)
