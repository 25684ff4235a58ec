"""extend() on a model whose heads two processes share finds, fits and writes what one process does."""

import pickle

import pytest
import torch
from safetensors.torch import load_file

import attentropy as at
from attentropy.core.errors import ArgumentError
from attentropy.distributed.groups import Peers
from attentropy.distributed.team import Team
from attentropy.extensions.candidates import Setting, plan_of
from attentropy.extensions.export import export
from attentropy.extensions.extend import task_of
from attentropy.extensions.fits import far_windows, temperatures
from attentropy.extensions.fits.far_windows import far_window
from attentropy.extensions.screening import Probe
from tests.extensions.small_models import grouped_llama, words
from tests.processes import spawn

IDS = torch.randint(97, (1200,), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def folder(tmp_path):
    grouped_llama().double().save_pretrained(tmp_path / "model")
    return tmp_path


def loaded(folder, **options):
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(folder / "model", dtype=torch.float64, **options).eval()


def slopes(model):
    """Gradients for a temperature of every head, and for the divisors of frequencies."""
    task = task_of(model, IDS, to=128)
    assert set(task.layers.values()) == {6}
    probe = Probe.of(model, task, IDS, last=16).fit
    logs = {name: torch.zeros(n, dtype=torch.float64, requires_grad=True) for name, n in
            task.layers.items()}  # fmt: skip
    divisors = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    with temperatures.frozen(model):
        temperatures._loss(Setting(name="plain"), model, probe, logs).backward()
        with far_windows._turning(model, divisors, 1.0):
            window = far_window(IDS, words, reach=1100, seed=0)
            far_windows.losses(model, window).sum().backward()
    return [*(log.grad for log in logs.values()), divisors.grad]


def everything(model, out):
    """What is measured, chosen and written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(temperatures, "STEPS", 2)
        found = at.extend(model, IDS, to=128, texts=3, finalists=1)
    name = next(one.name for one in found.record.candidates if "temperature per head" in one.name)
    plan = plan_of(found.record.candidate(name), found.record.task)
    export(model, plan, out)
    handle = at.steer(model, plan)
    with torch.no_grad():
        steered = model(IDS[None, :100]).logits
    handle.undo()
    record = found.record
    return {
        "names": [one.name for one in record.candidates],
        "ranked": found.ranked,
        "layers": record.task.layers,
        "heads": {one.name: one.heads for one in record.candidates if one.heads},
        "screened": [one.change.after for one in record.screened],
        "trials": [trial.losses for trial in record.trials],
        "slopes": slopes(model),
        "steered": steered,
    }


def by_heads(rank, folder):
    from transformers.distributed import DistributedConfig

    model = loaded(folder, distributed_config=DistributedConfig(tp_plan="auto", tp_size=2))
    with pytest.raises(ArgumentError, match="whose heads 2 processes share"):
        at.extend(model, IDS, to=128, team=Team(Peers(None, rank, 2)))
    return pickle.dumps(everything(model, folder / "shared"))


@pytest.mark.slow
def test_heads_over_two_processes_are_extended_as_in_one(folder):
    want = everything(loaded(folder), folder / "alone")
    for one in spawn(by_heads, 2, folder):
        assert not isinstance(one, str), one
        got = pickle.loads(one)
        for name in ("names", "ranked", "layers"):
            assert got[name] == want[name], name
        for name in ("screened", "trials", "heads", "slopes", "steered"):
            torch.testing.assert_close(
                numbers(got[name]), numbers(want[name]), rtol=1e-5, atol=1e-6
            )
    one, two = (load_file(folder / name / "model.safetensors") for name in ("alone", "shared"))
    assert one.keys() == two.keys()
    torch.testing.assert_close(two, one, rtol=1e-5, atol=0)
    configs = [(folder / name / "config.json").read_text() for name in ("alone", "shared")]
    assert configs[0] == configs[1]


def numbers(value):
    """All numbers in it, in order."""
    if isinstance(value, dict):
        return numbers(list(value.values()))
    if isinstance(value, list | tuple):
        return torch.cat([numbers(one) for one in value])
    return torch.as_tensor(value, dtype=torch.float64).flatten()
