"""A client that costs little: one streamed chat over a socket, with the time at which each piece of text came."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

LIMIT = 1 << 20  # bytes of a line


@dataclass(slots=True)
class Answer:
    """What came back.

    begun : seconds on the clock of `perf_counter` at which it was asked.  arrived : those of each piece of text.
    status : of HTTP, 0 if there was none.  tokens, prompt, cached : as the server counts them.
    """

    begun: float
    status: int = 0
    arrived: list[float] = field(default_factory=list)
    text: str = ""
    tokens: int = 0
    prompt: int = 0
    cached: int = 0
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether it is a whole reply."""
        return not self.error and self.tokens > 0 and bool(self.arrived)

    @property
    def first(self) -> float:
        """Seconds to the first text."""
        return self.arrived[0] - self.begun

    @property
    def gaps(self) -> list[float]:
        """Seconds between one piece of text and the next."""
        return [b - a for a, b in zip(self.arrived, self.arrived[1:], strict=False)]


async def chat(host: str, port: int, body: dict[str, Any]) -> Answer:
    """Ask for a reply and read it to its end; what fails is told in the answer."""
    answer = Answer(perf_counter())
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}}).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\nconnection: close\r\n\r\n"
    )
    writer = None
    try:
        reader, writer = await asyncio.open_connection(host, port, limit=LIMIT)
        writer.write(head.encode() + data)
        await writer.drain()
        answer.status = int((await reader.readline()).split()[1])
        chunked = False
        while (line := await reader.readline()) not in (b"\r\n", b""):
            chunked = chunked or line.lower().startswith(b"transfer-encoding: chunked")
        if answer.status != 200:
            answer.error = (await reader.read()).decode(errors="replace")[:300]
            return answer
        rest = b""
        while part := await (_chunk(reader) if chunked else reader.read(65536)):
            *lines, rest = (rest + part).split(b"\n")
            _take(answer, lines)
        if not answer.ok:
            answer.error = answer.error or "the stream ended early"
    except (OSError, ValueError, IndexError, asyncio.IncompleteReadError) as error:
        answer.error = repr(error)
    finally:
        if writer is not None:
            writer.close()
    return answer


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    size = int((await reader.readline()).strip() or b"0", 16)
    data = await reader.readexactly(size)
    await reader.readline()
    return data


def _take(answer: Answer, lines: list[bytes]) -> None:
    now = perf_counter()
    for line in lines:
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            answer.error = str(event["error"])[:300]
        for choice in event.get("choices") or ():
            if text := choice["delta"].get("content"):
                answer.arrived.append(now)
                answer.text += text
        if usage := event.get("usage"):
            answer.tokens, answer.prompt = usage["completion_tokens"], usage["prompt_tokens"]
            answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
