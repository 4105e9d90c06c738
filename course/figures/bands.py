"""Curves that are averages over several runs, each with a band that shows how far the runs lie apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from course.figures.curves import HEIGHT, LEFT, TOP, WIDTH, _Axis, _frame, _short
from course.figures.svg import DASHES, SERIES, Drawing, Figure


def bands(
    x: Sequence[float],
    series: Mapping[str, Sequence[Sequence[float]]],
    x_label: str = "",
    y_label: str = "",
    title: str = "",
    shade: tuple[float, float, str] | None = None,
) -> Figure:
    """The mean of several runs as a line, and one standard deviation to either side as a band.

    Parameters
    ----------
    x : sequence of float
    series : mapping of name to runs
        Each run has as many values as x.
    shade : (from, to, words), optional
        A part of the x axis that is shaded, and what it is.
    """
    values = {name: np.asarray(runs, float) for name, runs in series.items()}
    for name, runs in values.items():
        if runs.ndim != 2 or runs.shape[1] != len(x) or not runs.shape[0]:
            raise ValueError(f"{name!r} needs runs of {len(x)} values, got an array of shape {list(runs.shape)}")
    if not values or not len(x):
        raise ValueError("nothing to draw: no runs")
    means = {name: runs.mean(0) for name, runs in values.items()}
    spreads = {name: runs.std(0) for name, runs in values.items()}
    low = min(float((means[n] - spreads[n]).min()) for n in values)
    high = max(float((means[n] + spreads[n]).max()) for n in values)
    to_x = _Axis(min(x), max(x), LEFT, LEFT + WIDTH, False)
    to_x.high = max(x)  # up to the data, not to the next round number
    to_y = _Axis(min(low, 0.0), max(high, 0.0), TOP + HEIGHT, TOP, False)
    drawing = Drawing(LEFT + WIDTH + 40 + 7.4 * max(map(len, values)), TOP + HEIGHT + 52)
    drawing.text(10, 21, title, 14, "start", bold=True)
    if shade:
        left, right = to_x(shade[0]), to_x(shade[1])
        drawing.rect(left, TOP, right - left, HEIGHT, "var(--soft)", "none", 0.14, radius=0)
        drawing.text((left + right) / 2, TOP - 8, shade[2], 12, fill="var(--soft)")
    _frame(drawing, to_x, to_y, x_label, y_label)
    labels = []
    for i, (name, mean) in enumerate(means.items()):
        colour = SERIES[i % len(SERIES)]
        upper = [(to_x(a), to_y(b)) for a, b in zip(x, mean + spreads[name], strict=True)]
        lower = [(to_x(a), to_y(b)) for a, b in zip(x, mean - spreads[name], strict=True)]
        corners = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
        drawing.parts.append(f'<polygon points="{corners}" fill="{colour}" fill-opacity="0.13"/>')
        points = [(to_x(a), to_y(b)) for a, b in zip(x, mean, strict=True)]
        drawing.path(points, colour, 2, DASHES[i % len(DASHES)])
        labels.append((points[-1][1], name, colour))
    floor = -1e9
    for y, name, colour in sorted(labels):
        floor = max(y, floor + 15)
        drawing.rect(LEFT + WIDTH + 8, floor - 5, 9, 9, colour, colour, radius=1)
        drawing.text(LEFT + WIDTH + 22, floor + 4, name, 12, "start", bold=True)
    told = [
        f"{name} ends at {_short(float(mean[-1]))}, give or take {_short(float(spreads[name][-1]))}"
        for name, mean in means.items()
    ]
    part = f" (shaded from {_short(shade[0])} to {_short(shade[1])}: {shade[2]})" if shade else ""
    axis = f" over {x_label or 'x'} from {_short(x[0])} to {_short(x[-1])}{part}"
    return Figure(drawing, title or y_label or "Runs", f"{title or y_label}{axis}, averages: " + "; ".join(told))
