"""Curves and bars."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

from course.figures.svg import BLUE, DASHES, SERIES, Drawing, Figure

LEFT, TOP, WIDTH, HEIGHT = 74, 54, 520, 250
CHARACTER = 6.6  # pixels of a letter of size 12


def curves(
    x: Sequence[float],
    series: Mapping[str, Sequence[float]],
    x_label: str = "",
    y_label: str = "",
    title: str = "",
    log_x: bool = False,
    log_y: bool = False,
    marks: Mapping[str, float] | None = None,
) -> Figure:
    """Lines over a common x, each with its own colour, dash and name at its end.

    Parameters
    ----------
    x : sequence of float
    series : mapping of name to values
        As many values as x; NaN leaves a gap.
    log_x, log_y : bool
        Logarithmic axes; all values must be above 0.
    marks : mapping of name to y, optional
        Horizontal lines, such as a ceiling.
    """
    for name, values in series.items():
        if len(values) != len(x):
            raise ValueError(f"{name!r} has {len(values)} values for {len(x)} points")
    marks = dict(marks or {})
    every = [v for values in series.values() for v in values if not math.isnan(v)] + list(marks.values())
    if not len(x) or not every:
        raise ValueError("nothing to draw: no points")
    to_x = _Axis(min(x), max(x), LEFT, LEFT + WIDTH, log_x, whole=False)
    to_x.mark(x)
    low = 0.8 * min(every) if log_y else min(0.0, *every)
    to_y = _Axis(low, max(every), TOP + HEIGHT, TOP, log_y)
    names = max((len(name) for name in [*series, *marks]), default=0)
    drawing = Drawing(LEFT + WIDTH + 40 + 7.4 * names, TOP + HEIGHT + 52)
    drawing.text(10, 21, title, 14, "start", bold=True)
    _frame(drawing, to_x, to_y, x_label, y_label)
    labels: list[tuple[float, str, str]] = []
    for i, (name, values) in enumerate(series.items()):
        colour, run = SERIES[i % len(SERIES)], []
        points = [(to_x(a), to_y(b)) if not math.isnan(b) else None for a, b in zip(x, values, strict=True)]
        for point in [*points, None]:
            if point is not None:
                run.append(point)
            elif run:
                drawing.path(run, colour, 2, DASHES[i % len(DASHES)])
                run = []
        if len(points) <= 24:
            for point in filter(None, points):
                drawing.rect(point[0] - 3, point[1] - 3, 6, 6, colour, colour, 1, radius=3 if i % 2 == 0 else 0)
        last = next((point for point in reversed(points) if point is not None), None)
        if last:
            labels.append((last[1], name, colour))
    for name, value in marks.items():
        drawing.line(LEFT, to_y(value), LEFT + WIDTH, to_y(value), "var(--ink)", 1.5, "2 4")
        labels.append((to_y(value), name, "var(--ink)"))
    floor = -1e9
    for y, name, colour in sorted(labels):
        floor = max(y, floor + 15)
        drawing.rect(LEFT + WIDTH + 8, floor - 5, 9, 9, colour, colour, radius=1)
        drawing.text(LEFT + WIDTH + 22, floor + 4, name, 12, "start", bold=True)
    told = [f"{name} goes from {_short(values[0])} to {_short(values[-1])}" for name, values in series.items()]
    told += [f"{name} is at {_short(value)}" for name, value in marks.items()]
    axis = f" over {x_label or 'x'} from {_short(x[0])} to {_short(x[-1])}"
    return Figure(drawing, title or y_label or "Curves", f"{title or y_label}{axis}: " + "; ".join(told))


def bars(values: Mapping[str, float], unit: str = "", title: str = "", mark: tuple[str, float] | None = None) -> Figure:
    """Horizontal bars with their values written at the end; `mark` is a vertical line such as a ceiling."""
    if not values:
        raise ValueError("nothing to draw: no bars")
    top = max([*values.values(), *([mark[1]] if mark else [])])
    if top <= 0 or min(values.values()) < 0:
        raise ValueError("bars need values of 0 or more, and one above 0")
    names = 7.2 * max(len(name) for name in values) + 20
    drawing = Drawing(names + 420 + 130, 44 + 34 * len(values) + (26 if mark else 6))
    drawing.text(10, 21, title, 14, "start", bold=True)
    for i, (name, value) in enumerate(values.items()):
        y = 38 + 34 * i
        drawing.text(names - 8, y + 17, name, 13, "end")
        drawing.rect(names, y, max(1.0, 420 * value / top), 24, BLUE, BLUE, 0.6)
        words = f"{_short(value)} {_unit(value, unit)}".strip()
        after = names + 420 * value / top + 8
        if mark and after - 8 < names + 420 * mark[1] / top < after + CHARACTER * len(words) + 12:
            after = names + 420 * mark[1] / top + 8  # the words do not stand in the mark's line
        drawing.text(after, y + 17, words, 12, "start")
    if mark:
        x, y = names + 420 * mark[1] / top, 38 + 34 * len(values)
        drawing.line(x, 32, x, y + 2, "var(--ink)", 1.5, "4 3")
        anchor = "end" if x > names + 300 else "middle"
        drawing.text(x, y + 16, f"{mark[0]}: {_short(mark[1])} {unit}".strip(), 12, anchor)
    told = [f"{name} {_short(value)} {_unit(value, unit)}".strip() for name, value in values.items()]
    if mark:
        told.append(f"{mark[0]} {_short(mark[1])} {unit}".strip())
    return Figure(drawing, title or "Bars", f"{title}: " + ", ".join(told))


class _Axis:
    """Maps values to pixels, and knows round numbers to write beside them."""

    def __init__(self, low: float, high: float, start: float, end: float, log: bool, whole: bool = True) -> None:
        if log and low <= 0:
            raise ValueError(f"a logarithmic axis needs values above 0, got {low}")
        self.log = log
        self.low, self.high = (math.log10(low), math.log10(high)) if log else (low, high)
        if self.high == self.low:
            self.high = self.low + 1
        self.ticks = self._ticks()
        if not log and whole:  # up to the tick above the highest value
            self.high = max(self.high, self.ticks[-1])
        self.start, self.end = start, end

    def mark(self, points: Sequence[float], least: float = 22.0) -> None:
        """Write the points themselves beside the axis, where they are whole numbers and stand apart from each other."""
        places = [self(point) for point in points]
        if all(float(p).is_integer() for p in points) and all(
            b - a >= least for a, b in itertools.pairwise(sorted(places))
        ):
            self.ticks = list(points)

    def __call__(self, value: float) -> float:
        value = math.log10(value) if self.log else value
        return self.start + (self.end - self.start) * (value - self.low) / (self.high - self.low)

    def _ticks(self) -> list[float]:
        if self.log:
            decades = range(math.floor(self.low), math.ceil(self.high) + 1)
            fine = [m * 10.0**d for d in decades for m in ((1, 2, 5) if self.high - self.low < 3 else (1,))]
            return [t for t in fine if self.low - 1e-9 <= math.log10(t) <= self.high + 1e-9] or [10**self.low]
        step = 10 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next((m for m in (1, 2, 5) if (self.high - self.low) / (step * m) <= 6), 10)
        first = math.ceil(self.low / step - 1e-9)
        return [step * k for k in range(first, math.ceil(self.high / step - 1e-9) + 1)]


def _frame(drawing: Drawing, to_x: _Axis, to_y: _Axis, x_label: str, y_label: str) -> None:
    bottom = TOP + HEIGHT
    for tick in to_y.ticks:
        drawing.line(LEFT, to_y(tick), LEFT + WIDTH, to_y(tick), "var(--line)", 0.6)
        drawing.text(LEFT - 8, to_y(tick) + 4, _short(tick), 11, "end")
    for tick in to_x.ticks:
        if to_x(tick) <= LEFT + WIDTH + 1:
            drawing.line(to_x(tick), bottom, to_x(tick), bottom + 5, "var(--ink)")
            drawing.text(to_x(tick), bottom + 19, _short(tick), 11)
    drawing.line(LEFT, bottom, LEFT + WIDTH, bottom, "var(--ink)")
    drawing.text(LEFT + WIDTH / 2, bottom + 40, x_label, 12)
    drawing.text(LEFT - 60, TOP - 14, y_label, 12, "start")


def _unit(value: float, unit: str) -> str:
    """The unit after a value: 1 token, 2 tokens, 1 token per pass."""
    word, space, rest = unit.partition(" ")
    if _short(value) == "1" and word.endswith("s") and word.isalpha() and len(word) > 3:
        word = word.removesuffix("es") if word.endswith("sses") else word.removesuffix("s")
    return word + space + rest


def _short(value: float) -> str:
    """A number as one reads it: 1.52, 1265, 11,500; powers of ten only where there are many of them."""
    if 1e4 <= abs(value) < 1e9:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.3g}"
