"""python -m bench.verify_cost: what a pass of k rows costs in plain steps, at several contexts.

`--write` makes it the table that speculation starts from (`fucina/speculative/verify_cost.json`).  Live timings rescale
it on other machines and models; what is wanted from it is its shape.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from time import perf_counter

import fucina
from fucina import Model
from fucina.measure import results
from fucina.ops.native.cores import default_threads
from fucina.speculative.cost_table import DEFAULT, CostTable

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 20, 24, 25, 32, 33, 48, 64, 96, 128)
CONTEXTS = (128, 1024, 4096)


def measure(
    model: Model,
    rows: tuple[int, ...] = ROWS,
    contexts: tuple[int, ...] = CONTEXTS,
    rounds: int = 15,
    say=lambda text: None,
) -> tuple[tuple[float, ...], ...]:
    """Costs [contexts][rows]: the median over rounds of (seconds of k rows) / (seconds of one row in the same round).

    Every round takes all widths in turn, so that a slow spell of the machine falls on all of them.
    """
    vocab, table = model.config.vocab_size, []
    for context in contexts:
        cache = model.new_cache(context + max(rows))
        model.forward_rows([(cache, [(7 * i + 11) % vocab for i in range(context)], "none")])
        ratios: dict[int, list[float]] = {k: [] for k in rows}
        for turn in range(rounds + 1):
            seconds = {}
            for k in rows:
                ids = [(31 * i + turn) % vocab for i in range(k)]
                start = perf_counter()
                model.forward_rows([(cache, ids, "all")])
                seconds[k] = perf_counter() - start
                cache.truncate(context)
            if turn:  # the first is for warming up
                for k in rows:
                    ratios[k].append(seconds[k] / seconds[rows[0]])
        table.append(tuple(round(statistics.median(ratios[k]), 3) for k in rows))
        say(f"context {context}: " + "  ".join(f"{k}: {c:.2f}" for k, c in zip(rows, table[-1], strict=True)))
    return tuple(table)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.verify_cost", description=__doc__.split("\n")[0])
    p.add_argument("--model", default="smollm2", help="a known name, or a .gguf (smollm2)")
    p.add_argument("--threads", type=int, help="the physical cores by default")
    p.add_argument("--rounds", type=int, default=15)
    p.add_argument("--write", action="store_true", help="make it the package's default table")
    a = p.parse_args(argv)
    a.threads = a.threads or default_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # longer than some models were trained for: the time is the same
        model = fucina.load(a.model, threads=a.threads, context=max(CONTEXTS) + max(ROWS))
    costs = measure(model, ROWS, CONTEXTS, a.rounds, lambda text: print(text, flush=True))
    model.close()
    name = a.model if "/" not in a.model and "\\" not in a.model else "a file"
    stamp = results.stamp(
        f"python -m bench.verify_cost --model {name} --threads {a.threads} --rounds {a.rounds} --write"
    )
    if a.write:
        CostTable(ROWS, CONTEXTS, costs, {"model": name, **stamp}).save(DEFAULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
