from dataclasses import replace

from attentropy.lab.harness.experiment import TableSpec
from attentropy.lab.harness.results import RunResults
from attentropy.lab.harness.summary import markdown, ran, summary
from tests.lab.harness.toy import TOY

ROWS = RunResults(
    {"rule": rule, "n": n, "seed": seed, "h": n + seed + (0.5 if rule == "b" else 0.0)}
    for rule in ("a", "b")
    for n in (16, 2)
    for seed in (0, 1)
)
ABOUT = {
    "quick": False,
    "seeds": 2,
    "units": [4, 4],
    "command": "attentropy lab toy --seeds 2",
    "attentropy": "1.0",
    "config": {"lengths": [2, 16], "kind": "x"},
    "machine": {"date": "2026-01-02", "cpu": "A CPU", "threads": 1, "torch": "2.9"},
}


def test_a_table_has_means_and_deviations_over_seeds():
    text = markdown(TableSpec("H", "h", ("rule",), "n", digits=1), ROWS)
    assert text.splitlines() == [
        "| rule | n 2 | n 16 |",
        "| --- | --: | --: |",
        "| a | 2.5 ± 0.7 | 16.5 ± 0.7 |",
        "| b | 3.0 ± 0.7 | 17.0 ± 0.7 |",
    ]


def test_columns_of_words_keep_their_order_and_empty_rows_are_left_out():
    rows = RunResults([{"n": 1, "rule": "z", "h": 1.0}, {"n": 1, "rule": "a", "h": 2.0}, {"n": 2}])
    text = markdown(TableSpec("H", "h", ("n",), "rule", digits=0), rows)
    assert text.splitlines()[0] == "| n | rule z | rule a |"
    assert text.splitlines()[2:] == ["| 1 | 1 | 2 |"]


def test_what_was_run_is_said_in_a_paragraph():
    assert ran(ABOUT) == (
        "Run: `attentropy lab toy --seeds 2` (full configuration, 2 seeds) on 2026-01-02, A CPU, "
        "1 thread, torch 2.9, attentropy 1.0. Settings: lengths = 2/16, kind = x. "
        "Numbers are mean ± standard deviation over seeds."
    )
    part = ran({**ABOUT, "quick": True, "seeds": 1, "units": [1, 4]})
    assert "(quick configuration, 1 seed, **incomplete: 1 of 4 units**)" in part


def test_the_whole_has_sentences_tables_and_figures():
    derived = replace(TOY, derive=lambda results: RunResults([*results, *results]))
    text = summary(derived, ROWS, ABOUT, level=2, at="runs/")
    assert text.startswith("## toy\n\nWhat does it cost?\n\nRun: ")
    assert "\n\n- 8 rows.\n\n**H**\n\n" in text, "conclusions are drawn from the rows as measured"
    assert "![H](runs/h.png)" in text


def test_seeds_that_were_named_are_listed():
    assert "(quick configuration, seeds 3, 8)" in ran({**ABOUT, "quick": True, "seeds": [3, 8]})
    assert "(quick configuration, seed 5)" in ran({**ABOUT, "quick": True, "seeds": [5]})
