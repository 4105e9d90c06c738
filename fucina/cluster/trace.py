"""Traces: what was asked when, as hashes and counts without any text; one JSON object per line.

    {"time": 0.25, "tenant": "a", "blocks": ["00c1…", …], "ends": [64, 90, …], "reply_tokens": 48,
     "kept": ["7f02…", …], "kept_ends": [154, …]}

time : seconds from the start.  blocks : `affinity.block_hashes` of the prompt, in hex.  ends : tokens of the prompt up to each of
them, the last being all of it.  kept, kept_ends : the same for the reply, which a later turn repeats; may be empty.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidTrace
from .affinity import BLOCK, block_hashes


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace; `blocks` and `kept` are hashes, `ends` and `kept_ends` tokens up to them."""

    time: float
    tenant: str
    blocks: tuple[int, ...]
    ends: tuple[int, ...]
    reply_tokens: int
    kept: tuple[int, ...] = ()
    kept_ends: tuple[int, ...] = ()

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return self.ends[-1]

    def line(self) -> str:
        """The request as a line of a trace."""
        return json.dumps(
            {
                "time": round(self.time, 6),
                "tenant": self.tenant,
                "blocks": [f"{b:016x}" for b in self.blocks],
                "ends": self.ends,
                "reply_tokens": self.reply_tokens,
                "kept": [f"{b:016x}" for b in self.kept],
                "kept_ends": self.kept_ends,
            },
            separators=(",", ":"),
        )


def write_trace(path: str | Path, requests: Iterable[Request]) -> None:
    """Write requests in the order of their times."""
    ordered = sorted(requests, key=lambda r: r.time)
    Path(path).write_text("".join(r.line() + "\n" for r in ordered), encoding="utf-8")


def read_trace(path: str | Path) -> list[Request]:
    """The requests of a file, in the order of their times.

    Raises
    ------
    InvalidTrace : the file cannot be read, or a line is not as described above; names the line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        raise InvalidTrace(f"{path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                found.append(_request(json.loads(line)))
            except (ValueError, TypeError, KeyError, RecursionError) as error:
                raise InvalidTrace(f"{path}, line {number}: {type(error).__name__}: {error}") from None
    if not found:
        raise InvalidTrace(f"{path} has no requests: expected one JSON object per line")
    return sorted(found, key=lambda r: r.time)


def _request(data: Any) -> Request:
    if not isinstance(data, dict):
        raise ValueError("expected a JSON object")
    time, reply = data["time"], data["reply_tokens"]
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not 0 <= time < 1e6:
        raise ValueError(f"time must be seconds from the start, not {time!r}")
    if isinstance(reply, bool) or not isinstance(reply, int) or not 1 <= reply <= 1 << 24:
        raise ValueError(f"reply_tokens must be an integer from 1 on, not {reply!r}")
    tenant = data.get("tenant", "")
    if not isinstance(tenant, str):
        raise ValueError("tenant must be a text")
    blocks, ends = _hashes(data, "blocks"), _ends(data, "ends", 0)
    kept, kept_ends = _hashes(data, "kept"), _ends(data, "kept_ends", ends[-1] if ends else 0)
    if not blocks or len(blocks) != len(ends) or len(kept) != len(kept_ends):
        raise ValueError("blocks and ends must be as many, at least one; so must kept and kept_ends")
    return Request(float(time), tenant, blocks, ends, reply, kept, kept_ends)


def _hashes(data: dict[str, Any], name: str) -> tuple[int, ...]:
    values = data.get(name, [])
    if not isinstance(values, list) or not all(isinstance(v, str) and len(v) == 16 for v in values):
        raise ValueError(f"{name} must be a list of hashes of 16 hex digits")
    return tuple(int(v, 16) for v in values)


def _ends(data: dict[str, Any], name: str, after: int) -> tuple[int, ...]:
    values = data.get(name, [])
    if not isinstance(values, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        raise ValueError(f"{name} must be a list of integers")
    if any(b < a for a, b in zip([max(after, 1), *values], values, strict=False)):
        raise ValueError(f"{name} must not decrease, from {max(after, 1)} on")
    return tuple(values)


def from_conversation(
    times: Iterable[float], tenant: str, texts: Iterable[Sequence[str]], replies: Iterable[str], bytes_per_token: float
) -> Iterator[Request]:
    """The requests of one conversation: each sends all that was said before.

    Parameters
    ----------
    times : of its turns, seconds.  tenant : who holds it.
    texts : what precedes each reply: one or more parts, of which other conversations may begin with the same.
    replies : as many.
    bytes_per_token : of text, by which tokens are counted.
    """
    said: list[str] = []
    ends: list[int] = []
    size = 0

    def add(text: str) -> None:
        nonlocal size
        said.append(text)
        raw = len(text.encode("utf-8", "surrogatepass"))
        cuts = [*range(BLOCK, raw, BLOCK), raw] if raw else [0]
        ends.extend(max(1, round((size + cut) / bytes_per_token)) for cut in cuts)
        size += raw

    for time, parts, reply in zip(times, texts, replies, strict=True):
        for part in parts:
            add(part)
        asked = len(ends)
        add(reply)
        hashes = block_hashes(tenant, said)
        tokens = max(1, ends[-1] - ends[asked - 1])
        yield Request(
            time, tenant, tuple(hashes[:asked]), tuple(ends[:asked]), tokens, tuple(hashes[asked:]), tuple(ends[asked:])
        )
