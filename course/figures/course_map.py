"""The map of the course: which chapters are here, how long each takes, where this learner stands, what is next."""

from __future__ import annotations

from course.catalogue import Course
from course.figures.svg import BLUE, ORANGE, Drawing, Figure
from course.files import FilesError
from course.standings import Standing, Standings, standings
from course.timetable import RULE, Planned, in_words, timetable

WIDTH, ROW, HEAD, TALLEST = 250, 34, 30, 12  # a column holds twelve chapters and names of parts


def course_map(here: str = "00", course: Course | None = None) -> Figure:
    """Chapters by part.  The chapter whose number is `here` is marked, and the next one to work in.

    Chapters that are still to come have dashed frames.  Points come from the learner's progress.
    """
    course = course or Course()
    found = _standings(course)
    scores = {row.chapter.removeprefix("ch"): row for row in found.chapters}
    following = found.following[0].chapter.removeprefix("ch") if found.following else ""
    columns = _columns(timetable(course))
    height = max(sum(HEAD + ROW * len(plans) for _, plans in column) for column in columns)
    drawing = Drawing(len(columns) * WIDTH + 8, height + 62)
    told = []
    for c, column in enumerate(columns):
        x, y = 10.0 + c * WIDTH, 0.0
        for title, plans in column:
            drawing.text(x, y + 21, title, 13, "start", bold=True)
            y += HEAD
            for plan in plans:
                row = scores.get(plan.chapter)
                _draw(drawing, x, y, plan, row, plan.chapter == here, plan.chapter == following)
                told.append(_told(plan, row, plan.chapter == here, plan.chapter == following))
                y += ROW
    _legend(drawing, drawing.height - 34)
    drawing.text(10, drawing.height - 12, f"Times are estimates: {RULE}.", 11, "start", "var(--soft)")
    return Figure(drawing, "Map of the course", f"Map of the course. {'; '.join(told)}. Times are estimates: {RULE}.")


def _standings(course: Course) -> Standings:
    try:
        return standings(course)
    except FilesError:  # a progress file that cannot be read: the map is drawn without it
        return Standings((), None)


def _columns(parts: list[tuple[str, list[Planned]]]) -> list[list[tuple[str, list[Planned]]]]:
    """The parts in columns: short ones below one another, long ones cut."""
    columns: list[list[tuple[str, list[Planned]]]] = []
    left = 0
    for title, plans in parts:
        for i in range(0, len(plans), TALLEST - 1):
            piece = ("" if i else title, plans[i : i + TALLEST - 1])
            if len(piece[1]) + 1 > left:
                columns.append([])
                left = TALLEST
            columns[-1].append(piece)
            left -= len(piece[1]) + 1
    return columns


def _draw(
    drawing: Drawing, x: float, y: float, plan: Planned, row: Standing | None, here: bool, following: bool
) -> None:
    width, height = WIDTH - 12, ROW - 6
    if not plan.here:
        drawing.rect(x, y, width, height, dash="4 3")
        drawing.text(x + 8, y + 18, plan.name, 12, "start", "var(--soft)")
        return
    drawing.rect(x, y, width, height, ORANGE if here else BLUE, "var(--line)", 0.4 if here else 0.12)
    if following:
        drawing.rect(x, y, width, height, "none", "var(--ink)")
        drawing.rect(x + 1, y + 1, width - 2, height - 2, "none", "var(--ink)", radius=2)
    drawing.text(x + 8, y + 17, plan.name, 12, "start", bold=here)
    done = row is not None and row.passed == row.exercises
    drawing.text(x + width - 8, y + 17, "\u2713 done" if done else in_words(plan.minutes), 11, "end")
    if row is not None and row.points:
        drawing.rect(x + 4, y + height - 6, (width - 8) * min(1.0, row.score / row.points), 3, BLUE, "none", radius=1)


def _told(plan: Planned, row: Standing | None, here: bool, following: bool) -> str:
    if not plan.here:
        return f"{plan.name}: still to come"
    words = [in_words(plan.minutes)]
    if row is not None:
        words.append(f"{row.score} of {row.points} points")
    words += [*(["you are here"] if here else []), *(["next to work in"] if following else [])]
    return f"{plan.name}: {', '.join(words)}"


def _legend(drawing: Drawing, y: float) -> None:
    x = 10.0
    for words, fill, stroke, opacity, dash in (
        ("you are here", ORANGE, "var(--line)", 0.4, ""),
        ("here, with its time; the bar shows your points", BLUE, "var(--line)", 0.12, ""),
        ("next for you", "none", "var(--ink)", 1.0, ""),
        ("still to come", "none", "var(--line)", 1.0, "4 3"),
    ):
        drawing.rect(x, y - 11, 20, 14, fill, stroke, opacity, dash)
        if stroke == "var(--ink)":
            drawing.rect(x + 1, y - 10, 18, 12, "none", stroke, radius=2)
        drawing.text(x + 26, y, words, 11, "start")
        x += 46 + 6.0 * len(words)
