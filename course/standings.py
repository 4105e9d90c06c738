"""How far a learner has come: by chapter, in all, and which exercise comes next; the same for every face."""

from __future__ import annotations

from dataclasses import dataclass

from course.catalogue import Course
from course.files import ExerciseFiles
from course.progress import Progress, standing
from course.score import worth
from course.source import ChapterSource, ExerciseSource

DONE = ("passed", "changed", "updated")


@dataclass(frozen=True, slots=True)
class Standing:
    """One chapter: points earned, how many of them as a bonus, points that count as all, exercises passed and there."""

    chapter: str
    title: str
    score: int
    bonus: int
    points: int
    passed: int
    exercises: int


@dataclass(frozen=True, slots=True)
class Standings:
    """All chapters, and the exercise to go on with (None when all are passed)."""

    chapters: tuple[Standing, ...]
    following: tuple[ChapterSource, ExerciseSource] | None

    @property
    def score(self) -> int:
        """Points earned, bonus included."""
        return sum(row.score for row in self.chapters)

    @property
    def bonus(self) -> int:
        """Points earned as a bonus."""
        return sum(row.bonus for row in self.chapters)

    @property
    def points(self) -> int:
        """Points that count as all."""
        return sum(row.points for row in self.chapters)


def standings(course: Course) -> Standings:
    """Read the progress file and the exercises files."""
    entries, files = Progress(course).read(), ExerciseFiles(course)
    rows = []
    following = bonus_left = None
    for chapter in course.chapters():
        best = {e.name: entries.get(e.name, {}).get("best", 0) for e in chapter.exercises}
        for exercise in chapter.exercises:
            state = standing(entries.get(exercise.name, {}), exercise, files.glance(chapter, exercise))
            if state not in DONE:
                if exercise.bonus:
                    bonus_left = bonus_left or (chapter, exercise)
                else:
                    following = following or (chapter, exercise)
        rows.append(
            Standing(
                chapter.chapter,
                chapter.title,
                sum(best.values()),
                sum(best[e.name] for e in chapter.exercises if e.bonus),
                worth(chapter.exercises),
                sum(bool(entries.get(e.name, {}).get("passed_at")) for e in chapter.exercises),
                len(chapter.exercises),
            )
        )
    return Standings(tuple(rows), following or bonus_left)
