"""What speculation under a grammar costs, without a clock: passes and rows, priced by the cost table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import fucina
from fucina import Grammar
from fucina.measure.tables import text
from fucina.speculative import Options, SourceDrafter, SpeculationIndex, StepRecord

Task = tuple[str, Any, Mapping[str, Any]]  # prompt, schema, options of `generate`


def priced(model: fucina.Model, prompt: str, grammar: Grammar, **options: Any) -> tuple[fucina.Generation, float]:
    """A speculative reply, and what its passes cost in plain steps."""
    steps: list[StepRecord] = []
    chosen = Options()
    index = SpeculationIndex(model.n_tokens)
    drafter = SourceDrafter(model, index, chosen, timed=False, on_step=steps.append)
    g = model.generate(prompt, grammar=grammar, speculative=drafter, **options)
    return g, sum(chosen.table.cost(1 + step.drafted, step.stats.context) for step in steps)


def work(model: fucina.Model, replies: Mapping[str, Sequence[Task]]) -> None:
    """Print tokens per plain step of work; plain decoding has 1."""
    body = []
    for name, tasks in replies.items():
        tokens = passes = drafted = accepted = 0
        cost, lowest = 0.0, math.inf
        for prompt, schema, options in tasks:
            g, one = priced(model, prompt, Grammar.json_schema(schema), max_tokens=300, **options)
            assert g.speculation is not None
            tokens, passes = tokens + len(g.tokens), passes + g.speculation.steps
            drafted, accepted = drafted + g.speculation.drafted, accepted + g.speculation.accepted
            cost, lowest = cost + one, min(lowest, len(g.tokens) / one)
        counts = map(str, (len(tasks), tokens, passes, drafted, accepted))
        body.append([name, *counts, f"{cost:.1f}", f"{tokens / cost:.3f}", f"{lowest:.3f}"])
    header = [
        "reply",
        "replies",
        "tokens",
        "passes",
        "drafted",
        "accepted",
        "work, plain steps",
        "tokens / work",
        "lowest",
    ]
    print(text((header, body)))
