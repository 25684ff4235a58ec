import gc
import importlib.util
import os

# before anything imports triton: its kernels then run on CPU tensors, in numpy
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from hypothesis import settings

from tests.kernels.triton.changed import changed

# timing says nothing on a shared machine, and tensors make examples slow
settings.register_profile("attentropy", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("attentropy")
torch.set_num_threads(1)
os.environ.update(LC_ALL="C.UTF-8", LANGUAGE="")  # English, whatever the developer speaks

# What `make quick` leaves to `make test`: words in the names of files and tests.
WHOLE = (
    *("compil", "_modes", "fused/test_operators", "a_graph"),  # torch.compile and torch.export
    *("_distributed", "context_parallel", "test_ring", "test_reduce", "_copies", "killed"),
    *(
        "test_transport",
        "test_groups",
        "test_failures",
        "writer_faults",
        "tests/faults/",
    ),  # these and the line above: processes
    *("test_attentropy", "theory/test_theory", "test_nn_imports", "theory/test_lab"),
    *("test_release", "test_typing", "test_layout", "fused/test_build", "tests/docs/"),
    *("kernels/triton/", "triton-", "-triton", "[triton]", "browser", "test_server", "test_serve"),
    *("bench", "plots", "callbacks", "TestAgainstReference", "_numerics", "mpmath", "oracle"),
    *("tiled/test_softmax", "tiled/test_tiles", "tiled/test_sums", "kernels/test_reference"),
    *("lab/embedded", "lab/experiments", "lab/claims/", "lab/harness", "report/curves"),
    *("checks_of_torch", "theory/test_gaussian", "theory/test_populations", "theory/test_bounds"),
    *(
        "scans/test_scan.py",
        "scans/test_scans_walk",
        "test_remedies",
        "models/test_scan.py",
        "scales/test_adaptive",
    ),
    *("test_page_controls", "test_team", "test_extend", "test_offload", "test_slope"),
    *("test_calibrate", "test_robustness", "test_kernel_numbers", "test_kernel_dropout"),
    *("tiled/test_bounded", "layers/test_long", "steer/test_steer", "is_added_by_a_row"),
    *("training/test_monitor.py", "report/test_page.py", "nn/test_losses", "models/zoo/"),
)

# Of torch.library.opcheck, which in torch 2.15 reads .grad of tensors that are no leaves, and scripts
# functions: words in the names of tests that call it, and its warnings.
CHECKED = ("opcheck", "checks_of_torch")
WARNED = (
    "ignore:The .grad attribute of a Tensor:UserWarning",
    "ignore:.torch.jit.script. is deprecated:FutureWarning",
)


def pytest_collection_finish():
    """What was imported and collected stays: no later search for garbage looks at it."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()  # else libraries report at exit that their objects were never freed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    unchanged = not changed()
    for item in items:
        if unchanged and item.get_closest_marker("interpreter"):
            item.add_marker(pytest.mark.slow)
        if any(word in item.nodeid for word in WHOLE):
            item.add_marker(pytest.mark.whole)
        if any(word in item.name for word in CHECKED):
            item.add_marker(pytest.mark.filterwarnings(*WARNED))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def quick_interpreter(request, monkeypatch):
    """Tests of Triton's kernel, wherever they are, are interpreted quickly."""
    if "triton" in request.node.nodeid and importlib.util.find_spec("triton"):
        importlib.import_module("tests.interpreter").make_quick(monkeypatch)


@pytest.fixture(autouse=True)
def compiling(monkeypatch):
    """Skips what compiles where the compiler of torch cannot trace attend(), as the README says."""

    def skip(*_, **__):
        pytest.skip("torch.compile of attend() needs torch 2.12")

    if torch.__version__ >= (2, 12):
        yield
        return
    from attentropy.models.intercept import registry

    monkeypatch.setattr(torch, "compile", skip)
    before = set(registry._held)
    yield
    for name in set(registry._held) - before:  # a test that was skipped midway left a watch open
        registry._held.pop(name).undo()


@pytest.fixture
def poisoned():
    """Memory from torch.empty holds NaN, so that a kernel cannot rely on what it finds there."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
