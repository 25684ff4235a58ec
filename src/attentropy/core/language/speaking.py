"""Which language is used: English, unless the command line or the environment asks for another."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from attentropy.core.errors import ArgumentError

LANGUAGES = ("en", "zh")
VARIABLES = ("LANGUAGE", "LC_ALL", "LC_MESSAGES", "LANG")

_spoken: ContextVar[str] = ContextVar("attentropy_language", default="en")


def told(text: str) -> str:
    """A text in the language in use; English where there is no translation.

    Args:
        text: in English.

    >>> told("no runs in x")
    'no runs in x'
    """
    language = spoken()
    if language == "en" or not text:
        return text
    from attentropy.core.language.phrases import phrases

    return phrases(language)(text)


def told_error(text: str) -> str:
    """The message of an error in the language in use; English where there is no translation.

    Args:
        text: in English.

    >>> with speaking("zh"):
    ...     told_error("MODEL x does not exist")
    'MODEL x 不存在'
    """
    language = spoken()
    if language == "en":
        return text
    from attentropy.core.language.phrases import error_phrases

    return error_phrases(language)(text)


def spoken() -> str:
    """The language in use, one of LANGUAGES."""
    return _spoken.get()


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """Use a language inside the block.

    Args:
        language: one of LANGUAGES.

    >>> with speaking("zh"):
    ...     told("no runs in x")
    'x 中没有训练记录'
    """
    if language not in LANGUAGES:
        raise ArgumentError("language", f"one of {LANGUAGES}", repr(language))
    token = _spoken.set(language)
    try:
        yield
    finally:
        _spoken.reset(token)


def wanted(environment: Mapping[str, str] | None = None) -> str:
    """The language that the environment asks for, as gettext reads it; "en" if there is none.

    Args:
        environment: variables by name; those of this process by default.

    >>> wanted({"LANG": "zh_CN.UTF-8"}), wanted({"LANG": "zh_CN.UTF-8", "LC_ALL": "C.UTF-8"})
    ('zh', 'en')
    """
    environment = os.environ if environment is None else environment
    first = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    for name in first.split(":"):
        language = name.partition(".")[0].partition("_")[0].lower()
        if language in LANGUAGES:
            return language
        if language in ("c", "posix"):
            break
    return "en"
