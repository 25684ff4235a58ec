import json
from dataclasses import replace

import pytest
import torch

from attentropy._version import __version__
from attentropy.lab.harness.run_plan import RunPlan
from attentropy.lab.harness.runner import run
from tests.lab.harness.toy import TOY, measure


def rows(path):
    return json.loads((path / "results.json").read_text())["rows"]


def test_a_run_writes_everything(tmp_path):
    out = tmp_path / "toy"
    run(RunPlan(TOY, seeds=2), out)
    names = {p.name for p in out.iterdir()}
    assert names == {"config.json", "results.json", "results.csv", "summary.md", "h.png", "units"}
    about = json.loads((out / "config.json").read_text())
    assert about["attentropy"] == __version__
    assert about["config"] == {"lengths": [2, 4], "conditions": ["a/b", "c d"]}
    text = (out / "summary.md").read_text()
    assert "attentropy lab toy --seeds 2" in text
    assert "| rule | n 2 | n 4 | n 8 |" in text
    assert " ± " in text
    assert "12 rows." in text
    assert "incomplete" not in text
    head, first, *rest = (out / "results.csv").read_text().splitlines()
    assert head == "condition,seed,rule,n,h,theory"
    assert first.startswith("a/b,0,a/b,2,2.")
    assert len(rest) == 11


def test_nothing_but_json_in_the_json(tmp_path):
    run(RunPlan(TOY, seeds=1), tmp_path / "toy")
    json.loads((tmp_path / "toy/results.json").read_text(), parse_constant=pytest.fail)


def test_seeds_differ_and_the_callers_random_numbers_are_left_alone(tmp_path):
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    results = run(RunPlan(TOY, seeds=2), tmp_path / "toy")
    assert torch.equal(torch.rand(3), want)
    assert results.over("h", rule="a/b", n=2).sd > 0


class Killed(BaseException):
    pass


@pytest.mark.parametrize("survivors", [0, 1, 3])
def test_a_killed_run_is_completed_to_the_same_numbers(tmp_path, survivors):
    run(RunPlan(TOY, seeds=2), tmp_path / "whole")
    left = iter(range(survivors))

    def dying(config, condition, seed):
        if next(left, None) is None:
            raise Killed
        return measure(config, condition, seed)

    with pytest.raises(Killed):
        run(RunPlan(replace(TOY, measure=dying), seeds=2), tmp_path / "killed")
    torch.rand(7)
    run(RunPlan(TOY, seeds=2), tmp_path / "killed", resume=True)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    csv = [(tmp_path / name / "results.csv").read_bytes() for name in ("killed", "whole")]
    assert csv[0] == csv[1]


def test_an_interrupted_run_shows_what_it_has(tmp_path):
    def once(config, condition, seed):
        if seed:
            raise KeyboardInterrupt
        return measure(config, condition, seed)

    with pytest.raises(KeyboardInterrupt):
        run(RunPlan(replace(TOY, measure=once), seeds=2), tmp_path / "toy")
    assert "incomplete: 1 of 4 units" in (tmp_path / "toy/summary.md").read_text()


def test_a_half_written_unit_is_measured_again(tmp_path):
    out = tmp_path / "toy"
    run(RunPlan(TOY, seeds=1), out)
    want = rows(out)
    unit = next((out / "units").iterdir())
    unit.with_name(unit.name + ".part").write_text("[{")
    unit.unlink()
    run(RunPlan(TOY, seeds=1), out, resume=True)
    assert rows(out) == want
