"""The planner: from the rows of a pass to the chunks of every chain, compiled, a few microseconds a pass.

A chunk is what one thread claims at a time.  Few and large chunks leave threads idle at the end of a step, many and
small ones pay for claiming; so a column step gets a multiple of the thread count, about `target` nanoseconds each, and
a step that is over in less than a synchronisation costs (`tiny`) stays whole.  No result depends on any of this.
"""

from __future__ import annotations

from ...kernels.record import (
    ATTENTION,
    CHUNK,
    COLS,
    COST,
    KV,
    NOUT,
    NPART,
    P0,
    POS,
    ROW_BYTES,
    ROWS,
    ROWTAB,
    RULE,
    SEL,
    SPLIT,
    UNITS,
    WORDS,
    M,
)
from .atomics import load, store
from .layout import (
    B_PLAN,
    B_PROGRESS,
    C_CLAIM,
    C_DONE,
    CHAIN_BYTES,
    COUNTER_BYTES,
    F_CHAINS,
    F_COUNTERS,
    F_KV_HEADS,
    F_N_STEPS,
    F_RECORDS,
    F_STEPS,
    F_TARGET,
    F_THREADS,
    F_TINY,
    F_TOTALS,
    PLAN_BYTES,
    STEP_BYTES,
)

MAX_SPLIT = 16  # attention is split into its chunks when a pass has at most this many (row, key head)
FEW_SPLIT = 3  # where rows share a cache: and fewer than this many for each thread, since split they share no work
TILE = 8  # where rows share a cache: (row, key head) that a chunk of whole attention has, if there are enough
WINDOW = P0 + 5  # parameter of an attention record
PER_THREAD = 8  # most chunks of a chain, a thread
LONG_SPLIT = 4  # split attention is cut into chunks so many times as long: each streams one run of the cache


def make_plan(ctl, bank):
    """Write the plan of a pass into its bank: chunks and units of every chain, chunks of every step, counters at 0.

    `bank` already holds the pass's M, NOUT and ROWTAB.  Returns the number of steps that need more than one thread.
    """
    records = load(ctl + F_RECORDS)
    chains = load(ctl + F_CHAINS)
    steps = load(ctl + F_STEPS)
    n_steps = load(ctl + F_N_STEPS)
    totals = bank + load(ctl + F_TOTALS)
    counters = bank + load(ctl + F_COUNTERS)
    threads = load(ctl + F_THREADS)
    target = load(ctl + F_TARGET)
    tiny = load(ctl + F_TINY)
    m = load(bank + 8 * M)
    n_out = load(bank + 8 * NOUT)
    rows = load(bank + 8 * ROWTAB)
    longest = 0
    shared_cache = 0  # whether some neighbouring rows belong to one stream
    for r in range(m):
        longest = max(longest, load(rows + r * ROW_BYTES + 8 * POS) // CHUNK + 1)
        if r > 0 and load(rows + r * ROW_BYTES + 8 * KV) == load(rows + (r - 1) * ROW_BYTES + 8 * KV):
            shared_cache = 1
    split = 0
    pairs = m * load(ctl + F_KV_HEADS)
    if threads > 1 and longest > 1 and pairs <= MAX_SPLIT and (shared_cache == 0 or pairs < FEW_SPLIT * threads):
        split = 1
    store(bank + 8 * SPLIT, split)
    store(bank + 8 * NPART, longest)
    shared = 0
    for s in range(n_steps):
        first = load(steps + s * STEP_BYTES)
        last = load(steps + s * STEP_BYTES + 8)
        work = 0  # nanoseconds of the whole step on one thread
        for c in range(first, last):
            head = records + load(chains + c * CHAIN_BYTES) * WORDS * 8
            rule = load(head + 8 * RULE)
            units = load(head + 8 * UNITS)
            cost = load(head + 8 * COST)
            k = m
            if load(head + 8 * SEL) == 1:
                k = n_out
            time = 0
            if rule == COLS:
                # weights stream at 25 bytes a nanosecond for one row, and cost half as much again for each further one
                time = units * cost * max(4, 2 * k + 2) // 100
            elif rule == ROWS:
                units *= k
                time = units * cost // 4
            elif rule == ATTENTION:
                # cost is bytes a position and key head
                window = load(head + 8 * WINDOW)
                heads = units
                units = 0
                for r in range(k):
                    position = load(rows + r * ROW_BYTES + 8 * POS)
                    start = 0
                    if window > 0:
                        start = max(0, position - window + 1)
                    time += (position + 1 - start) * heads * cost // 24
                    if split == 1:
                        units += (position // CHUNK + 1 - start // CHUNK) * heads
                    else:
                        units += heads
            if k == 0:
                units = 0
                time = 0
            plan = bank + B_PLAN + c * PLAN_BYTES
            store(plan, time)
            store(plan + 8, units)
            work += time
        total = 0
        for c in range(first, last):
            plan = bank + B_PLAN + c * PLAN_BYTES
            time = load(plan)
            units = load(plan + 8)
            n = 1
            long = target
            most = PER_THREAD * threads
            if load(records + load(chains + c * CHAIN_BYTES) * WORDS * 8 + 8 * RULE) == ATTENTION:
                if split == 1:
                    long = LONG_SPLIT * target
                elif shared_cache == 1:
                    most = min(most, max(1, units // TILE // threads) * threads)
            if threads > 1 and work >= tiny and (time >= tiny or first + 1 == last):
                n = (time // long + threads) // threads * threads
            n = min(units, min(n, most))
            store(plan, n)
            store(plan + 16, total)
            total += n
        if threads == 1 or work < tiny or total == 0:
            total = 1
        if total > 1:
            shared += 1
        store(totals + s * 8, total)
        store(counters + s * COUNTER_BYTES + C_CLAIM, 0)
        store(counters + s * COUNTER_BYTES + C_DONE, 0)
    store(bank + B_PROGRESS, 0)
    return shared
