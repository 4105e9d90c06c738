"""The decode loop's two lists, history and cache, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from course.figures.svg import BLUE, ORANGE, RED, Drawing, Figure, columns, printable

CELL, LEFT, STATE = 38, 84, 104
State = tuple[str, Sequence[str | int], Sequence[str | int]]


def loop_states(states: Sequence[State], title: str = "History and cache") -> Figure:
    """The states that a decode loop goes through, and whether len(history) == cache.len + 1 holds in each.

    Parameters
    ----------
    states : sequence of (name, history, rows)
        `history`: the tokens; `rows`: the token of each row that counts in the cache.  A row that should not be there
        is drawn red, so is a place where one is missing.
    title : str
    """
    if not states:
        raise ValueError("nothing to draw: no states")
    drawn = [(name, _texts(history), _texts(rows)) for name, history, rows in states]
    texts = [text for _, history, rows in drawn for text in (*history, *rows)]
    cell = max([float(CELL), *(12 + 8.2 * columns(text) for text in texts)])
    most = max(max(len(history), len(rows)) for _, history, rows in drawn)
    verdict = LEFT + most * cell + 14
    drawing = Drawing(verdict + 200, 40 + STATE * len(drawn) + 20)
    drawing.text(10, 21, title, 14, "start", bold=True)
    told = []
    for i, (name, history, rows) in enumerate(drawn):
        top = 36 + STATE * i
        drawing.text(10, top + 12, name, 12, "start", bold=True)
        drawing.text(LEFT - 8, top + 38, "history", 12, "end", fill="var(--soft)")
        drawing.text(LEFT - 8, top + 70, "cache", 12, "end", fill="var(--soft)")
        for p in range(max(len(history), len(rows))):
            x, newest = LEFT + p * cell, p == len(history) - 1
            if p < len(history):
                colour = ORANGE if newest else BLUE
                drawing.rect(x + 1, top + 20, cell - 2, 26, colour, colour, 0.3)
                drawing.text(x + cell / 2, top + 38, history[p], 12, mono=True)
            if p < len(rows):
                right = not newest and p < len(history) and rows[p] == history[p]
                colour = BLUE if right else RED
                drawing.rect(x + 1, top + 52, cell - 2, 26, colour, colour, 0.3 if right else 0.15)
                drawing.text(x + cell / 2, top + 70, rows[p], 12, mono=True)
            else:
                colour = ORANGE if newest else RED
                drawing.rect(x + 1, top + 52, cell - 2, 26, stroke=colour, dash="3 3")
                drawing.text(x + cell / 2, top + 70, "next" if newest else "?", 11, fill="var(--soft)")
        words = _verdict(history, rows)
        holds = words == _HOLDS
        counts = f"{len(history)} tokens, {len(rows)} row{'' if len(rows) == 1 else 's'}"
        drawing.text(verdict, top + 38, counts, 12, "start")
        drawing.text(
            verdict,
            top + 70,
            ("\u2713 " if holds else "\u2717 ") + words,
            12,
            "start",
            fill="var(--ink)" if holds else RED,
            bold=True,
        )
        told.append(f"{name}: {len(history)} tokens in the history, {len(rows)} rows in the cache, {words}")
    x, y = float(LEFT), 36 + STATE * len(drawn) + 8
    for colour, words in ((BLUE, "has its row"), (ORANGE, "goes in with the next step"), (RED, "broken")):
        drawing.rect(x, y - 10, 12, 12, colour, colour, 0.4)
        drawing.text(x + 18, y, words, 11, "start")
        x += 40 + 6.5 * len(words)
    drawing.width = max(drawing.width, x)
    return Figure(drawing, title, f"{title}. " + "; ".join(told))


_HOLDS = "the promise holds"


def _verdict(history: list[str], rows: list[str]) -> str:
    """The promise, or how it is broken."""
    over = len(rows) - (len(history) - 1)
    if over:
        return f"{abs(over)} row{'' if abs(over) == 1 else 's'} too {'many' if over > 0 else 'few'}"
    return _HOLDS if rows == history[:-1] else "rows of other tokens"


def _texts(items: Sequence[str | int]) -> list[str]:
    return [printable(item) if isinstance(item, str) else str(item) for item in items]
