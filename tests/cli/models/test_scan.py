"""attentropy scan as a user runs it: files, summary, exit codes, one sentence per mistake."""

import json
import os

import pytest
import torch
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.cli.models.scan import parse
from attentropy.scans import store
from attentropy.scans.errors import ScanError
from attentropy.scans.store import load

TEXT = "In the beginning was a short text, and the text was short. " * 40


@pytest.fixture
def call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text(TEXT)

    def run(*arguments, model="scans.tiny:make", text=("--text", "text.txt")):
        command = ["scan", model, *text, "--out", "out", *map(str, arguments)]
        return CliRunner().invoke(main, command, catch_exceptions=True)

    return run


def failed(result, code=2) -> str:
    """The one sentence of a failure: its exit code, no traceback, nothing on stdout."""
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr
    assert lines[-1].startswith("Error: ")
    return lines[-1]


def leftovers(path) -> list[str]:
    return sorted(os.listdir(path)) if path.exists() else []


def test_writes_both_files_and_a_summary(call, tmp_path):
    result = call("--lengths", "16,32,64")
    assert result.exit_code == 0, result.output
    assert leftovers(tmp_path / "out") == ["report.html", "scan.json"]
    scan = load(tmp_path / "out")
    assert scan.complete
    assert scan.lengths == [16, 32, 64]
    assert all(measure.perplexity > 1 for measure in scan.measures)
    for part in ("scans.tiny:make", "2 layers, 8 heads", "heads are healthy", "Perplexity"):
        assert part in result.stdout
    assert "out/report.html" in result.stdout
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "scans.tiny:make" in page


def test_json_is_all_that_stdout_holds(call):
    result = call("--lengths", "16,32", "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert found["complete"]
    assert found["heads"] == 8
    assert [one["length"] for one in found["lengths"]] == [16, 32]
    assert found["report"] == os.path.join("out", "report.html")


def test_the_trained_length_can_be_said_and_its_source_is_told(call, tmp_path):
    assert call("--lengths", "16,32", "--trained", "16").exit_code == 0
    model = load(tmp_path / "out").model
    assert (model.trained_length, model.trained_source) == (16, "as the user says")


@pytest.mark.parametrize(
    ("arguments", "tokens"), [(["--quick"], 64), (["--tokens-per-length", "256"], 256)]
)
def test_a_scan_reads_what_one_can_spare(call, tmp_path, arguments, tokens):
    assert call("--lengths", "32,64", *arguments).exit_code == 0
    assert [measure.tokens for measure in load(tmp_path / "out").measures] == [tokens, tokens]


def test_the_plan_is_named_where_it_lies(call, tmp_path):
    result = call("--lengths", "32,128", "--calibrate", "--json")
    found = json.loads(result.stdout)
    (plan,) = [one for one in found["remedies"] if one["name"] == "plan of calibrate"]
    assert plan["call"] == "at.steer(model, at.Plan.load('out/plan.json'))"
    assert [one["call"] for one in found["advice"]] == [
        one["call"] for one in found["remedies"] if one["helps"]
    ]


def test_default_lengths_end_at_four_times_the_trained_length(call, tmp_path):
    assert call().exit_code == 0
    assert load(tmp_path / "out").lengths == [32, 64, 128]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lengths", "64,32"], "--lengths must increase and be 2 or more, got [64, 32]"),
        (["--lengths", "a"], "--lengths must be integers such as 64,128,256, got 'a'"),
        (["--tokens", "x.npy"], "--text and --tokens exclude each other"),
        (["--text", "absent.txt"], "--text absent.txt does not exist"),
        (["--text", "empty.txt"], "--text empty.txt is empty"),
        (["--text", "latin.txt"], "--text latin.txt is not UTF-8: byte 0 is wrong"),
        (["--compare", "absent.json"], "absent.json does not exist"),
        (["--compare", "text.txt"], "text.txt is not JSON"),
        (["--out", "text.txt"], "--out text.txt is not a folder"),
        (["--lengths", "100000"], "100,000: the text has only 2,360 tokens"),
        (["--device", "cuda"], "--device cuda cannot be used"),
        (["--quick", "--tokens-per-length", "99"], "--quick and --tokens-per-length exclude each"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(call, tmp_path, arguments, message):
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9")
    there = sorted(os.listdir(tmp_path))
    assert message in failed(call(*arguments))
    assert sorted(os.listdir(tmp_path)) == there


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("absent", "MODEL absent does not exist"),
        (".", "MODEL . is not a model: it has no config.json"),
        ("scans.tiny:leaving", "MODEL scans.tiny:leaving failed: SystemExit: 3"),
        ("scans.tiny:number", "must return a torch.nn.Module, got int"),
    ],
)
def test_a_model_that_is_none(call, tmp_path, model, message):
    assert message in failed(call(model=model))
    assert not (tmp_path / "out").exists()


def test_a_refused_scan_leaves_folders_as_they_were(call, tmp_path):
    (tmp_path / "there").mkdir()
    assert "does not exist" in failed(call("--out", "there", model="absent"))
    assert (tmp_path / "there").is_dir()
    assert "does not exist" in failed(call("--out", "there/one/two", model="absent"))
    assert leftovers(tmp_path / "there") == []
    (tmp_path / "there" / "note.txt").write_text("mine")
    assert "does not exist" in failed(call("--out", "there", model="absent"))
    assert leftovers(tmp_path / "there") == ["note.txt"]


def test_lengths_are_parsed():
    assert parse("64, 128,256") == [64, 128, 256]
    for text in ("64,,128", "a,b", "64;128", "1.5", "", "٣"):
        with pytest.raises(ScanError, match="^lengths must be integers such as 64,128,256, got"):
            parse(text)


def test_lengths_are_explained(call):
    assert "--lengths must be positive, got [0, -5]" in failed(call("--lengths", "0,-5"))
    assert "--lengths must be integers" in failed(call("--lengths", "128,abc"))
    for words in (("128", "256"), ("128,", "256")):
        said = failed(call("--lengths", *words))
        assert "--lengths takes commas and no spaces: --lengths 128,256" in said


def test_debug_shows_the_traceback(call):
    result = call("--lengths", "a", "--debug")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "ScanError"


def test_a_length_the_model_cannot_take_is_named_and_the_others_go_on(call, tmp_path):
    result = call("--lengths", "16,32,128", model="scans.tiny:short")
    assert result.exit_code == 0
    assert "length 128 is left out: the model takes at most 64 tokens" in result.stderr
    scan = load(tmp_path / "out")
    assert scan.lengths == [16, 32]
    assert scan.skipped[0].length == 128


def test_a_length_the_model_refuses_is_named_and_the_others_go_on(call, tmp_path):
    result = call("--lengths", "32,64,128", model="scans.tiny:picky")
    assert result.exit_code == 0, result.output
    assert load(tmp_path / "out").lengths == [32, 64]
    assert "Length 128 was left out: the model refuses it (more than 100 tokens)" in " ".join(
        result.stdout.split()
    )


def test_a_model_that_refuses_every_length_fails(call):
    assert "more than 100 tokens" in failed(
        call("--lengths", "128", model="scans.tiny:picky"), code=1
    )


@pytest.mark.parametrize("more", [[], ["--calibrate"]])
def test_a_model_with_a_mistake_of_its_own_is_one_sentence(call, tmp_path, more):
    message = failed(call("--lengths", "16,64", *more, model="scans.tiny:wrong"), code=1)
    assert message == "Error: the model cannot read 16 tokens: KeyError: 'positions'"
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_sentence_and_leaves_nothing(call, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    assert failed(call("--lengths", "16,32"), code=1) == "Error: No space left on device"
    assert leftovers(tmp_path / "out") == []


def test_an_unwritable_output(call, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(store.tempfile, "TemporaryFile", refuse)
    assert "--out out cannot be written: Permission denied" in failed(call())


def test_ctrl_c_keeps_what_is_measured_and_resume_goes_on(call, tmp_path, monkeypatch):
    from attentropy.scans import scan as module

    plain, seen = module.measure_several, []

    def interrupted(model, lengths, **options):
        found = plain(model, lengths, **options)
        seen.extend(one.measure.length for one in found)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(module, "measure_several", interrupted)
    result = call("--lengths", "16,32,64")
    assert result.exit_code == 130
    assert "--resume goes on" in result.stderr
    stopped = load(tmp_path / "out")
    assert not stopped.complete
    assert stopped.lengths == [16]
    assert leftovers(tmp_path / "out") == ["scan.json"]

    seen.clear()
    monkeypatch.setattr(module, "measure_several", lambda *a, **k: seen.append(1) or plain(*a, **k))
    result = call("--lengths", "16,32,64", "--resume")
    assert result.exit_code == 0
    assert len(seen) == 2  # 16 was not measured again
    whole = load(tmp_path / "out")
    assert whole.complete
    assert whole.lengths == [16, 32, 64]
    assert whole.measures[0] == stopped.measures[0]


def test_resume_refuses_another_text(call, tmp_path):
    assert call("--lengths", "16").exit_code == 0
    (tmp_path / "text.txt").write_text(TEXT.upper())
    assert "--resume: the stopped scan has another text" in failed(call("--resume"))


def test_compare_puts_the_other_scan_into_the_page(call, tmp_path):
    assert call("--lengths", "16,32").exit_code == 0
    os.rename(tmp_path / "out", tmp_path / "before")
    result = call("--lengths", "16,32", "--compare", "before/scan.json")
    assert result.exit_code == 0
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    payload = json.loads(page.split('id="payload">')[1].split("</script>")[0])
    assert payload["other"]["lengths"] == [16, 32]
    assert (payload["scan"]["name"], payload["other"]["name"]) == ("out", "before")
    assert call("--lengths", "16,32", "--resume").exit_code == 0  # nothing is left to do
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert '"name":"before"' in page
    assert call("--lengths", "16,32").exit_code == 0  # another scan, compared with nothing
    assert not (tmp_path / "out" / "compared").exists()


def test_calibration_is_measured_and_its_plan_steers(call, tmp_path):
    from attentropy.models.plan import Plan
    from attentropy.models.steer.steer import steer
    from tests.scans.tiny import make

    result = call("--lengths", "16,32,64", "--calibrate")
    assert result.exit_code == 0, result.output
    found = load(tmp_path / "out").plan
    assert found.reference == 32
    home, far = found.effects
    assert (home.length, far.length) == (32, 64)
    assert min(home.perplexity_before, far.perplexity_before, far.perplexity_after) > 1
    assert abs(far.entropy_after - home.entropy_before) < abs(
        far.entropy_before - home.entropy_before
    )
    assert "Plan:   out/plan.json" in result.stdout
    plan = Plan.load(tmp_path / "out" / "plan.json")
    assert plan == found
    steer(make(), plan).undo()


def test_calibration_needs_a_longer_length(call, tmp_path):
    message = failed(call("--lengths", "16,32", "--calibrate"))
    assert "--calibrate needs a length beyond 32, got [16, 32]" in message
    assert not (tmp_path / "out").exists()


def test_calibration_is_refused_before_the_model_is_loaded(call, tmp_path, monkeypatch):
    from attentropy.scans.loading import sources

    monkeypatch.setattr(sources, "load", lambda *given, **more: pytest.fail("it was loaded"))
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text('{"max_position_embeddings": 2048}')
    message = failed(call("--lengths", "64,2048", "--calibrate", model=str(folder)))
    assert "--calibrate needs a length beyond 2,048, got [64, 2048]" in message
    message = failed(call("--lengths", "64,256", "--trained", "512", "--calibrate"))
    assert "--calibrate needs a length beyond 512, got [64, 256]" in message
    message = failed(call("--lengths", "64", "--calibrate"))
    assert "--calibrate needs a length beyond 64, got [64]" in message


def test_calibration_names_the_lengths_that_were_left_out(call):
    message = failed(call("--lengths", "16,32,1000000", "--calibrate"))
    assert "got [16, 32] (1,000,000 is left out: the text has only" in message


def test_attention_by_hand_is_scanned_and_reported(call, tmp_path):
    result = call("--lengths", "16,32", "--json", model="scans.tiny:by_hand")
    assert result.exit_code == 0, result.output
    assert leftovers(tmp_path / "out") == ["report.html", "scan.json"]
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    payload = json.loads(page.split('id="payload">')[1].split("</script>")[0])
    constant, *_, unknown = payload["scan"]["predictions"]["curves"][0][0]
    assert constant[0] > 0
    assert unknown == [None, None]  # log n / d of a head whose d is not seen


def test_attention_by_hand_is_calibrated_too(call, tmp_path):
    result = call("--lengths", "16,32,64", "--calibrate", "--json", model="scans.tiny:half_by_hand")
    assert result.exit_code == 0, result.output
    assert "left alone" not in result.stderr
    assert list(load(tmp_path / "out").plan.factors) == ["layers.0", "layers.1"]


def test_calibration_of_a_model_that_cannot_read_says_so(call):
    message = failed(call("--lengths", "128,256", "--calibrate", model="scans.tiny:picky"), code=1)
    assert "the model cannot read 128 tokens: RuntimeError: more than 100 tokens" in message


def test_without_a_model_the_embedded_one_is_scanned(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ["scan", "--lengths", "64,128", "--batch", "2", "--json"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["model"] == "attentropy-embedded"
    assert [one["length"] for one in found["lengths"]] == [64, 128]
    assert found["lengths"][1]["perplexity"] < 6  # of 256 bytes
    assert leftovers(tmp_path / "attentropy-scan") == ["report.html", "scan.json"]
    scan = load(tmp_path / "attentropy-scan")
    assert scan.model.kind == "embedded"
    assert scan.input.description == "the embedded sample text"
    assert scan.maps is not None


def test_threads_are_set_and_put_back(call, tmp_path):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert call("--lengths", "16", "--threads", "1").exit_code == 0
        assert load(tmp_path / "out").threads == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_help_is_quick_and_imports_no_torch():
    import subprocess
    import sys

    code = (
        "import sys\nfrom attentropy.cli import main\n"
        "try: main(['scan', '--help'])\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--allow-pickle" in done.stdout
