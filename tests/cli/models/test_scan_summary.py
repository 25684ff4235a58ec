"""What a scan prints, for people and for programs."""

import json
from pathlib import Path

from attentropy.cli.models.scan_summary import machine, progress, show
from attentropy.core.notebook.words import plural
from attentropy.models.progress import Listener
from tests.report.synthetic import make_scan


def test_the_summary_for_people(capsys):
    scan = make_scan(layers=2, heads=2)
    scan.call = f"import attentropy as at\n{scan.call}"
    show(scan, Path("out"))
    said = " ".join(capsys.readouterr().out.split())
    assert "synthetic-decoder 2 layers, 4 heads, 134,515,008 parameters, trained at 128" in said
    assert "length median entropy median H / log n perplexity seconds" in said
    for finding in scan.findings:
        assert f"{finding.name}: {plural(len(finding.heads), 'head')} (" in said
    assert scan.advice[0].call in said
    assert "import attentropy as at" in said
    for file in ("out/report.html", "out/scan.json", "out/plan.json"):
        assert file in said


def test_the_summary_for_programs():
    scan = make_scan(layers=2, heads=2, calibrate=False)
    found = json.loads(json.dumps(machine(scan, Path("out")), allow_nan=False))
    assert found["heads"] == 4
    assert found["plan"] is None
    assert [one["length"] for one in found["lengths"]] == [64, 128, 256, 512]
    assert found["lengths"][0]["median_entropy"] > 0
    assert found["median_slope"] is not None
    assert {one["name"] for one in found["findings"]} == {f.name for f in scan.findings}


def test_progress_is_a_listener_and_silent_if_asked(capsys):
    with progress(quiet=True) as quiet:
        assert type(quiet) is Listener
        quiet.say("nothing")
    assert capsys.readouterr() == ("", "")
    with progress(quiet=False) as loud:
        loud.stage("length [64]")
        loud.begin(10)
        loud.advance(5)
        loud.more(10)
        assert (loud.bar.tasks[0].total, loud.bar.tasks[0].completed) == (20, 5)
        loud.say("length [128] is left out")
    assert "length [128] is left out" in capsys.readouterr().err


def test_a_file_gets_a_line_a_minute_with_the_time_left_and_what_may_come(capsys):
    now = [0.0]
    with progress(quiet=False, clock=lambda: now[0]) as told:
        told.begin(1000)
        told.perhaps(500, "if it breaks past 8,192")
        told.stage("length 4,096")
        for _ in range(10):
            now[0] += 20.0
            told.advance(50)
        told.perhaps(0, "")
        now[0] += 100.0
        told.stage("drawing attention maps")
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert lines[0] == (
        "0:01:00 elapsed · 0:05:40 left (+ 0:03:20 if it breaks past 8,192) · length 4,096"
    )
    assert len(lines) == 4
    assert lines[-1].endswith("left · drawing attention maps")
