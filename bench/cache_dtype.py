"""python -m bench.cache_dtype: one token with keys and values in q8_0, against f16.

At each context, both engines compute the same token in turn, on one thread each; the state goes back after each.
Printed: the fastest CPU time of both in milliseconds, the ratio of these, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import statistics
from time import thread_time

import numpy as np

import fucina

DTYPES = ("f16", "q8_0")


def measure(models: dict[str, fucina.Model], context: int, times: int) -> dict[str, list[float]]:
    """CPU seconds of one token after `context` positions, by number format."""
    ids = [int(t) for t in np.random.default_rng(0).integers(300, 8000, context + 1)]
    states = {name: model.new_cache(context + 1) for name, model in models.items()}
    for name, model in models.items():
        model.forward_rows([(states[name], ids[:context], "none")])
    found: dict[str, list[float]] = {name: [] for name in models}
    for i in range(times):
        for name in DTYPES[:: 1 if i % 2 else -1]:
            start = thread_time()
            models[name].forward_rows([(states[name], ids[context:], "last")])
            found[name].append(thread_time() - start)
            states[name].rewind(context)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--contexts", type=int, nargs="+", default=[300, 1500, 4000])
    parser.add_argument("--times", type=int, default=60)
    args = parser.parse_args()
    models = {name: fucina.load(args.model, threads=1, cache_dtype=name) for name in DTYPES}
    for context in args.contexts:
        f16, q8_0 = measure(models, context, args.times).values()
        fastest, median = min(q8_0) / min(f16), statistics.median(q8_0) / statistics.median(f16)
        print(
            f"{context:5} positions: f16 {1e3 * min(f16):.2f} ms, q8_0 {1e3 * min(q8_0):.2f} ms, "
            f"ratio {fastest:.3f}, of medians {median:.3f}"
        )


if __name__ == "__main__":
    main()
