"""python -m bench.join: what running streams notice of a long prompt that joins them.

Seven greedy streams decode; then a prompt of 2,000 tokens joins.  The scheduler takes it in chunks beside the decode
rows.  Printed, as multiples of a usual step of the seven (median of the steps before): the median and the longest step
while the prompt is computed; and how long the prompt waits for its first token, beside what it takes alone.  The
streams' tokens must be those without the newcomer.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import fucina
from fucina.engine import Scheduler, Stream
from fucina.errors import ResultsError
from fucina.measure import results
from fucina.measure.results import Spread
from fucina.measure.tables import Table, spread, text
from fucina.ops.native.cores import default_threads
from fucina.sampling import Sampler

from .records import own_file

STREAMS, BEFORE = 7, 40


def measure(model: fucina.Model, length: int) -> tuple[dict[str, float], list[list[int]]]:
    """One round: seconds of steps, and the tokens of the seven streams."""
    ids = model.tokenizer.encode("The sea was calm, and the ship went on towards the island. " * (length // 12 + 1))
    scheduler = Scheduler(model)
    seven = [
        scheduler.add(Stream(model.new_cache(1500), ids[i : 24 + 5 * i], Sampler(), max_tokens=1400))
        for i in range(STREAMS)
    ]
    while not all(s.decoding for s in seven):
        scheduler.step()
    usual = [timed(scheduler) for _ in range(BEFORE)]
    newcomer = scheduler.add(Stream(model.new_cache(length + 8), ids[:length], Sampler(), max_tokens=1))
    during = []
    while newcomer.finish is None:
        during.append(timed(scheduler))
    alone = Scheduler(model)
    alone.add(Stream(model.new_cache(length + 8), ids[:length], Sampler(), max_tokens=1))
    start = perf_counter()
    while alone.step() is not None:
        pass
    seconds = perf_counter() - start
    step = statistics.median(usual)
    found = {
        "longest before": max(usual) / step,
        "median during": statistics.median(during) / step,
        "longest during": max(during) / step,
        "95 of 100 during": sorted(during)[int(0.95 * len(during))] / step,
        "prompt": sum(during) / seconds,
        "steps": len(during),
    }
    return found, [s.tokens for s in seven]


def timed(scheduler: Scheduler) -> float:
    """Seconds of one step."""
    start = perf_counter()
    scheduler.step()
    return perf_counter() - start


def tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record."""
    rounds = record["rounds"]
    body = [[name, spread(Spread.of([r[name] for r in rounds]), 2)] for name in rounds[0]]
    heading = (
        f"a prompt of {record['settings']['length']} tokens joins {STREAMS} streams: steps, as multiples of a usual one"
    )
    return [(heading, (["", "rounds"], body))]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 if the tokens differ."""
    p = argparse.ArgumentParser(prog="python -m bench.join", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default="smollm2", help="name or path (smollm2)")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--length", type=int, default=2000, help="tokens of the prompt (2000)")
    p.add_argument("--threads", type=int, help="the physical cores by default")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--dry", action="store_true", help="do not store")
    a = p.parse_args(argv)
    threads = a.threads or default_threads()
    model = fucina.load(a.model, threads=threads)
    rounds, texts = [], []
    for _ in range(a.rounds):
        found, tokens = measure(model, a.length)
        rounds.append(found)
        texts.append(tokens)
    shortest = [min(len(t[i]) for t in texts) for i in range(STREAMS)]
    if any(t[i][: shortest[i]] != texts[0][i][: shortest[i]] for t in texts for i in range(STREAMS)):
        raise ResultsError("the streams' tokens differ between rounds")
    model.close()
    command = f"python -m bench.join --model {Path(a.model).stem} --threads {threads} --rounds {a.rounds}"
    settings = {"threads": threads, "length": a.length}
    record = results.rounded({"stamp": results.stamp(command), "settings": settings, "rounds": rounds})
    for title, table in tables(record):
        print(f"{title}\n{text(table)}\n")
    if not a.dry:
        results.store(a.output or own_file(), f"join/{Path(a.model).stem}", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
