"""The team: the threads that run a recorded program, and their life from first pass to last.

The threads start with the first pass and sleep between passes.  They know the program's memory but not the `Team`
object, so that dropping the object ends them.  A process that is forked has no threads: its teams start anew when they
are used.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import EngineClosed
from ...kernels import record as R
from ...kernels.memory import aligned
from . import layout as L
from .clib import Locks, system_calls
from .loop import compiled
from .program import Program


@dataclass(frozen=True, slots=True)
class TeamOptions:
    """What a team is made with, besides its program.

    scratch_bytes : scratch that each thread gets.
    part_bytes : room for the partial results of split attention.
    spin_seconds : a worker without work looks for some this long before it sleeps.
    target_ns : of a chunk: small enough that a neighbour on the machine costs little, and a step ends evenly.
    tiny_ns : a step that is over sooner is not worth sharing.
    hook : addresses of a function that is called at the protocol's delicate points, and of its data (tests).
    banks : how many passes the team can tell apart, at least 2; more than threads, so that no pass waits for a
        straggler, unless a number is given.
    """

    scratch_bytes: int = 4096
    part_bytes: int = 4096
    spin_seconds: float = 1e-3
    target_ns: int = 16000
    tiny_ns: int = 1500
    hook: tuple[int, int] = (0, 0)
    banks: int | None = None


_teams: weakref.WeakSet[Team] = weakref.WeakSet()


class _Shared:
    """Everything that the threads of one team touch; they keep it alive."""

    def __init__(self, program: Program, threads: int, options: TeamOptions) -> None:
        chains, steps = len(program.chains), len(program.steps)
        scratch = -(-options.scratch_bytes // 128) * 128
        self.program, self.n_threads = program, threads
        self.control = aligned(L.control_bytes(threads))
        self.address: int = self.control.ctypes.data
        self.scratch = aligned(threads * scratch, zero=False)
        self.part = aligned(options.part_bytes, zero=False)
        self.locks = Locks(threads)
        calls = system_calls()
        self._words = words = self.control.data.cast("q")
        for at, value in (
            (L.F_RECORDS, program.records.ctypes.data),
            (L.F_CHAINS, program.chains.ctypes.data),
            (L.F_STEPS, program.steps.ctypes.data),
            (L.F_N_STEPS, steps),
            (L.F_TOTALS, L.totals_offset(chains)),
            (L.F_COUNTERS, L.counters_offset(chains, steps)),
            (L.F_THREADS, threads),
            (L.F_TARGET, options.target_ns),
            (L.F_TINY, options.tiny_ns),
            (L.F_YIELD, calls.yield_slice),
            (L.F_ACQUIRE, calls.acquire),
            (L.F_RELEASE, calls.release),
            (L.F_HOOK, options.hook[0]),
            (L.F_HOOK_DATA, options.hook[1]),
        ):
            words[at // 8] = value
        for t, lock in enumerate(self.locks.addresses):
            words[(L.WORKERS + t * L.WORKER_BYTES + L.W_LOCK) // 8] = lock
        if threads > 1:
            words[L.F_SPIN // 8] = max(1, int(options.spin_seconds / self._pause_seconds()))
        self.banks: list[tuple[memoryview, int]] = []  # job and plan words, address
        self._keep: list[np.ndarray] = []
        for _ in range(max(2, options.banks or max(L.N_SLOTS, threads + 1))):
            bank = aligned(L.bank_bytes(chains, steps))
            job = bank.data.cast("q")
            job[R.SCRATCH], job[R.SCRATCH_STEP] = self.scratch.ctypes.data, scratch
            job[R.PART] = self.part.ctypes.data
            self._keep.append(bank)
            self.banks.append((job, bank.ctypes.data))

    def _pause_seconds(self) -> float:
        take_part, best = compiled().take_part, 1.0
        for _ in range(3):
            start = time.perf_counter()
            take_part(self.address, 0, 0, 0, -2000)
            best = min(best, (time.perf_counter() - start) / 2000)
        return max(best, 1e-10)

    def open_bank(self) -> int:
        """Address of the bank that was published last, 0 before any."""
        return self._words[(L.SLOTS + self._words[L.EPOCH // 8] % L.N_SLOTS * L.SLOT_BYTES) // 8]

    def end(self) -> None:
        """Tell the workers to end; they need no more than a moment."""
        compiled().take_part(self.address, 0, 0, 0, 0)


def _worker(shared: _Shared, tid: int) -> None:
    compiled().take_part(shared.address, tid, 0, 0, 0)


class Team:
    """Runs a program with a number of threads, the calling one included.

    One pass at a time: whoever owns the team sees to it (an engine holds a lock during its passes).

    Parameters
    ----------
    program : what to run, see `fucina.ops.native.program`.
    threads : 1 to 256.
    options : see `TeamOptions`.

    Raises
    ------
    EngineClosed : the team was closed.
    """

    def __init__(self, program: Program, threads: int, options: TeamOptions | None = None) -> None:
        if not 1 <= threads <= L.MAX_THREADS:
            raise ValueError(f"threads must be 1 to {L.MAX_THREADS}, got {threads}")
        self.program, self.n_threads = program, threads
        self._options = options or TeamOptions()
        self._closed = False
        self._running: int | None = None  # the Python thread that is inside a pass
        self._shared: _Shared | None = None
        self._threads: list[threading.Thread] = []
        self._finalizer: weakref.finalize | None = None
        self._turn = 0
        _teams.add(self)

    # --- passes -----------------------------------------------------------------------------------------------------

    def run(self, words: Mapping[int, int], context: Any = None) -> None:
        """Run the program once.

        Parameters
        ----------
        words : of the job, by their number: rows, streams and their tables, rows that want logits.
        context : handed to the host stages.
        """
        self._running = threading.get_ident()  # first this, then the question: see `close`
        try:
            if self._closed:
                raise EngineClosed("this model was closed; load it again")
            self._run(self._shared or self._start(), words, context)
        finally:
            self._running = None

    def _run(self, shared: _Shared, words: Mapping[int, int], context: Any) -> None:
        job, bank = self._free_bank(shared)
        for word, value in words.items():
            job[word] = value
        make_plan, take_part = compiled()
        make_plan(shared.address, bank)
        step = 0
        for host, function in self.program.hosts:
            if host > step:
                take_part(shared.address, 0, bank, step, host)
            # the segment is complete: no thread does anything, and an exception may leave from here
            function(job, context)
            step = host + 1
        last = len(self.program.steps)
        if last > step:
            take_part(shared.address, 0, bank, step, last)

    def _free_bank(self, shared: _Shared) -> tuple[memoryview, int]:
        """A bank that no straggler is inside of, and that none may enter.

        The bank of the last publication stays open until the next one: a late worker may still enter it.
        """
        banks, open_ = shared.banks, shared.open_bank()
        while True:
            for _ in banks:
                self._turn = (self._turn + 1) % len(banks)
                job, bank = banks[self._turn]
                if bank != open_ and job[L.B_INSIDE // 8] == 0:
                    return job, bank
            time.sleep(0)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _start(self) -> _Shared:
        shared = _Shared(self.program, self.n_threads, self._options)
        if self.n_threads > 1:
            self._finalizer = weakref.finalize(self, shared.end)
            self._finalizer.atexit = False  # _close_all does it, and waits
        self._threads = [
            threading.Thread(target=_worker, args=(shared, t), name=f"fucina-{t}", daemon=True)
            for t in range(1, self.n_threads)
        ]
        self._shared = shared
        for t in self._threads:
            t.start()
        return shared

    def close(self, patience: float = 0.0) -> None:
        """End the threads; later passes raise EngineClosed.  The owner calls it between passes.

        patience : seconds to wait for a pass of another Python thread, at exit, when nobody can stop that thread.  If it
            is not over by then, its threads are left alone.
        """
        self._closed = True
        until = time.monotonic() + patience
        while self._running not in (None, threading.get_ident()):
            if time.monotonic() > until:
                return
            time.sleep(0.001)
        if self._finalizer is not None:
            self._finalizer()
        for t in self._threads:
            if t.ident is not None:
                t.join(patience or None)
        self._threads, self._shared = [], None

    def _forget_threads(self) -> None:
        """In a forked child: the threads stayed with the parent."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._shared, self._threads, self._finalizer, self._running = None, [], None, None


def _after_fork() -> None:
    for team in list(_teams):
        team._forget_threads()


def _close_all() -> None:
    """At exit: a thread that is still inside compiled code when the interpreter goes away may crash it."""
    for team in list(_teams):
        if team._running != threading.get_ident():
            team.close(patience=5)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_all)
