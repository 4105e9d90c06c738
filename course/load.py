"""A small load generator: requests that come at times of their own, or from clients that wait for their replies.

What is asked and when follows from a seed.  What is measured is the clock's.  A *server* here is any function that takes
a request and gives an iterator of lists of tokens, as they come; one that refuses raises `Refused`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter, sleep
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from fucina.serve import Worker

Server = Callable[[Any], Iterable[Sequence[int]]]


class Refused(Exception):
    """The server takes no request now."""


@dataclass(slots=True)
class Reply:
    """What became of one request; times are seconds after the run began.

    Attributes
    ----------
    number, due : which request, and when it was to be sent.
    times : when each of its tokens came.
    tokens : what was said.
    done : when the reply was complete, or was refused.
    refused : whether the server did not take it.
    error : what ended it, if something went wrong; a run raises the first one.
    """

    number: int
    due: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    done: float = 0.0
    refused: bool = False
    error: Exception | None = None

    @property
    def first(self) -> float:
        """Seconds until the first token, from when the request was due: a late client is no excuse."""
        return self.times[0] - self.due

    @property
    def gaps(self) -> list[float]:
        """Seconds between one token and the next."""
        return np.diff(self.times).tolist()


@dataclass(frozen=True, slots=True)
class Run:
    """The replies of a run, in the order of the requests, and how long it took."""

    replies: list[Reply]
    seconds: float

    @property
    def served(self) -> list[Reply]:
        """Replies that were not refused."""
        return [r for r in self.replies if not r.refused]

    @property
    def tokens_per_second(self) -> float:
        """Of all replies together."""
        return sum(len(r.tokens) for r in self.replies) / self.seconds

    def first(self, percent: float) -> float:
        """Seconds to the first token: so many percent of the served requests had no more; NaN if none was served."""
        return _percentile([r.first for r in self.served if r.times], percent)

    def gap(self, percent: float) -> float:
        """Seconds between two tokens: so many percent of all gaps were no longer; NaN if there is none."""
        return _percentile([gap for r in self.served for gap in r.gaps], percent)

    @property
    def spans(self) -> dict[str, tuple[float, list[float], float]]:
        """What `figures.timeline` draws: by number from 1, when a request came, its tokens, and its end."""
        return {str(r.number + 1): (r.due, r.times, r.done) for r in self.replies}


def _percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else float("nan")


def poisson(rate: float, count: int, seed: int) -> list[float]:
    """Times of `count` arrivals that know nothing of each other, `rate` per second on average; the first one is at 0."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return (np.cumsum(gaps) - gaps[0]).tolist()


def open_loop(server: Server, requests: Sequence[Any], times: Sequence[float]) -> Run:
    """Send each request at its time, whether or not earlier ones are answered: a crowd does not wait for a slow server.

    Parameters
    ----------
    server : called on a thread for each request.
    requests, times : as many of each; seconds, ascending.
    """
    if len(requests) != len(times):
        raise ValueError(f"{len(requests)} requests, but {len(times)} times for them")
    start = perf_counter()
    replies = [Reply(n, due) for n, due in enumerate(times)]
    readers = [_thread(_read, server, request, reply, start) for request, reply in zip(requests, replies, strict=True)]
    for reader, due in zip(readers, times, strict=True):
        sleep(max(0.0, start + due - perf_counter()))
        reader.start()
    for reader in readers:
        reader.join()
    return _run(replies, start)


def closed_loop(server: Server, requests: Sequence[Any], clients: int) -> Run:
    """Let some clients share the requests: each sends its next one when its last one is answered."""
    start = perf_counter()
    replies = [Reply(n, 0.0) for n in range(len(requests))]
    left, lock = iter(replies), threading.Lock()

    def client() -> None:
        while True:
            with lock:
                reply = next(left, None)
            if reply is None:
                return
            reply.due = perf_counter() - start
            _read(server, requests[reply.number], reply, start)

    threads = [_thread(client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _run(replies, start)


def _thread(function: Callable[..., None], *arguments: Any) -> threading.Thread:
    return threading.Thread(target=function, args=arguments, daemon=True)


def _read(server: Server, request: Any, reply: Reply, start: float) -> None:
    try:
        for tokens in server(request):
            reply.times += [perf_counter() - start] * len(tokens)
            reply.tokens += tokens
    except Refused:
        reply.refused = True
    except Exception as error:
        reply.error = error
    reply.done = perf_counter() - start


def _run(replies: list[Reply], start: float) -> Run:
    seconds = perf_counter() - start
    for error in filter(None, (reply.error for reply in replies)):
        raise error
    return Run(replies, seconds)


# --- servers ----------------------------------------------------------------------------------------------------------


def worker_server(worker: Worker) -> Server:
    """The engine's own `fucina.serve.Worker` as a server of `GenerateRequest`s."""
    from fucina.errors import QueueFull
    from fucina.serve import Failed, TextDelta

    def server(request: Any) -> Iterator[Sequence[int]]:
        try:
            job = worker.submit(request)
        except QueueFull as error:
            raise Refused(str(error)) from None
        for event in job:
            if isinstance(event, TextDelta):
                yield list(event.tokens)
            elif isinstance(event, Failed):
                raise event.error

    return server


class Stepper:
    """Runs a scheduler with `submit(request)` and `step()` on a thread of its own, as a server.

    A request needs `emit`, which is set here, and `ended`, `gone` and `error`: those of chapter 15.

    Parameters
    ----------
    scheduler : its `step` gives something false when there is nothing to do.
    line : where requests wait for a place, with `push(request)`, `pop()` and a length; None: the scheduler's own line.
    """

    def __init__(self, scheduler: Any, line: Any = None) -> None:
        self.scheduler, self.line = scheduler, line
        self._new: list[Any] = []
        self._changed = threading.Condition()
        self._closing = False
        self._error: BaseException | None = None
        self._thread = _thread(self._work)
        self._thread.start()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def __call__(self, request: Any) -> Iterator[Sequence[int]]:
        """Ask for a reply; gives its tokens as they come."""
        said: list[int] = []
        request.emit = said.append
        with self._changed:
            self._new.append(request)
            self._changed.notify_all()
            while True:
                self._changed.wait_for(lambda: said or request.ended or self._error or self._closing)
                new, ended = said[:], request.ended  # the token that ends a reply is there before the next notice
                said.clear()
                if new:
                    self._changed.release()
                    try:
                        yield new
                    finally:
                        self._changed.acquire()
                elif error := self._error or request.error:
                    raise error
                elif ended or self._closing:
                    return

    def _work(self) -> None:
        try:
            while not self._closing:
                with self._changed:
                    self._take_new()
                passed = self.scheduler.step()
                with self._changed:
                    self._changed.notify_all()
                    if not passed:
                        self._changed.wait_for(lambda: self._new or self.line or self._closing)
        except BaseException as error:  # nobody may wait for ever
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _take_new(self) -> None:
        scheduler = self.scheduler
        for request in self._new:
            (scheduler.submit if self.line is None else self.line.push)(request)
        while self.line and len(scheduler.running) + len(scheduler.waiting) < scheduler.streams:
            scheduler.submit(self.line.pop())
        self._new.clear()


class Sampled:
    """Looks at a number again and again while a run goes on; `mean` is its average over the time.

    Parameters
    ----------
    read : gives the number.
    every : seconds between two looks.
    """

    def __init__(self, read: Callable[[], float], every: float = 0.004) -> None:
        self.values: list[float] = []
        self.times: list[float] = []
        self._read, self._every, self._stop = read, every, threading.Event()
        self._thread = _thread(self._look)

    def __enter__(self) -> Sampled:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        start = perf_counter()
        while not self._stop.wait(self._every):
            self.values.append(float(self._read()))
            self.times.append(perf_counter() - start)

    @property
    def mean(self) -> float:
        """The average, each value counted for the time until the next look."""
        if len(self.times) < 2:
            return float("nan")
        spans = np.diff(self.times)
        return float((np.asarray(self.values[:-1]) * spans).sum() / spans.sum())
