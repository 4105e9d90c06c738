"""What the engine's thread and those who ask it exchange: a request, and the events that answer it."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import ClassVar, Literal

from ..sampling import Grammar, SamplerOptions


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One text to be continued; whatever it was asked in, this is all that the engine sees of it.

    Attributes
    ----------
    ids : the prompt, at least one token.
    max_tokens : at most so many new tokens, at least 1.
    stops : texts that end the reply; an empty one stops nothing.
    ends : tokens that end the reply; of them, `grammar_ends` may end a sentence of the grammar.
    biases : added to logits, by token id.
    top_logprobs : how many of the likeliest tokens are told with each token; 0 tells its own probability alone, None
        nothing.
    tenant : whose request it is: rows are shared, and turns are taken, by tenant.
    priority : among the requests of its tenant that wait, a higher one comes first.
    can_be_set_aside : whether it can make room for others once it has begun.
    """

    can_be_set_aside: ClassVar[bool] = True

    ids: Sequence[int]
    max_tokens: int
    options: SamplerOptions = SamplerOptions()
    stops: tuple[str, ...] = ()
    ends: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    grammar_ends: frozenset[int] = frozenset()
    biases: Mapping[int, float] | None = None
    top_logprobs: int | None = None
    tenant: str = ""
    priority: int = 0

    @property
    def capacity(self) -> int:
        """Positions that it needs at most."""
        return len(self.ids) + self.max_tokens

    def __str__(self) -> str:
        return f"a prompt of {len(self.ids)} tokens with a reply of up to {self.max_tokens}"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token that was chosen, its natural logarithm of probability, and (token, logarithm) of the likeliest ones.

    They are those of the model: before biases, grammar, temperature and cuts.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Text that was decided, whole characters only, and the tokens that were chosen since the last delta."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a reply.

    Attributes
    ----------
    finish : "stop" (an end token or a stop text) or "length" (max_tokens, or the context is used up).
    prompt_tokens, completion_tokens : a token that completed a stop text counts, an end token does not.
    cached_tokens : of the prompt; their rows were there already.
    stop_index : which stop text fired, or None.
    complete : with a grammar, whether the text is a whole sentence of it.
    drafted, accepted : tokens that were drafted and verified, and those of them that were right.
    """

    finish: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    stop_index: int | None = None
    complete: bool | None = None
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The end of a reply that an error has ended."""

    error: Exception


class Cancelled(Exception):
    """What ends a request that its asker gave up; nobody is left to see it."""


Event = TextDelta | Done | Failed


class Job:
    """A request on its way.  Its events can be read once: by `async for` in an event loop, or by `for` in a thread.

    The engine's thread never waits for a reader: events are kept until they are read, and a reply has no more of them
    than tokens.

    Attributes
    ----------
    request
    asked : a clock reading.  arrival : counts jobs in the order in which they came into the line.
    cancelled : whether it was given up.
    set_aside : how often it had to make room for others.
    """

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.asked = perf_counter()
        self.cancelled = False
        self.arrival = self.set_aside = 0
        self._events: deque[Event] = deque()
        self._arrived = threading.Condition()
        self._wake: Callable[[], object] | None = None

    def cancel(self) -> None:
        """Give the request up: it ends before its next token.  From any thread; twice is no error."""
        self.cancelled = True

    def put(self, event: Event) -> None:
        """Add an event: for the engine's thread alone."""
        with self._arrived:
            self._events.append(event)
            self._arrived.notify_all()
            wake = self._wake
        if wake is not None:
            with suppress(RuntimeError):  # the loop was closed: nobody reads any more
                wake()

    def __iter__(self) -> Iterator[Event]:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._events)
                event = self._events.popleft()
            yield event
            if not isinstance(event, TextDelta):
                return

    async def __aiter__(self) -> AsyncIterator[Event]:
        loop, arrived = asyncio.get_running_loop(), asyncio.Event()
        with self._arrived:
            self._wake = lambda: loop.call_soon_threadsafe(arrived.set)
        while True:
            arrived.clear()
            while self._events:
                event = self._events.popleft()
                yield event
                if not isinstance(event, TextDelta):
                    return
            await arrived.wait()
