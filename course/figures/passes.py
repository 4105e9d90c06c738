"""Passes side by side: which stream has how many rows in which pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course.figures.svg import BLUE, ORANGE, Drawing, Figure, columns

CELL, ROW, TOP = 34, 30, 52


def pass_timeline(names: Sequence[str], passes: Sequence[Mapping[str, int]], title: str) -> Figure:
    """One column per pass, one line per stream; a box holds the stream's rows in that pass.

    Parameters
    ----------
    names : sequence of str
        The streams, from the top.
    passes : sequence of mapping of name to rows
        A stream that a pass does not name has no row in it.  One row is drawn blue, several rows (a prompt, a draft)
        orange, no row as an empty box.
    title : str
    """
    left = 30 + max([40.0, *(8.2 * columns(name) for name in names)])
    drawing = Drawing(left + 8 + CELL * len(passes), TOP + ROW * len(names) + 26)
    drawing.text(10, 21, title, 14, "start", bold=True)
    drawing.text(left - 8, 44, "pass", 11, "end", fill="var(--soft)")
    for p, rows in enumerate(passes):
        x = left + CELL * p
        drawing.text(x + 15, 44, str(p + 1), 11, fill="var(--soft)")
        for s, name in enumerate(names):
            n, y = rows.get(name, 0), TOP + ROW * s
            colour = "none" if n == 0 else BLUE if n == 1 else ORANGE
            drawing.rect(x, y, CELL - 4, 25, colour, opacity=0.45, dash="" if n else "2 3")
            if n:
                drawing.text(x + 15, y + 17, str(n), 12)
    told = []
    for s, name in enumerate(names):
        drawing.text(left - 8, TOP + ROW * s + 17, name, 12, "end")
        told.append(f"{name} has {', '.join(str(rows.get(name, 0)) for rows in passes)} rows")
    x, below = left, TOP + ROW * len(names) + 14
    several = any(n > 1 for rows in passes for n in rows.values())
    for colour, words in ((BLUE, "one row"), (ORANGE, "several rows"))[: 1 + several]:
        drawing.rect(x, below - 10, 12, 12, colour, colour, 0.45)
        drawing.text(x + 18, below, words, 11, "start")
        x += 36 + 6.5 * len(words)
    drawing.width = max(drawing.width, x)
    return Figure(drawing, title, f"{title}. Pass by pass: {'; '.join(told)}.")
