import pytest

from attentropy.cli import COMMANDS, main
from attentropy.cli.examples import EXAMPLES, epilog
from tests.cli.test_cli import call


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_a_command_has_examples(name):
    done = call(name, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.output
    assert all(f"\n    {example}\n" in done.output for example in EXAMPLES[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_options_in_examples_exist(name):
    known = {option for p in main.get_command(None, name).params for option in p.opts}
    used = {word for line in EXAMPLES[name] for word in line.split() if word.startswith("--")}
    assert used <= known


def test_examples_are_lines_that_click_does_not_wrap():
    text = epilog("doctor")
    assert text == "\b\nExamples:\n  attentropy doctor\n  attentropy doctor --json"
    assert epilog("unicorn") is None
    assert set(EXAMPLES) == set(COMMANDS)
    assert all(
        line.startswith(f"attentropy {name}") for name in EXAMPLES for line in EXAMPLES[name]
    )
