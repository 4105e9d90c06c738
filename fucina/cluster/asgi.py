"""One request to an ASGI application without a socket: what comes back, part by part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message

Headers = tuple[tuple[bytes, bytes], ...]
UNREAD = 64  # parts that may wait for the reader


@dataclass(frozen=True, slots=True)
class HTTPHead:
    """The head of a request, as plain values that can be sent to another process."""

    method: str
    path: str
    query: bytes
    headers: Headers

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> HTTPHead:
        """The head of an ASGI scope."""
        headers = tuple((bytes(k), bytes(v)) for k, v in scope["headers"])
        return cls(scope["method"], scope["path"], bytes(scope.get("query_string", b"")), headers)

    def scope(self) -> dict[str, Any]:
        """The ASGI scope."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode("utf-8", "surrogatepass"),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
        }


class Exchange:
    """A request to an application, and its answer.

    Parameters
    ----------
    app : an ASGI application.  head, body : the whole request.
    """

    def __init__(self, app: ASGIApp, head: HTTPHead, body: bytes) -> None:
        self._app, self._head, self._body = app, head, body
        self._read, self._gone = False, asyncio.Event()
        self._parts: asyncio.Queue[Message | None] = asyncio.Queue(UNREAD)

    async def run(self) -> AsyncGenerator[Any, None]:
        """(status, headers) first, then the bytes of the body.

        Whoever stops reading is a client that hangs up: the application is told, and has ended when the iterator is closed.
        """
        task = asyncio.create_task(self._go())
        try:
            while (message := await self._parts.get()) is not None:
                if message["type"] == "http.response.start":
                    yield message["status"], tuple((bytes(k), bytes(v)) for k, v in message.get("headers", ()))
                elif message.get("body"):
                    yield bytes(message["body"])
            await task
        finally:
            self._gone.set()
            while not task.done():  # it may wait for room
                while not self._parts.empty():
                    self._parts.get_nowait()
                await asyncio.wait([task], timeout=0.05)

    async def _go(self) -> None:
        try:
            await self._app(self._head.scope(), self._receive, self._parts.put)
        finally:
            if not self._gone.is_set():
                await self._parts.put(None)

    async def _receive(self) -> Message:
        if not self._read:
            self._read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}
