"""A local web page of one text of a model that stays in memory.

GET /                          the page
GET /api/head/{layer.head}     statistics of every token for one head
GET /api/row/{layer.head}/{i}  where token i looks, and who looks at it
"""

import json
import re
from typing import Any

from attentropy.report.answers import Answers
from attentropy.report.page import render
from attentropy.report.server import HEADERS, HTML, JSON, guarded
from attentropy.report.text import text_payload
from attentropy.scans.texts.live import LiveText

HEAD = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


def live_application(text: LiveText, *, name: str, host: str = "127.0.0.1") -> Any:
    """The Starlette application that answers for a text.

    Args:
        text: stays in memory.
        name: that of the model.
        host: the address that it will listen on.
    """
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    page = live_page(text, name=name).encode()
    answers = Answers()

    def index(request: Request) -> Response:
        return Response(page, media_type=HTML, headers=HEADERS)

    def missing(what: str) -> Response:
        return PlainTextResponse(f"no such {what}\n", status_code=404, headers=HEADERS)

    def answer(request: Request) -> Response:
        head = parsed(request.path_params["head"])
        if head is None or not text.has(head):
            return missing("head")
        token = request.path_params.get("token")
        if token is None:
            made = answers.get(request.url.path, "", lambda: _json(text.head(head)))
        elif token < len(text.reading.ids):
            made = answers.get(request.url.path, "", lambda: _json(text.look(head, token)))
        else:
            return missing("token")
        return Response(made, media_type=JSON, headers=HEADERS)

    routes = [
        Route("/", index),
        Route("/api/head/{head}", answer),
        Route("/api/row/{head}/{token:int}", answer),
    ]
    return guarded(routes, host=host)


def live_page(text: LiveText, *, name: str) -> str:
    """The page, which asks its own server for heads and rows.

    Args:
        text: stays in memory.
        name: that of the model.
    """
    payload = text_payload(text.table(), name=name) | {"served": True}
    count = f"{len(text.reading.ids):,} tokens"
    summary = [f"Where the attention of {name} looks in a text of {count}"]
    return render(payload, title=f"{name} · text", summary=summary, live="/api")


def parsed(text: str) -> tuple[int, int] | None:
    """`3.5` as layer and head; None if it is something else.

    >>> parsed("3.5"), parsed("3.x")
    ((3, 5), None)
    """
    found = HEAD.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]))


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
