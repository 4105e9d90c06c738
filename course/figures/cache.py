"""Rows of a KV cache, and what a rewind does to them."""

from __future__ import annotations

from collections.abc import Sequence

from course.figures.svg import BLUE, GREEN, ORANGE, Drawing, Figure, columns, printable

CELL = 46


def cache_rows(
    length: int,
    capacity: int,
    rewind_to: int | None = None,
    again: int = 0,
    labels: Sequence[str | bytes] | None = None,
    title: str = "KV cache",
) -> Figure:
    """A cache as a row of positions: those that count, those that are left over, those that are free.

    Parameters
    ----------
    length, capacity : int
        Positions that count, and all positions.
    rewind_to : int, optional
        Draw a second row: the cache after `truncate(rewind_to)`.
    again : int
        With `rewind_to`: this many rows are appended afterwards (a third row).
    labels : sequence of str or bytes, optional
        A token for each of the first positions.
    title : str
    """
    if not 0 <= length <= capacity:
        raise ValueError(f"length must be between 0 and the capacity {capacity}, got {length}")
    stages = [("", length, length)]
    if rewind_to is not None:
        kept = min(length, rewind_to)
        stages.append((f"truncate({rewind_to})", kept, length))
        if again:
            if kept + again > capacity:
                raise ValueError(f"{kept} + {again} rows do not fit into {capacity}")
            stages.append((f"append {again}", kept + again, max(length, kept + again)))
    shown = [printable(label) for label in labels or []][:capacity]
    cell = max([CELL, *(12 + 8.2 * columns(text) for text in shown)]) if capacity <= 24 else max(5.0, 760 / capacity)
    left = 130 if len(stages) > 1 else 20
    drawing = Drawing(left + capacity * cell + 24, 78 + 66 * len(stages))
    drawing.text(10, 21, title, 14, "start", bold=True)
    for r, (name, counted, written) in enumerate(stages):
        top = 36 + 66 * r
        drawing.text(10, top + 20, name, 12, "start", mono=True)
        for p in range(capacity):
            x = left + p * cell
            fresh = r == 2 and p >= stages[1][1]
            if p < counted:
                drawing.rect(x + 1, top, cell - 2, 28, GREEN if fresh else BLUE, GREEN if fresh else BLUE, 0.3)
            elif p < written:
                drawing.rect(x + 1, top, cell - 2, 28, ORANGE, ORANGE, 0.1, dash="3 3")
            else:
                drawing.rect(x + 1, top, cell - 2, 28, stroke="var(--line)", dash="1 3")
            if cell >= 20:
                text = shown[p] if p < len(shown) and p < written and not fresh else str(p)
                drawing.text(
                    x + cell / 2, top + 19, text, 12, fill="var(--ink)" if p < counted else "var(--soft)", mono=True
                )
        at = left + counted * cell
        drawing.arrow(at, top + 52, at, top + 30)
        anchor = "start" if (capacity - counted) * cell > 60 else "end"
        drawing.text(at + (5 if anchor == "start" else -5), top + 50, f"len = {counted}", 12, anchor, bold=True)
    legend = (
        [(BLUE, "counts")]
        + ([(ORANGE, "left over, never read")] if len(stages) > 1 else [])
        + ([(GREEN, "written anew")] if again else [])
        + [("none", "free")]
    )
    x, y = float(left), 36 + 66 * len(stages) + 18
    for colour, words in legend:
        drawing.rect(
            x,
            y - 10,
            12,
            12,
            colour,
            "var(--line)" if colour == "none" else colour,
            0.4,
            dash="1 3" if colour == "none" else "",
        )
        drawing.text(x + 18, y, words, 11, "start")
        x += 36 + 6.5 * len(words)
    told = f"{title}: {length} of {capacity} positions count"
    for name, counted, written in stages[1:]:
        told += f"; after {name}, {counted} count"
        if written > counted:
            told += f" and {written - counted} are left over, never read"
    return Figure(drawing, title, told)
