from pathlib import Path

import pytest
from click.testing import CliRunner

from attentropy.cli import main
from attentropy.lab.claims import CLAIMS, outline, sections_page
from attentropy.lab.harness.registry import HOMES
from attentropy.report.curves import FIGURES

DOCS = Path(__file__).parents[3] / "docs"
NAMES = list(outline.done_by())


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith(("attentropy ", "page:"))])
def test_a_name_is_there_and_described(name):
    assert sections_page.resolved(name) is not None
    page = sections_page.linked(name).split("(")[1].rstrip(")")
    assert (DOCS / page).is_file()


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith("attentropy ")])
def test_a_command_is_there(name):
    _, command, *more = name.split()
    assert command in main.list_commands(None)
    if command == "lab":
        assert more[0] in HOMES
    elif command == "curves":
        assert more[0] == "--only"
        assert more[1] in FIGURES
    else:
        assert CliRunner().invoke(main, [command, "--help"]).exit_code == 0


def test_pages_are_there():
    for name in NAMES:
        if name.startswith("page:"):
            assert (DOCS / name.removeprefix("page:")).is_file()


@pytest.mark.parametrize(("language", "name"), [("en", "sections.md"), ("zh", "zh/sections.md")])
def test_the_committed_pages_are_those_of_the_list(language, name):
    assert (DOCS / name).read_text(encoding="utf-8") == sections_page.render(language)


def test_the_chinese_page_has_chinese_verdicts():
    assert "001-(61) (不成立)" in sections_page.render("zh")


def test_every_claim_and_every_experiment_is_on_the_page():
    page = sections_page.render()
    for id_, claim in CLAIMS.items():
        assert (f"{id_} ({claim.expected})" in page) == claim.of_documents
    beyond = {"alarms", "extend", "extrapolate/max-retrieval"}  # no section asks for these
    assert {n for n in HOMES if f"`attentropy lab {n}`" not in page} == beyond


def test_a_name_that_is_not_there_raises():
    with pytest.raises(AttributeError):
        sections_page.resolved("theory.noise.nothing")
