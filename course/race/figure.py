"""The race as a picture: for each text, what a step of the ladder reaches, beside ours and llama.cpp's."""

from __future__ import annotations

from course.figures.svg import BLUE, GREEN, ORANGE, Drawing, Figure, columns
from course.race.report import Race, Row

WIDE, BAR, GAP = 150, 20, 26
COLOURS = {"yours": BLUE, "ours": ORANGE, "llama.cpp": GREEN}
TITLE = "The race: tokens per second"


def race_figure(result: Race) -> Figure:
    """Bars of tokens per second, a panel for each text; rows that did not run say so in the place of a bar.

    Parameters
    ----------
    result : of `race()`.
    """
    rows = [row for row in result.rows if row.entry.timed]
    texts = list(dict.fromkeys(row.text for row in rows))
    names = list(dict.fromkeys(row.entry.who for row in rows))
    fastest = max((row.rate.median for row in rows if row.rate), default=1.0)
    label = 7.2 * max(columns(name) for name in names) + 24
    panel = WIDE + 66
    drawing = Drawing(label + panel * len(texts), 66 + GAP * len(names) + 8)
    drawing.text(10, 21, TITLE, 14, "start", bold=True)
    for i, name in enumerate(names):
        drawing.text(label - 8, 66 + GAP * i + 15, name, 13, "end")
    for column, text in enumerate(texts):
        x = label + panel * column
        drawing.text(x, 50, text, 13, "start", bold=True)
        for i, name in enumerate(names):
            found = [row for row in rows if (row.text, row.entry.who) == (text, name)]
            if found:
                _bar(drawing, found[0], x, 66 + GAP * i, fastest)
    return Figure(drawing, TITLE, _alt(rows, texts))


def _bar(drawing: Drawing, row: Row, x: float, y: float, fastest: float) -> None:
    rate = row.rate
    if rate is None:
        drawing.text(x, y + 15, "did not run", 12, "start", "var(--soft)")
        return
    length = max(1.0, WIDE * rate.median / fastest)
    colour = COLOURS[row.entry.side]
    drawing.rect(x, y, length, BAR, colour, colour, 0.75 if row.entry.forward == "fucina" else 0.35)
    low, high = (x + WIDE * value / fastest for value in (rate.low, rate.high))
    drawing.line(low, y + BAR / 2, high, y + BAR / 2, "var(--ink)", 1.5)
    drawing.text(max(high, x + length) + 6, y + 15, _short(rate.median), 12, "start")


def _alt(rows: list[Row], texts: list[str]) -> str:
    told = []
    for text in texts:
        parts = [f"{r.entry.who} {_short(r.rate.median) if r.rate else 'did not run'}" for r in rows if r.text == text]
        told.append(f"{text}: {', '.join(parts)}")
    return f"{TITLE}. " + ". ".join(told) + "."


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
