"""The engine's thread: one scheduler, which requests join and leave between any two passes.

Every row has the same bits whatever runs beside it, and every request has its own sampler, state and grammar.  So a
reply is exactly the one that its request gets alone; the order of things here decides about time only.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .. import checks
from ..engine import PassStats, Scheduler
from ..errors import ShuttingDown
from .jobs import Cancelled, Done, Failed, GenerateRequest, Job
from .line import Group, Line
from .running import Running
from .turns import InTurn, Turns
from .vectors import Embedding, VectorRequest

if TYPE_CHECKING:
    from ..cache.pool import SlotPool
    from ..model import Model


class Observer:
    """Is told what the engine's thread does, on that thread.  This one ignores it; a server counts.

    What it raises is dropped: counts must not end a reply.
    """

    def passed(self, stats: PassStats) -> None:
        """A pass was run."""

    def ended(self, job: Job, end: Done | Failed, running: Running | None) -> None:
        """A job has ended; `running` is None if it had no stream."""


class Worker:
    """Answers requests for one model, on a thread of its own that alone runs the model.

    Parameters
    ----------
    model : used by nobody else meanwhile.
    pool : where rows come from and go to.
    queue : how many requests may wait.
    streams : how many are answered at once.
    speculation : draft for every stream.
    observer : is told what happens.
    turns : shared with the workers of other models, so that one pass runs at a time.

    Raises
    ------
    InvalidOption : a number is out of its range.
    """

    def __init__(
        self,
        model: Model,
        pool: SlotPool,
        queue: int = 16,
        streams: int = 8,
        speculation: bool = False,
        observer: Observer | None = None,
        *,
        turns: Turns | None = None,
    ) -> None:
        self.model, self.pool, self.speculation = model, pool, speculation
        self.streams = checks.integer("streams", streams, 1)
        self._line = Line(checks.integer("queue", queue, 0))
        self._observer = observer or Observer()
        self._scheduler = Scheduler(model if turns is None else InTurn(model, turns))
        self._running: list[Running] = []
        self._followers: list[tuple[Running, Group]] = []  # who waits for the rows of a prompt that is being computed
        self._ready: Group = []  # who may begin with such rows
        self._changed = threading.Condition()
        self._closing = False
        self._deadline: float | None = None
        self._thread = threading.Thread(target=self._run, name="fucina-engine", daemon=True)
        self._thread.start()

    # --- from any thread ----------------------------------------------------------------------------------------------

    def submit(self, request: GenerateRequest) -> Job:
        """Ask for a reply; see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[GenerateRequest]) -> list[Job]:
        """Ask for several replies, all or none of them; the prompt of equal ones is computed once.

        Raises
        ------
        QueueFull : too many wait already.
        ShuttingDown : after `close` or `refuse`.
        """
        jobs = [Job(request) for request in requests]
        groups: dict[tuple[str, int, tuple[int, ...]], Group] = {}
        for job in jobs:
            r = job.request
            groups.setdefault((r.tenant, r.priority, tuple(r.ids)), []).append(job)
        with self._changed:
            if self._closing:
                raise ShuttingDown("the server ends; it takes no new request")
            self._line.add(list(groups.values()), max(self.streams - self.busy, 0))
            self._changed.notify_all()
        return jobs

    @property
    def waiting(self) -> int:
        """Jobs that have no stream yet and stand in the line."""
        return len(self._line)

    @property
    def busy(self) -> int:
        """Jobs that are being answered, or wait for the rows of the same prompt."""
        return len(self._running) + len(self._ready) + sum(len(group) for _, group in self._followers)

    @property
    def closing(self) -> bool:
        """Whether new requests are refused."""
        return self._closing

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def running(self) -> list[dict[str, int]]:
        """The streams as they are now: tokens of their prompt, of their reply, and how many rows are computed."""
        told = []
        for running in list(self._running):
            s = running.stream
            with suppress(Exception):  # it ends just now
                told.append({"prompt_tokens": s.prompt_end, "completion_tokens": s.committed, "rows": s.cached})
        return told

    def refuse(self) -> None:
        """Take no new request, and end those that wait; what runs goes on."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def close(self, grace: float = 10.0) -> None:
        """Refuse what is new, let what runs go on for some seconds, then end it; return when the thread has ended."""
        with self._changed:
            self._closing = True
            self._deadline = monotonic() + grace
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(0.0)

    # --- the engine's thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.busy or len(self._line) or self._closing)
                if self._closing and not self.busy and not len(self._line):
                    self._changed.wait_for(lambda: self._deadline is not None)
                    return
            try:
                self._round()
            except (
                BaseException
            ) as error:  # a fault of ours: nobody may wait for ever, and the next request has a chance
                self._end_all(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def _round(self) -> None:
        """Let requests join, run a pass, tell what it gave, let those that have ended leave."""
        if self._closing:
            self._end_waiting()
            if self._deadline is not None and monotonic() >= self._deadline:
                self._end_all(ShuttingDown("the server ended before this reply was complete"))
                return
        self._admit()
        for running in self._running:
            if running.job.cancelled:
                running.stream.cancel()
        self._open_one()
        try:
            stats = self._scheduler.step()
        except Exception as error:  # of the pass that all share
            self._end_all(error)
            return
        if stats is not None:
            with suppress(Exception):
                self._observer.passed(stats)
        for running in list(self._running):
            if running.stream.finish is None:
                running.flush()
            else:
                self._settle(running)

    def _admit(self) -> None:
        """Give free streams to those who wait."""
        with self._changed:
            gone = list(self._line.remove_cancelled())
        for job in gone:
            self._fail(job, Cancelled("the request was given up"))
        for leader, group in list(self._followers):
            if leader not in self._running or leader.stream.decoding:
                self._followers.remove((leader, group))
                self._ready += group
                if leader in self._running:
                    with suppress(Exception):  # without them the others compute the rows again
                        leader.share_prompt()
        while self._ready and len(self._running) < self.streams:
            self._start(self._ready.pop(0))
        while self.busy < self.streams:
            with self._changed:
                asked = self._line.next()
            if asked is None:
                return
            running = None
            while asked and running is None:
                running = self._start(asked.pop(0))
            if running is not None and asked:
                self._followers.append((running, asked))

    def _start(self, job: Job) -> Running | None:
        """Give a job a stream, and let it take part from the next pass on; what fails here fails alone."""
        try:
            if job.cancelled:
                raise Cancelled("the request was given up")
            if isinstance(job.request, VectorRequest):
                running: Running = Embedding(job, job.request, self.model)
            else:
                running = Running(job, self.model, self.pool, self.speculation)
        except Exception as error:
            self._fail(job, error)
            return None
        self._running.append(running)
        if not running.opening:
            self._scheduler.add(running.stream)
        return running

    def _open_one(self) -> None:
        """Go on with the beginning of one prompt that is to be stored before the rest is computed."""
        running = next((r for r in self._running if r.opening and not r.stream.check_end()), None)
        if running is None:
            return
        try:
            running.open()
            if not running.opening:
                self._scheduler.add(running.stream)
        except Exception as error:
            self._settle(running, error)

    def _settle(self, running: Running, error: Exception | None = None) -> None:
        with suppress(ValueError):
            self._running.remove(running)
        with suppress(ValueError):
            self._scheduler.remove(running.stream)
        end = running.settle(error)
        self._end(running.job, end, running)

    def _fail(self, job: Job, error: Exception) -> None:
        self._end(job, Failed(error), None)

    def _end(self, job: Job, end: Done | Failed, running: Running | None) -> None:
        """Tell the end of a job: first to who counts, so that the asker finds it counted."""
        with suppress(Exception):
            self._observer.ended(job, end, running)
        job.put(end)

    def _end_waiting(self) -> None:
        """End all that stand in the line."""
        with self._changed:
            groups = list(iter(self._line.next, None))
        for job in chain.from_iterable(groups):
            self._fail(job, ShuttingDown("the server ended before this request had its turn"))

    def _end_all(self, error: Exception) -> None:
        """End all that run, and those that wait for their rows."""
        waiting = [*self._ready, *chain.from_iterable(group for _, group in self._followers)]
        self._ready, self._followers = [], []
        for job in waiting:
            self._fail(job, error)
        for running in list(self._running):
            try:
                self._settle(running, error)
            except Exception as worse:  # it has left both lists by then
                running.job.put(Failed(worse))
