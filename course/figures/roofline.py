"""Figures of chapter 20: how packed rows lie in memory, and the roof over a kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping

from course.figures.svg import BLUE, ORANGE, SERIES, Drawing, Figure


def lanes_layout(rows: int = 4, cols: int = 6) -> Figure:
    """The same small matrix twice: row after row, and with its rows side by side; the order in memory as numbers."""
    size, gap = 34, 60
    width = cols * size
    drawing = Drawing(2 * width + gap + 120, 64 + rows * size + 62)
    drawing.text(10, 21, "Where the numbers of a matrix lie in memory", 14, "start", bold=True)
    for panel, (title, packed) in enumerate((("row after row", False), (f"packed, {rows} lanes", True))):
        left = 76 + panel * (width + gap)
        drawing.text(left + width / 2, 48, title, 13)
        for r in range(rows):
            if panel == 0:
                drawing.text(left - 8, 58 + r * size + 22, f"row {r}", 12, "end")
            for c in range(cols):
                place = c * rows + r if packed else r * cols + c
                taken = place < rows
                drawing.rect(
                    left + c * size,
                    58 + r * size,
                    size - 2,
                    size - 2,
                    ORANGE if taken else BLUE,
                    opacity=0.45 if taken else 0.14,
                )
                drawing.text(left + c * size + size / 2 - 1, 58 + r * size + 21, str(place), 12, mono=True)
    y = 58 + rows * size + 24
    drawing.rect(76, y - 11, 14, 14, ORANGE, opacity=0.45)
    drawing.text(96, y + 1, f"what one vector of {rows} numbers takes", 12, "start")
    drawing.rect(76, y + 9, 14, 14, BLUE, opacity=0.14)
    drawing.text(96, y + 21, "the number in a box is its place in memory", 12, "start")
    told = (
        f"A matrix of {rows} rows and {cols} columns. Row after row, the first vector takes {rows} columns of row 0. "
        f"Packed, it takes column 0 of all {rows} rows."
    )
    return Figure(drawing, "Two layouts of a matrix", told)


def roofline(points: Mapping[str, tuple[float, float]], bandwidth: float, peak: float, title: str = "") -> Figure:
    """Speed over work per byte, on logarithmic axes, under the roof of a machine.

    Parameters
    ----------
    points : mapping of name to (operations per byte, operations per second in billions)
    bandwidth : float
        Billions of bytes per second that the memory delivers: the slope of the roof.
    peak : float
        Billions of operations per second when no byte has to come from memory: its flat part.
    """
    left, top, width, height = 70, 60, 470, 290
    xs = [x for x, _ in points.values()]
    low_x, high_x = min(0.25, *xs), max(peak / bandwidth * 2, *xs) * 1.6
    speeds = [y for _, y in points.values()]
    low_y, high_y = min(0.5 * bandwidth * low_x, *speeds) / 1.5, max(peak, *speeds) * 1.6

    def at(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low_x) / math.log(high_x / low_x)
        up = math.log(y / low_y) / math.log(high_y / low_y)
        return left + width * across, top + height * (1 - up)

    names = list(points)
    drawing = Drawing(left + width + 250, top + height + 56)
    drawing.text(10, 21, title or "The roof over a kernel", 14, "start", bold=True)
    for axis, (low, high) in enumerate(((low_x, high_x), (low_y, high_y))):
        for tick in _ticks(low, high):
            if axis == 0:
                x, _ = at(tick, low_y)
                drawing.line(x, top + height, x, top + height + 5, "var(--ink)")
                drawing.text(x, top + height + 19, f"{tick:g}", 11)
            else:
                _, y = at(low_x, tick)
                drawing.line(left, y, left + width, y, "var(--line)", 0.6)
                drawing.text(left - 8, y + 4, f"{tick:g}", 11, "end")
    drawing.line(left, top + height, left + width, top + height, "var(--ink)")
    drawing.text(left + width / 2, top + height + 42, "operations per byte of weights", 12)
    drawing.text(10, top - 14, "billion operations per second", 12, "start")
    corner = peak / bandwidth
    drawing.path([at(low_x, bandwidth * low_x), at(corner, peak), at(high_x, peak)], "var(--ink)", 2)
    slope_x, slope_y = at(math.sqrt(low_x * corner), bandwidth * math.sqrt(low_x * corner))
    drawing.text(slope_x - 6, slope_y - 14, f"memory: {bandwidth:.3g} GB/s", 12, "end", halo=True)
    flat_x, flat_y = at(high_x, peak)
    drawing.text(flat_x, flat_y - 8, f"arithmetic: {peak:.3g}", 12, "end", halo=True)
    for i, name in enumerate(names):
        colour = SERIES[i % len(SERIES)]
        x, y = at(*points[name])
        drawing.rect(x - 8, y - 8, 16, 16, colour, colour, radius=8)
        drawing.text(x, y + 4, str(i + 1), 11, fill="var(--paper, #fff)", bold=True)
        row = top + 12 + 22 * i
        drawing.rect(left + width + 14, row - 11, 15, 15, colour, colour, radius=7)
        drawing.text(left + width + 21.5, row + 1, str(i + 1), 11, fill="var(--paper, #fff)", bold=True)
        drawing.text(left + width + 36, row + 1, name, 12, "start")
    told = [
        f"{name}: {speed:.3g} of {min(peak, bandwidth * work):.3g} possible" for name, (work, speed) in points.items()
    ]
    roof = f"The roof rises with {bandwidth:.3g} GB/s up to {peak:.3g} billion operations per second"
    return Figure(drawing, title or "Roofline", f"{roof}. " + "; ".join(told))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers on a logarithmic axis."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    return [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]
