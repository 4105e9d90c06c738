"""Runs the application over sockets, until Ctrl-C or SIGTERM; then replies that are under way may end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import InvalidOption
from .app import App

HEAD_SECONDS = 60.0  # in which the head of a request must come
MARGIN = 5  # seconds after the grace time in which the last answers are sent


class Connection(H11Protocol):
    """A connection that is closed if no whole head of a request comes in time."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._idle:
            self._stop_waiting()
        elif self._waiting is None:  # the beginning of a further request
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _too_slow(self) -> None:
        self._waiting = None
        if self._idle:
            self.transport.close()


class Server(uvicorn.Server):
    """A server of one application.

    Parameters
    ----------
    app : closed with the server.
    host, port : to listen at; port 0 takes a free one.
    listening : called with the address when the server listens.

    Raises
    ------
    InvalidOption : the address cannot be listened at.
    """

    def __init__(self, app: App, host: str, port: int, listening: Callable[[str], object] | None = None) -> None:
        config = uvicorn.Config(
            app,
            host,
            port,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=int(app.grace) + MARGIN,
        )
        super().__init__(config)
        self._app, self._listening = app, listening
        self._socket = _bound(host, port)
        self._ending: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where the server listens, as a URL."""
        host, port = self._socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def serve_until_stopped(self) -> None:
        """Listen until a signal, or until `should_exit` is set; return when all has ended."""
        try:
            asyncio.run(self.serve([self._socket]))
        finally:
            self._socket.close()
            self._app.close(0.0)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._listening is not None and self.started:
            self._listening(self.address)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.refuse()
        self._ending = asyncio.create_task(asyncio.to_thread(self._app.close))
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server, and nothing else: whoever runs it goes on, to store and to close."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def _bound(host: str, port: int) -> socket.socket:
    """A socket at an address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            if hasattr(socket, "SO_EXCLUSIVEADDRUSE"):  # Windows, where the other option would share the port
                found.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
        except BaseException:
            found.close()
            raise
    except (OSError, OverflowError, UnicodeError) as error:
        raise InvalidOption(f"cannot listen at {host}, port {port}: {error}") from None
    return found
