"""The planner: from the rows of a pass to the chunks of every chain, compiled, a few microseconds per pass.

A chunk is what one thread claims at a time.  Few and large chunks leave threads idle at the end of a step, many and
small ones pay for claiming; so a column step gets a multiple of the thread count, about `target` nanoseconds each, and
a step that is over in less than a synchronisation costs (`tiny`) stays whole.  No result depends on any of this.
"""

from __future__ import annotations

from ...cache.parts import CHUNK
from ...kernels import record as R
from ...kernels.catalogue import word
from . import layout as L
from .atomics import load, store

MAX_SPLIT = 16  # attention is split into its chunks when a pass has at most this many (row, key head)
FEW_SPLIT = 3  # where rows share a stream: and fewer than this many per thread, since split they share no work
TILE = 8  # where rows share a stream: (row, key head) that a chunk of whole attention has, if there are enough
WINDOW = word("attention", "window")
PER_THREAD = 8  # chunks of a chain, at most, per thread
LONG_SPLIT = 4  # chunks of split attention are this many times as long: each streams one run of the cache


def make_plan(ctl, bank):
    """Write the plan of a pass into its bank: chunks and units of every chain, chunks of every step, counters at 0.

    `bank` already holds the pass's rows, streams and row table.  Returns 0.
    """
    records = load(ctl + L.F_RECORDS)
    chains = load(ctl + L.F_CHAINS)
    steps = load(ctl + L.F_STEPS)
    n_steps = load(ctl + L.F_N_STEPS)
    totals = bank + load(ctl + L.F_TOTALS)
    counters = bank + load(ctl + L.F_COUNTERS)
    threads = load(ctl + L.F_THREADS)
    target = load(ctl + L.F_TARGET)
    tiny = load(ctl + L.F_TINY)
    m = load(bank + 8 * R.M)
    rows = load(bank + 8 * R.ROW_TABLE)
    most_heads = 1  # of any attention
    for c in range(load(steps + (n_steps - 1) * L.STEP_BYTES + 8)):
        head = records + load(chains + c * L.CHAIN_BYTES) * R.WORDS * 8
        if load(head + 8 * R.RULE) == R.ATTENTION:
            most_heads = max(most_heads, load(head + 8 * R.UNITS))
    longest = 0
    together = 0  # whether some neighbouring rows belong to one stream
    for r in range(m):
        row = rows + r * R.ROW_BYTES
        longest = max(longest, load(row + 8 * R.POS) // CHUNK + 1)
        if r > 0 and load(row + 8 * R.STREAM) == load(row - R.ROW_BYTES + 8 * R.STREAM):
            together = 1
    split = 0
    pairs = m * most_heads
    if threads > 1 and longest > 1 and pairs <= MAX_SPLIT and (together == 0 or pairs < FEW_SPLIT * threads):
        split = 1
    store(bank + 8 * R.SPLIT, split)
    store(bank + 8 * R.NPART, longest)
    for s in range(n_steps):
        first = load(steps + s * L.STEP_BYTES)
        last = load(steps + s * L.STEP_BYTES + 8)
        work = 0  # nanoseconds of the whole step on one thread
        for c in range(first, last):
            head = records + load(chains + c * L.CHAIN_BYTES) * R.WORDS * 8
            rule = load(head + 8 * R.RULE)
            units = load(head + 8 * R.UNITS)
            cost = load(head + 8 * R.COST)
            k = load(bank + 8 * load(head + 8 * R.ROWS_WORD)) * load(head + 8 * R.ROWS_TIMES)
            time = 0
            if rule == R.COLS:
                # weights stream at 25 bytes per nanosecond for one row, and cost half as much again for each further one
                time = units * cost * max(4, 2 * k + 2) // 100
            elif rule == R.ROWS:
                units *= k
                time = units * cost // 4
            elif rule == R.ATTENTION:
                # cost is bytes per position and key head
                window = load(head + 8 * WINDOW)
                heads = units
                units = 0
                for r in range(k):
                    position = load(rows + r * R.ROW_BYTES + 8 * R.POS)
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
            plan = bank + L.B_PLAN + c * L.PLAN_BYTES
            store(plan, time)
            store(plan + 8, units)
            work += time
        total = 0
        for c in range(first, last):
            plan = bank + L.B_PLAN + c * L.PLAN_BYTES
            time = load(plan)
            units = load(plan + 8)
            n = 1
            long = target
            most = PER_THREAD * threads
            if load(records + load(chains + c * L.CHAIN_BYTES) * R.WORDS * 8 + 8 * R.RULE) == R.ATTENTION:
                if split == 1:
                    long = LONG_SPLIT * target
                elif together == 1:
                    most = min(most, max(1, units // TILE // threads) * threads)
            if threads > 1 and work >= tiny and (time >= tiny or first + 1 == last):
                n = (time // long + threads) // threads * threads
            n = min(units, min(n, most))
            store(plan, n)
            store(plan + 16, total)
            total += n
        if threads == 1 or work < tiny or total == 0:
            total = 1
        store(totals + s * 8, total)
        store(counters + s * L.COUNTER_BYTES + L.C_CLAIM, 0)
        store(counters + s * L.COUNTER_BYTES + L.C_DONE, 0)
    store(bank + L.B_PROGRESS, 0)
    return 0
