"""Tokens on a line, each as long as its weight, and the point that a draw hits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from course.figures.svg import BLUE, ORANGE, Drawing, Figure, columns, printable

LEFT, WIDTH, TOP, HEIGHT, CHARACTER = 20, 800, 50, 34, 8.4


def number_line(tokens: Sequence[str], weights: Sequence[float], u: float, title: str = "One draw") -> Figure:
    """Candidates side by side, each as long as its weight, and an arrow where the draw `u` hits.

    Parameters
    ----------
    tokens : sequence of str
        Texts of the candidates, in the order in which they lie on the line.
    weights : sequence of float
        One per token; they need not sum to 1, the line is as long as all of them together.
    u : float
        In [0, 1): which point of the line is hit.
    title : str
        The figure adds which token was hit.
    """
    if len(tokens) != len(weights):
        raise ValueError(f"{len(tokens)} tokens, but {len(weights)} values for them")
    if not 0 <= u < 1:
        raise ValueError(f"a draw is at least 0 and less than 1, got {u}")
    ends = list(accumulate(float(w) for w in weights))
    if not ends or ends[-1] <= 0:
        raise ValueError("nothing to draw: no weight above 0")
    hit = next((i for i, end in enumerate(ends) if end > u * ends[-1]), len(ends) - 1)
    shown = [printable(token) for token in tokens]
    drawing = Drawing(LEFT + WIDTH + 40, TOP + HEIGHT + 28)
    drawing.text(10, 22, f"{title}: u = {u:.2f} hits {shown[hit]}", 14, "start", bold=True)
    start = 0.0
    for i, end in enumerate(ends):
        x, width = LEFT + WIDTH * start / ends[-1], WIDTH * (end - start) / ends[-1]
        colour, opacity = (ORANGE, 0.75) if i == hit else (BLUE, 0.2)
        drawing.rect(x, TOP, width, HEIGHT, colour, "var(--line)", opacity)
        if width > CHARACTER * columns(shown[i]) + 6:
            drawing.text(x + width / 2, TOP + 22, shown[i], 13, mono=True)
        start = end
    drawing.arrow(LEFT + WIDTH * u, TOP - 16, LEFT + WIDTH * u, TOP + 2)
    for x, mark in ((LEFT, "0"), (LEFT + WIDTH, "1")):
        drawing.text(x, TOP + HEIGHT + 18, mark, 11)
    told = f"{title}: {len(tokens)} tokens on a line, {', '.join(shown)}; u = {u:.2f} hits {shown[hit]}"
    return Figure(drawing, title, told)
