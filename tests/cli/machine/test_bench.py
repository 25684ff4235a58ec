import json

import torch
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.lab.bench import contenders, cuda, runner, table


def small(monkeypatch):
    monkeypatch.setattr(table, "quick_cases", lambda: [contenders.BenchCase(1, 2, 64, 16)])


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


def test_without_a_gpu_one_sentence_and_exit_code_1(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(main, ["bench", "--device", "cuda"])
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "Error: device='cuda': torch finds no CUDA device on this machine\n"


def test_on_a_gpu_the_same_table_and_a_file_to_send(monkeypatch, tmp_path):
    small(monkeypatch)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cuda, "describe", lambda: {"gpu": "a card"})
    seen = []

    def measure(case, **given):
        seen.append(case)
        given["missing"]("without SDPA cuDNN: not on this card")
        names = contenders.available(case)
        return [runner.BenchResult(runner.label(case), n, 1e-3, 1.0, 1.0, 2.0) for n in names]

    monkeypatch.setattr(cuda, "require", lambda: None)
    monkeypatch.setattr(runner, "measure", measure)
    result = CliRunner().invoke(
        main, ["bench", "--device", "cuda", "--quick"], env={"COLUMNS": "200"}
    )
    assert result.exit_code == 0, result.output
    assert [(case.dtype, case.device) for case in seen] == [(torch.bfloat16, "cuda")]
    assert "time/" in result.stdout
    for name in ("SDPA flash", "SDPA cuDNN", "FlexAttention (lse, max)", "triton"):
        assert name in result.stdout
    assert "without SDPA cuDNN: not on this card" in result.stderr
    sent = json.loads((tmp_path / "attentropy_gpu.json").read_text())
    assert sent["machine"]["gpu"] == "a card"
