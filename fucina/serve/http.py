"""Reading bodies and sending answers: limits of size and time, and clients that hang up."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Send

from .dialect import Dialect
from .fields import parse_json
from .jobs import Cancelled, Job
from .parts import Ask, merged, whole
from .problems import Problem, problem_of

MAX_BODY = 8 << 20
READ_SECONDS = 60.0
WRITE_SECONDS = 30.0
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


log = logging.getLogger("fucina.serve")


def logged(error: Exception) -> Problem:
    """What a client is told about an error; a fault of ours is logged."""
    problem = problem_of(error)
    if problem.status == 500 and not isinstance(error.__cause__, Cancelled):
        log.error("a request failed", exc_info=error)
    return problem


class HungUp(Exception):
    """The client has closed its connection; nobody is left to be told anything."""


def check_framing(request: Request) -> None:
    """Refuse a request that says twice how long it is: a proxy may have believed the other length, and what it took for
    the body would be read as a request of somebody else's.

    Raises
    ------
    Problem
    """
    if "transfer-encoding" in request.headers and "content-length" in request.headers:
        raise Problem(400, "a request has either content-length or transfer-encoding, not both", closes=True)


async def read_body(request: Request) -> dict[str, Any]:
    """The JSON object that a request brings.

    Raises
    ------
    Problem : it is none, too large, too slow, or not sent as JSON.
    HungUp
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        raise Problem(415, "expected a body of JSON, with content-type: application/json")
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and (len(announced) > 12 or int(announced) > MAX_BODY):
        raise Problem(413, f"the body is larger than {MAX_BODY} bytes")
    raw = await read_raw(request)
    return await asyncio.to_thread(parse_json, raw) if len(raw) > 1 << 16 else parse_json(raw)


async def read_raw(request: Request) -> bytes:
    """The bytes that a request brings.

    Raises
    ------
    Problem : they are too many, or too slow.
    HungUp
    """
    raw = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > MAX_BODY:
                    raise Problem(413, f"the body is larger than {MAX_BODY} bytes")
    except TimeoutError:
        raise Problem(408, f"the body did not come within {READ_SECONDS:g} seconds") from None
    except ClientDisconnect:
        raise HungUp from None
    return bytes(raw)


async def answer(dialect: Dialect[Any], ask: Ask, jobs: Sequence[Job], receive: Receive, send: Sender) -> None:
    """Send the replies of some jobs, whole or as a stream; a client that hangs up ends them at their next tokens.

    A stream begins with its first part, so that what fails before is an ordinary error.
    """
    watcher = asyncio.create_task(_cancel_when_gone(receive, jobs))
    try:
        if ask.stream:
            await _send_stream(dialect, ask, jobs, send)
        else:
            try:
                choices = [await whole(job, ask.scan) for job in jobs]
                body, status, more = dialect.whole(ask, choices), 200, {}
            except Exception as error:
                problem = logged(error)
                body, status, more = dialect.error(problem), problem.status, problem.headers
            await send.json(body, status, more)
    finally:
        for job in jobs:
            job.cancel()
        watcher.cancel()


async def _send_stream(dialect: Dialect[Any], ask: Ask, jobs: Sequence[Job], send: Sender) -> None:
    begun = False
    try:
        async with aclosing(merged(jobs, ask.scan)) as parts, aclosing(dialect.frames(ask, parts)) as frames:
            async for text in frames:
                if not begun:
                    begun = True
                    await send.start(200, EVENTS)
                await send.body(text.encode("utf-8"))
    except (HungUp, ClientDisconnect, OSError):
        raise
    except Exception as error:
        problem = logged(error)
        if not begun:
            await send.json(dialect.error(problem), problem.status, problem.headers)
            return
        await send.body(dialect.failed(ask, problem).encode("utf-8"))
    await send.body(b"", last=True)


async def _cancel_when_gone(receive: Receive, jobs: Sequence[Job]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    for job in jobs:
        job.cancel()


class Sender:
    """Sends one answer; a client that takes nothing for some time counts as gone.

    Parameters
    ----------
    headers : of every answer.
    """

    def __init__(self, send: Send, headers: Mapping[str, str]) -> None:
        self._send, self._headers = send, headers
        self.begun = False

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.begun = True
        pairs = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in {**headers, **self._headers}.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": pairs})

    async def body(self, data: bytes, last: bool = False) -> None:
        """Send part of the body."""
        await self._put({"type": "http.response.body", "body": data, "more_body": not last})

    async def json(self, body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole answer."""
        response = JSONResponse(body, status, headers=dict(headers or {}))
        await self.start(status, dict(response.headers.items()))
        await self.body(bytes(response.body), last=True)

    async def text(self, body: bytes, kind: str, status: int = 200) -> None:
        """Send a whole answer that is no JSON."""
        await self.start(status, {"content-type": kind, "content-length": str(len(body))})
        await self.body(body, last=True)

    async def _put(self, message: dict[str, Any]) -> None:
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._send(message)
        except TimeoutError:
            raise HungUp from None
