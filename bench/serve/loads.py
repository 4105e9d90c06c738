"""What clients say: sessions of one or more turns, fixed once for all, and the order of their arrival.

A session is what one person asks, turn after turn; each turn is sent with everything said before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..grammar import PERSON, TEN, TOPICS
from ..speculation_tasks import PASSAGES
from .client import Answer

Ask = Callable[[dict[str, Any]], Awaitable[Answer]]


@dataclass(frozen=True, slots=True)
class Session:
    """What one client says.

    turns : messages of the user.  system : before them.  options : further fields of each request.
    """

    turns: tuple[str, ...]
    system: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    async def run(self, ask: Ask) -> list[Answer]:
        """Ask turn by turn; after one that fails there is no further one."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        answers = []
        for text in self.turns:
            messages.append({"role": "user", "content": text})
            answer = await ask({"messages": list(messages), "temperature": 0, **self.options})
            answers.append(answer)
            if not answer.ok:
                break
            messages.append({"role": "assistant", "content": answer.text})
        return answers


SYSTEM = "You answer questions about these texts, briefly.\n\n" + "\n\n".join(PASSAGES)  # about 1,000 tokens
LONG = "Say in one sentence what these notes are about.\n\n" + "\n\n".join(PASSAGES * 2)  # about 2,000 tokens
NEXT = ("And why is that so?", "Give an example.", "Say it in simpler words.")


def sessions(load: str) -> Iterator[Session]:
    """The sessions of a load, without end: chat, shared, turns or json."""
    i = 0
    while True:
        topic = TOPICS[i % len(TOPICS)]
        count = "" if i < len(TOPICS) else f" Take number {i // len(TOPICS) + 1}."
        match load:
            case "chat":
                yield Session((f"Tell me something about {topic}.{count}",), options={"max_tokens": 64})
            case "shared":
                yield Session((f"What do the texts say about {topic}?{count}",), SYSTEM, {"max_tokens": 48})
            case "turns":
                turns = (f"Tell me something about {topic}.{count}", *NEXT)
                yield Session(turns, options={"max_tokens": 64})
            case "json":
                form = {"type": "json_schema", "json_schema": {"name": "person", "schema": TEN}}
                text = f"Extract the data as JSON.\n{PERSON}\nThis person likes {topic}.{count}"
                yield Session((text,), options={"max_tokens": 200, "response_format": form})
            case _:
                raise ValueError(f"no load {load!r}")
        i += 1


async def closed(ask: Ask, load: str, clients: int, count: int, skip: int = 0) -> list[Answer]:
    """So many clients, each with its next session as soon as the last one is over, until `count` sessions were run."""
    source = sessions(load)
    for _ in range(skip):
        next(source)
    left = iter([next(source) for _ in range(count)])
    answers: list[Answer] = []

    async def client() -> None:
        for session in left:
            answers.extend(await session.run(ask))

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


async def opened(ask: Ask, load: str, rate: float, seconds: float, seed: int, skip: int = 0) -> list[Answer]:
    """Sessions that arrive by chance (Poisson), so many per second on average, whatever became of earlier ones."""
    source, generator = sessions(load), random.Random(seed)
    for _ in range(skip):
        next(source)
    running, at = [], 0.0
    clock = asyncio.get_running_loop().time
    begun = clock()
    while (at := at + generator.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, begun + at - clock()))
        running.append(asyncio.create_task(next(source).run(ask)))
    return [answer for found in await asyncio.gather(*running) for answer in found]
