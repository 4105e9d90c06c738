"""Weights of a block, and the few values that the block can express."""

from __future__ import annotations

import math
from collections.abc import Sequence

from course.figures.svg import BLUE, ORANGE, Drawing, Figure

LEFT, TOP, HEIGHT, STEP = 64, 44, 250, 19
MOST_LINES = 40


def quant_grid(values: Sequence[float], levels: Sequence[float], title: str = "A block and its levels") -> Figure:
    """Weights as dots, the levels that a block can express as lines, and how far each weight moves to the nearest.

    Parameters
    ----------
    values : sequence of float
        The weights, in order.
    levels : sequence of float
        What a quant can stand for, such as the 16 values d * q + m.  Above 40 levels only their range is drawn.
    title : str
    """
    if not len(values) or not len(levels):
        raise ValueError("nothing to draw: a block needs weights and levels")
    low, high = min(*values, *levels), max(*values, *levels)
    span = (high - low) or 1.0

    def at(v: float) -> float:
        return TOP + HEIGHT * (high - v) / span

    drawing = Drawing(LEFT + STEP * len(values) + 130, TOP + HEIGHT + 58)
    drawing.text(10, 21, title, 14, "start", bold=True)
    right = LEFT + STEP * len(values)
    if len(levels) <= MOST_LINES:
        for level in levels:
            drawing.line(LEFT, at(level), right, at(level), "var(--line)", 1)
    else:
        drawing.rect(
            LEFT,
            at(max(levels)),
            right - LEFT,
            max(1.0, at(min(levels)) - at(max(levels))),
            BLUE,
            "var(--line)",
            0.08,
            radius=0,
        )
    for level in (min(levels), max(levels)):
        drawing.text(LEFT - 8, at(level) + 4, f"{level:.3g}", 11, "end", fill="var(--soft)")
    drawing.text(right + 8, at((min(levels) + max(levels)) / 2) + 4, f"{len(levels)} levels", 12, "start")
    squares = 0.0
    for i, value in enumerate(values):
        distances = [abs(level - value) for level in levels]
        nearest = levels[distances.index(min(distances))]
        squares += (nearest - value) ** 2
        x = LEFT + STEP * (i + 0.5)
        drawing.line(x, at(value), x, at(nearest), ORANGE, 3)
        drawing.rect(x - 3.5, at(value) - 3.5, 7, 7, BLUE, BLUE, 1, radius=3.5)
    rms = math.sqrt(squares / len(values))
    y = TOP + HEIGHT + 26
    drawing.rect(LEFT, y - 8, 8, 8, BLUE, BLUE, 1, radius=4)
    drawing.text(LEFT + 14, y, "a weight", 11, "start")
    drawing.line(LEFT + 82, y - 10, LEFT + 82, y + 2, ORANGE, 3)
    drawing.text(LEFT + 90, y, "how far it moves", 11, "start")
    drawing.text(LEFT, y + 22, f"error (RMS): {rms:.3g}", 12, "start", bold=True)
    return Figure(
        drawing,
        title,
        f"{title}: {len(values)} weights from {min(values):.3g} to {max(values):.3g}, "
        f"{len(levels)} levels from {min(levels):.3g} to {max(levels):.3g}; moving each weight to its nearest "
        f"level is an error of {rms:.3g} (RMS).",
    )
