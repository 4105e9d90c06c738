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

from ...kernels.record import FN, WORDS
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
from .layout import (
    B_INSIDE,
    B_PLAN,
    B_PROGRESS,
    C_CLAIM,
    C_DONE,
    CHAIN_BYTES,
    COUNTER_BYTES,
    EPOCH,
    F_ACQUIRE,
    F_CHAINS,
    F_COUNTERS,
    F_HOOK,
    F_HOOK_DATA,
    F_RECORDS,
    F_RELEASE,
    F_SPIN,
    F_STEPS,
    F_THREADS,
    F_TOTALS,
    F_YIELD,
    N_SLOTS,
    PLAN_BYTES,
    SLOT_BYTES,
    SLOTS,
    STEP_BYTES,
    W_LOCK,
    W_PARKED,
    WORKER_BYTES,
    WORKERS,
)

RECORD_BYTES = WORDS * 8
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


def take_part(ctl, tid, bank, step, end):
    """A thread's part in the team.

    tid 0, the caller of a pass: publish steps [step, end) of a bank, take part until they are complete, return.
    With bank 0, tell the workers to end.  With end < 0, only pause -end times (to learn how long a pause takes).
    tid > 0, a worker: follow the epochs until told to end.
    """
    if end < 0:
        while end < 0:
            pause()
            end += 1
        return 0
    records = load(ctl + F_RECORDS)
    chains = load(ctl + F_CHAINS)
    steps = load(ctl + F_STEPS)
    spin = load(ctl + F_SPIN)
    hook = load(ctl + F_HOOK)
    data = load(ctl + F_HOOK_DATA)
    me = ctl + WORKERS + tid * WORKER_BYTES
    seen = 0
    idle = 0
    while True:
        if tid == 0:
            # --- publish ------------------------------------------------------------------------------------------
            threads = load(ctl + F_THREADS)
            if threads > 1:
                epoch = atomic_load(ctl + EPOCH) + 1
                slot = ctl + SLOTS + epoch % N_SLOTS * SLOT_BYTES
                atomic_exchange(slot, bank)
                atomic_exchange(slot + 8, step)
                atomic_exchange(slot + 16, end)
                if hook != 0:
                    call_kernel(hook, data, AT_PUBLISH, bank, step, tid)
                atomic_exchange(ctl + EPOCH, epoch)
                if hook != 0:
                    call_kernel(hook, data, AT_PUBLISHED, bank, step, tid)
                for t in range(1, threads):
                    worker = ctl + WORKERS + t * WORKER_BYTES
                    if atomic_load(worker + W_PARKED) == 1 and atomic_exchange(worker + W_PARKED, 0) == 1:
                        if hook != 0:
                            call_kernel(hook, data, AT_WAKE, bank, step, tid)
                        call_release(load(ctl + F_RELEASE), load(worker + W_LOCK))
            if bank == 0:
                return 0
        else:
            # --- follow ---------------------------------------------------------------------------------------------
            epoch = atomic_load(ctl + EPOCH)
            if epoch == seen:
                idle += 1
                if idle < spin:
                    pause()
                    continue
                idle = 0
                if hook != 0:
                    call_kernel(hook, data, AT_PARK, bank, step, tid)
                atomic_exchange(me + W_PARKED, 1)
                if hook != 0:
                    call_kernel(hook, data, AT_PARKED, bank, step, tid)
                if atomic_load(ctl + EPOCH) != seen and atomic_exchange(me + W_PARKED, 0) == 1:
                    continue  # nobody will release the lock: the flag came down here
                call_acquire(load(ctl + F_ACQUIRE), load(me + W_LOCK))
                continue
            seen = epoch
            idle = 0
            slot = ctl + SLOTS + epoch % N_SLOTS * SLOT_BYTES
            bank = atomic_load(slot)
            step = atomic_load(slot + 8)
            end = atomic_load(slot + 16)
            if hook != 0:
                call_kernel(hook, data, AT_SLOT_READ, bank, step, tid)
            if atomic_load(ctl + EPOCH) != epoch:
                continue
            if bank == 0:
                return 0
            if hook != 0:
                call_kernel(hook, data, AT_ENTER, bank, step, tid)
            atomic_add(bank + B_INSIDE, 1)
            if hook != 0:
                call_kernel(hook, data, AT_ENTERED, bank, step, tid)
            if atomic_load(ctl + EPOCH) != epoch:
                atomic_add(bank + B_INSIDE, -1)
                continue
        # --- run [step, end) of the bank ------------------------------------------------------------------------------
        totals = bank + load(ctl + F_TOTALS)
        counters = bank + load(ctl + F_COUNTERS)
        while step < end:
            if hook != 0:
                call_kernel(hook, data, AT_STEP, bank, step, tid)
            total = load(totals + step * 8)
            counter = counters + step * COUNTER_BYTES
            # the step after which this thread must move `progress`, if it did the last chunk
            after = -1
            while atomic_load(counter + C_CLAIM) < total:
                chunk = atomic_add(counter + C_CLAIM, 1)
                if chunk >= total:
                    break
                if hook != 0:
                    call_kernel(hook, data, AT_CLAIMED, bank, step, tid)
                if total == 1:
                    after = step  # run below, with the one-chunk steps behind it
                    break
                chain = load(steps + step * STEP_BYTES)
                plan = bank + B_PLAN + chain * PLAN_BYTES
                while chunk >= load(plan + 16) + load(plan):
                    chain += 1
                    plan += PLAN_BYTES
                n = load(plan)
                units = load(plan + 8)
                chunk -= load(plan + 16)
                u0 = units * chunk // n
                u1 = units * (chunk + 1) // n
                record = records + load(chains + chain * CHAIN_BYTES) * RECORD_BYTES
                stop = records + load(chains + chain * CHAIN_BYTES + 8) * RECORD_BYTES
                while record < stop:
                    call_kernel(load(record + FN * 8), record, bank, u0, u1, tid)
                    record += RECORD_BYTES
                if hook != 0:
                    call_kernel(hook, data, AT_CHUNK_DONE, bank, step, tid)
                if atomic_add(counter + C_DONE, 1) == total - 1:
                    after = step + 1
                    break
            if after >= 0:
                if hook != 0:
                    call_kernel(hook, data, AT_LAST_DONE, bank, step, tid)
                while after < end and load(totals + after * 8) == 1:
                    last = load(steps + after * STEP_BYTES + 8)
                    for chain in range(load(steps + after * STEP_BYTES), last):
                        units = load(bank + B_PLAN + chain * PLAN_BYTES + 8)
                        if units > 0:
                            record = records + load(chains + chain * CHAIN_BYTES) * RECORD_BYTES
                            stop = records + load(chains + chain * CHAIN_BYTES + 8) * RECORD_BYTES
                            while record < stop:
                                call_kernel(load(record + FN * 8), record, bank, 0, units, tid)
                                record += RECORD_BYTES
                    after += 1
                atomic_exchange(bank + B_PROGRESS, after)
                step = after
            else:
                waited = 0
                progress = atomic_load(bank + B_PROGRESS)
                while progress <= step:
                    waited += 1
                    if waited < PATIENCE:
                        pause()
                    else:
                        call_yield(load(ctl + F_YIELD))
                    progress = atomic_load(bank + B_PROGRESS)
                step = progress
        if tid == 0:
            return 0
        if hook != 0:
            call_kernel(hook, data, AT_LEAVE, bank, step, tid)
        atomic_add(bank + B_INSIDE, -1)
