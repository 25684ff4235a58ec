"""What the model said once is not asked again."""

import pytest

from attentropy.kernels.triton.ahead.model import kept
from attentropy.kernels.triton.ahead.model.cards import A100, H100
from attentropy.kernels.triton.ahead.model.figures import TurnWork, figures
from tests.kernels.triton.ahead.model.recordings import code

WORK = TurnWork(pairs=16 * 16, products=2 * 16, warps=1, registers=64, shared=1536)


@pytest.fixture(scope="module")
def said():
    return figures(code("forward_sm80"), A100, WORK)


@pytest.fixture
def asked(monkeypatch, tmp_path, said):
    """Which kernels the model was asked about; files go to a folder of the test."""
    names = []
    monkeypatch.setattr(kept, "folder", lambda: tmp_path / "new")
    monkeypatch.setattr(kept, "disassembled", names.append)
    monkeypatch.setattr(kept, "parse", lambda text: code("forward_sm80"))
    monkeypatch.setattr(kept, "figures", lambda code, card, work: said)
    return names


def test_a_kernel_is_run_once(asked):
    first = kept.figures_once(b"kernel", A100, WORK)
    assert kept.figures_once(b"kernel", A100, WORK) == first
    assert asked == [b"kernel"]


def test_another_kernel_card_or_model_is_run(asked, monkeypatch):
    kept.figures_once(b"kernel", A100, WORK)
    kept.figures_once(b"other", A100, WORK)
    kept.figures_once(b"kernel", H100, WORK)
    monkeypatch.setattr(kept, "model_digest", lambda: "changed")
    kept.figures_once(b"kernel", A100, WORK)
    assert len(asked) == 4


def test_a_file_that_was_cut_off_is_made_again(asked, tmp_path):
    first = kept.figures_once(b"kernel", A100, WORK)
    (path,) = (tmp_path / "new").iterdir()
    path.write_bytes(path.read_bytes()[:20])
    assert kept.figures_once(b"kernel", A100, WORK) == first
    assert len(asked) == 2
