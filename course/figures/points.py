"""How far a learner has come, as bars: points by chapter, and in all."""

from __future__ import annotations

from course.figures.svg import BLUE, GREEN, Drawing, Figure
from course.standings import Standings

WIDTH, ROW = 240, 30
CHARACTER = 6.6  # pixels of a letter of size 12


def points_figure(found: Standings, following: str) -> Figure:
    """A bar for each chapter; what was earned as a bonus is drawn after it.  `following` says what comes next."""
    rows = [
        (f"{row.chapter.removeprefix('ch')} {row.title}", row.score, row.bonus, row.points) for row in found.chapters
    ]
    rows.append(("all", found.score, found.bonus, found.points))
    passed = {f"{row.chapter.removeprefix('ch')} {row.title}": (row.passed, row.exercises) for row in found.chapters}
    longest = max(row[3] for row in rows[:-1]) if found.chapters else 1
    names = max(160.0, 18 + CHARACTER * max(len(row[0]) for row in rows))
    drawing = Drawing(names + WIDTH + 205, 44 + ROW * len(rows) + 34)
    drawing.text(10, 21, "Your points", 14, "start", bold=True)
    told = []
    for i, (name, score, bonus, points) in enumerate(rows):
        y = 36 + ROW * i + (6 if name == "all" else 0)
        scale = WIDTH / (found.points if name == "all" else longest) if points else 0.0
        drawing.text(names - 8, y + 15, name, 12, "end", bold=name == "all")
        drawing.rect(names, y, max(1.0, scale * points), 20, "none", "var(--line)")
        drawing.rect(names, y, scale * (score - bonus), 20, BLUE, "none", 0.8)
        end = names + scale * points
        if bonus:
            drawing.rect(end + 3, y, scale * bonus, 20, GREEN, "none", 0.8)
            end += 3 + scale * bonus
        extra = f" + {bonus} bonus" if bonus else ""
        done = f", {passed[name][0]} of {passed[name][1]} passed" if name in passed else ""
        drawing.text(end + 8, y + 15, f"{score - bonus} of {points}{extra}{done}", 12, "start")
        told.append(f"{name}: {score - bonus} of {points} points{extra}{done}")
    drawing.text(10, drawing.height - 12, following, 12, "start")
    return Figure(drawing, "Your points", f"{'; '.join(told)}. {following}")
