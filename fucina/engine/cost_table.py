"""What a pass of several rows costs, in plain steps: measured points, and lines between them.

The pass that verifies d drafts has d + 1 rows.  Its cost depends on the number of rows (weights are read once, but
every row is multiplied) and on the context (every row looks back at all positions).  Curves have steps where tiles of
the kernels end, which is why this is a table and not a formula.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import shown
from ..errors import CostTableEmpty, InvalidOption
from ..ops.rows import MAX_ROWS
from ..replacing import replacing

DEFAULT = Path(__file__).with_name("verify_cost.json")


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs of passes in plain steps (passes of one row at the same context).

    Attributes
    ----------
    rows : ascending numbers of rows, at least one.
    contexts : ascending numbers of positions in the cache, at least one.
    costs : [contexts][rows].
    provenance : where the numbers come from (machine, versions, date, command); `{"provisional": True}` if they were
        not measured.

    Raises
    ------
    CostTableEmpty : there is no point.
    InvalidOption : points do not ascend, or a cost is not finite and positive.
    """

    rows: tuple[int, ...]
    contexts: tuple[int, ...]
    costs: tuple[tuple[float, ...], ...]
    provenance: Any = None

    def __post_init__(self) -> None:
        if not self.rows or not self.contexts or not self.costs:
            raise CostTableEmpty("a cost table needs at least one point (rows, cost), got none")
        for name, axis, least in (("rows", self.rows, 1), ("contexts", self.contexts, 0)):
            if axis[0] < least or any(a >= b for a, b in itertools.pairwise(axis)):
                raise InvalidOption(f"{name} of a cost table must ascend from at least {least}, got {list(axis)}")
        if len(self.costs) != len(self.contexts) or any(len(c) != len(self.rows) for c in self.costs):
            raise InvalidOption(
                f"a cost table needs one cost for each of {len(self.contexts)} contexts and {len(self.rows)} rows"
            )
        for cost in (c for line in self.costs for c in line):
            if not (math.isfinite(cost) and cost > 0):
                raise InvalidOption(f"costs must be finite and positive, got {cost}")

    @classmethod
    def of(cls, points: CostTable | Iterable[tuple[int, float]]) -> CostTable:
        """A table from points (rows, cost) that hold at every context, or the table itself."""
        if isinstance(points, CostTable):
            return points
        try:
            pairs = [(int(rows), float(cost)) for rows, cost in points]
        except (TypeError, ValueError, OverflowError):
            raise InvalidOption(
                f"cost_table must be a CostTable, or points (rows, cost), got {shown(points)}"
            ) from None
        return cls(tuple(r for r, _ in pairs), (0,), (tuple(c for _, c in pairs),) if pairs else ())

    def curve(self, context: float = 0) -> list[float]:
        """Costs of passes of 0, 1, … 128 rows at a context.

        Linear between points; before the first and after the last, that point's cost.
        """
        lines = np.array(self.costs)
        here = [float(np.interp(context, self.contexts, lines[:, i])) for i in range(len(self.rows))]
        return np.interp(np.arange(MAX_ROWS + 1), self.rows, here).tolist()

    def cost(self, rows: int, context: float = 0) -> float:
        """Cost of a pass of `rows` rows at a context, in plain steps."""
        return self.curve(context)[min(rows, MAX_ROWS)]

    # --- files --------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CostTable:
        """Read a table that `save` wrote.

        Raises
        ------
        InvalidOption : the file is not such a table.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            axes = tuple(int(r) for r in found["rows"]), tuple(int(c) for c in found["contexts"])
            costs = tuple(tuple(float(x) for x in line) for line in found["costs"])
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InvalidOption(f"{Path(path).name} is not a table of verify costs: {error}") from None
        return cls(*axes, costs, found.get("provenance"))

    def as_dict(self) -> dict[str, Any]:
        """What a file holds."""
        return {"rows": self.rows, "contexts": self.contexts, "costs": self.costs, "provenance": self.provenance}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the table as JSON."""
        with replacing(path) as part:
            part.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")


@cache
def default_table() -> CostTable:
    """The table that comes with the package."""
    return CostTable.load(DEFAULT)


def best_width(curve: Sequence[float], width: int, least: int) -> int:
    """Return how many of `width` drafts to verify: the number, at least `least`, that makes a row cheapest.

    The kernels work in tiles of rows; a draft that just begins another tile is cheaper without its last tokens.
    """
    best = width
    for drafts in range(width - 1, least - 1, -1):
        if curve[drafts + 1] * (best + 1) < curve[best + 1] * (drafts + 1) * (1 - 1e-9):
            best = drafts
    return best
