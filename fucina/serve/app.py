"""The ASGI application: routes, and the way of a request through them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive, Scope, Send

from . import small
from .dialect import Dialect
from .gate import Rules
from .http import HungUp, Sender, answer, check_framing, logged, read_body
from .messages import COUNT, count_tokens
from .metrics import KIND, Labelled, Metrics
from .models import DIALECTS, Models, Offer, Served
from .openapi import document
from .page import page, page_headers
from .problems import Problem, anthropic_shape, openai_shape
from .schema import Table
from .service import Service, name_of
from .worker import Worker

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from ..model import Model

PREPARING = 2  # threads that read bodies, render templates and compile grammars
ROUTES: dict[str, type[Dialect[Any]]] = {path: kind for kind in DIALECTS for path in kind.paths}
POSTS: dict[str, tuple[Callable[[Service, dict[str, Any]], dict[str, Any]], Table]] = {
    "/tokenize": (small.tokenize, small.TOKENIZE),
    "/detokenize": (small.detokenize, small.DETOKENIZE),
    "/apply-template": (small.apply_template, small.APPLY_TEMPLATE),
    "/v1/messages/count_tokens": (count_tokens, COUNT),
    "/messages/count_tokens": (count_tokens, COUNT),
}


class App:
    """The server as an ASGI application; `close` ends its threads.

    `App(model, pool)` serves one model, `App.of(models)` several by name.

    Parameters
    ----------
    model : used by nobody else meanwhile.  pool : of this model.  Both stay the caller's.
    rules : who may ask.
    name : of the model; default that of its file.
    grace : seconds that running replies get when the application ends.
    options : of the `Worker`: queue, streams, speculation, memory, share, stretch.
    """

    def __init__(
        self,
        model: Model,
        pool: SlotPool,
        rules: Rules | None = None,
        *,
        name: str | None = None,
        grace: float = 10.0,
        **options: Any,
    ) -> None:
        called = name or name_of(model.path)
        offer = Offer(called, aliases=frozenset({name_of(model.path), model.path.stem, model.path.name}))
        models = Models([offer], **options)
        models.adopt(offer, Served(model, pool, called, offer.metrics, False, **options))
        self._begin(models, rules, grace)

    @classmethod
    def of(cls, models: Models, rules: Rules | None = None, *, grace: float = 10.0) -> Self:
        """The application of several models, which it closes."""
        app = cls.__new__(cls)
        app._begin(models, rules, grace)
        return app

    def _begin(self, models: Models, rules: Rules | None, grace: float) -> None:
        self.models, self.rules, self.grace = models, rules or Rules(), grace
        self._gets: dict[str, Callable[[str | None], dict[str, Any]]] = {
            "/v1/models": lambda name: small.models(models),
            "/models": lambda name: small.models(models),
            "/props": lambda name: small.props(models.find(name)),
            "/openapi.json": lambda name: document(ROUTES, {path: table for path, (_, table) in POSTS.items()}),
            "/slots": lambda name: small.slots(models.find(name)),
        }
        self._preparing = ThreadPoolExecutor(PREPARING, "fucina-request")
        self._under_way = 0

    def refuse(self) -> None:
        """Take no new request, and end those that wait; what runs goes on.  From any thread."""
        self.models.refuse()

    def close(self, grace: float | None = None) -> None:
        """Refuse what is new, let what runs go on for the grace time, end it; twice is no error."""
        self.models.close(self.grace if grace is None else grace)
        self._preparing.shutdown()

    # --- the first model ----------------------------------------------------------------------------------------------

    @property
    def _first(self) -> Served:
        served = self.models.first.served
        if served is None:
            raise AttributeError("the first model is not loaded")
        return served

    @property
    def service(self) -> Service:
        """Of the first model."""
        return self._first.service

    @property
    def worker(self) -> Worker:
        """Of the first model."""
        return self._first.worker

    @property
    def pool(self) -> SlotPool:
        """Of the first model."""
        return self._first.pool

    @property
    def metrics(self) -> Metrics:
        """Of the first model."""
        return self.models.first.metrics

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
        check_framing(request)
        self.rules.check_host(request.headers.get("host"))
        method = request.method
        if method == "OPTIONS":
            await sender.start(204, {})
            await sender.body(b"", last=True)
            return
        if method == "GET" and path == "/health":
            await sender.json(*small.health(self.models))
            return
        if method == "GET" and path == "/":
            await sender.start(200, page_headers())
            await sender.body(page(), last=True)
            return
        tenant = self.rules.tenant(request.headers.get("authorization"), request.headers.get("x-api-key"))
        if method == "GET" and path in self._gets:
            await sender.json(self._gets[path](request.query_params.get("model")))
        elif method == "GET" and path == "/metrics":
            await sender.text(self._counts(), KIND)
        elif method == "POST" and path in POSTS:
            body = await read_body(request)
            async with self.models.using(self._asked(path, body)) as served:
                await sender.json(await self._prepare(POSTS[path][0], served.service, body))
        elif method == "POST" and path in ROUTES:
            kind = ROUTES[path]
            try:
                body = await read_body(request)
                async with self.models.using(self._asked(path, body)) as served:
                    await self._answer(served, kind, body, tenant, receive, sender)
            except (HungUp, ClientDisconnect):
                raise
            except Exception as error:
                if sender.begun:
                    raise
                problem = logged(error)
                await sender.json(kind.error(problem), problem.status, problem.headers)
        else:
            raise Problem(404, f"there is no {method} {path[:100]}", code="not_found")

    async def _answer(
        self, served: Served, kind: type[Dialect[Any]], body: Any, tenant: str, receive: Receive, sender: Sender
    ) -> None:
        dialect = served.dialects[kind]
        ask = await self._prepare(dialect.parse, body, tenant)
        await answer(dialect, ask, served.worker.submit_all(ask.requests), receive, sender)

    def _asked(self, path: str, body: dict[str, Any]) -> Offer:
        """The model that a body names; Anthropic's clients have names of their own built in."""
        return self.models.find(body.get("model"), any_name="/messages" in path)

    def _counts(self) -> bytes:
        for offer in self.models.offers:
            served = offer.served
            offer.metrics.look(*((None, None) if served is None else (served.worker, served.pool)))
        return Labelled({offer.name: offer.metrics for offer in self.models.offers}).text()

    async def _prepare(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Run what takes its time on a thread, so that others are not held up."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._preparing, work, *arguments)
        except RuntimeError as error:
            if self.models.closing:
                raise Problem(503, "the server ends; it takes no new request", "unavailable_error") from error
            raise
