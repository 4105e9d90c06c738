"""Counts for Prometheus: what the engine's thread did, and what waits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest

from ..engine import PassStats
from ..speculative.factory import stats_of
from .jobs import Cancelled, Done, Failed, Job
from .observer import Observer
from .running import Running
from .worker import Worker

if TYPE_CHECKING:
    from ..cache.pool import PoolStats, SlotPool

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
KIND = "text/plain; version=0.0.4; charset=utf-8"


class Metrics(Observer):
    """Counts of one model, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._told: dict[Counter, int] = {}

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"fucina_{name}", text, labels, registry=self.registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"fucina_{name}_seconds", text, buckets=SECONDS, registry=self.registry)

        self.requests = counter("requests", "Replies that have ended, by how", "end")
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts")
        self.cached_tokens = counter("cached_tokens", "Tokens of prompts whose rows were there already")
        self.completion_tokens = counter("completion_tokens", "Tokens of replies")
        self.drafted = counter("drafted_tokens", "Tokens that were drafted and verified")
        self.accepted = counter("accepted_tokens", "Drafted tokens that were right")
        self.passes = counter("passes", "Passes of the model")
        self.rows = counter("rows", "Rows of these passes, by what they were for", "use")
        self.queue_time = seconds("queue_time", "From a request to its stream")
        self.first_token = seconds("time_to_first_token", "From a request to the first token of its reply")
        self.aside = counter("set_aside", "Times that a reply made room for others")
        self.spills = counter("spilled_texts", "Texts whose rows were written to disk")
        self.spill_errors = counter("spill_errors", "Texts that could not be written to disk")
        self.spills_lost = counter("lost_texts", "Texts that were not written because too many waited for the disk")
        self.waiting = Gauge("fucina_waiting_requests", "Requests that wait", registry=self.registry)
        self.running = Gauge("fucina_running_requests", "Requests that are answered", registry=self.registry)
        self.stream_bytes = Gauge("fucina_stream_bytes", "Bytes of rows of running requests", registry=self.registry)
        self.writing = Gauge("fucina_writing_bytes", "Bytes of rows that wait for the disk", registry=self.registry)
        self.pool_bytes = Gauge("fucina_pool_bytes", "Bytes of stored rows", registry=self.registry)
        self.pool_texts = Gauge("fucina_pool_texts", "Stored texts", registry=self.registry)

    def passed(self, stats: PassStats) -> None:
        self.passes.inc()
        self.rows.labels("decode").inc(stats.rows - stats.drafted)
        self.rows.labels("draft").inc(stats.drafted)
        self.rows.labels("prompt").inc(stats.prefill)

    def set_aside(self, job: Job) -> None:
        self.aside.inc()

    def ended(self, job: Job, end: Done | Failed, running: Running | None) -> None:
        cancelled = isinstance(end, Failed) and isinstance(end.error, Cancelled)
        self.requests.labels(end.finish if isinstance(end, Done) else "cancelled" if cancelled else "error").inc()
        if running is None:
            return
        stream = running.stream
        self.prompt_tokens.inc(end.prompt_tokens if isinstance(end, Done) else stream.prompt_end)
        self.cached_tokens.inc(stream.reused)
        self.completion_tokens.inc(stream.committed)
        self.queue_time.observe(max(running.joined - job.asked, 0.0))
        if running.first:
            self.first_token.observe(max(running.first - job.asked, 0.0))
        if (stats := stats_of(stream.drafter)) is not None:
            self.drafted.inc(stats.drafted)
            self.accepted.inc(stats.accepted)

    def look(self, worker: Worker | None, pool: SlotPool | None) -> None:
        """Read what changes by itself; a model that is not loaded has nothing waiting, running or stored."""
        stats = None if pool is None else pool.stats()
        if stats is not None:
            self._count(stats)
        self.waiting.set(0 if worker is None else worker.waiting)
        self.running.set(0 if worker is None else worker.busy)
        self.stream_bytes.set(0 if worker is None else worker.stream_bytes)
        self.writing.set(0 if stats is None else stats.writing)
        self.pool_bytes.set(0 if stats is None else stats.bytes)
        self.pool_texts.set(0 if stats is None else stats.entries)

    def leave(self, pool: SlotPool) -> None:
        """A pool was closed and is not looked at again: the next one of this model begins its own counts with 0."""
        self._count(pool.stats())
        self._told.clear()

    def _count(self, stats: PoolStats) -> None:
        """Add what a pool has counted since the last time."""
        for total, count in (
            (stats.spills, self.spills), (stats.disk_errors, self.spill_errors), (stats.lost, self.spills_lost)
        ):  # fmt: skip
            count.inc(total - self._told.get(count, 0))
            self._told[count] = total


class Labelled:
    """The counts of several models as one registry: every sample says of which model it is."""

    def __init__(self, metrics: Mapping[str, Metrics]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """For Prometheus's client."""
        families: dict[str, Metric] = {}
        for model, metrics in self._metrics.items():
            for found in metrics.registry.collect():
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                family.samples += [s._replace(labels={"model": model, **s.labels}) for s in found.samples]
        yield from families.values()

    def text(self) -> bytes:
        """All counts as Prometheus reads them."""
        return generate_latest(self)  # type: ignore[arg-type]
