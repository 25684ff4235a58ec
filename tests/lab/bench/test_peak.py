import pytest

from attentropy.kernels.fused import library
from attentropy.lab.bench import peak
from attentropy.lab.bench.contenders import BenchCase

CASE = BenchCase(2, 3, 100, 16)


def test_operations_are_those_of_the_products():
    whole = 2 * 2 * 2 * 3 * 100 * 100 * 16  # two products, each a multiplication and an addition
    assert peak.operations(CASE) == whole
    assert peak.operations(CASE._replace(backward=True)) == 3.5 * whole
    assert peak.operations(CASE._replace(causal=True)) == whole / 2
    assert peak.operations(CASE._replace(causal=True, window=10)) == whole / 10
    assert peak.operations(CASE._replace(queries=1)) == whole / 100


def test_the_peak_comes_from_the_library(monkeypatch):
    peak.fma_peak.cache_clear()
    monkeypatch.setattr(library, "serving", None)
    assert peak.fma_peak() is None
    peak.fma_peak.cache_clear()


@pytest.mark.skipif(library.serving is None, reason="no fused library here")
def test_a_core_does_more_than_a_billion_operations_in_a_second():
    peak.fma_peak.cache_clear()
    assert 1e9 < peak.fma_peak() < 1e13
