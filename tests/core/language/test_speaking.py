import pytest

from attentropy.core.errors import ArgumentError
from attentropy.core.language.speaking import speaking, spoken, told, wanted


@pytest.mark.parametrize(
    ("variables", "language"),
    [
        ({}, "en"),
        ({"LANG": ""}, "en"),
        ({"LANG": "C"}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "POSIX"}, "en"),
        ({"LANG": "en_GB.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "ZH"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8", "LC_CTYPE": "zh_CN.UTF-8"}, "en"),
        ({"LANG": "en_US.UTF-8", "LANGUAGE": "zh_CN:en"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LANGUAGE": "fr:en:zh"}, "en"),
        ({"LANGUAGE": "C:zh"}, "en"),
    ],
)
def test_the_environment_chooses_as_gettext_does(variables, language):
    assert wanted(variables) == language


def test_a_block_speaks_and_ends():
    with speaking("zh"):
        assert (spoken(), told("Findings")) == ("zh", "诊断")
        with speaking("en"):
            assert told("Findings") == "Findings"
        assert told("Findings") == "诊断"
    assert (spoken(), told("Findings")) == ("en", "Findings")


def test_a_block_that_fails_ends_too():
    with pytest.raises(OSError, match="full"), speaking("zh"):
        raise OSError("full")
    assert spoken() == "en"


def test_nothing_is_told_of_nothing():
    with speaking("zh"):
        assert told("") == ""
        assert told("models/my-llama") == "models/my-llama"


def test_unknown_languages_are_refused():
    with pytest.raises(ArgumentError, match="language must be one of .*, got 'fr'"), speaking("fr"):
        pass
