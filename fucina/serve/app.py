"""The ASGI application: routes, and the way of a request through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from ..defaults import PREFILL_STRETCH
from . import small
from .chat import ChatCompletions
from .completions import Completions
from .dialect import Dialect
from .gate import Rules
from .http import HungUp, Sender, answer, logged, read_body
from .messages import Messages, count_tokens
from .metrics import KIND, Metrics
from .page import page, page_headers
from .problems import Problem, anthropic_shape, openai_shape
from .responses import Responses
from .service import Service
from .worker import Worker

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from ..model import Model

DIALECTS: tuple[type[Dialect[Any]], ...] = (ChatCompletions, Completions, Messages, Responses)
PREPARING = 2  # threads that read bodies, render templates and compile grammars


class App:
    """The server as an ASGI application; `close` ends its thread.

    Parameters
    ----------
    model : used by nobody else meanwhile.  pool : of this model; stays the caller's.
    rules : who may ask.
    name : of the model; default that of its file.
    queue, streams, speculation, memory, share, stretch : see `Worker`.
    grace : seconds that running replies get when the application ends.
    """

    def __init__(
        self,
        model: Model,
        pool: SlotPool,
        rules: Rules | None = None,
        *,
        name: str | None = None,
        queue: int = 16,
        streams: int = 8,
        speculation: bool = False,
        memory: int | str | None = None,
        share: int | None = None,
        stretch: float = PREFILL_STRETCH,
        grace: float = 10.0,
    ) -> None:
        self.service, self.pool, self.rules, self.grace = Service(model, name), pool, rules or Rules(), grace
        self.metrics = Metrics()
        self.worker = Worker(
            model, pool, queue, streams, speculation, self.metrics, memory=memory, share=share, stretch=stretch
        )
        self._dialects = {path: kind(self.service) for kind in DIALECTS for path in kind.paths}
        self._posts: dict[str, Callable[[Service, dict[str, Any]], dict[str, Any]]] = {
            "/tokenize": small.tokenize,
            "/detokenize": small.detokenize,
            "/apply-template": small.apply_template,
            "/v1/messages/count_tokens": count_tokens,
            "/messages/count_tokens": count_tokens,
        }
        self._gets: dict[str, Callable[[], dict[str, Any]]] = {
            "/v1/models": lambda: small.models(self.service),
            "/models": lambda: small.models(self.service),
            "/props": lambda: small.props(self.service, self.worker),
            "/slots": lambda: small.slots(self.worker, self.pool),
        }
        self._preparing = ThreadPoolExecutor(PREPARING, "fucina-request")
        self._under_way = 0

    def close(self, grace: float | None = None) -> None:
        """Refuse what is new, let what runs go on for the grace time, end it; twice is no error."""
        self.worker.close(self.grace if grace is None else grace)
        self._preparing.shutdown()

    # --- ASGI ---------------------------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(Request(scope, receive), receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await asyncio.to_thread(self.close)
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, request: Request, receive: Receive, send: Send) -> None:
        sender = Sender(send, self.rules.headers)
        path = str(request.scope["path"])  # not of the URL, which the Host header is part of
        shape = anthropic_shape if "/messages" in path else openai_shape
        self._under_way += 1
        try:
            if self._under_way > self.rules.connections and path != "/health":
                raise Problem(503, "too many requests are under way", "unavailable_error")
            await self._route(request, path, receive, sender)
        except (HungUp, ClientDisconnect):
            pass
        except Exception as error:
            problem = logged(error)
            if sender.begun:
                raise
            await sender.json(shape(problem), problem.status, problem.headers)
        finally:
            self._under_way -= 1

    async def _route(self, request: Request, path: str, receive: Receive, sender: Sender) -> None:
        self.rules.check_host(request.headers.get("host"))
        method = request.method
        if method == "OPTIONS":
            await sender.start(204, {})
            await sender.body(b"", last=True)
            return
        if method == "GET" and path == "/health":
            await sender.json(*small.health(self.service, self.worker))
            return
        if method == "GET" and path == "/":
            await sender.start(200, page_headers())
            await sender.body(page(), last=True)
            return
        tenant = self.rules.tenant(request.headers.get("authorization"), request.headers.get("x-api-key"))
        if method == "GET" and path in self._gets:
            await sender.json(self._gets[path]())
        elif method == "GET" and path == "/metrics":
            await sender.text(self.metrics.text(self.worker, self.pool), KIND)
        elif method == "POST" and path in self._posts:
            body = await read_body(request)
            await sender.json(await self._prepare(self._posts[path], self.service, body))
        elif method == "POST" and path in self._dialects:
            dialect = self._dialects[path]
            try:
                body = await read_body(request)
                ask = await self._prepare(dialect.parse, body, tenant)
                jobs = self.worker.submit_all(ask.requests)
            except (HungUp, ClientDisconnect):
                raise
            except Exception as error:
                problem = logged(error)
                await sender.json(dialect.error(problem), problem.status, problem.headers)
                return
            await answer(dialect, ask, jobs, receive, sender)
        else:
            raise Problem(404, f"there is no {method} {path[:100]}", code="not_found")

    async def _prepare(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run what takes its time on a thread, so that others are not held up."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._preparing, work, *arguments)
        except RuntimeError as error:
            if self.worker.closing:
                raise Problem(503, "the server ends; it takes no new request", "unavailable_error") from error
            raise
