import pytest
import torch

from attentropy.core.errors import AttentropyError
from attentropy.lab.bench import contenders, runner

CASE = contenders.BenchCase(1, 2, 64, 16)


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_every_contender_is_measured_against_sdpa(backward):
    results = list(runner.measure(CASE._replace(backward=backward), repeat=2, memory=True))
    assert [r.contender for r in results][:2] == ["sdpa", "eager"]
    assert "streaming" in [r.contender for r in results]
    assert results[0].ratio == 1
    assert all(r.seconds > 0 for r in results)


def test_a_wrong_contender_is_not_measured():
    def wrong(q, k, v, case):
        return contenders.sdpa(q, k, v, case)[0] * 1.001, None

    def wrong_entropy(q, k, v, case):
        out, entropy = contenders.eager(q, k, v, case)
        return out, entropy + 1e-5

    with pytest.raises(AttentropyError, match="liar is wrong on .*: not measured"):
        runner.check("liar", wrong, CASE)
    with pytest.raises(AttentropyError, match="entropy of liar is wrong"):
        runner.check("liar", wrong_entropy, CASE)


def test_json_names_the_machine():
    results = list(runner.measure(CASE, repeat=1, memory=False))
    assert [r.contender for r in results][:2] == ["sdpa", "eager"]
    assert results[0].ratio == 1
    found = runner.as_json(results)
    assert found["machine"]["torch"] == torch.__version__
    assert found["results"][0]["case"] == "(1,2,64,16) float32 fwd full"
