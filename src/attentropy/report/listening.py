"""How the server listens: with limits on connections and waiting times; it stops within seconds."""

import asyncio
import socket
from typing import Any

CONNECTIONS = 100
HEADERS_WITHIN = 10.0  # seconds in which a client must have sent its request
IDLE = 10  # seconds for which a silent connection is kept
END = 1  # seconds that answers on their way get when the server is stopped


def serve(app: Any, listener: socket.socket) -> None:
    """Serve until Ctrl-C.

    Args:
        app: an ASGI application.
        listener: a bound socket.
    """
    import uvicorn

    config = uvicorn.Config(
        app,
        http=protocol(),
        ws="none",
        log_level="warning",
        timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=END,
        backlog=CONNECTIONS,
    )
    uvicorn.Server(config).run(sockets=[listener])


def protocol(*, connections: int = CONNECTIONS, within: float = HEADERS_WITHIN) -> type[Any]:
    """uvicorn's HTTP protocol, which drops silent clients and connections beyond a limit.

    Args:
        connections: how many there may be at once; the next one is closed unanswered.
        within: seconds in which a request must have arrived.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Impatient(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > connections:
                transport.abort()
                return
            self.timer = self.loop.call_later(within, self._give_up)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and self.timer is not None:  # its headers are complete
                self.timer.cancel()
                self.timer = None

        def connection_lost(self, exc: Exception | None) -> None:
            if self.timer is not None:
                self.timer.cancel()
            super().connection_lost(exc)

        def _give_up(self) -> None:
            if not self.transport.is_closing():
                self.transport.abort()

    return Impatient
