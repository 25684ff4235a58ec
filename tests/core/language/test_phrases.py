import ast
import json
import re
from pathlib import Path

import pytest

import attentropy
from attentropy.core.language.phrases import AREAS, PLACE, Phrases, phrases, table
from attentropy.core.language.speaking import speaking, told
from attentropy.core.statistics import TABLE
from tests.core.language.reading import NEARLY, english

SOURCE = Path(attentropy.__file__).parent
SPOKEN = ("models/diagnose.py", "kernels/doctor.py")
NOT_SHOWN = ("Thresholds: ", "rows of watch(...)", "one of ", "7 (not", "built ", "started ")


def test_a_place_stays_and_a_told_place_is_looked_up():
    zh = Phrases({"{a} and {b:told}": "{b}与{a}", "sink": "汇"})
    assert zh("sink and sink") == "汇与sink"


def test_a_list_is_looked_up_part_by_part():
    zh = Phrases({"{names:list}.": "{names}。", "one": "一", "two": "二"})
    assert zh("one, two, mine.") == "一、二、mine。"


@pytest.mark.parametrize(
    "number", ["7", "-0.5", "+1.2", "1,024", "3e-05", "0.36 ± 0.08", "12%", "nan"]
)
def test_numbers_are_found(number):
    assert Phrases({"{x:number} left": "剩 {x}"})(f"{number} left") == f"剩 {number}"


def test_words_are_no_numbers():
    assert Phrases({"{x:number} left": "剩 {x}"})("nobody left") == "nobody left"


def test_the_phrase_that_says_more_is_taken():
    zh = Phrases({"{a} is {b}.": "短", "{a} is far from {b}.": "长"})
    assert zh("this is far from that.") == "长"


def test_a_place_for_a_number_says_more_than_one_for_anything():
    zh = Phrases({"{n} of {text}": "文", "{n:number} of {m:number}": "数"})
    assert (zh("3 of 4"), zh("3 of them")) == ("数", "文")


def test_sentences_are_told_one_by_one():
    zh = Phrases({"A is 1.": "甲。", "B is 2.": "乙。"})
    assert zh("A is 1. B is 2.") == "甲。乙。"
    assert zh("A is 1. Nobody knows.") == "甲。Nobody knows."
    assert zh("Nobody. Knows.") == "Nobody. Knows."


def test_signs_of_regular_expressions_are_plain():
    assert Phrases({"a (b) [c] {x}?": "问 {x}"})("a (b) [c] d?") == "问 d"


@pytest.mark.parametrize("area", AREAS)
def test_both_sides_of_a_phrase_have_the_same_places(area):
    for text, said in table("zh", area).items():
        names = [place[1] for place in PLACE.finditer(text)]
        assert len(set(names)) == len(names), text
        assert sorted(names) == sorted(place[0].strip("{}") for place in PLACE.finditer(said)), text


def test_areas_agree_where_they_say_the_same():
    said = {}
    for area in AREAS:
        for text, translation in table("zh", area).items():
            assert said.setdefault(text, translation) == translation, text


@pytest.mark.parametrize("area", AREAS)
def test_a_file_has_every_phrase_once(area):
    def once(pairs):
        names = [name for name, _ in pairs]
        assert len(set(names)) == len(names), [n for n in names if names.count(n) > 1]
        return dict(pairs)

    path = SOURCE / "core" / "language" / "zh" / f"{area}.json"
    json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=once)


@pytest.mark.parametrize("area", [area for area in AREAS if area != "claims"])  # formulas
def test_translations_are_chinese(area):
    for text, said in table("zh", area).items():
        assert english(PLACE.sub("", said)) == [], text


@pytest.mark.parametrize(
    "text",
    [
        "Most of it rests on the first, or on a second: the head says nothing, and so on.",
        "It is the number of keys, not the distance.",
        "A thing: one of many in a list.",
        "my model, my text, my life",
        "This and that",
    ],
)
def test_sentences_that_nobody_translated_stay_as_they_are(text):
    assert phrases("zh")(text) == text


def test_one_word_for_each_term():
    """logit is logit, score is 分数; a blind row is not 空行, which is an empty line."""
    for text, said in table("zh").items():
        assert "空行" not in said, text
        assert "打分" not in said, text
        if re.search(r"\blogits?\b", PLACE.sub("", text)):
            assert "logit" in said, text


@pytest.mark.parametrize("name", TABLE)
def test_statistics_are_told(name):
    one = TABLE[name]
    with speaking("zh"):
        for text in (one.label, one.meaning, one.low, one.high, one.unit, one.column):
            assert english(told(text)) == [], text
        assert english(told(one.formula)) == [], one.formula


def _samples(tree):
    """Texts of a module, with 7 in the place of what is formatted; docstrings left out."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {
        id(v)
        for n in ast.walk(tree)
        if isinstance(n, ast.JoinedStr)
        for v in ast.walk(n)
        if v is not n
    }
    for node in ast.walk(tree):
        if id(node) in docs or id(node) in inside:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(v.value if isinstance(v, ast.Constant) else "7" for v in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("allowed", NEARLY)
@pytest.mark.parametrize("name", SPOKEN)
def test_what_a_module_says_is_told(name, allowed):
    tree = ast.parse((SOURCE / name).read_text(encoding="utf-8"))
    found = [
        text for text in _samples(tree) if len(english(text)) > 2 and not text.startswith(NOT_SHOWN)
    ]
    assert len(found) > 3
    with speaking("zh"):
        lacking = {t: told(t.strip()) for t in found if english(told(t.strip()))}
    assert len(lacking) <= 3 * allowed * len(found), lacking


@pytest.mark.parametrize("allowed", NEARLY)
def test_what_the_commands_print_is_told(allowed):
    """Every text that a command gives to `told` has its phrase."""
    asked, lacking = 0, []
    for path in sorted((SOURCE / "cli").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "told" and node.args:
                for text in _samples(node.args[0]):
                    asked += bool(english(text))
                    if english(text) and phrases("zh").known(text) is None:
                        lacking.append((path.name, text))
    assert len(lacking) <= allowed * asked, lacking
