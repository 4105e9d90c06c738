"""A word on its way from letters to tokens: one row per merge."""

from __future__ import annotations

from collections.abc import Sequence

from course.figures.svg import BLUE, GREEN, Drawing, Figure, columns, printable

LEFT, ROW, CHARACTER = 12, 34, 8.2


def merge_steps(
    rows: Sequence[tuple[str, Sequence[str]]], title: str = "A word is merged", note: str = "what was just joined"
) -> Figure:
    """The pieces of a word after each merge; what a row joined of the row above is marked.

    Parameters
    ----------
    rows : sequence of (words, pieces)
        What happened, such as "rank 12: t + h", and the pieces afterwards.  The pieces of all rows spell the same text.
    title : str
    note : str
        What the mark means.
    """
    if not rows:
        raise ValueError("nothing to draw: there is no row")
    texts = {"".join(pieces) for _, pieces in rows}
    if len(texts) != 1:
        raise ValueError(f"the rows spell different texts: {', '.join(sorted(map(repr, texts)))}")
    shown = [[printable(piece) for piece in pieces] for _, pieces in rows]
    letters = max(len(pieces) for pieces in shown)
    widest = max(sum(max(18.0, 10 + CHARACTER * columns(piece)) + 5 for piece in pieces) for pieces in shown)
    told = LEFT + max(widest, 26.0 * letters) + 14
    words_width = 7.0 * max(len(words) for words, _ in rows)
    drawing = Drawing(max(told + words_width + 16, 360), 40 + ROW * len(rows) + 24)
    drawing.text(10, 21, title, 14, "start", bold=True)
    before: set[tuple[int, int]] = set()
    for r, ((words, _), pieces) in enumerate(zip(rows, shown, strict=True)):
        y, x, at = 34 + ROW * r, float(LEFT), 0
        spans = set()
        for piece, raw in zip(pieces, rows[r][1], strict=True):
            width = max(18.0, 10 + CHARACTER * columns(piece))
            span = (at, at + len(raw))
            spans.add(span)
            new = r > 0 and span not in before
            colour = GREEN if new else BLUE
            drawing.rect(x, y, width, 26, colour, colour if new else "var(--line)", 0.3 if new else 0.12)
            drawing.text(x + width / 2, y + 18, piece, 13, mono=True)
            x, at = x + width + 5, at + len(raw)
        before = spans
        drawing.text(told, y + 18, words, 12, "start", fill="var(--soft)")
    y = 34 + ROW * len(rows) + 6
    drawing.rect(LEFT, y, 12, 12, GREEN, GREEN, 0.3)
    drawing.text(LEFT + 18, y + 10, note, 11, "start")
    described = "; ".join(f"{words}: {' '.join(pieces)}" for (words, _), pieces in zip(rows, shown, strict=True))
    return Figure(drawing, title, f"{title}. {described}")
