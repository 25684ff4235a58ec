"""A type checker knows every public name: it finds misspellings and has no complaint otherwise."""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import attentropy as at

SOURCE = Path(at.__file__).parents[1]
MISSPELT = """\
import attentropy as at
import torch
from attentropy.theory import gaussian

q = torch.ones(1, 2, 8, 16)
out, stats = at.attend(q, q, q, mask=at.causal)
at.LogLenght(1.0)  # wrong
at.atend(q, q, q)  # wrong
at.nn.MultiheadAtention(16, 2)  # wrong
stats.entrpy  # wrong
at.lookback("x")  # wrong
at.attend(q, q, q, maks=at.causal)  # wrong
model = torch.nn.TransformerEncoderLayer(16, 2)
with at.watch(model) as watched:
    model(q[0])
watched.heads()[0].entropie  # wrong
at.Monitor(modle=model)  # wrong
gaussian.expected_entropy(1024, sprad=1.0)  # wrong
at.causal()  # wrong
at.explain(q, q, q, softcup=30.0)  # wrong
at.key_mass(q, q, maks=at.causal)  # wrong
"""
CORRECT = """\
import torch

import attentropy as at
from attentropy.lab.embedded import load_embedded, sample_bytes
from attentropy.theory import bounds, gaussian

q = torch.ones(1, 2, 8, 16)
out, stats = at.attend(q, q, q, mask=at.causal & at.lookback(4), scale=at.LogLength(kappa=1.0))
total: torch.Tensor = out.sum() + stats.collision.sum()
if stats.entropy is not None:
    total = total + stats.entropy.mean()
visible: torch.Tensor = stats.per_head().visible
kernel: str = at.explain(q, q, q, dropout=0.1).kernel
mass: torch.Tensor = at.key_mass(q, q, mask=at.causal)

layer = at.nn.MultiheadAttention(
    16, 2, mask=at.causal, positions=at.nn.RotaryPositions(base=500.0), qk_norm="rms"
)
attended: at.Attended = layer(torch.ones(1, 8, 16))
share: torch.Tensor = at.analysis.live_keys(q, q, mask=at.causal)

model = load_embedded()
tokens = torch.tensor(list(sample_bytes()[:256]))
with at.watch(model, keep="rows") as watched:
    model(tokens[None, :64])
rows = watched.heads()
sharpest: float = min(row.entropy for row in rows)
names: list[str] = [finding.name for finding in at.diagnose(rows)]

handle = at.steer(model, scale=at.LogLengthFrom(reference=64))
handle.undo()
plan: at.Plan = at.calibrate(model, [tokens[None]], lengths=[32, 64])
plan.save("plan.json")
handle = at.steer(model, at.Plan.load("plan.json"))
handle.undo()
found: at.Scan = at.scan(model, tokens, lengths=[16, 32], batch=2)
lengths: list[int] = [measure.length for measure in found.measures]

monitor = at.Monitor(model, every=10, name="run")
monitor.step(loss=0.5)
stop: bool = monitor.should_stop
monitor.close()

nats: float = gaussian.expected_entropy(1024, spread=1.0) - bounds.min_entropy(256, 2.0)
formula: str = at.theory.CATALOGUE["S_relu2"].formula
"""
NEVER = re.compile(r'Revealed type is "(Any|def \(\*Any, \*\*Any\).*)"')


def names():
    """Every public name, as a user writes it."""
    yield from (f"at.{name}" for name in at.__all__)
    for package in ("nn", "analysis", "theory"):
        module = import_module(f"attentropy.{package}")
        for name in getattr(module, "__all__", vars(module)):
            if not name.startswith("_") and not isinstance(getattr(module, name), ModuleType):
                yield f"at.{package}.{name}"
    for name in at.theory.__all__:
        yield from (f"at.theory.{name}.{own}" for own in own_names(getattr(at.theory, name)))


def own_names(module):
    """What a module defines itself; nothing for what is no module."""
    if not isinstance(module, ModuleType):
        return
    for name, value in vars(module).items():
        if inspect.getmodule(value) is module and not name.startswith("_"):
            yield name


@pytest.fixture(scope="module", params=["here", pytest.param("user", marks=pytest.mark.slow)])
def said(request, tmp_path_factory):
    """What mypy says of each file and line: with what `make lint` has cached, and for a strict user."""
    folder = tmp_path_factory.mktemp("user")
    revealed = [f"reveal_type({name})" for name in names()]
    files = {
        "misspelt.py": MISSPELT,
        "correct.py": CORRECT,
        "revealed.py": "\n".join(["import attentropy as at", *revealed]),
    }
    for name, text in files.items():
        (folder / name).write_text(text)
    written = [str(folder / name) for name in files]
    if request.param == "here":
        return checked([str(SOURCE / "attentropy"), *written], cwd=SOURCE.parent)
    return checked(["--strict", "--config-file=", "--cache-dir=cache", *written], cwd=folder)


def checked(options, *, cwd):
    """Name of the file, line, kind and text of all that mypy says."""
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--show-absolute-path", *options],
        check=False, cwd=cwd, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert not done.stderr
    lines = [line.split(":", 3) for line in done.stdout.splitlines() if line.count(":") >= 3]
    return [(Path(file).name, *rest) for file, *rest in lines]


def test_each_misspelling_is_an_error(said):
    wrong = [i for i, line in enumerate(MISSPELT.splitlines(), 1) if line.endswith("# wrong")]
    assert len(wrong) == 12
    found = [
        int(line) for file, line, kind, _ in said if file == "misspelt.py" and kind == " error"
    ]
    assert found == wrong


def test_a_correct_program_has_no_error(said):
    assert [text for file, *text in said if file == "correct.py"] == []


@pytest.mark.filterwarnings("ignore:attentropy")
def test_the_correct_program_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = {}
    exec(compile(CORRECT, "correct.py", "exec"), found)
    assert found["lengths"] == [16, 32]


def test_every_public_name_has_a_type(said):
    told = [text for file, *_, text in said if file == "revealed.py"]
    assert len(told) == len(list(names()))
    assert [text for text in told if NEVER.search(text) or "Revealed" not in text] == []


def test_the_names_for_python_are_those_for_type_checkers():
    source = Path(at.__file__).read_text()
    typed = source.partition("if TYPE_CHECKING:\n")[2].partition("\n\n")[0]
    imports = re.findall(r"from attentropy\.?(\S*) import (\w+) as (\w+)\n", f"{typed}\n")
    assert len(imports) == len(typed.splitlines())
    assert all(name == alias for _, name, alias in imports)
    homes = {name: home for home, held in at._HOMES.items() for name in held.split()}
    modules = {name: path.rpartition(".")[0] for name, path in at._MODULES.items()}
    assert {name: home for home, name, _ in imports} == homes | modules
