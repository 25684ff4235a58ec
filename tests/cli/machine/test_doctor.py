import json

from click.testing import CliRunner

from attentropy.cli import main


def test_doctor_says_which_kernel_serves():
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    assert "CPU attention: " in result.output


def test_doctor_json_is_json_only():
    found = json.loads(CliRunner().invoke(main, ["doctor", "--json"]).output)
    assert found["kernel"] in ("fused", "streaming")
    assert found["reason"]
