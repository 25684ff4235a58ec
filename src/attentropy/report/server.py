"""A small local web page: the scans and runs of a folder, read-only, running ones refreshed.

GET /                 the list            GET /api/list
GET /scan/{id}        a scan's report     GET /api/scan/{id}   when it last changed
GET /run/{id}         a run's report      GET /api/run/{id}    its fresh numbers
"""

import ipaddress
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attentropy.core.errors import ArgumentError, AttentropyError
from attentropy.report import run_page, scan_page, shelf
from attentropy.report.page import render
from attentropy.report.run import run_payload

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def application(root: Path, *, host: str = "127.0.0.1") -> Any:
    """The Starlette application that serves `root`.

    On a loopback host only requests that name a loopback host are answered, so that a page of
    another site cannot read it through a name that resolves to this machine.

    Args:
        root: the folder.
        host: the address that it will listen on.
    """
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    if not root.is_dir():
        raise ArgumentError("DIR", "a folder", root)
    trusted = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(host) else ["*"]
    return Starlette(
        routes=_routes(root.resolve()),
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=trusted)],
    )


def is_loopback(host: str) -> bool:
    """True if only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _routes(root: Path) -> list[Any]:
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
    from starlette.routing import Route

    def entry_of(request: Request, kind: str) -> shelf.ShelfEntry | None:
        return shelf.find(root, kind, request.path_params["id"])

    def answer(
        kind: str, make: Callable[[shelf.ShelfEntry], Response]
    ) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            entry = entry_of(request, kind)
            if entry is None:
                return PlainTextResponse(f"no such {kind}\n", status_code=404, headers=HEADERS)
            try:
                return make(entry)
            except (AttentropyError, OSError) as error:
                return PlainTextResponse(f"{error}\n", status_code=422, headers=HEADERS)

        return endpoint

    def index(request: Request) -> Response:
        page = render(_list(root), title="attentropy", summary=[], live="/api/list")
        return HTMLResponse(page, headers=HEADERS)

    def listing(request: Request) -> Response:
        return JSONResponse(_list(root), headers=HEADERS)

    return [
        Route("/", index),
        Route("/api/list", listing),
        Route("/scan/{id:path}", answer("scan", lambda e: HTMLResponse(_scan(e), headers=HEADERS))),
        Route("/run/{id:path}", answer("run", lambda e: HTMLResponse(_run(e), headers=HEADERS))),
        Route(
            "/api/scan/{id:path}",
            answer("scan", lambda e: JSONResponse({"stamp": e.stamp}, headers=HEADERS)),
        ),
        Route(
            "/api/run/{id:path}",
            answer("run", lambda e: JSONResponse(run_payload(shelf.load_run(e)), headers=HEADERS)),
        ),
    ]


def _list(root: Path) -> dict[str, Any]:
    found = [shelf.describe(entry) for entry in shelf.entries(root)]
    return {"kind": "index", "root": root.name, "entries": found}


def _scan(entry: shelf.ShelfEntry) -> str:
    scan = shelf.load_scan(entry)
    return scan_page(scan, live="" if scan.complete else _address("scan", entry))


def _run(entry: shelf.ShelfEntry) -> str:
    return run_page(shelf.load_run(entry), live=_address("run", entry))


def _address(kind: str, entry: shelf.ShelfEntry) -> str:
    from urllib.parse import quote

    return f"/api/{kind}/{quote(entry.id)}"
