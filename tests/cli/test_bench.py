import json

import torch
from click.testing import CliRunner

from attentropy.bench import contenders, table
from attentropy.cli import main


def small(monkeypatch):
    monkeypatch.setattr(table, "quick_cases", lambda: [contenders.Case(1, 2, 64, 16)])


def test_bench_prints_a_table(monkeypatch):
    small(monkeypatch)
    result = CliRunner().invoke(main, ["bench", "--quick", "--repeat", "1"])
    assert result.exit_code == 0, result.output
    assert "sdpa" in result.stdout


def test_bench_json_is_json_only(monkeypatch):
    small(monkeypatch)
    result = CliRunner().invoke(
        main, ["bench", "--quick", "--repeat", "1", "--only", "streaming", "--json"]
    )
    found = json.loads(result.stdout)
    assert {r["contender"] for r in found["results"]} == {"sdpa", "streaming"}
    assert found["machine"]["torch"] == torch.__version__


def test_the_default_table_is_complete():
    assert len(table.cases()) == len(set(table.cases())) == len(table.BARS) == 27
    assert table.BARS[contenders.Case(1, 8, 2048, 64, torch.float32, True, True)] == 0.65
