"""Toy models whose states go into files: what the tests of `fucina.cache.persist` share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fucina.cache import State
from tests.state_models import KINDS, PARTS, extend, toy_state

__all__ = ["KINDS", "PARTS", "TOKENS", "ToyModel", "filled"]

TOKENS = [int(t) for t in np.random.default_rng(12).integers(0, 1000, 300)]


class ToyTokenizer:
    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint


class ToyModel:
    """What the files need of a model; its rows are those of `tests.state_models`."""

    def __init__(
        self, parts: Sequence = PARTS, dtype: str = "f32", fingerprint: bytes = b"toy", tokenizer: bytes = b""
    ):
        self.parts, self.dtype, self.fingerprint = parts, dtype, fingerprint
        self.tokenizer = ToyTokenizer(tokenizer) if tokenizer else None

    def new_cache(self, capacity: int | None = None) -> State:
        return toy_state(self.parts, capacity or 300, self.dtype, self.fingerprint)


def filled(model: ToyModel, rows: int, tokens: Sequence[int] = TOKENS) -> State:
    """A state of the first tokens, computed in a few calls."""
    state = model.new_cache()
    for end in sorted({rows // 2, rows - 1, rows} - {0}):
        extend(state, tokens[:end])
    return state


class Crash(Exception):
    """The process is gone, or the power."""


class MemoryFile:
    """A file in memory (see `fucina.cache.persist.files.Storage`) that notes what is written.

    log : ("write", offset, bytes), ("truncate", size, b"") or ("sync", 0, b"") in order.
    """

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.log, self.bytes_read = bytearray(data), [], 0

    def is_there(self) -> bool:
        return True

    def size(self) -> int:
        return len(self.data)

    def read_at(self, offset: int, count: int) -> bytes:
        assert 0 <= count <= MOST_READ, "a length from the file was believed"
        self.bytes_read += count
        return bytes(self.data[offset : offset + count])

    def write_at(self, offset: int, data) -> None:
        self.log.append(("write", offset, bytes(data)))
        put(self.data, offset, bytes(data))

    def truncate(self, size: int) -> None:
        self.log.append(("truncate", size, b""))
        del self.data[size:]

    def sync(self) -> None:
        self.log.append(("sync", 0, b""))

    def close(self) -> None:
        pass


MOST_READ = (16 << 20) + (1 << 16)


def put(data: bytearray, offset: int, new: bytes) -> None:
    """Write into a bytearray as into a file: a gap is filled with zeros."""
    if new:
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(new)] = new


class DyingFile(MemoryFile):
    """A file that takes some bytes and then no more; a truncation counts as one.

    error : what every later call raises; None: they are dropped in silence, as if nobody were there to run them.
    """

    def __init__(self, data: bytes, left: int, error: Exception | None) -> None:
        super().__init__(data)
        self.left, self.error = left, error

    def _take(self, wanted: int) -> int:
        taken = min(wanted, self.left)
        self.left -= taken
        return taken

    def write_at(self, offset: int, data) -> None:
        part = bytes(data)[: self._take(len(data))]
        super().write_at(offset, part)
        self._end(len(part) < len(data))

    def truncate(self, size: int) -> None:
        if done := self._take(1):
            super().truncate(size)
        self._end(not done)

    def sync(self) -> None:
        self._end(self.left == 0)

    def _end(self, dead: bool) -> None:
        if dead and self.error is not None:
            raise self.error


def effort(log) -> list[int]:
    """How much a `DyingFile` must take until each call of a log is done."""
    sizes = [len(data) if kind == "write" else kind == "truncate" for kind, _, data in log]
    return [int(n) for n in np.cumsum([0, *sizes])]


def after_power_loss(data: bytes, log, rng, sector: int = 512, garbage: bool = False) -> bytes:
    """What may be on a device: everything up to the last sync, and any of the sectors written since.

    garbage : one of these sectors is torn: half of it, or none, is what was there or what was written.
    """
    out, lost = bytearray(data), []
    synced = max((i for i, (kind, _, _) in enumerate(log) if kind == "sync"), default=-1)
    keep = rng.choice([0.1, 0.5, 0.9])
    for i, (kind, offset, new) in enumerate(log):
        if kind == "truncate" and (i < synced or rng.random() < keep):
            del out[offset:]
        elif kind == "write":
            at = offset
            while at < offset + len(new):
                stop = min(at - at % sector + sector, offset + len(new))
                if i < synced or rng.random() < keep:
                    put(out, at, new[at - offset : stop - offset])
                if i > synced:
                    lost.append(at - at % sector)
                at = stop
    if garbage and lost:
        at = int(rng.choice(lost))
        half = int(rng.choice([0, sector // 2, int(rng.integers(sector))]))
        put(out, at + half, rng.bytes(sector - half))
    return bytes(out)
