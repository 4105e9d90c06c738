"""python -m bench.speculation: plain and speculative decoding of fixed prompts, in turn.

For every kind of task, speedup of decoding: plain seconds / speculative seconds of the same round, median over prompts,
with a bootstrap interval over prompts.  Beside it, what it would be by the table of verify costs alone, acceptance, tokens
per step, and the part of steps that the gate turned off.  Outputs that fall into a loop, and very short ones, are listed apart: a
small model that repeats itself would flatter speculation.  Every variant must give the tokens of plain decoding.

Overhead: what a step takes beside its pass, beyond what plain decoding of as many tokens takes beside its passes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import fucina
from fucina import Model
from fucina.chat import ChatTemplate
from fucina.engine import PassStats, Scheduler
from fucina.generation import Generation
from fucina.measure import results
from fucina.measure.results import Spread
from fucina.measure.tables import Table, spread, text
from fucina.ops.native.cores import default_threads
from fucina.speculative import (
    CascadeOptions,
    Options,
    SourceDrafter,
    SpeculationIndex,
    StepRecord,
    default_table,
)

from .records import own_file
from .speculation_tasks import KINDS, MAX_TOKENS, Task
from .speculation_tasks import tasks as fixed_tasks

SHORTEST = 24  # tokens of an output that is timed
LONGEST_PERIOD = 32

# name -> options of the gate, options of the cascade
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "speculative": ({}, {}),
    "gate off": ({"min_speedup": 0.0}, {}),
    "text alone": ({}, {"recycling_chain": 0}),  # without references
    "references alone": ({}, {"conversation": False, "recycling_chain": 0}),
    "recycling alone": ({}, {"conversation": False}),  # without references
}
LIMITS = {"nothing drafted": 0.03, "verify": 0.05}  # of the pass, what drafting may cost


def loop_period(tokens: Sequence[int]) -> int:
    """Return the period (1 to 32) with which at least the second half of the tokens repeats itself, or 0."""
    n = len(tokens)
    for period in range(1, LONGEST_PERIOD + 1):
        half = n // 2
        if n >= 2 * period and all(tokens[i] == tokens[i - period] for i in range(max(half, period), n)):
            return period
    return 0


def applies(task: Task, variant: str) -> bool:
    """Whether a variant is of use for a task."""
    return variant != "references alone" or bool(task.references)


def make_drafter(
    model: Model, task: Task, variant: str, log: Callable[[StepRecord], None] | None = None
) -> SourceDrafter | None:
    """The drafter of a variant for one run of a task; None for plain decoding."""
    if variant == "plain":
        return None
    options, cascade = VARIANTS[variant]
    index = SpeculationIndex(model.n_tokens, CascadeOptions(**cascade))
    if variant not in ("text alone", "recycling alone"):
        for reference in task.references:
            index.add_reference(model.tokenizer.encode(reference, special=False))
    return SourceDrafter(model, index, Options(**options), on_step=log)


@contextmanager
def timed_steps(model: Model) -> Iterator[list[tuple[float, float, int, bool]]]:
    """Of every decode step inside the `with`: seconds beside its pass and of it, tokens committed, whether it had a draft."""
    step, steps = Scheduler.step, []

    def timed(scheduler: Scheduler) -> PassStats | None:
        (stream,) = scheduler.streams
        before, decoding = stream.committed, stream.decoding
        start = perf_counter()
        stats = step(scheduler)
        if stats is not None and decoding:
            beside = perf_counter() - start - stats.seconds
            steps.append((beside, stats.seconds, stream.committed - before, stats.drafted > 0))
        return stats

    Scheduler.step = timed  # type: ignore[assignment, method-assign]
    try:
        yield steps
    finally:
        Scheduler.step = step  # type: ignore[method-assign]


def priced(log: Sequence[StepRecord]) -> float:
    """Speedup by the table alone: tokens over the cost of all steps in plain steps."""
    curve = default_table()
    paid = sum(curve.cost(r.stats.rows, r.stats.context) if r.kind == "verify" else 1.0 for r in log)
    return sum(r.committed for r in log) / paid if paid else 1.0


def prompt_ids(model: Model, template: ChatTemplate, task: Task) -> list[int]:
    """The tokens that a task begins with."""
    if not task.chat:
        return model.tokenizer.encode_prompt(task.text)
    return template.encode(model.tokenizer, [{"role": "user", "content": task.text}])


def measure(model: Model, task: Task, template: ChatTemplate, variants: Sequence[str], rounds: int) -> dict[str, Any]:
    """Run one task `rounds` times with each variant, in turn, plain first in every other round."""
    ids = prompt_ids(model, template, task)
    variants = [v for v in variants if applies(task, v)]
    seconds: dict[str, list[float]] = {v: [] for v in ("plain", *variants)}
    last: dict[str, Any] = {}
    reference: Generation | None = None
    for turn in range(rounds + 1):
        order = ["plain", *variants] if turn % 2 == 0 else [*reversed(variants), "plain"]
        for variant in order:
            log: list[StepRecord] = []
            drafter = make_drafter(model, task, variant, log.append)
            out = model.generate(ids, max_tokens=MAX_TOKENS, speculative=drafter or False, **task.sampling)
            reference = reference or out
            if out.tokens != reference.tokens:
                raise AssertionError(f"{task.kind} {task.index}: {variant} gives different tokens than plain decoding")
            if turn:  # the first round warms up
                seconds[variant].append(out.decode_seconds)
            if drafter is not None:
                assert isinstance(drafter.source, SpeculationIndex)
                counts = drafter.source.counts()
                last[variant] = {**drafter.stats.as_dict(), "priced": priced(log), "sources": counts}
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


def overhead(model: Model, task: Task, ids: Sequence[int], rounds: int) -> dict[str, list[float]]:
    """Of each kind of step: [steps, median seconds that drafting takes beside the pass, median seconds of the pass]."""
    plain: list[tuple[float, float, int, bool]] = []
    drafting: list[tuple[float, float, int, bool]] = []
    for turn in range(rounds):
        for variant in ("plain", "speculative") if turn % 2 == 0 else ("speculative", "plain"):
            drafter = make_drafter(model, task, variant)
            with timed_steps(model) as steps:
                model.generate(ids, max_tokens=MAX_TOKENS, speculative=drafter or False, **task.sampling)
            (plain if variant == "plain" else drafting).extend(steps)
    beside_plain = statistics.median(beside for beside, *_ in plain) if plain else 0.0
    out = {}
    for kind, drafted in (("nothing drafted", False), ("verify", True)):
        mine = [step for step in drafting if step[3] == drafted]
        if mine:
            beside = [beside - max(committed, 1) * beside_plain for beside, _, committed, _ in mine]
            out[kind] = [len(mine), statistics.median(beside), statistics.median(inside for _, inside, *_ in mine)]
    return out


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Median and its 95 % bootstrap interval."""
    x = np.array(values)
    draws = np.median(x[np.random.default_rng(0).integers(0, len(x), (4000, len(x)))], axis=1)
    return float(np.median(x)), float(np.quantile(draws, 0.025)), float(np.quantile(draws, 0.975))


def speedup(run: dict[str, Any], variant: str) -> float:
    """Median of paired ratios of one task."""
    return statistics.median(results.pair_ratios(run["seconds"]["plain"], run["seconds"][variant]))


def timed(runs: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The runs of a kind that count: no loop, and not very short."""
    return [r for r in runs if r["kind"] == kind and not r["loop"] and r["tokens"] >= SHORTEST]


def _interval(runs: Sequence[dict[str, Any]], variant: str) -> str:
    middle, low, high = interval([speedup(r, variant) for r in runs])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def _task_row(runs: Sequence[dict[str, Any]], kind: str) -> list[str]:
    mine, counted = [r for r in runs if r["kind"] == kind], timed(runs, kind)
    s = [r["stats"]["speculative"] for r in counted]
    steps = sum(x["steps"] for x in s)
    return [
        kind,
        f"{len(counted)} ({sum(r['loop'] > 0 for r in mine)}, {len(mine) - len(counted) - sum(r['loop'] > 0 for r in mine)})",
        _interval(counted, "speculative"),
        f"{min(speedup(r, 'speculative') for r in counted):.2f}",
        f"{statistics.median(x['priced'] for x in s):.2f}",
        f"{min(x['priced'] for x in s):.2f}",
        f"{sum(x['accepted'] for x in s) / max(sum(x['drafted'] for x in s), 1):.0%}",
        f"{sum(x['committed'] for x in s) / max(steps, 1):.2f}",
        f"{sum(x['disabled_steps'] for x in s) / max(steps, 1):.0%}",
    ]


def tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record: the tasks, the sources, the overhead."""
    runs = record["runs"]
    kinds = [k for k in dict.fromkeys(r["kind"] for r in runs) if timed(runs, k)]
    header = ["task", "prompts (loops, short ones apart)", "speedup (95 % interval)", "worst prompt",
              "by costs alone", "worst prompt", "accepted", "tokens per step", "gate off"]  # fmt: skip
    out = [("speculative decoding over plain decoding", (header, [_task_row(runs, k) for k in kinds]))]
    variants = [v for v in VARIANTS if any(v in r["stats"] for r in runs)]
    body = []
    for kind in kinds:
        counted = timed(runs, kind)
        body.append([kind, *(_interval(counted, v) if all(v in r["stats"] for r in counted) else "" for v in variants)])
    out.append(("with the gate off, and with each source alone", (["task", *variants], body)))
    return out


def overhead_tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record of overheads."""
    body = []
    for kind, limit in LIMITS.items():
        found = [run[kind] for run in record["runs"] if kind in run]
        beside = Spread.of([1e6 * b for _, b, _ in found])
        share = Spread.of([b / p for _, b, p in found])
        body.append(
            [kind, f"{sum(int(n) for n, _, _ in found)}", spread(beside), f"{share.median:.1%}", f"{limit:.0%}"]
        )
    header = ["step", "steps", "microseconds beside the pass", "of the pass", "limit"]
    return [("what drafting, observing and gating take", (header, body))]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.speculation", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default="smollm2", help="a known name (smollm2)")
    p.add_argument("--threads", type=int, help="the physical cores by default")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=f"of {', '.join(KINDS)}"
    )
    p.add_argument(
        "--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="VARIANT",
        help=f"of {', '.join(VARIANTS)}; \"speculative\" is always measured",
    )  # fmt: skip
    p.add_argument("--overhead", action="store_true", help="only what drafting takes beside the passes; stored apart")
    p.add_argument("--first", type=int, default=99, metavar="N", help="only the first N prompts of a kind")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--dry", action="store_true", help="do not store")
    a = p.parse_args(argv)
    a.threads = a.threads or default_threads()
    a.variants = list(dict.fromkeys(["speculative", *a.variants]))
    model = fucina.load(a.model, threads=a.threads)
    template = ChatTemplate.of(model)
    chosen = [t for t in fixed_tasks() if t.kind in a.kinds and t.index < a.first]
    runs: list[dict[str, Any]] = []
    began = perf_counter()
    for task in chosen:
        if a.overhead:
            runs.append(overhead(model, task, prompt_ids(model, template, task), a.rounds))
            continue
        runs.append(measure(model, task, template, a.variants, a.rounds))
        ratios = " ".join(f"{v} {speedup(runs[-1], v):.2f}x" for v in runs[-1]["stats"])
        print(f"[{perf_counter() - began:6.0f} s] {task.kind} {task.index}: {ratios}", file=sys.stderr, flush=True)
    model.close()
    record: dict[str, Any] = {"settings": {"threads": a.threads, "rounds": a.rounds}, "runs": runs}
    for title, table in (overhead_tables if a.overhead else tables)(record):
        print(f"{title}\n{text(table)}\n")
    if not a.dry:
        command = f"python -m bench.speculation --model {a.model} --threads {a.threads} --rounds {a.rounds}"
        stamp = results.stamp(command + " --overhead" * a.overhead)
        output = a.output or own_file()
        name = "overhead" if a.overhead else "speculation"
        results.store(output, f"{name}/{a.model}", {"stamp": stamp, "costs": default_table().provenance, **record})
    return 0


if __name__ == "__main__":
    sys.exit(main())
