import numpy as np
import pytest

from attentropy.lab.claims.registry import (
    Claim,
    approximate,
    claim,
    conditional,
    holds_if,
    refuted,
    run,
)


def test_verdicts_follow_from_what_was_found():
    assert holds_if(True, x=1).verdict == "holds"
    assert holds_if(np.False_, x=1).verdict == "false"
    assert conditional(True, False).verdict == "cond"
    assert conditional(True, True).verdict == "holds"
    assert conditional(False, False).verdict == "false"
    assert refuted(False, True).verdict == "false"
    assert refuted(False, False).verdict == "unclear"
    assert refuted(True, True).verdict == "holds"
    assert approximate(0.1, 0.2).verdict == "approx"
    assert approximate(-0.1, 0.2).verdict == "approx"
    assert approximate(0.3, 0.2).verdict == "false"
    assert approximate(1e-12, 0.2).verdict == "holds"
    assert approximate(0.1, 0.2, sharper=False).verdict == "unclear"
    assert approximate(np.nan, 0.2).verdict == "false"


def test_numbers_are_floats():
    numbers = holds_if(True, a=np.float32(1.5), b=np.array(2), c=True).numbers
    assert numbers == {"a": 1.5, "b": 2.0, "c": 1.0}
    assert all(type(value) is float for value in numbers.values())


def test_a_claim_compares_and_knows_its_source():
    one = Claim("009-x", "said", "false", "right", lambda: refuted(False, True))
    assert one.source == "009"
    assert one.agrees(one.measure())
    assert not one.agrees(holds_if(True))
    ((same, result),) = run([one])
    assert (same, result.verdict) == (one, "false")


def test_an_id_is_registered_once():
    with pytest.raises(KeyError, match="there already"):
        claim("001-(61)", "holds", "again", "no")(lambda: holds_if(True))
