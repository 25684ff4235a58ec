"""What is released: both archives are complete, and install and work with and without a compiler."""

import json
import os
import platform
import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.metadata import Metadata
from packaging.utils import parse_sdist_filename, parse_wheel_filename

import attentropy
from attentropy.kernels.fused import build
from environments import NO_COMPILER, environment, run

ROOT = Path(__file__).parent.parent
NAMED = f"attentropy-{attentropy.__version__}"
DATA = {
    "attentropy/py.typed",
    "attentropy/kernels/fused/cpp/fused.cpp",
    "attentropy/lab/embedded/data/model.safetensors",
    "attentropy/lab/embedded/data/sample.txt",
    "attentropy/report/assets/page.html",
    "attentropy/report/vendor/echarts.min.js",
}
LICENCES = {
    "LICENSE",
    "src/attentropy/lab/embedded/data/sample.LICENCE.txt",
    *(
        f"src/attentropy/report/vendor/LICENSE-{part}"
        for part in ("d3", "echarts", "tslib", "zrender")
    ),
    "src/attentropy/report/vendor/NOTICE-echarts",
}
SMOKE = """
import json, sys
import torch, attentropy as at
from attentropy.lab.embedded import load_embedded
torch.manual_seed(0)
q = torch.randn(1, 2, 33, 16, requires_grad=True)
out, stats = at.attend(q, q, q, mask=at.causal)
(out.sum() + stats.entropy.sum()).backward()
exact = at.attend(q.detach().double(), q.detach().double(), q.detach().double(),
                  mask=at.causal, kernel="reference")
torch.testing.assert_close(stats.entropy.double(), exact.stats.entropy, atol=1e-5, rtol=1e-5)
assert q.grad.isfinite().all()
assert load_embedded()(torch.zeros(1, 8, dtype=torch.long)).shape == (1, 8, 256)
print(json.dumps({"file": at.__file__, "kernel": at.explain(q, q, q).kernel,
                  "version": at.__version__, "path": sys.path}))
"""


def make(kind, folder, source=ROOT, **variables):
    """The one archive that a build of this kind leaves in the folder."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "-q",
        "--disable-pip-version-check",
        "wheel",
        "--no-deps",
    ]
    if kind == "wheel":
        run(*command, "--no-index", "--no-build-isolation", "-w", folder, source, **variables)
    else:
        code = f"import os; os.chdir({str(source)!r}); import hatchling.build as b; b.build_sdist({str(folder)!r})"
        run(sys.executable, "-c", code, **variables)
    [archive] = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return make("sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def pure(tmp_path_factory):
    return make("wheel", tmp_path_factory.mktemp("wheel"), **NO_COMPILER)


def works(folder, kernel):
    """The installed package computes with this kernel, and its commands run."""
    python, command = folder / "bin" / "python", folder / "bin" / "attentropy"
    told = json.loads(run(python, "-I", "-W", "error", "-c", SMOKE))
    assert told["file"].startswith(str(folder))
    assert (told["kernel"], told["version"]) == (kernel, attentropy.__version__)
    assert run(command, "--version").split()[-1] == attentropy.__version__
    assert "Look at a model" in run(command, "--help")
    assert json.loads(run(command, "doctor", "--json"))["kernel"] == kernel


def repaired(wheel, folder):
    """The wheel with the tag of an index, if it needs nothing newer than the tag admits."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plat = f"manylinux_2_28_{platform.machine()}"
    command = ["-m", "auditwheel", "repair", "--plat", plat, "-w", folder, wheel]
    run(sys.executable, *command, PATH=tools)
    [archive] = folder.iterdir()
    return archive


@pytest.mark.slow
def test_sdist_with_a_compiler(sdist, tmp_path):
    if build.unable() is not None or sys.platform != "linux":
        pytest.skip("no fused kernel is compiled here, or not for Linux")
    plain = make("wheel", tmp_path / "plain", sdist)
    [tag] = parse_wheel_filename(plain.name)[3]
    assert str(tag) == f"py3-none-{build.platform_tag()}", "for one platform, and for any Python"
    wheel = repaired(plain, tmp_path / "wheel")
    tags = {str(tag) for tag in parse_wheel_filename(wheel.name)[3]}
    assert f"py3-none-manylinux_2_28_{platform.machine()}" in tags
    with zipfile.ZipFile(wheel) as archive:
        libraries = sorted(name for name in archive.namelist() if name.endswith(".so"))
    assert libraries == [
        f"attentropy/kernels/fused/_lib/fused_{isa}.so" for isa in sorted(build.ISAS)
    ]
    works(environment(tmp_path / "empty", wheel), kernel="fused")


@pytest.mark.slow
def test_sdist_without_a_compiler(sdist, tmp_path):
    wheel = make("wheel", tmp_path / "wheel", sdist, **NO_COMPILER)
    works(environment(tmp_path / "empty", wheel), kernel="streaming")
    scan = ["scan", "--lengths", "16,32", "--batch", "1", "--out", tmp_path / "scan"]
    told = json.loads(run(tmp_path / "empty" / "bin" / "attentropy", *scan, "--json"))
    assert "Apache ECharts" in Path(told["report"]).read_text(encoding="utf-8")


def test_wheel_without_a_compiler(pure, tmp_path):
    [tag] = parse_wheel_filename(pure.name)[3]
    assert str(tag) == "py3-none-any"
    works(environment(tmp_path / "empty", pure), kernel="streaming")


def test_wheel_is_complete(pure):
    with zipfile.ZipFile(pure) as archive:
        names = set(archive.namelist())
    assert names >= DATA
    assert {f"{NAMED}.dist-info/licenses/{name}" for name in LICENCES} <= names
    assert not [name for name in names if name.endswith(".so")], "built for another machine"
    assert {name.split("/")[0] for name in names} == {"attentropy", f"{NAMED}.dist-info"}


def test_sdist_is_complete(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{NAMED}/") for name in archive.getnames()}
    assert {f"src/{name}" for name in DATA} | LICENCES <= names
    assert {"CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md", "Makefile"} <= names
    assert {"tests/test_release.py", "docs/tutorial.md", "hatch_build.py"} <= names
    assert not [name for name in names if name.startswith("src/attentropy/kernels/fused/_lib/")]


def test_metadata_is_complete(pure, sdist):
    with zipfile.ZipFile(pure) as archive:
        stored = archive.read(f"{NAMED}.dist-info/METADATA")
    with tarfile.open(sdist) as archive:
        assert archive.extractfile(f"{NAMED}/PKG-INFO").read() == stored
    told = Metadata.from_email(stored, validate=True)
    assert str(told.version) == attentropy.__version__
    assert told.license_expression == "Apache-2.0 AND BSD-3-Clause AND 0BSD"
    assert set(told.license_files) == LICENCES
    assert told.description.startswith("# attentropy")
    assert told.description_content_type == "text/markdown"
    assert told.summary
    assert told.keywords
    assert told.classifiers
    assert str(told.requires_python) == ">=3.11"
    assert parse_sdist_filename(sdist.name)[1] == told.version


def test_an_index_takes_them(pure, sdist):
    command = [sys.executable, "-m", "twine", "--no-color", "check", "--strict"]
    assert run(*command, pure, sdist).count("PASSED") == 2


def test_the_wheel_without_hooks_is_that_without_a_compiler(pure, tmp_path):
    assert make("wheel", tmp_path / "wheel", HATCH_BUILD_NO_HOOKS="true").name == pure.name


def test_the_version_is_written_once():
    assert re.search(r'(?m)^dynamic = \["version"\]$', (ROOT / "pyproject.toml").read_text())
    cited = re.search(r"(?m)^version: (.+)$", (ROOT / "CITATION.cff").read_text())
    assert cited[1] == attentropy.__version__, "CITATION.cff is a copy, and is compared here"
    newest = re.search(r"(?m)^## (\S+)", (ROOT / "CHANGELOG.md").read_text())
    assert newest[1] == attentropy.__version__
