"""python -m bench.verify_cost: what a pass of k rows costs in plain steps, at several contexts.

`--write` makes it the table that speculation starts from (`fucina/speculative/verify_cost.json`).  The measuring is
that of `fucina bench --verify-cost`, which writes a table of one's own.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import fucina
from fucina.engine.cost_table import DEFAULT
from fucina.measure.verify_cost import CONTEXTS, ROUNDS, ROWS, measured_table, public_name
from fucina.ops.native.cores import default_threads


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.verify_cost", description=__doc__.split("\n")[0])
    p.add_argument("--model", default="smollm2", help="a known name, or a .gguf (smollm2)")
    p.add_argument("--threads", type=int, help="the physical cores by default")
    p.add_argument("--rounds", type=int, default=ROUNDS)
    p.add_argument("--write", action="store_true", help="make it the package's default table")
    a = p.parse_args(argv)
    a.threads = a.threads or default_threads()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # longer than some models were trained for: the time is the same
        model = fucina.load(a.model, threads=a.threads, context=max(CONTEXTS) + max(ROWS))
    name = public_name(a.model)
    command = f"python -m bench.verify_cost --model {name} --threads {a.threads} --rounds {a.rounds} --write"
    table = measured_table(model, name, command, rounds=a.rounds, say=lambda text: print(text, flush=True))
    model.close()
    if a.write:
        table.save(DEFAULT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
