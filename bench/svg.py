"""Three small charts as SVG text: the same numbers give the same bytes, on any machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

OURS, THEIRS = ("#0b6e4f", "#e9a03b"), ("#c8553d", "#5c6b9c")  # of the file itself, and of the same model in Q4_0
_SERIES = (OURS[0], "#4338a8", THEIRS[0])
_FONT = 'font-family="system-ui, sans-serif" font-size="13" fill="#222"'


def _open(width: int, height: int, title: str, description: str) -> list[str]:
    return [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'role="img" aria-labelledby="t d">'
        ),
        f'<title id="t">{escape(title)}</title>',
        f'<desc id="d">{escape(description)}</desc>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f"<g {_FONT}>",
        f'<text x="16" y="24" font-size="15" font-weight="600">{escape(title)}</text>',
    ]


def _colour(label: str) -> str:
    """One colour an engine and format, the same in every chart."""
    return (OURS if label.startswith("fucina") else THEIRS)[label.endswith("Q4_0")]


def _legend(labels: Sequence[str], y: int) -> list[str]:
    out, x = [], 16
    for label in labels:
        out.append(f'<rect x="{x}" y="{y - 10}" width="12" height="12" fill="{_colour(label)}"/>')
        out.append(f'<text x="{x + 18}" y="{y}">{escape(label)}</text>')
        x += 34 + 8 * len(label)
    return out


def bars(title: str, groups: Sequence[tuple[str, dict[str, tuple[float, float, float]]]], unit: str) -> str:
    """Grouped horizontal bars, each (median, low, high) with a whisker, each group to its own scale.

    groups : (name, {label: numbers}); every group has the same labels or fewer.
    """
    labels = list(dict.fromkeys(label for _, values in groups for label in values))
    row, gap, left, span = 20, 26, 16, 500
    height = 64 + sum(gap + row * len(v) for _, v in groups) + 10
    texts = [f"{name}: " + ", ".join(f"{k} {v[0]:.0f}" for k, v in values.items()) for name, values in groups]
    out = _open(720, height, title, f"{unit}. " + "; ".join(texts)) + _legend(labels, 48)
    y = 64
    for name, values in groups:
        y += gap
        out.append(f'<text x="{left}" y="{y - 6}" font-weight="600">{escape(name)}</text>')
        top = max(v[2] for v in values.values())
        for label, (median, low, high) in values.items():
            a, b, c = (left + span * v / top for v in (low, median, high))
            out.append(f'<rect x="{left}" y="{y}" width="{b - left:.1f}" height="{row - 5}" fill="{_colour(label)}"/>')
            out.append(f'<path d="M{a:.1f} {y + 7.5:.1f}H{c:.1f}" stroke="#222" stroke-width="1"/>')
            out.append(f'<text x="{left + span + 10}" y="{y + 12}">{median:.0f} {escape(unit)}</text>')
            y += row
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"


def curves(title: str, series: dict[str, dict[int, float]], x_name: str, y_name: str, diagonal: str) -> str:
    """Lines over whole numbers from 1 on, with the line y = x as what one row at a time would cost."""
    width, height, left, bottom, right, upper = 720, 420, 60, 370, 690, 84
    top_x = max(k for s in series.values() for k in s)
    top_y = max([1.0, *(v for s in series.values() for v in s.values())])
    top_y = float(-(-top_y // 2) * 2)

    def at(x: float, y: float) -> str:
        return f"{left + (right - left) * (x - 1) / max(1, top_x - 1):.1f} {bottom - (bottom - upper) * y / top_y:.1f}"

    last = ", ".join(f"{k}: {max(v)} rows cost {v[max(v)]:.2f}" for k, v in series.items())
    out = _open(width, height, title, f"{y_name} over {x_name}. {last}.") + _legend(list(series), 48)
    for i in range(int(top_y) // 2 + 1):
        out.append(f'<path d="M{at(1, 2 * i)}L{at(top_x, 2 * i)}" stroke="#ddd"/>')
        out.append(
            f'<text x="{left - 10}" y="{float(at(1, 2 * i).split()[1]) + 4:.1f}" text-anchor="end">{2 * i}</text>'
        )
    for x in sorted({k for s in series.values() for k in s}):
        out.append(f'<text x="{at(x, 0).split()[0]}" y="{bottom + 18}" text-anchor="middle">{x}</text>')
    out.append(f'<text x="{(left + right) / 2:.0f}" y="{height - 12}" text-anchor="middle">{escape(x_name)}</text>')
    out.append(f'<text x="16" y="{upper - 14}">{escape(y_name)}</text>')
    end = min(float(top_x), top_y)
    out.append(f'<path d="M{at(1, 1)}L{at(end, end)}" stroke="#888" stroke-dasharray="5 4"/>')
    out.append(
        f'<text x="{float(at(end, end).split()[0]) - 6:.1f}" y="{upper + 14}" text-anchor="end" fill="#666">{escape(diagonal)}</text>'
    )
    for label, values in series.items():
        colour = _colour(label)
        out.append(
            f'<path d="M{"L".join(at(k, v) for k, v in values.items())}" fill="none" stroke="{colour}" stroke-width="2.5"/>'
        )
        for k, v in values.items():
            cx, cy = at(k, v).split()
            out.append(f'<circle cx="{cx}" cy="{cy}" r="3.2" fill="{colour}"/>')
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"


def lines(title: str, series: dict[str, list[tuple[float, float]]], x_name: str, y_name: str) -> str:
    """Lines through points; the second axis has powers of ten."""
    width, height, left, bottom, right, upper = 720, 420, 70, 370, 690, 84
    points = [p for s in series.values() for p in s]
    top_x = max(x for x, _ in points)
    low, top = (f(math.log10(max(y, 1e-3)) for _, y in points) for f in (min, max))
    low, top = math.floor(low), max(math.ceil(top), math.floor(low) + 1)

    def at(x: float, y: float) -> tuple[float, float]:
        share = (math.log10(max(y, 1e-3)) - low) / (top - low)
        return left + (right - left) * x / top_x, bottom - (bottom - upper) * share

    ends = "; ".join(f"{k}: " + ", ".join(f"{y:.0f} at {x:g}" for x, y in v) for k, v in series.items())
    out = _open(width, height, title, f"{y_name} over {x_name}. {ends}.")
    x = 16
    for i, label in enumerate(series):
        out.append(f'<rect x="{x}" y="38" width="12" height="12" fill="{_SERIES[i % len(_SERIES)]}"/>')
        out.append(f'<text x="{x + 18}" y="48">{escape(label)}</text>')
        x += 34 + 8 * len(label)
    for power in range(low, top + 1):
        y = at(0, 10.0**power)[1]
        out.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 10}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for value in sorted({v for v, _ in points}):
        out.append(f'<text x="{at(value, 1)[0]:.1f}" y="{bottom + 18}" text-anchor="middle">{value:g}</text>')
    out.append(f'<text x="{(left + right) / 2:.0f}" y="{height - 12}" text-anchor="middle">{escape(x_name)}</text>')
    out.append(f'<text x="16" y="{upper - 14}">{escape(y_name)}</text>')
    for i, values in enumerate(series.values()):
        colour = _SERIES[i % len(_SERIES)]
        steps = [at(*v) for v in values]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b in steps)
        out.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>')
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3.2" fill="{colour}"/>' for a, b in steps]
    return "\n".join([*out, "</g>", "</svg>"]) + "\n"
