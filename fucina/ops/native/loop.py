"""What every thread of the team runs: one compiled function, without the GIL, without a barrier anywhere.

**Inside a pass** threads meet at the *completion* of a step, never at the arrival of threads.  A step has two counters:
chunks claimed and chunks done.  Whoever does the last chunk also runs the one-chunk steps that follow, then moves the
pass's `progress` word; everyone else waits for that word.  A thread that the operating system does not schedule holds
up nobody, unless it holds a chunk.

**Between passes** workers follow the control block's epoch.  The publisher writes (bank, steps) into slot epoch & 3, then
moves the epoch.  A worker reads the slot, enters the bank, and looks at the epoch again: if it moved, the slot may be
stale and the bank may be in use for another pass, so the worker leaves.  If it did not move, the publisher will see the
worker inside, and will not reuse the bank before it has left.  Until the epoch moves, late workers may enter the bank
of the last pass; so the next pass always takes another one.  There are more banks than workers can be inside of.

**Sleeping**: after a while without work a worker raises its `parked` flag, looks at the epoch once more, and sleeps on
its lock.  The publisher moves the epoch first and then takes down the flags; who takes a flag down releases the lock,
exactly once.  Either the worker sees the new epoch, or the publisher sees the flag.

The locks are CPython's own (`PyThread_acquire_lock`): they need no GIL, so publishing, waking and running are one
call that no Python exception can interrupt halfway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from numba import njit, types

from ...kernels import record as R
from ...kernels.compile import cached_here
from . import layout as L
from . import planner
from .atomics import (
    atomic_add,
    atomic_exchange,
    atomic_load,
    call_acquire,
    call_kernel,
    call_release,
    call_yield,
    load,
    pause,
)

RECORD_BYTES = R.WORDS * 8
PATIENCE = 3000  # pauses while waiting for a step, before time slices are given away

# delicate points, where a test's hook may delay a thread
(
    AT_SLOT_READ,
    AT_ENTER,
    AT_ENTERED,
    AT_CLAIMED,
    AT_CHUNK_DONE,
    AT_LAST_DONE,
    AT_LEAVE,
    AT_PARK,
    AT_PARKED,
    AT_PUBLISH,
    AT_PUBLISHED,
    AT_WAKE,
    AT_STEP,
) = range(13)

part = njit(nogil=True, boundscheck=False, error_model="numpy", forceinline=True)  # a part of `take_part`


@part
def at(ctl, point, bank, step, tid):
    """Tell the test's hook, if there is one."""
    hook = load(ctl + L.F_HOOK)
    if hook != 0:
        call_kernel(hook, load(ctl + L.F_HOOK_DATA), point, bank, step, tid)


@part
def publish(ctl, bank, step, end):
    """Open steps [step, end) of a bank to the workers, and wake those that sleep.  Bank 0 tells them to end."""
    threads = load(ctl + L.F_THREADS)
    if threads > 1:
        epoch = atomic_load(ctl + L.EPOCH) + 1
        slot = ctl + L.SLOTS + epoch % L.N_SLOTS * L.SLOT_BYTES
        atomic_exchange(slot, bank)
        atomic_exchange(slot + 8, step)
        atomic_exchange(slot + 16, end)
        at(ctl, AT_PUBLISH, bank, step, 0)
        atomic_exchange(ctl + L.EPOCH, epoch)
        at(ctl, AT_PUBLISHED, bank, step, 0)
        for t in range(1, threads):
            worker = ctl + L.WORKERS + t * L.WORKER_BYTES
            if atomic_load(worker + L.W_PARKED) == 1 and atomic_exchange(worker + L.W_PARKED, 0) == 1:
                at(ctl, AT_WAKE, bank, step, 0)
                call_release(load(ctl + L.F_RELEASE), load(worker + L.W_LOCK))


@part
def rest(ctl, tid, seen):
    """Sleep until an epoch after `seen` is published (or return early, which does no harm)."""
    me = ctl + L.WORKERS + tid * L.WORKER_BYTES
    at(ctl, AT_PARK, 0, 0, tid)
    atomic_exchange(me + L.W_PARKED, 1)
    at(ctl, AT_PARKED, 0, 0, tid)
    if atomic_load(ctl + L.EPOCH) != seen and atomic_exchange(me + L.W_PARKED, 0) == 1:
        return  # nobody will release the lock: the flag came down here
    call_acquire(load(ctl + L.F_ACQUIRE), load(me + L.W_LOCK))


@part
def run_chain(ctl, bank, chain, u0, u1, tid):
    """Every record of a chain on the units u0 … u1-1."""
    records = load(ctl + L.F_RECORDS)
    entry = load(ctl + L.F_CHAINS) + chain * L.CHAIN_BYTES
    record = records + load(entry) * RECORD_BYTES
    stop = records + load(entry + 8) * RECORD_BYTES
    while record < stop:
        call_kernel(load(record + R.FN * 8), record, bank, u0, u1, tid)
        record += RECORD_BYTES


@part
def run_chunk(ctl, bank, step, chunk, tid):
    """One chunk of a step: a part of the units of one of its chains."""
    chain = load(load(ctl + L.F_STEPS) + step * L.STEP_BYTES)
    plan = bank + L.B_PLAN + chain * L.PLAN_BYTES
    while chunk >= load(plan + 16) + load(plan):
        chain += 1
        plan += L.PLAN_BYTES
    n = load(plan)
    units = load(plan + 8)
    chunk -= load(plan + 16)
    run_chain(ctl, bank, chain, units * chunk // n, units * (chunk + 1) // n, tid)


@part
def run_whole(ctl, bank, step, tid):
    """A step of one chunk: all units of all its chains."""
    entry = load(ctl + L.F_STEPS) + step * L.STEP_BYTES
    for chain in range(load(entry), load(entry + 8)):
        units = load(bank + L.B_PLAN + chain * L.PLAN_BYTES + 8)
        if units > 0:
            run_chain(ctl, bank, chain, 0, units, tid)


@part
def wait(ctl, bank, step):
    """Wait until a step is complete; the first step that is not."""
    waited = 0
    progress = atomic_load(bank + L.B_PROGRESS)
    while progress <= step:
        waited += 1
        if waited < PATIENCE:
            pause()
        else:
            call_yield(load(ctl + L.F_YIELD))
        progress = atomic_load(bank + L.B_PROGRESS)
    return progress


@part
def run(ctl, bank, step, end, tid):
    """Take part in steps [step, end) of a bank, until they are complete."""
    totals = bank + load(ctl + L.F_TOTALS)
    counters = bank + load(ctl + L.F_COUNTERS)
    while step < end:
        at(ctl, AT_STEP, bank, step, tid)
        total = load(totals + step * 8)
        counter = counters + step * L.COUNTER_BYTES
        after = -1  # the step after which this thread must move `progress`, if it did the last chunk
        while atomic_load(counter + L.C_CLAIM) < total:
            chunk = atomic_add(counter + L.C_CLAIM, 1)
            if chunk >= total:
                break
            at(ctl, AT_CLAIMED, bank, step, tid)
            if total == 1:
                after = step  # run below, with the one-chunk steps after it
                break
            run_chunk(ctl, bank, step, chunk, tid)
            at(ctl, AT_CHUNK_DONE, bank, step, tid)
            if atomic_add(counter + L.C_DONE, 1) == total - 1:
                after = step + 1
                break
        if after >= 0:
            at(ctl, AT_LAST_DONE, bank, step, tid)
            while after < end and load(totals + after * 8) == 1:
                run_whole(ctl, bank, after, tid)
                after += 1
            atomic_exchange(bank + L.B_PROGRESS, after)
            step = after
        else:
            step = wait(ctl, bank, step)


@part
def follow(ctl, tid):
    """A worker's life: follow the epochs until told to end."""
    spin = load(ctl + L.F_SPIN)
    seen = 0
    idle = 0
    while True:
        epoch = atomic_load(ctl + L.EPOCH)
        if epoch == seen:
            idle += 1
            if idle < spin:
                pause()
            else:
                idle = 0
                rest(ctl, tid, seen)
            continue
        seen = epoch
        idle = 0
        slot = ctl + L.SLOTS + epoch % L.N_SLOTS * L.SLOT_BYTES
        bank = atomic_load(slot)
        step = atomic_load(slot + 8)
        end = atomic_load(slot + 16)
        at(ctl, AT_SLOT_READ, bank, step, tid)
        if atomic_load(ctl + L.EPOCH) != epoch:
            continue
        if bank == 0:
            return
        at(ctl, AT_ENTER, bank, step, tid)
        atomic_add(bank + L.B_INSIDE, 1)
        at(ctl, AT_ENTERED, bank, step, tid)
        if atomic_load(ctl + L.EPOCH) == epoch:
            run(ctl, bank, step, end, tid)
            at(ctl, AT_LEAVE, bank, end, tid)
        atomic_add(bank + L.B_INSIDE, -1)


def take_part(ctl, tid, bank, step, end):
    """A thread's part in the team.

    tid 0, the caller of a pass: publish steps [step, end) of a bank, take part until they are complete, return.
    With bank 0, tell the workers to end.  With end < 0, only pause -end times (to learn how long a pause takes).
    tid > 0, a worker: follow the epochs until told to end.
    """
    if end < 0:
        for _ in range(-end):
            pause()
    elif tid > 0:
        follow(ctl, tid)
    else:
        publish(ctl, bank, step, end)
        if bank != 0:
            run(ctl, bank, step, end, tid)
    return 0


class Compiled(NamedTuple):
    """make_plan(control, bank) -> 0; take_part(control, tid, bank, step, end) -> 0."""

    make_plan: Callable[[int, int], int]
    take_part: Callable[[int, int, int, int, int], int]


@cache
def compiled() -> Compiled:
    """The team's compiled functions: compiled, or loaded from the cache, when the first native model is made."""
    options: dict[str, Any] = {"nogil": True, "boundscheck": False, "error_model": "numpy", "cache": True}
    i = types.int64
    with cached_here("make_plan"):
        make_plan = njit(i(i, i), **options)(planner.make_plan)
    with cached_here("take_part"):
        compiled_part = njit(i(i, i, i, i, i), **options)(take_part)
    return Compiled(make_plan, compiled_part)
