"""python -m bench.sampling: what choosing a token costs, in microseconds and as a part of a decode step.

The rows are a model's own, after ordinary prompts.  A call of the sampler runs on one thread: it is timed by that thread's
clock, and of many calls on one row the shortest counts; a setting's figures are the median and the worst of the rows.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from time import perf_counter, thread_time_ns
from typing import Any

import numpy as np

import fucina
from fucina.measure.tables import Table, text
from fucina.ops.native.cores import default_threads
from fucina.sampling import Sampler, SamplerOptions

from .bits import PROMPTS

SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, repeat_penalty": {"repeat_penalty": 1.1},
    "temperature 0.2, top_p 0.9": {"temperature": 0.2, "top_p": 0.9},
    "temperature 0.7": {"temperature": 0.7},
    "temperature 1": {"temperature": 1.0},
    "temperature 1.5": {"temperature": 1.5},
    "top_k 40": {"temperature": 1.0, "top_k": 40},
    "top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "top_p 0.95, temperature 1.5": {"temperature": 1.5, "top_p": 0.95},
    "min_p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "all penalties": {"temperature": 1.0, "repeat_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1},
    "everything": {"temperature": 0.8, "top_k": 100, "top_p": 0.95, "min_p": 0.02, "repeat_penalty": 1.1},
}


def rows_of(model: fucina.Model) -> tuple[np.ndarray, list[int]]:
    """Rows of logits float32 [n, vocab] after each prompt and inside a continuation of it, and a history of 200 tokens."""
    rows, history = [], []
    for prompt in PROMPTS:
        ids = model.tokenizer.encode_prompt(prompt)
        result: Any = model.generate(ids, max_tokens=48, temperature=1.0, seed=1, ignore_eos=True)
        made = result.tokens
        logits = model.logits(ids + made)
        rows += [logits[len(ids) - 1], logits[len(ids) + 15], logits[-1]]
        history += ids + made
    return np.array(rows), history[-200:]


def step_seconds(model: fucina.Model, steps: int = 40) -> float:
    """Seconds of one decode step: the median of forward passes of one row."""
    kv, taken = model.new_cache(steps + 1), []
    for token in range(1, steps + 1):
        start = perf_counter()
        model.forward_rows([(kv, [token], "last")])
        taken.append(perf_counter() - start)
    return statistics.median(taken)


def microseconds(options: dict[str, Any], rows: np.ndarray, history: list[int], rounds: int) -> list[float]:
    """The shortest call on each row."""
    sampler, out = Sampler(SamplerOptions(**options)), []
    for row in rows:
        taken = []
        for _ in range(rounds):
            start = thread_time_ns()
            sampler.next(row, history)
            taken.append(thread_time_ns() - start)
        out.append(min(taken) / 1000)
    return out


def table(figures: dict[str, list[float]], step: float) -> Table:
    """One line for each setting."""
    body = []
    for name, taken in figures.items():
        middle, worst = statistics.median(taken), max(taken)
        body.append([name, f"{middle:.0f}", f"{worst:.0f}", f"{middle / step / 1e4:.1f}", f"{worst / step / 1e4:.1f}"])
    return ["setting", "µs per token", "worst row", "% of a step", "worst"], body


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.sampling", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default="smollm2", help="a known name, or a path (smollm2)")
    p.add_argument(
        "--threads", type=int, default=default_threads(), help="of the decode step; physical cores by default"
    )
    p.add_argument("--rounds", type=int, default=40, help="calls on each row (40)")
    a = p.parse_args(argv)
    model = fucina.load(a.model, threads=a.threads)
    rows, history = rows_of(model)
    step = step_seconds(model)
    model.close()
    figures = {name: microseconds(options, rows, history, a.rounds) for name, options in SETTINGS.items()}
    print(f"a step of {a.model} on {a.threads} threads takes {1000 * step:.2f} ms\n{text(table(figures, step))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
