"""Payload -> one HTML file that opens from disk with the network off.

Names of models and files are untrusted text: data goes into a block that is not a script, with
every character that could end it escaped; the page's own scripts are the only ones allowed to
run, by their hashes; nothing may be fetched from anywhere.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

from attentropy.core.language.phrases import table
from attentropy.core.language.speaking import LANGUAGES, speaking, spoken, told

SCRIPTS = (
    "dom.js",
    "format.js",
    "theme.js",
    "address.js",
    "language.js",
    "save.js",
    "charts.js",
    "shell.js",
    "heatmap.js",
    "attention_map.js",
    "profile.js",
    "explained.js",
    "findings.js",
    "filters.js",
    "heads.js",
    "overview.js",
    "length.js",
    "comparison.js",
    "methods.js",
    "run.js",
    "shelf.js",
    "text_data.js",
    "text_tokens.js",
    "text_generated.js",
    "text.js",
    "main.js",
)
STYLES = ("style.css", "explained.css", "attention_map.css", "text.css")
UNSCRIPTED = "The charts need JavaScript, which is all inside this file."
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def render(payload: dict[str, Any], *, title: str, summary: list[str], live: str = "") -> str:
    """One HTML file that holds everything it shows.

    Args:
        payload: what the page's scripts read.
        title: that of the browser window.
        summary: sentences that are shown without scripts.
        live: the address of fresh data on the page's own server, if it has one.
    """
    vendor, app = asset("vendor/echarts.min.js"), application()
    parts = {
        "csp": policy(vendor, app, live=live),
        "title": html.escape(title),
        "summary": "\n".join(_paragraphs(summary)),
        "live": html.escape(live, quote=True),
        "style": "\n".join(asset(f"assets/{name}") for name in STYLES),
        "data": inline_json(payload),
        "phrases": inline_json(page_phrases()),
        "lang": {"zh": "zh-CN"}.get(spoken(), spoken()),
        "vendor": vendor,
        "app": app,
    }
    template = asset("assets/page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _paragraphs(summary: list[str]) -> Iterator[str]:
    """Sentences for a page without scripts, in each language."""
    for language in LANGUAGES:
        with speaking(language):
            for line in [*summary, UNSCRIPTED]:
                yield f'<p lang="{language}">{html.escape(told(line))}</p>'


@cache
def page_phrases() -> dict[str, str]:
    """The phrases that a page can say in Chinese."""
    return table("zh", "sentences", "statistics", "page")


def size_of(payload: dict[str, Any]) -> int:
    """Characters of a page that shows this, about.

    Args:
        payload: what the page's scripts read.
    """
    styles = sum(len(asset(f"assets/{name}")) for name in STYLES)
    return (
        len(asset("vendor/echarts.min.js"))
        + len(application())
        + styles
        + len(inline_json(page_phrases()))
        + len(inline_json(payload))
    )


def inline_json(value: Any) -> str:
    r"""JSON that is safe inside a script element: it holds none of < > & and line separators.

    >>> inline_json("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&\u2028\u2029]", lambda match: _ESCAPES[match[0]], text)


def policy(*scripts: str, live: str = "") -> str:
    """The content security policy: these scripts by hash, styles, no network at all.

    With `live` the page may ask its own server for fresh data.

    Args:
        scripts: the only scripts that may run.
        live: the address of fresh data on the page's own server, if it has one.
    """
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


@cache
def application() -> str:
    """The page's own scripts, joined in order inside one function."""
    body = "\n".join(asset(f"assets/{name}") for name in SCRIPTS)
    return f'(() => {{\n"use strict";\n{body}\n}})();'


@cache
def asset(name: str) -> str:
    """One file of this package as text."""
    return (files("attentropy.report") / name).read_text(encoding="utf-8")


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
