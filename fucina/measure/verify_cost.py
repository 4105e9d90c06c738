"""What a pass of k rows costs in plain steps, at several contexts: the table that speculation starts from.

A plain step is a pass of one row as plain decoding runs it: after another pass of one row, with a token chosen between the
two.  That matters: on some machines a pass of one row takes up to a third longer after a pass of many rows than
after one of its kind, and costs in units of that one would come out too low, so that too many drafts would be verified.

Live timings rescale the table on other machines and models; only its shape matters.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from ..cache import State
from ..engine.cost_table import CostTable
from ..errors import InvalidOption
from ..model import Model
from ..ops.rows import MAX_ROWS
from .results import stamp
from .tables import Table

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 20, 24, 25, 32, 33, 48, 64, 96, 128)
CONTEXTS = (128, 1024, 4096)
ROUNDS = 15
PLAIN = 2  # passes of one row before each width
_SHOWN = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)


def measure(
    model: Model,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[float, ...], ...]:
    """Costs [contexts][rows]: the median over rounds of (seconds of k rows) / (seconds of a plain step just before).

    Every round takes all widths in turn.  For each, two passes of one row come first; the second of them is the plain
    step that the width is divided by.  So a slow spell of the machine falls on both.

    Parameters
    ----------
    model : with a context of at least max(contexts) + max(rows) positions.
    rows : ascending, from 1 on.
    contexts : ascending numbers of positions in front of the rows.
    rounds : that count, at least 1; one more comes before them, to warm up.
    say : called with lines about the progress.

    Raises
    ------
    InvalidOption : `rows` does not begin with 1, there is no round, or it does not fit in the model's context.
    """
    if not rows or rows[0] != 1 or rounds < 1 or max(rows) > MAX_ROWS:
        raise InvalidOption(
            f"costs are measured in passes of one row, in at least one round: rows from 1 to at most {MAX_ROWS}, "
            f"got {list(rows)} and {rounds} rounds"
        )
    if contexts and max(contexts) + max(rows) > model.context:
        raise InvalidOption(
            f"{max(rows)} rows after {max(contexts)} positions do not fit in a context of {model.context}"
        )
    vocab, table = model.n_tokens, []
    for context in contexts:
        cache = model.new_cache(context + max(rows))
        model.forward_rows([(cache, [(7 * i + 11) % vocab for i in range(context)], "none")])
        ratios: dict[int, list[float]] = {k: [] for k in rows}
        for turn in range(rounds + 1):
            for k in rows:
                plain = [_seconds(model, cache, 1, turn) for _ in range(PLAIN)][-1]
                cost = _seconds(model, cache, k, turn) / plain
                if turn:  # the first is for warming up
                    ratios[k].append(cost if k > 1 else 1.0)
        table.append(tuple(round(statistics.median(ratios[k]), 3) for k in rows))
        say(f"context {context}: " + "  ".join(f"{k}: {c:.2f}" for k, c in zip(rows, table[-1], strict=True)))
    return tuple(table)


def _seconds(model: Model, cache: State, rows: int, turn: int) -> float:
    """What a pass of so many rows takes; then a token is chosen for each, and the cache is put back."""
    ids, context = [(31 * i + turn) % model.n_tokens for i in range(rows)], cache.len
    start = perf_counter()
    (logits,) = model.forward_rows([(cache, ids, "all")])
    seconds = perf_counter() - start
    logits.argmax(axis=-1)
    cache.truncate(context)
    return seconds


def measured_table(
    model: Model,
    name: str,
    command: str,
    rows: Sequence[int] = ROWS,
    contexts: Sequence[int] = CONTEXTS,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda text: None,
) -> CostTable:
    """`measure` as a table that records what it was measured on.

    Parameters
    ----------
    name : of the model, for the provenance; see `public_name`.
    command : that repeats it, without paths.
    """
    costs = measure(model, rows, contexts, rounds, say)
    return CostTable(tuple(rows), tuple(contexts), costs, {"model": name, **stamp(command)})


def public_name(model: str) -> str:
    """The name of a known model, or "a file": records hold no path."""
    return "a file" if "/" in model or "\\" in model or Path(model).suffix == ".gguf" else model


def shown(table: CostTable) -> Table:
    """A table of costs for a terminal: one row per context."""
    rows = [k for k in _SHOWN if k in table.rows]
    at = [table.rows.index(k) for k in rows]
    body = [
        [f"after {context} tokens", *(f"{line[i]:.2f}" for i in at)]
        for context, line in zip(table.contexts, table.costs, strict=True)
    ]
    return ["C(rows)", *map(str, rows)], body
