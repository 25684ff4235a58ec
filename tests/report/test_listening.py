"""Clients that do not ask, ask slowly or come in crowds."""

import socket
import threading
import time

import pytest

from attentropy.report.listening import protocol
from attentropy.report.server import application

uvicorn = pytest.importorskip("uvicorn")


@pytest.fixture
def address(tmp_path):
    config = uvicorn.Config(
        application(tmp_path),
        port=0,
        log_level="warning",
        http=protocol(connections=20, within=0.5),
        timeout_graceful_shutdown=1,
    )
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    yield "127.0.0.1", running.servers[0].sockets[0].getsockname()[1]
    began = time.monotonic()
    running.should_exit = True
    thread.join(timeout=10)
    assert time.monotonic() - began < 5


def closed(client) -> bool:
    client.settimeout(5)
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_client_that_never_asks_is_dropped(address):
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"):
        with socket.create_connection(address) as client:
            client.sendall(sent)
            assert closed(client)


def test_connections_are_bounded_and_others_are_served_afterwards(address):
    crowd = [socket.create_connection(address) for _ in range(40)]
    assert sum(closed(client) for client in crowd) == 40
    for client in crowd:
        client.close()
    with socket.create_connection(address) as client:
        client.settimeout(10)
        client.sendall(b"GET /api/list HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert client.recv(15) == b"HTTP/1.1 200 OK"


def test_abandoned_requests_do_not_keep_the_server(address):
    for _ in range(15):
        with socket.create_connection(address) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
