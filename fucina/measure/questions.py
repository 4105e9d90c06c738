"""The timing questions, asked of any engine through one small protocol.

An engine opens *sessions*: a number of streams, each with a cache of some capacity.  All times are seconds of wall
time around one pass, from token ids to logits that Python can read; sampling is never inside.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import numpy as np

Request = tuple[int, Sequence[int], str]  # (stream, tokens, "all" | "last" | "none")
USES = {"decode": 16, "prefill": 1, "memory": 1, "text": 128}
"""What sessions are for, and at most how many rows of logits one pass gives per stream."""
_CHUNK = 512  # tokens per call when a context is filled
_WARM = 2  # passes before the timed ones: the process has just been continued


class Session(Protocol):
    """Streams of one engine that share passes."""

    lengths: list[int]

    def rows(self, requests: Sequence[Request]) -> np.ndarray:
        """Run the next tokens of some streams: float32 [rows wanted, vocab], valid until the next call."""

    def truncate(self, stream: int, length: int) -> None:
        """Drop a stream's positions from `length` on."""

    def close(self) -> None:
        """Give its memory back."""


class Engine(Protocol):
    """A loaded model."""

    n_vocab: int

    def describe(self) -> dict[str, Any]:
        """Versions and settings, for the record."""

    def settings_of(self, use: str) -> Any:
        """The settings that a session would be opened with, hashable: sessions of other settings are not reused."""

    def session(self, use: str, capacity: int, streams: int) -> Session:
        """Streams for one of `USES`: an engine may have settings and buffers that suit one of them."""

    def close(self) -> None:
        """Give everything back."""


def peak_memory() -> int | None:
    """Largest number of bytes of memory that this process has held, or None where the system does not tell."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        if sys.platform != "darwin":
            return None
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


class Questions:
    """Answers of one engine; sessions are kept between questions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._sessions: dict[tuple[Any, ...], Session] = {}

    def _session(self, use: str, capacity: int, streams: int = 1) -> Session:
        key = (use, capacity, streams, self.engine.settings_of(use))
        if key not in self._sessions:
            self._sessions[key] = self.engine.session(use, capacity, streams)
        return self._sessions[key]

    def forget(self) -> None:
        """Close all sessions."""
        for s in self._sessions.values():
            s.close()
        self._sessions.clear()

    def _id(self, i: int) -> int:
        """The i-th token of a text without meaning: spread over the vocabulary, the same for every engine."""
        return (
            256 + (i * 7919 + 104729) % (self.engine.n_vocab - 512)
            if self.engine.n_vocab > 1024
            else i % self.engine.n_vocab
        )

    def _ids(self, start: int, stop: int) -> list[int]:
        return [self._id(i) for i in range(start, stop)]

    def _fill(self, s: Session, length: int, stream: int = 0) -> None:
        """Bring a stream to a length, keeping the positions that it has."""
        if s.lengths[stream] > length:
            s.truncate(stream, length)
        while (at := s.lengths[stream]) < length:
            s.rows([(stream, self._ids(at + stream, min(at + _CHUNK, length) + stream), "last")])

    def decode(self, context: int, steps: int, capacity: int) -> list[float]:
        """Seconds of each of `steps` greedy steps of one stream from `context` positions on."""
        s = self._session("decode", capacity)
        self._fill(s, context)
        token, times = self._id(7), []
        for i in range(_WARM + steps):
            if i == _WARM:
                s.truncate(0, context)
            start = perf_counter()
            logits = s.rows([(0, [token], "last")])
            times.append(perf_counter() - start)
            token = int(logits[0].argmax())
        s.truncate(0, context)
        return times[_WARM:]

    def prefill(self, tokens: int, repeats: int, capacity: int) -> list[float]:
        """Seconds of reading `tokens` tokens into an empty cache, logits of the last one."""
        s = self._session("prefill", capacity)
        ids, times = self._ids(0, tokens), []
        s.truncate(0, 0)
        s.rows([(0, ids[:16], "last")])
        for _ in range(repeats):
            s.truncate(0, 0)
            start = perf_counter()
            s.rows([(0, ids, "last")])
            times.append(perf_counter() - start)
        return times

    def verify(self, context: int, rows: Sequence[int], repeats: int, capacity: int) -> dict[str, float]:
        """Median seconds of a pass of k rows at `context`, logits of every row, for each k in `rows`.

        The sizes take turns within each repeat.
        """
        s = self._session("decode", capacity)
        self._fill(s, context)
        times: dict[int, list[float]] = {k: [] for k in rows}
        for r in range(repeats + 1):
            for k in rows:
                ids = self._ids(2000 + r * 16, 2000 + r * 16 + k)
                start = perf_counter()
                s.rows([(0, ids, "all")])
                elapsed = perf_counter() - start
                s.truncate(0, context)
                if r:
                    times[k].append(elapsed)
        return {str(k): statistics.median(v) for k, v in times.items()}

    def streams(self, count: int, context: int, steps: int, capacity: int) -> list[float]:
        """Seconds of each step of `count` streams in lockstep, one token each, from `context` positions on."""
        s = self._session("decode", capacity, count)
        for i in range(count):
            self._fill(s, context, i)
        tokens, times = self._ids(7, 7 + count), []
        for step in range(_WARM + steps):
            start = perf_counter()
            logits = s.rows([(i, [tokens[i]], "last") for i in range(count)])
            times.append(perf_counter() - start)
            tokens = [int(t) for t in logits.argmax(axis=1)]
            if step + 1 == _WARM:
                for i in range(count):
                    s.truncate(i, context)
        for i in range(count):
            s.truncate(i, context)
        return times[_WARM:]

    def memory(self, context: int, new: int) -> int | None:
        """Peak bytes of this process after a prompt and `new` greedy tokens that end at `context` positions."""
        s = self._session("memory", context)
        self._fill(s, context - new)
        token = self._id(7)
        for _ in range(new):
            token = int(s.rows([(0, [token], "last")])[0].argmax())
        return peak_memory()

    # --- outputs of an engine, for accuracy ---------------------------------------------------------------------------

    def logits(self, ids: Sequence[int], path: str, capacity: int) -> list[int]:
        """Write the logits of every position, float32 [len(ids), vocab], to an .npy file; returns the shape."""
        s = self._session("text", capacity)
        s.truncate(0, 0)
        n = USES["text"]
        out = np.concatenate([s.rows([(0, list(ids[i : i + n]), "all")]) for i in range(0, len(ids), n)])
        np.save(path, out)
        return list(out.shape)

    def greedy(self, ids: Sequence[int], steps: int, capacity: int) -> dict[str, list[Any]]:
        """Greedy tokens after a prompt, each with its lead over the second best logit."""
        s = self._session("text", capacity)
        s.truncate(0, 0)
        logits = s.rows([(0, list(ids), "last")])[0]
        tokens: list[int] = []
        margins: list[float] = []
        while True:
            first, second = np.partition(logits, -2)[-1], np.partition(logits, -2)[-2]
            tokens.append(int(logits.argmax()))
            margins.append(float(first - second))
            if len(tokens) == steps:
                return {"tokens": tokens, "margins": margins}
            logits = s.rows([(0, tokens[-1:], "last")])[0]

    def argmax(self, ids: Sequence[int], start: int, capacity: int) -> list[int]:
        """The likeliest next token after each position from `start` on, the text before it being given."""
        s = self._session("text", capacity)
        s.truncate(0, 0)
        if start:
            s.rows([(0, list(ids[:start]), "last")])
        out: list[int] = []
        for at in range(start, len(ids), USES["text"]):
            out += [int(t) for t in s.rows([(0, list(ids[at : at + USES["text"]]), "all")]).argmax(axis=1)]
        return out
