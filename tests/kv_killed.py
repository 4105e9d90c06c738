"""Processes that append to a file until they are killed: `python -m tests.kv_killed FOLDER COUNT SEED`.

What a process appends follows from the seed and the number of the append, so the parent knows every text that the file
may hold.  A child says after each append that it is done; after the kill, the file must hold what it said last, or what
it was about to append.  POSIX only: children are forks.
"""

from __future__ import annotations

import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import numpy as np

from fucina.cache import KvFile
from tests.kv_files import ToyModel
from tests.state_models import KINDS, check_claims, extend


def texts(seed: int):
    """The texts that a file should hold one after the other, without an end: (tokens, notes, whether one is pending)."""
    rng = np.random.default_rng(seed)
    tokens, notes, step = [], [], 0
    while True:
        step += 1
        if len(tokens) > 200 or (step > 1 and rng.random() < 0.25):
            tokens = tokens[: int(rng.integers(len(tokens) + 1))]
            notes = notes[: int(rng.integers(len(notes) + 1))]
        tokens = [*tokens, *(int(t) for t in rng.integers(0, 1000, rng.integers(1, 40)))]
        notes = [*notes, b"%d" % step]
        yield tokens, notes, bool(rng.random() < 0.3)


def child(path: Path, model: ToyModel, seed: int, done: int, fsync: bool) -> None:
    """Append for ever; writes a byte to `done` after each append."""
    with KvFile.open(path, model, fsync=fsync) as file:
        state = model.new_cache(300)
        known: list[int] = []
        for tokens, notes, pending in texts(seed):
            rows = tokens[:-1] if pending else tokens
            same = next((i for i, (a, b) in enumerate(zip(known, rows)) if a != b), min(len(known), len(rows)))
            state.rewind(state.rewind_point(same))
            extend(state, rows)
            known = rows
            file.append(state, tokens, notes=notes)
            os.write(done, b".")


def parent(path: Path, model: ToyModel, pid: int, done: int, after: float) -> int:
    """Kill a child that long after its first append; returns the appends that it said were done."""
    said = len(os.read(done, 1))
    end = time.monotonic() + after
    while (left := end - time.monotonic()) > 0:
        if select.select([done], [], [], left)[0]:
            said += len(os.read(done, 1 << 16))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while more := os.read(done, 1 << 16):
        said += len(more)
    os.close(done)
    return said


def look(path: Path, model: ToyModel, seed: int, said: int, torn: bool) -> int:
    """Check what a killed child has left; returns the positions that came back."""
    history = [text for _, text in zip(range(said + 1), texts(seed))]
    with KvFile.open(path, model) as file:
        state = model.new_cache(300)
        restored = file.restore(state)
        check_claims(state, restored.tokens)
        fit = [
            i
            for i, (tokens, notes, _) in enumerate(history)
            if tokens[: len(restored.tokens)] == restored.tokens and notes[: len(restored.notes)] == restored.notes
        ]
        assert fit, (seed, said, restored)
        if not torn:  # no less than the common prefix of what was there and what came next
            a, b = ([*t[0][: len(t[0]) - t[2]]] for t in (history[-2], history[-1]))
            least = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            assert file.len >= least, (seed, said, file.len, least, restored.why)
        rows = [*restored.tokens[: state.len], 1, 2, 3]
        extend(state, rows)
        file.append(state, rows, notes=[b"after"])
        other = model.new_cache(300)
        assert file.restore(other).tokens == rows
        check_claims(other, rows)
    return state.len


def main(folder: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    rows = torn_count = appends = 0
    for i in range(count):
        kind = list(KINDS)[i % len(KINDS)]
        model, path = ToyModel(KINDS[kind]), Path(folder) / f"{i}.kv"
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                child(path, model, seed + i, writing, i % 5 == 0)
            finally:
                os._exit(1)
        os.close(writing)
        said = parent(path, model, pid, reading, rng.uniform(0, 0.03))
        torn = rng.random() < 0.4
        if torn:
            torn_count += 1
            data = bytearray(path.read_bytes())
            at, page = 4096 * rng.choice([1, 2]), rng.choice([512, 4096])
            data[at : at + page] = rng.randbytes(len(data[at : at + page]))
            path.write_bytes(data)
        appends += said
        rows += look(path, model, seed + i, said, torn)
        path.unlink()
    print(f"{count} killed, {torn_count} with a torn counter, after {appends} appends; {rows} positions came back")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
