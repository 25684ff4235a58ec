"""A small local web page: the scans and runs of a folder, read-only, running ones refreshed.

GET /                 the list            GET /api/list
GET /scan/{id}        a scan's report     GET /api/scan/{id}   when it last changed
GET /run/{id}         a run's report      GET /api/run/{id}    its fresh numbers
"""

import functools
import hashlib
import ipaddress
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attentropy.core.errors import ArgumentError, AttentropyError
from attentropy.report import run_page, shelf
from attentropy.report.answers import Answers
from attentropy.report.page import render
from attentropy.report.run import run_payload

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


HTML, JSON = "text/html", "application/json"


def application(root: Path, *, host: str = "127.0.0.1") -> Any:
    """The Starlette application that serves `root`.

    On a loopback host only requests that name a loopback host are answered, so that a page of
    another site cannot read it through a name that resolves to this machine.

    Args:
        root: the folder.
        host: the address that it will listen on.
    """
    if not root.is_dir():
        raise ArgumentError("DIR", "a folder", root)
    return guarded(_routes(root.resolve()), host=host)


def guarded(routes: list[Any], *, host: str) -> Any:
    """A Starlette application that answers requests for its own host only.

    Args:
        routes: of the application.
        host: the address that it will listen on.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    trusted = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else ["*"]
    return Starlette(
        routes=routes, middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=trusted)]
    )


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _routes(root: Path) -> list[Any]:
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    answers = Answers()

    def reply(request: Request, state: str, kind: str, make: Callable[[], bytes]) -> Response:
        """The answer, or 304 if the client has it in this state."""
        headers = {**HEADERS, "ETag": f'"{state}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        content = answers.get(request.url.path, state, make)
        return Response(content, media_type=kind, headers=headers)

    def answer(
        kind: str, media: str, make: Callable[[shelf.ShelfEntry], str]
    ) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            entry = shelf.find(root, kind, request.path_params["id"])
            if entry is None:
                return PlainTextResponse(f"no such {kind}\n", status_code=404, headers=HEADERS)
            try:
                return reply(request, entry.stamp, media, lambda: make(entry).encode())
            except (AttentropyError, OSError) as error:
                return PlainTextResponse(f"{error}\n", status_code=422, headers=HEADERS)

        return endpoint

    listed = Answers()

    def listing(make: Callable[[dict[str, Any]], str], media: str) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            found = shelf.entries(root)
            state = hashlib.sha256("/".join(e.id + e.stamp for e in found).encode()).hexdigest()
            return reply(request, state, media, lambda: make(_list(root, found, listed)).encode())

        return endpoint

    return [
        Route("/", listing(_index, HTML)),
        Route("/api/list", listing(_json, JSON)),
        Route("/scan/{id:path}", answer("scan", HTML, _scan)),
        Route("/run/{id:path}", answer("run", HTML, _run)),
        Route("/api/scan/{id:path}", answer("scan", JSON, lambda e: _json({"stamp": e.stamp}))),
        Route(
            "/api/run/{id:path}",
            answer("run", JSON, lambda e: _json(run_payload(shelf.load_run(e)))),
        ),
    ]


def _list(root: Path, found: list[shelf.ShelfEntry], listed: Answers) -> dict[str, Any]:
    """What the list shows; an entry is read again only when its file has changed."""

    def described(entry: shelf.ShelfEntry) -> Any:
        make = functools.partial(_description, entry)
        return json.loads(listed.get(f"{entry.kind} {entry.id}", entry.stamp, make))

    return {"kind": "index", "root": root.name, "entries": [described(one) for one in found]}


def _description(entry: shelf.ShelfEntry) -> bytes:
    return _json(shelf.describe(entry)).encode()


def _index(listing: dict[str, Any]) -> str:
    return render(listing, title="attentropy", summary=[], live="/api/list")


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _scan(entry: shelf.ShelfEntry) -> str:
    scan = shelf.load_scan(entry)
    return shelf.page_of(scan, entry.path, live="" if scan.complete else _address("scan", entry))


def _run(entry: shelf.ShelfEntry) -> str:
    return run_page(shelf.load_run(entry), live=_address("run", entry))


def _address(kind: str, entry: shelf.ShelfEntry) -> str:
    from urllib.parse import quote

    return f"/api/{kind}/{quote(entry.id)}"
