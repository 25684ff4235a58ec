"""Snippets that go on from something a reader has (```py) run too, with a small one of it given."""

import copy
import re
from pathlib import Path

import pytest
import torch

import attentropy as at
from tests.extensions.small_models import grouped_llama
from tests.models.zoo import build

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"```py\n(.*?)```", re.DOTALL)


def run(page, folder, monkeypatch, about="", **given):
    """Run the snippets of a page in a folder, with these names; the names that there are then."""
    monkeypatch.chdir(folder)
    blocks = [code for code in BLOCK.findall((ROOT / "docs" / page).read_text()) if about in code]
    assert blocks
    names = {"__name__": "snippet", "at": at, **given}
    for code in blocks:
        exec(compile(code, page, "exec"), names)
    return names


def scalars(folder, tag):
    """What TensorBoard has got in a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (place,) = {path.parent for path in folder.rglob("events.out*")}
    return EventAccumulator(str(place)).Reload().Scalars(tag)


# what the trainers warn of (few workers, no GPU to pin memory for) is their own affair
@pytest.mark.filterwarnings("ignore")
def test_trainer(tmp_path, monkeypatch):
    for needed in ("transformers", "accelerate", "tensorboard"):
        pytest.importorskip(needed)
    ids = torch.randint(3, 61, (480, 8), generator=torch.Generator().manual_seed(0))
    data = [{"input_ids": row, "labels": row} for row in ids]
    model = copy.deepcopy(build("llama", "sdpa"))
    names = run("howto/huggingface.md", tmp_path, monkeypatch, model=model, data=data)
    logged = [entry for entry in names["trainer"].state.log_history if "attn/entropy/mean" in entry]
    assert [entry["step"] for entry in logged][:2] == [50, 100]
    assert len(scalars(tmp_path, "train/attn/entropy/mean")) == len(logged)
    assert not list(tmp_path.rglob("*.db"))


@pytest.mark.filterwarnings("ignore")
def test_lightning(tmp_path, monkeypatch):
    L = pytest.importorskip("lightning")
    pytest.importorskip("tensorboard")

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)

        def training_step(self, batch, index):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    data = torch.utils.data.DataLoader(torch.randn(4, 4, 8), batch_size=2)
    names = run("howto/lightning.md", tmp_path, monkeypatch, module=Module(), data=data)
    assert names["trainer"].global_step == 1000
    assert len(scalars(tmp_path, "attn/entropy/mean")) == 20


def test_a_plan(tmp_path, monkeypatch, capsys):
    torch.manual_seed(0)
    model = build("llama", "sdpa")
    batches = [torch.randint(3, 61, (1, 8192))]
    page = "howto/extend-context.md"
    assert "lengths=[2048, 4096, 8192]" in (ROOT / "docs" / page).read_text()
    names = run(page, tmp_path, monkeypatch, "at.calibrate", model=model, batches=batches)
    assert names["plan"] == at.Plan.load(tmp_path / "plan.json")
    names["handle"].undo()
    assert "8192" in capsys.readouterr().out


class Tokenizer:
    def encode(self, text):
        return [ord(letter) % 97 for letter in text]

    def save_pretrained(self, folder):
        (Path(folder) / "tokenizer.json").write_text("{}")


@pytest.mark.parametrize("helps", [False, True])
def test_an_extension(helps, tmp_path, monkeypatch, capsys):
    tokens = torch.randint(97, (1400,), generator=torch.Generator().manual_seed(0))
    model, extend = grouped_llama(), at.extend

    def shorter(model, tokens, *, to, **options):
        assert to == 16384
        found = extend(model, tokens, to=96, finalists=1, per_head=False, **options)
        if helps:  # random text decides nothing: what the choice would be is used
            found.__dict__["best"] = found.record.candidate(found.ranked[0])
        return found

    monkeypatch.setattr(at, "extend", shorter)
    given = {"model": model, "tokens": tokens, "tokenizer": Tokenizer()}
    names = run("howto/extend-context.md", tmp_path, monkeypatch, "at.extend", **given)
    said = capsys.readouterr().out
    assert names["found"].sentence in said
    assert (tmp_path / "plan.json").exists() == helps
    assert (tmp_path / "longer" / "tokenizer.json").exists() == helps
    assert ("vllm serve longer" in said) == helps
