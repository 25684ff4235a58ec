import math

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from attentropy.report.run import headline, run_payload, thin
from tests.report.synthetic_run import make_run


@given(st.integers(0, 500), st.integers(2, 60))
def test_thinning_keeps_both_ends_and_order(count, most):
    kept = thin(count, most)
    assert kept == sorted(set(kept))
    assert len(kept) == min(count, most)
    if count:
        assert (kept[0], kept[-1]) == (0, count - 1)


def test_a_long_run_of_a_large_model_is_thinned():
    run = make_run(layers=30, heads=9, samples=1000, every=1)
    payload = run_payload(run)["run"]
    assert len(payload["steps"]) * 270 * 3 <= 150_000
    assert payload["steps"][-1] == 999
    assert len(payload["metrics"]["entropy"]) == len(payload["steps"])


def test_headline_names_the_first_serious_alarm():
    run = make_run()
    assert headline(run) == "Logit growth since step 1,900; 2 alarms by step 2,950."
    assert headline(msgspec.structs.replace(run, alerts=[])) == "Attention is calm by step 2,950."
    assert headline(msgspec.structs.replace(run, steps=[])) == "Nothing is recorded yet."


def test_a_loss_that_exploded_is_a_gap():
    run = msgspec.structs.replace(make_run(), losses=[(0, 1.0), (10, math.inf), (20, math.nan)])
    assert run_payload(run)["run"]["losses"] == [[0, 1.0], [10, None], [20, None]]


def test_only_what_the_page_shows_is_on_it():
    run = make_run(layers=1, heads=1, samples=2)
    run.metrics["lse"] = run.metrics["entropy"]
    payload = run_payload(run)
    assert set(payload["run"]["metrics"]) == {"entropy", "normalized_entropy", "max_logit"}
    assert [one["name"] for one in payload["statistics"]] == [
        "entropy", "normalized_entropy", "max_logit",
    ]  # fmt: skip
