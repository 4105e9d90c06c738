"""The server as replicas of Ray Serve; the only module that imports Ray.

Two deployments.  `Door` takes requests in, checks who asks, reads the prompt and hands the request on.  `Replica` has a model, its
rows and `fucina.serve.App`.  Between them `AffinityRouter` chooses.  A replica that is replaced gets no new requests, and goes when
its replies are over or the grace time is.

A request and its answer pass as they are, so a client gets what one server alone would send.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from .. import checks
from ..errors import ClusterFailed
from ..serve import Rules
from ..serve.http import HungUp, read_raw
from ..serve.problems import Problem, anthropic_shape, openai_shape
from .affinity import Router, prompt_hashes
from .asgi import Exchange, HTTPHead

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

NAME = "fucina"
MARGIN = 5.0  # seconds after the grace time in which a replica closes


@dataclass(frozen=True)
class Settings:
    """What every replica is made with; the fields are options of `fucina cluster`."""

    model: str
    name: str | None = None
    backend: str = "native"
    threads: int = 1
    context: int | None = None
    cache_dtype: str | None = None
    memory: str = "1GiB"
    streams: int = 8
    queue: int = 16
    stretch: float = 1.8
    speculation: bool = False
    grace: float = 60.0
    version: int = 0


class AffinityRouter(RequestRouter):
    """Chooses replicas by the hashes that the door has made of a prompt."""

    def initialize_state(self, **options: Any) -> None:
        """Called by Ray; the options are those of `affinity.Router`."""
        self._affinity = Router(**options)

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All replicas, each as a rank of its own; Ray asks them in turn until one accepts."""
        if not candidate_replicas:
            return []
        cache = self.replica_queue_len_cache
        loads = {r.replica_id: float(cache.get(r.replica_id) or 0) for r in candidate_replicas}
        by_id = {r.replica_id: r for r in candidate_replicas}
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # all are tried at once: wait before trying again
        ranked = self._affinity.ranked(_hashes(pending_request), loads)
        return [[by_id[member]] for member in ranked]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Called by Ray when a replica has accepted a request."""
        self._affinity.sent(_hashes(pending_request), replica_id)


def _hashes(pending: PendingRequest | None) -> list[int]:
    return [] if pending is None else pending.kwargs.get("hashes", [])


class Replica:
    """A model, its rows and the server's application, in a process of Ray."""

    def __init__(self, settings: Settings, rules: Rules) -> None:
        from ..chat import SlotPool
        from ..loading import load
        from ..serve import App

        s = settings
        self._model = load(s.model, backend=s.backend, threads=s.threads, context=s.context, cache_dtype=s.cache_dtype)
        try:
            self._pool = SlotPool(self._model, s.memory, background=True)
            self._app = App(
                self._model,
                self._pool,
                rules,
                name=s.name,
                queue=s.queue,
                streams=s.streams,
                speculation=s.speculation,
                memory=s.memory,
                share=max(s.queue // max(len(rules.keys), 1), 1),
                stretch=s.stretch,
                grace=s.grace,
            )
        except BaseException:
            self._model.close()
            raise
        self._closed = False

    async def answer(self, head: HTTPHead, body: bytes, hashes: list[int]) -> AsyncGenerator[Any, None]:
        """The answer to a request: (status, headers) first, then bytes.  A caller that goes away ends it."""
        async with aclosing(Exchange(self._app, head, body).run()) as parts:
            async for part in parts:
                yield part

    async def check_health(self) -> None:
        """Called by Ray; a replica that fails it is replaced."""
        if not self._app.worker.alive:
            raise RuntimeError("the worker of this replica has ended")

    async def who(self) -> str:
        """The id of this replica."""
        return str(serve.get_replica_context().replica_id.unique_id)

    def __del__(self) -> None:
        """Called by Ray when the replies are over, or the grace time is."""
        if getattr(self, "_closed", True):
            return
        self._closed = True
        self._app.close(0.0)
        self._pool.close()
        self._model.close()


class Door:
    """Takes requests in, and hands each to the replica that the router chooses."""

    def __init__(self, replicas: DeploymentHandle, rules: Rules) -> None:
        self._replicas, self._rules = replicas.options(method_name="answer", stream=True), rules

    async def __call__(self, request: Request) -> Response:
        """One request over HTTP."""
        shape = anthropic_shape if "/messages" in request.url.path else openai_shape
        try:
            self._rules.check_host(request.headers.get("host"))
            body = await _body(request)
            hashes = []
            if request.method == "POST" and body:
                tenant = self._rules.tenant(request.headers.get("authorization"), request.headers.get("x-api-key"))
                hashes = await asyncio.to_thread(prompt_hashes, tenant, body)
        except Problem as problem:
            headers = {**problem.headers, **self._rules.headers}
            return JSONResponse(shape(problem), problem.status, headers)
        parts = self._replicas.remote(HTTPHead.of(request.scope), body, hashes=hashes)
        try:
            status, headers = await anext(parts)
        except RayError:
            gone = Problem(503, "the replica that had this request is gone; ask again", "unavailable_error")
            return JSONResponse(shape(gone), gone.status, {**gone.headers, **self._rules.headers})
        except StopAsyncIteration:  # nothing is answered to a client that has gone
            return Response(status_code=400)
        except BaseException:
            parts.cancel()
            raise
        answer = StreamingResponse(_rest(parts), status)
        answer.raw_headers = list(headers)
        return answer


async def _rest(parts: Any) -> AsyncIterator[bytes]:
    try:
        async for part in parts:
            yield part
    finally:
        parts.cancel()  # a client that hung up; nothing where the answer is complete


async def _body(request: Request) -> bytes:
    """The body of a request, within the limits of the server."""
    try:
        return await read_raw(request)
    except HungUp:
        raise Problem(400, "the client has closed the connection") from None


@dataclass(frozen=True)
class Size:
    """How many replicas: `least` to `most`, by the requests under way; alike: always as many.

    target : requests under way per replica at which there are enough.  delay_up, delay_down : seconds before a change.
    """

    least: int = 2
    most: int = 2
    target: float = 6.0
    delay_up: float = 10.0
    delay_down: float = 300.0

    def __post_init__(self) -> None:
        checks.integer("--min", self.least, 1)
        checks.integer("--max", self.most, self.least)
        checks.real("--target", self.target, 0.01, 1e6)

    def options(self) -> dict[str, Any]:
        """As options of a deployment."""
        if self.least == self.most:
            return {"num_replicas": self.least}
        return {
            "autoscaling_config": {
                "min_replicas": self.least,
                "max_replicas": self.most,
                "target_ongoing_requests": self.target,
                "upscale_delay_s": self.delay_up,
                "downscale_delay_s": self.delay_down,
            }
        }


def start(address: str | None, host: str, port: int) -> None:
    """Connect to a cluster of Ray, or begin one on this machine where no address is given, and listen.

    Raises
    ------
    ClusterFailed : there is no such cluster, it does not start, or the address cannot be listened at.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing about a user goes to anybody
    try:
        if not ray.is_initialized():
            ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        serve.start(proxy_location="EveryNode", http_options={"host": host, "port": port})
    except Exception as error:  # Ray raises plain ones too
        raise ClusterFailed(f"Ray does not start at {address or 'this machine'}, port {port}: {error}") from error


def deploy(settings: Settings, rules: Rules, size: Size) -> None:
    """Deploy, or replace what is deployed: old replicas drain while new ones take over.  Returns when all are up.

    Raises
    ------
    ClusterFailed : they do not come up.
    """
    from ray.serve.config import RequestRouterConfig

    replica = serve.deployment(
        name="replica",
        ray_actor_options={"num_cpus": settings.threads},
        max_ongoing_requests=settings.streams + settings.queue + 1,  # more than it admits: it refuses in its own words
        graceful_shutdown_timeout_s=settings.grace + MARGIN,
        graceful_shutdown_wait_loop_s=0.5,
        health_check_period_s=5,
        request_router_config=RequestRouterConfig(
            request_router_class=AffinityRouter, request_router_kwargs={"spare": max(1, settings.streams // 2)}
        ),
        **size.options(),
    )(Replica)
    door = serve.deployment(
        name="door",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=max(rules.connections, 1),
        max_queued_requests=max(rules.connections, 1),
        graceful_shutdown_timeout_s=settings.grace + MARGIN,
    )(Door)
    try:
        serve.run(door.bind(replica.bind(settings, rules), rules), name=NAME, route_prefix="/")
    except RuntimeError as error:
        raise ClusterFailed(f"the replicas do not come up: {error}") from error


def stop() -> None:
    """End all replicas, each when its replies are over or the grace time is, and Ray where `start` began it."""
    import ray

    try:
        serve.shutdown()
    finally:
        ray.shutdown()
