"""python -m bench.odds: how often the next token is the one that a source would have drafted.

The prompts of `speculation_tasks` are decoded plainly.  At every position the sources are asked, and told what came: the
text itself by the length of its match, and, where nothing matches, the recycled candidates, first and second.  The
package's priors (`fucina/speculative/odds.py`) are these numbers, rounded.  Nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import fucina
from fucina.chat import ChatTemplate
from fucina.generation import Generation
from fucina.measure import results
from fucina.measure.tables import Table, text
from fucina.ops.native.cores import default_threads
from fucina.speculative import SamIndex, TokenRecycling
from fucina.speculative.odds import MATCH_PRIOR

from .records import own_file
from .speculation import loop_period, prompt_ids
from .speculation_tasks import MAX_TOKENS, tasks

CANDIDATES = 8
CLASSES = [match for match, _ in MATCH_PRIOR]


class Count:
    """Trials and hits by name."""

    def __init__(self) -> None:
        self.trials: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()

    def add(self, name: str, hit: bool) -> None:
        """One trial."""
        self.trials[name] += 1
        self.hits[name] += hit


class Best:
    """A logit processor that changes nothing and keeps the best tokens of each row."""

    def __init__(self, tops: list[list[int]]) -> None:
        self.tops = tops

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Keep the best tokens."""
        self.tops.append(np.argsort(-logits, kind="stable")[:CANDIDATES].tolist())

    def commit(self, token: int) -> None:
        """Nothing to remember."""


def replay(
    count: Count, prompt: Sequence[int], reply: Sequence[int], tops: Sequence[Sequence[int]], vocab: int
) -> None:
    """Ask the sources before every token of a reply; tops are the best tokens of the row that chose it."""
    index, recycling = SamIndex(1, 1 << 30), TokenRecycling(vocab)
    index.observe(np.array(prompt))
    recycling.observe(prompt)
    last = prompt[-1]
    for token, top in zip(reply, tops, strict=False):
        match = index.match_len()
        draft = index.draft(1) if match else []
        if draft:
            label = max(c for c in CLASSES if c <= match)
            count.add(f"match {label}", draft[0] == token)
        candidates = recycling.top_k_of(last)
        if match < 2 and candidates:
            count.add("recycled, first", candidates[0] == token)
            count.add("recycled, second", candidates[1:2] == [token])
            count.add("recycled, any of 8", token in candidates)
        index.observe(np.array([token]))
        recycling.update(last, top)
        recycling.observe([token])
        last = token


def tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record."""
    classes = [*CLASSES[1:], None]
    body = []
    for name, (trials, hits) in record["odds"].items():
        label = name
        if name.startswith("match "):
            low = int(name.split()[1])
            high = classes[CLASSES.index(low)]
            wide = (
                f"{low} tokens"
                if high == low + 1
                else f"{low} to {high - 1} tokens"
                if high
                else f"{low} tokens or more"
            )
            label = f"the text after a match of {wide}"
        body.append([label, str(trials), f"{hits / trials:.0%}"])
    return [("how often a source has the next token", (["source", "positions", "right"], body))]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.odds", description=(__doc__ or "").split("\n")[0].split(": ")[1])
    p.add_argument("--model", default="smollm2", help="a known name (smollm2)")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--dry", action="store_true", help="do not store")
    a = p.parse_args(argv)
    threads = default_threads()
    model = fucina.load(a.model, threads=threads)
    template, count, texts = ChatTemplate.of(model), Count(), 0
    for task in tasks():
        ids = prompt_ids(model, template, task)
        tops: list[list[int]] = []

        out = model.generate(ids, max_tokens=MAX_TOKENS, processor=Best(tops), **task.sampling)
        assert isinstance(out, Generation)
        if not loop_period(out.tokens):
            replay(count, ids, out.tokens, tops, model.n_tokens)
            texts += 1
    model.close()
    order = [f"match {c}" for c in CLASSES] + ["recycled, first", "recycled, second", "recycled, any of 8"]
    odds = {name: [count.trials[name], count.hits[name]] for name in order if count.trials[name]}
    record: dict[str, Any] = {"settings": {"threads": threads, "texts": texts}, "odds": odds}
    for title, table in tables(record):
        print(f"{title}\n{text(table)}")
    if not a.dry:
        record = {"stamp": results.stamp(f"python -m bench.odds --model {a.model}"), **record}
        results.store(a.output or own_file(), f"odds/{a.model}", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
