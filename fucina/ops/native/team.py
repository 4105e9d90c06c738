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
from typing import Any

import numpy as np

from ...errors import EngineClosed, ReentrantForward
from ...kernels.record import NOUT, OUTROWS, PART, ROWTAB, SCRATCH, SCRATCH_STEP, M
from .compiled import compiled
from .layout import (
    B_INSIDE,
    EPOCH,
    F_ACQUIRE,
    F_CHAINS,
    F_COUNTERS,
    F_HOOK,
    F_HOOK_DATA,
    F_KV_HEADS,
    F_N_STEPS,
    F_RECORDS,
    F_RELEASE,
    F_SPIN,
    F_STEPS,
    F_TARGET,
    F_THREADS,
    F_TINY,
    F_TOTALS,
    F_YIELD,
    MAX_THREADS,
    N_SLOTS,
    SLOT_BYTES,
    SLOTS,
    W_LOCK,
    WORKER_BYTES,
    WORKERS,
    bank_bytes,
    control_bytes,
    counters_offset,
    totals_offset,
)
from .memory import aligned
from .program import Program
from .system import Locks, system_calls

SPIN_SECONDS = 1e-3  # a worker without work looks for some this long before it sleeps
TARGET_NS = 16000  # a chunk: small enough that a neighbour on the machine costs little, and a step ends evenly
TINY_NS = 1500  # a step that is over sooner is not worth sharing

_teams: weakref.WeakSet[Team] = weakref.WeakSet()


class _Shared:
    """Everything that the threads of one team touch; they keep it alive."""

    def __init__(
        self,
        program: Program,
        threads: int,
        scratch: int,
        part: int,
        spin: float,
        target: int,
        tiny: int,
        hook: tuple[int, int],
        banks: int | None,
    ) -> None:
        chains, steps = len(program.chains), len(program.steps)
        self.program, self.n_threads = program, threads
        self.control = aligned(control_bytes(threads))
        self.address: int = self.control.ctypes.data
        self.scratch, self.part = aligned(threads * scratch, zero=False), aligned(part, zero=False)
        self.locks = Locks(threads)
        calls = system_calls()
        self._words = words = memoryview(self.control).cast("q")
        for at, value in (
            (F_RECORDS, program.records.ctypes.data),
            (F_CHAINS, program.chains.ctypes.data),
            (F_STEPS, program.steps.ctypes.data),
            (F_N_STEPS, steps),
            (F_TOTALS, totals_offset(chains)),
            (F_COUNTERS, counters_offset(chains, steps)),
            (F_THREADS, threads),
            (F_TARGET, target),
            (F_TINY, tiny),
            (F_KV_HEADS, program.kv_heads),
            (F_YIELD, calls.yield_slice),
            (F_ACQUIRE, calls.acquire),
            (F_RELEASE, calls.release),
            (F_HOOK, hook[0]),
            (F_HOOK_DATA, hook[1]),
        ):
            words[at // 8] = value
        for t, lock in enumerate(self.locks.addresses):
            words[(WORKERS + t * WORKER_BYTES + W_LOCK) // 8] = lock
        if threads > 1:
            words[F_SPIN // 8] = max(1, int(spin / self._pause_seconds()))
        self.banks: list[tuple[memoryview, int]] = []  # job and plan words, address
        self._keep: list[np.ndarray] = []
        for _ in range(max(2, banks or max(N_SLOTS, threads + 1))):
            bank = aligned(bank_bytes(chains, steps))
            job = memoryview(bank).cast("q")
            job[SCRATCH], job[SCRATCH_STEP], job[PART] = self.scratch.ctypes.data, scratch, self.part.ctypes.data
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
        return self._words[(SLOTS + self._words[EPOCH // 8] % N_SLOTS * SLOT_BYTES) // 8]

    def end(self) -> None:
        """Tell the workers to end; they need no more than a moment."""
        compiled().take_part(self.address, 0, 0, 0, 0)


def _worker(shared: _Shared, tid: int) -> None:
    compiled().take_part(shared.address, tid, 0, 0, 0)


class Team:
    """Runs a program with a number of threads, the calling one included.

    Parameters
    ----------
    program : what to run, see `fucina.ops.native.program`.
    threads : 1 to 256.
    scratch_bytes : scratch that each thread gets.
    part_bytes : room for the partial results of split attention.
    spin_seconds, target_ns, tiny_ns : see the constants of this module.
    hook : addresses of a function that is called at the protocol's delicate points, and of its data (tests).
    banks : how many passes the team can tell apart, at least 2; more than threads, so that no pass waits for a straggler.

    Raises
    ------
    ReentrantForward : a pass is started from inside a pass.
    EngineClosed : the team was closed.
    """

    def __init__(
        self,
        program: Program,
        threads: int,
        scratch_bytes: int = 4096,
        part_bytes: int = 4096,
        *,
        spin_seconds: float = SPIN_SECONDS,
        target_ns: int = TARGET_NS,
        tiny_ns: int = TINY_NS,
        hook: tuple[int, int] = (0, 0),
        banks: int | None = None,
    ) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"threads must be 1 to {MAX_THREADS}, got {threads}")
        self.program, self.n_threads = program, threads
        self._sizes = (-(-scratch_bytes // 128) * 128, part_bytes, spin_seconds, target_ns, tiny_ns, hook, banks)
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._closed = False
        self._shared: _Shared | None = None
        self._threads: list[threading.Thread] = []
        self._finalizer: weakref.finalize | None = None
        self._turn = 0
        _teams.add(self)

    # --- passes -----------------------------------------------------------------------------------------------------

    def run(self, m: int, rows: int, n_out: int, out_rows: int, context: Any = None) -> None:
        """Run the program once over m rows.

        Parameters
        ----------
        rows : address of the row table.
        n_out, out_rows : how many rows want logits, and the address of their int64 indices.
        context : handed to the host stages.
        """
        if self._owner == threading.get_ident():
            raise ReentrantForward("a host stage started a pass of the model that it runs in")
        with self._lock:
            if self._closed:
                raise EngineClosed("this model was closed; load it again")
            shared = self._shared or self._start()
            self._owner = threading.get_ident()
            try:
                self._run(shared, m, rows, n_out, out_rows, context)
            finally:
                self._owner = None

    def _run(self, shared: _Shared, m: int, rows: int, n_out: int, out_rows: int, context: Any) -> None:
        job, bank = self._free_bank(shared)
        job[M], job[ROWTAB], job[NOUT], job[OUTROWS] = m, rows, n_out, out_rows
        make_plan, take_part = compiled()
        make_plan(shared.address, bank)
        step = 0
        for host, function in self.program.hosts:
            if host > step:
                take_part(shared.address, 0, bank, step, host)
            # the segment is complete: no thread does anything, and an exception may leave from here
            function(m, n_out, context)
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
                if bank != open_ and job[B_INSIDE // 8] == 0:
                    return job, bank
            time.sleep(0)

    # --- life ---------------------------------------------------------------------------------------------------------

    def _start(self) -> _Shared:
        shared = _Shared(self.program, self.n_threads, *self._sizes)
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

    def close(self, timeout: float | None = None) -> None:
        """Wait for the pass that is running, then end the threads.  Later passes raise EngineClosed."""
        if self._owner == threading.get_ident():
            raise ReentrantForward("a host stage closed the model that it runs in")
        if not self._lock.acquire(timeout=-1 if timeout is None else timeout):
            return
        try:
            self._closed = True
            if self._finalizer is not None:
                self._finalizer()
            for t in self._threads:
                if t.ident is not None:
                    t.join(timeout)
            self._threads, self._shared = [], None
        finally:
            self._lock.release()

    def _forget_threads(self) -> None:
        """In a forked child: the threads stayed with the parent, and so did whoever held the lock."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._lock, self._owner = threading.Lock(), None
        self._shared, self._threads, self._finalizer = None, [], None


def _after_fork() -> None:
    for team in list(_teams):
        team._forget_threads()


def _close_all() -> None:
    """At exit: a thread that is still inside compiled code when the interpreter goes away may crash it."""
    for team in list(_teams):
        if team._owner != threading.get_ident():
            team.close(timeout=5)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_close_all)
