import json

import pytest
import torch
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.lab.bench import contenders, cuda, runner, table


def small(monkeypatch):
    monkeypatch.setattr(table, "quick_cases", lambda: [contenders.BenchCase(1, 2, 64, 16)])


@pytest.mark.slow
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


def test_predictions_are_a_list_and_a_file_has_those_made_so_far(monkeypatch, tmp_path):
    pytest.importorskip("triton")
    from attentropy.lab.bench import predicted
    from tests.lab.bench.test_predicted import prediction

    path = tmp_path / "list.json"
    so_far = []

    def predict(kernel, **given):
        so_far.append(len(json.loads(path.read_text())) if path.exists() else 0)
        return prediction(kernel)

    monkeypatch.setattr(predicted, "predict", predict)
    asked = ["bench", "--predict", "sm_80", "--widths", "64", "--calls", "causal,dropout"]
    result = CliRunner().invoke(main, [*asked, "--json", "--into", str(path)])
    found = json.loads(result.stdout)
    assert [x["kernel"] for x in found] == ["forward", "queries", "keys"] * 2
    assert so_far == [0, 1, 2, 3, 4, 5]
    assert json.loads(path.read_text()) == found


@pytest.mark.parametrize(
    "bad",
    [["sm_75"], ["sm_80", "--widths", "0"], ["sm_80", "--widths", "wide"],
     ["sm_80", "--dtypes", "int8"], ["sm_80", "--calls", "bias"]],
    ids=" ".join,
)  # fmt: skip
def test_what_the_model_does_not_know_is_one_sentence_and_exit_code_2(bad):
    pytest.importorskip("triton")
    result = CliRunner().invoke(main, ["bench", "--predict", *bad, "--json"])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert "must be" in result.stderr
    assert len(result.stderr.splitlines()) == 1
