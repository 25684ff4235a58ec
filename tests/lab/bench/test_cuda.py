"""The benchmark of a GPU, as far as a machine without one can run it."""

import pytest
import torch
from torch.nn.attention import SDPBackend, flex_attention

from attentropy.core.errors import AttentropyError, UnsupportedError
from attentropy.lab.bench import contenders, cuda, runner

CASE = contenders.BenchCase(1, 2, 40, 16, torch.bfloat16, device="cuda")
ON_CPU = CASE._replace(dtype=torch.float32, device="cpu")
NAMES = ["sdpa", "SDPA flash", "SDPA cuDNN", "FlexAttention (lse, max)", "triton", "streaming"]


def test_contenders_by_name():
    assert [*contenders.available(CASE)] == NAMES
    window = CASE._replace(causal=True, window=8)
    assert [*contenders.available(window)] == [n for n in NAMES if not n.startswith("SDPA")]


@pytest.fixture
def asked(monkeypatch):
    """FlexAttention as a CPU can run it: not compiled and without its auxiliary outputs."""
    wanted, real = [], flex_attention.AuxRequest

    def request(**given):
        wanted.append(given)
        return real()

    monkeypatch.setattr(flex_attention, "AuxRequest", request)
    monkeypatch.setattr(cuda, "_compiled", lambda: flex_attention.flex_attention)
    return wanted


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    "case",
    [
        ON_CPU,
        ON_CPU._replace(causal=True),
        ON_CPU._replace(causal=True, window=9),
        ON_CPU._replace(queries=1),
    ],
    ids=runner.label,
)
def test_flex_and_the_backends_are_right(case, asked):
    runner.check("flex", cuda.flex, case)
    assert asked == [{"lse": True, "max_scores": True}]
    if not case.window:
        runner.check("math", cuda.backend(SDPBackend.MATH), case)


@pytest.mark.parametrize("causal", [False, True])
def test_triton_is_right(causal):
    pytest.importorskip("triton")
    case = ON_CPU._replace(length=20, causal=causal)
    runner.check("triton", cuda.contenders(CASE)["triton"], case)


def test_says_in_one_sentence_that_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="torch finds no CUDA device on this machine"):
        cuda.require()


class Card:
    """A card that is the CPU: counts how often it was waited for."""

    waits = 0

    def __init__(self, monkeypatch):
        def wait():
            Card.waits += 1

        Card.waits = 0
        monkeypatch.setattr(torch.cuda, "synchronize", wait)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 2**20)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 4 * 2**20)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Card")
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
        monkeypatch.setattr(contenders.BenchCase, "tensors", on_cpu(contenders.BenchCase.tensors))
        monkeypatch.setattr(contenders.BenchCase, "table", on_cpu(contenders.BenchCase.table))


def on_cpu(method):
    return lambda case: method(case._replace(device="cpu"))


def lacking(q, k, v, case):
    raise RuntimeError("No available kernel.\nAborting execution.")


def test_measures_as_on_a_cpu_and_leaves_out_what_the_card_lacks(monkeypatch):
    Card(monkeypatch)
    here = {"sdpa": contenders.sdpa, "SDPA cuDNN": lacking, "eager": contenders.eager}
    monkeypatch.setattr(cuda, "contenders", lambda case: here)
    told = []
    results = list(runner.measure(CASE, repeat=2, memory=True, missing=told.append))
    assert [r.contender for r in results] == ["sdpa", "eager"]
    assert told == ["(1,2,40,16) bfloat16 fwd full cuda: without SDPA cuDNN: No available kernel."]
    assert results[0].ratio == 1
    assert [r.extra_mib for r in results] == [3, 3]
    # a trial and two rounds of two contenders, before and after each; then the memory of each
    assert Card.waits == 2 * 3 * 2 + 2 * 2
    assert runner.as_json(results, device="cuda")["machine"]["gpu"] == "Card"


def test_a_wrong_contender_is_refused_on_a_card_too(monkeypatch):
    Card(monkeypatch)

    def wrong(q, k, v, case):
        return v * 2, None

    monkeypatch.setattr(cuda, "contenders", lambda case: {"sdpa": contenders.sdpa, "liar": wrong})
    with pytest.raises(AttentropyError, match="liar is wrong"):
        list(runner.measure(CASE, repeat=1, memory=False))


def test_sdpa_is_the_measure_and_cannot_be_missing(monkeypatch):
    Card(monkeypatch)
    monkeypatch.setattr(cuda, "contenders", lambda case: {"sdpa": lacking})
    with pytest.raises(RuntimeError, match="No available kernel"):
        list(runner.measure(CASE, repeat=1, memory=False))
