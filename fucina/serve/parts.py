"""A reply as the dialects see it: parts of reasoning, text and tool calls, then its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from .jobs import Done, Failed, GenerateRequest, Job, TextDelta, TokenLogprob
from .problems import problem_of
from .scanners import Call, CallScanner, Piece, Reasoning, Text, ThinkScanner


@dataclass(frozen=True, slots=True)
class Scan:
    """What is looked for in a reply.

    think : a leading block of reasoning; `inside`: the prompt has opened it.  tools : tool calls.
    """

    think: bool = False
    inside: bool = False
    tools: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """What a dialect makes of a body: requests, one per choice; dialects derive from it what else they need.

    Attributes
    ----------
    requests : one per choice.
    stream : whether the reply is streamed.
    scan : what is looked for in each reply.
    """

    requests: Sequence[GenerateRequest]
    stream: bool = False
    scan: Scan = Scan()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens that were chosen, with their probabilities where they were asked for; told before their text."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class End:
    """The end of a reply: `finish` is "stop", "length" or "tool_calls"."""

    finish: str
    done: Done


Part = Reasoning | Text | Call | Tokens | End


async def parts(job: Job, scan: Scan) -> AsyncGenerator[Part, None]:
    """The parts of a job's reply.

    Raises
    ------
    Problem : the reply ended with an error; what came before it was given out.
    """
    think = ThinkScanner(scan.inside) if scan.think else None
    calls = CallScanner() if scan.tools else None
    called = False
    async for event in job:
        if isinstance(event, Failed):
            raise problem_of(event.error) from event.error
        last = isinstance(event, Done)
        if isinstance(event, TextDelta):
            if event.tokens:
                yield Tokens(event.tokens, event.logprobs)
            pieces: Iterable[Piece] = [Text(event.text)] if event.text else []
        else:
            pieces = []
        for piece in _through(calls, _through(think, pieces, last), last):
            called = called or isinstance(piece, Call)
            yield piece
        if isinstance(event, Done):
            yield End("tool_calls" if called and event.finish == "stop" else event.finish, event)


def _through(scanner: ThinkScanner | CallScanner | None, pieces: Iterable[Piece], last: bool) -> Iterator[Piece]:
    """Pieces, their texts given to a scanner."""
    for piece in pieces:
        if scanner is None or not isinstance(piece, Text):
            yield piece
        else:
            yield from scanner.push(piece.text)
    if last and scanner is not None:
        yield from scanner.flush()


@dataclass(slots=True)
class Choice:
    """A whole reply."""

    text: str
    reasoning: str
    calls: list[Call]
    logprobs: list[TokenLogprob]
    end: End


async def whole(job: Job, scan: Scan) -> Choice:
    """Wait for a reply.  Raises Problem if an error has ended it."""
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[Call] = []
    logprobs: list[TokenLogprob] = []
    async with aclosing(parts(job, scan)) as found:
        async for part in found:
            if isinstance(part, Text):
                texts.append(part.text)
            elif isinstance(part, Reasoning):
                reasoning.append(part.text)
            elif isinstance(part, Call):
                calls.append(part)
            elif isinstance(part, Tokens):
                logprobs += part.logprobs
            else:
                return Choice("".join(texts), "".join(reasoning), calls, logprobs, part)
    raise AssertionError("a reply without an end")


async def merged(jobs: Sequence[Job], scan: Scan) -> AsyncGenerator[tuple[int, Part], None]:
    """The parts of several replies as they come, each with the index of its choice.

    Raises
    ------
    Problem : one of them ended with an error.
    """
    arrived: asyncio.Queue[tuple[int, Part | Exception]] = asyncio.Queue()

    async def read(index: int, job: Job) -> None:
        try:
            async for part in parts(job, scan):
                arrived.put_nowait((index, part))
        except Exception as error:
            arrived.put_nowait((index, error))

    readers = [asyncio.create_task(read(index, job)) for index, job in enumerate(jobs)]
    try:
        left = len(jobs)
        while left:
            index, part = await arrived.get()
            if isinstance(part, Exception):
                raise part
            left -= isinstance(part, End)
            yield index, part
    finally:
        for reader in readers:
            reader.cancel()
