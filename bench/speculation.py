"""python -m bench.speculation: plain and speculative decoding of fixed prompts, in turn.

For every kind of task: speedup of decoding (plain seconds / speculative seconds of the same round, median over prompts,
with a bootstrap interval over prompts), what it would be by the table of verify costs alone, acceptance, tokens a step,
and the part of steps that the gate turned off.  Outputs that fall into a loop, and very short ones, are listed apart: a
small model that repeats itself would flatter speculation.  Every variant must give the tokens of plain decoding.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import fucina
from fucina import Model
from fucina.chat import ChatTemplate
from fucina.decoding import Decoder
from fucina.generation import Generation
from fucina.measure import results
from fucina.measure.machine import describe_machine, slug
from fucina.ops.native.cores import default_threads
from fucina.speculative import CascadeOptions, Options, SpeculationIndex, SpeculativeDecoder, StepRecord, default_table

from .speculation_tasks import KINDS, MAX_TOKENS, Task, tasks

RESULTS = Path(__file__).resolve().parent / "results"
SHORTEST = 24  # tokens of an output that is timed
LONGEST_PERIOD = 32

# name -> options of the gate, options of the cascade
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "speculative": ({}, {}),
    "gate off": ({"min_speedup": 0.0}, {}),
    "text alone": ({}, {"recycling_chain": 0}),
    "recycling alone": ({}, {"conversation": False}),
}


def loop_period(tokens: Sequence[int]) -> int:
    """Return the period (1 to 32) with which at least the second half of the tokens repeats itself, or 0."""
    n = len(tokens)
    for period in range(1, LONGEST_PERIOD + 1):
        half = n // 2
        if n >= 2 * period and all(tokens[i] == tokens[i - period] for i in range(max(half, period), n)):
            return period
    return 0


def make_decoder(model: Model, task: Task, variant: str, log: Callable[[StepRecord], None]) -> Decoder:
    """The decoder of a variant for one run of a task."""
    if variant == "plain":
        return Decoder(model)
    options, cascade = VARIANTS[variant]
    index = SpeculationIndex(model.config.vocab_size, CascadeOptions(**cascade))
    for reference in task.references:
        index.add_reference(model.tokenizer.encode(reference, special=False))
    return SpeculativeDecoder(model, index, Options(**options), on_step=log)


def priced(log: Sequence[StepRecord]) -> float:
    """Speedup by the table alone: tokens over the cost of all steps in plain steps."""
    curve = default_table()
    paid = sum(curve.cost(r.taken.rows, r.taken.context) if r.kind == "verify" else 1.0 for r in log)
    return sum(r.committed for r in log) / paid if paid else 1.0


def prompt_ids(model: Model, template: ChatTemplate, task: Task) -> list[int]:
    """The tokens that a task begins with."""
    if not task.chat:
        return model.tokenizer.encode_prompt(task.text)
    return template.encode(model.tokenizer, [{"role": "user", "content": task.text}])


def measure(model: Model, task: Task, template: ChatTemplate, variants: Sequence[str], rounds: int) -> dict[str, Any]:
    """Run one task `rounds` times with each variant, in turn, plain first in every other round."""
    ids = prompt_ids(model, template, task)
    seconds: dict[str, list[float]] = {v: [] for v in ("plain", *variants)}
    last: dict[str, Any] = {}
    reference: Generation | None = None
    for turn in range(rounds + 1):
        order = ["plain", *variants] if turn % 2 == 0 else [*reversed(variants), "plain"]
        for variant in order:
            log: list[StepRecord] = []
            decoder = make_decoder(model, task, variant, log.append)
            out = model.generate(ids, max_tokens=MAX_TOKENS, speculative=decoder, **task.sampling)
            reference = reference or out
            if out.tokens != reference.tokens:
                raise AssertionError(f"{task.kind} {task.index}: {variant} gives other tokens than plain decoding")
            if turn:  # the first round warms up
                seconds[variant].append(out.decode_seconds)
            if variant != "plain":
                last[variant] = {**out.speculation.as_dict(), "priced": priced(log), "sources": decoder.source.counts()}
    assert reference is not None
    tokens = reference.tokens
    return {
        "kind": task.kind,
        "index": task.index,
        "prompt_tokens": len(ids),
        "tokens": len(tokens),
        "finish": reference.finish_reason,
        "loop": loop_period(tokens),
        "seconds": seconds,
        "stats": last,
    }


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval."""
    x = np.array(values)
    draws = np.median(x[np.random.default_rng(0).integers(0, len(x), (4000, len(x)))], axis=1)
    return float(np.median(x)), float(np.quantile(draws, 0.025)), float(np.quantile(draws, 0.975))


def speedup(run: dict[str, Any], variant: str) -> float:
    """Median of paired ratios of one task."""
    return statistics.median(results.pair_ratios(run["seconds"]["plain"], run["seconds"][variant]))


def table(runs: Sequence[dict[str, Any]], variants: Sequence[str]) -> str:
    """Lines for people."""
    lines = []
    for kind in dict.fromkeys(r["kind"] for r in runs):
        mine = [r for r in runs if r["kind"] == kind]
        timed = [r for r in mine if not r["loop"] and r["tokens"] >= SHORTEST]
        loops, short = sum(r["loop"] > 0 for r in mine), sum(r["tokens"] < SHORTEST for r in mine)
        lines.append(f"{kind}: {len(timed)} prompts ({loops} loop, {short} short, apart)")
        for variant in variants:
            if not timed:
                continue
            ratios = [speedup(r, variant) for r in timed]
            middle, low, high = interval(ratios)
            s = [r["stats"][variant] for r in timed]
            drafted, steps = sum(x["drafted"] for x in s), sum(x["steps"] for x in s)
            lines.append(
                f"  {variant:16s} {middle:5.2f}x [{low:.2f}, {high:.2f}], worst {min(ratios):.2f}x; "
                f"by the table {statistics.median(x['priced'] for x in s):.2f}x, "
                f"worst {min(x['priced'] for x in s):.2f}x; "
                f"accepted {sum(x['accepted'] for x in s) / max(drafted, 1):.0%} of {drafted}, "
                f"{sum(x['committed'] for x in s) / max(steps, 1):.2f} tokens a step, "
                f"off {sum(x['disabled_steps'] for x in s) / max(steps, 1):.0%}"
            )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.speculation", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default="smollm2", help="a known name (smollm2)")
    p.add_argument("--threads", type=int, help="the physical cores by default")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}"
    )
    p.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT")
    p.add_argument("--first", type=int, default=99, metavar="N", help="only the first N prompts of a kind")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--dry", action="store_true", help="do not store")
    a = p.parse_args(argv)
    a.threads = a.threads or default_threads()
    model = fucina.load(a.model, threads=a.threads)
    template = ChatTemplate.of(model)
    runs, began = [], perf_counter()
    for task in tasks():
        if task.kind in a.kinds and task.index < a.first:
            runs.append(measure(model, task, template, a.variants, a.rounds))
            ratios = " ".join(f"{v} {speedup(runs[-1], v):.2f}x" for v in a.variants)
            print(f"[{perf_counter() - began:6.0f} s] {task.kind} {task.index}: {ratios}", file=sys.stderr, flush=True)
    model.close()
    print(table(runs, a.variants))
    if not a.dry:
        command = f"python -m bench.speculation --model {a.model} --threads {a.threads} --rounds {a.rounds}"
        output = a.output or RESULTS / f"{slug(describe_machine())}.json"
        provenance = default_table().provenance
        results.store(
            output, f"speculation/{a.model}", {"stamp": results.stamp(command), "costs": provenance, "runs": runs}
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
