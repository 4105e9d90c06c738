"""python -m bench.index: the suffix automaton over a million tokens of real text: time and memory per token.

The text is the sources of Python's standard library, in order of their names, by the model's own tokenizer.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import fucina
from fucina.measure import results
from fucina.measure.results import Spread
from fucina.measure.tables import Table, spread, text
from fucina.speculative import SamIndex

from .records import own_file

TOKENS = 1_000_000


def real_text() -> Iterator[str]:
    """Files of the standard library."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).parts):
        if "site-packages" not in path.parts:
            yield path.read_text(encoding="utf-8", errors="replace")


def collect(model: fucina.Model, tokens: int) -> np.ndarray:
    """So many ids of real text."""
    ids: list[int] = []
    for page in real_text():
        ids += model.tokenizer.encode(page, special=False)
        if len(ids) >= tokens:
            return np.array(ids[:tokens], np.int64)
    raise SystemExit(f"the standard library has only {len(ids)} tokens of the {tokens} that are wanted")


def measure(ids: np.ndarray, rounds: int) -> dict[str, Any]:
    """Microseconds per token of one bulk append, of appends of 4 tokens, and bytes per token."""
    bulk, fours, held = [], [], 0.0
    few = ids[: min(len(ids), 100_000)]
    SamIndex(2, 1 << 30).observe(ids[:64])  # loaded now
    for _ in range(rounds):
        index = SamIndex(2, 1 << 30)
        start = perf_counter()
        index.append(ids)
        bulk.append(1e6 * (perf_counter() - start) / len(ids))
        held = index.byte_size / len(ids)
        index = SamIndex(2, 1 << 30)
        start = perf_counter()
        for at in range(0, len(few), 4):
            index.observe(few[at : at + 4])
        fours.append(1e6 * (perf_counter() - start) / len(few))
    return {"bulk": bulk, "fours": fours, "bytes": held, "tokens": len(ids)}


def tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record."""
    m = record["index"]
    body = [
        [f"{m['tokens']:,} tokens at once", spread(Spread.of(m["bulk"]), 2), f"{m['bytes']:.0f}"],
        ["4 tokens per call, as a decoder does", spread(Spread.of(m["fours"]), 2), ""],
    ]
    return [("the suffix automaton over real text", (["append", "microseconds per token", "bytes per token"], body))]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(
        prog="python -m bench.index", description=(__doc__ or "").split("\n")[0].split(": ", 1)[1]
    )
    p.add_argument("--model", default="smollm2", help="whose tokenizer, a known name (smollm2)")
    p.add_argument("--tokens", type=int, default=TOKENS, help="1,000,000 by default")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--dry", action="store_true", help="do not store")
    a = p.parse_args(argv)
    model = fucina.load(a.model)
    ids = collect(model, a.tokens)
    model.close()
    record: dict[str, Any] = {"settings": {"threads": 1}, "index": measure(ids, a.rounds)}
    for title, table in tables(record):
        print(f"{title}\n{text(table)}")
    if not a.dry:
        record = {"stamp": results.stamp(f"python -m bench.index --model {a.model}"), **record}
        results.store(a.output or own_file(), f"index/{a.model}", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
