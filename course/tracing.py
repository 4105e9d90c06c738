"""Watch a real pass of a model: what every op of its forward returned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fucina import Model
from fucina.ops.naive import Naive
from fucina.ops.rows import RowBatch


@dataclass(frozen=True, slots=True)
class Step:
    """One op of a pass.

    op : its name in the forward.  weight : the tensor that it used, or "".  out : what it returned, one row per token.
    """

    op: str
    weight: str
    out: np.ndarray


def trace(model: Model, tokens: Sequence[int]) -> list[Step]:
    """Run one pass over `tokens` in the readable NumPy engine, from an empty cache, and keep what each op returned.

    A family's forward takes its ops as an argument.  So it is handed ops that pass everything on and take notes.
    """
    seen: list[Step] = []
    forward = model.family.forward

    def watched(ops: Any, config: Any, weights: Any) -> Any:
        return forward(_Watched(ops, seen), config, weights)

    engine = Naive(replace(model.family, forward=watched))
    rows = np.arange(len(tokens))
    cache = model.new_cache(len(tokens))
    engine.run(RowBatch(np.array(tokens), rows, np.zeros_like(rows), [cache], rows))
    return seen


class _Watched:
    """Passes every op on, and keeps what it returned."""

    def __init__(self, ops: Any, seen: list[Step]) -> None:
        self._ops, self._seen = ops, seen

    def __getattr__(self, name: str) -> Any:
        def noted(*args: Any, **options: Any) -> Any:
            out = getattr(self._ops, name)(*args, **options)
            weight = next((a.name for a in args if hasattr(a, "ggml_type")), "")
            self._seen.append(Step(name, weight, out))
            return out

        return noted
