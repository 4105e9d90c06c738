"""How a learner's guesses have developed: numbers by how far off they were, choices by chapter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course.figures.svg import BLUE, ORANGE, Drawing, Figure

LEFT, WIDTH, HEIGHT, ROW, BOX = 150, 520, 190, 28, 20
FAR = 100.0  # factors beyond it are drawn at the edge


@dataclass(frozen=True, slots=True)
class Said:
    """A prediction whose truth is known; `kind` is number, choice or text."""

    name: str
    kind: str
    guess: Any
    truth: Any


def guesses_figure(said: Sequence[Said]) -> Figure:
    """Numbers from left to right in the order in which they were said, as factors; choices in rows by chapter.

    Parameters
    ----------
    said : sequence of Said
        In order of time; one at least.
    """
    numbers = [s for s in said if s.kind == "number"]
    choices = [s for s in said if s.kind == "choice"]
    texts = len(said) - len(numbers) - len(choices)
    chapters = sorted({s.name[:2] for s in choices})
    top = 40 + (HEIGHT + 66 if numbers else 0)
    drawing = Drawing(LEFT + WIDTH + 40, top + (26 + ROW * len(chapters) if choices else 0) + (26 if texts else 4))
    drawing.text(10, 21, "Your guesses", 14, "start", bold=True)
    told = []
    if numbers:
        told.append(_draw_numbers(drawing, numbers))
    if choices:
        told.append(_draw_choices(drawing, choices, chapters, top))
    if texts:
        words = f"{texts} {'answer' if texts == 1 else 'answers'} in words"
        drawing.text(10, drawing.height - 10, f"and {words}, not judged", 12, "start", "var(--soft)")
        told.append(words)
    return Figure(drawing, "Your guesses", "Your guesses. " + ". ".join(told) + ".")


def factor(said: Said) -> float:
    """Guess over truth; 0 or infinite where no factor leads from one to the other."""
    if said.guess == said.truth:
        return 1.0
    if said.guess * said.truth > 0:
        return said.guess / said.truth
    return math.inf if said.guess > said.truth else 0.0


def _draw_numbers(drawing: Drawing, numbers: list[Said]) -> str:
    factors = [factor(s) for s in numbers]
    real = [f for f in factors if 0 < f < math.inf]
    furthest = max((max(f, 1 / f) for f in real), default=2.0)
    edge = min(max(2.0, furthest), FAR)
    middle, half = 40 + HEIGHT / 2, HEIGHT / 2 - 14

    def y(value: float) -> float:
        return middle - half * math.log(max(1 / edge, min(edge, value))) / math.log(edge)

    ticks: list[int] = []
    for times in (2, 5, 10, 100):
        room = half * math.log(times / (ticks[-1] if ticks else 1)) / math.log(edge)
        if times <= edge * 1.001 and room >= 15:  # names that stand below one another need room
            ticks.append(times)
    for tick in [1 / t for t in reversed(ticks)] + [1] + ticks:
        name = "exact" if tick == 1 else f"{tick} times too much" if tick > 1 else f"{1 / tick:.0f} times too little"
        drawing.line(LEFT, y(tick), LEFT + WIDTH, y(tick), "var(--ink)" if tick == 1 else "var(--line)", 1, "")
        drawing.text(LEFT - 8, y(tick) + 4, name, 11, "end")
    step = WIDTH / len(numbers)
    points = [(LEFT + step * (i + 0.5), y(f)) for i, f in enumerate(factors)]
    for (x, height), value in zip(points, factors, strict=True):
        drawing.line(x, middle, x, height, BLUE, 2)
        beyond = not 1 / (edge * 1.001) <= value <= edge * 1.001
        drawing.rect(x - 5, height - 5, 10, 10, "var(--paper)" if beyond else BLUE, BLUE, radius=5)
    chapter = ""
    for (x, _), s in zip(points, numbers, strict=True):
        if s.name[:2] != chapter:
            chapter = s.name[:2]
            drawing.text(x, 40 + HEIGHT + 16, chapter, 11)
    outside = "; an empty point lies further out" if len(real) < len(factors) or furthest > edge else ""
    drawing.text(
        LEFT + WIDTH / 2, 40 + HEIGHT + 36, f"numbers, in the order in which you said them, by chapter{outside}", 12
    )
    near = sum(max(f, 1 / f) <= 2 for f in real)
    listed = "; ".join(f"{s.name} said {s.guess:g}, is {s.truth:g}" for s in numbers)
    return f"{near} of {len(numbers)} numbers within a factor of 2: {listed}"


def _draw_choices(drawing: Drawing, choices: list[Said], chapters: list[str], top: float) -> str:
    drawing.text(10, top + 6, "choices, by chapter: full is right, empty is otherwise", 12, "start")
    told = []
    most = max(sum(s.name[:2] == chapter for s in choices) for chapter in chapters)
    step = min(BOX + 8.0, (WIDTH - 90) / most)
    for row, chapter in enumerate(chapters):
        mine = [s for s in choices if s.name[:2] == chapter]
        y = top + 20 + ROW * row
        right = sum(s.guess == s.truth for s in mine)
        drawing.text(LEFT - 8, y + 14, f"chapter {chapter}", 12, "end")
        for i, s in enumerate(mine):
            good = s.guess == s.truth
            drawing.rect(LEFT + step * i, y, step - 6, BOX, BLUE if good else "none", BLUE if good else ORANGE, 0.85)
        drawing.text(LEFT + step * len(mine) + 8, y + 14, f"{right} of {len(mine)}", 12, "start")
        told.append(f"chapter {chapter} {right} of {len(mine)}")
    return "Choices that were right: " + ", ".join(told)
