"""`python3 -m course watch`: saves are noticed by looking at the files, and the exercise is graded at once.

The standard library alone, and polling: it works on network drives, in containers and in every editor, those that
write a new file and rename it included.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import warnings
from typing import TextIO

from course import lessons
from course.catalogue import Course
from course.files import ExerciseFiles, FilesError, Parts
from course.grading import grade, warm
from course.keys import Keys
from course.progress import Progress, standing
from course.source import NOT_PYTHON, ChapterSource, ExerciseSource
from course.standings import DONE
from course.terminal import listing, paragraph, prose, record, say, show_grade

PERIOD = 0.2  # seconds between two looks at the files
RULE = "-" * 72


class Watcher:
    """The watch loop over one course folder.

    Parameters
    ----------
    course : Course
    start : str, optional
        The exercise to begin with; else the first that is not passed.
    manual : bool
        Grade on Enter instead of on a save.
    out, keys : TextIO, Keys, optional
        Where to write, and where keys come from.
    """

    def __init__(
        self,
        course: Course,
        start: str | None = None,
        manual: bool = False,
        out: TextIO | None = None,
        keys: Keys | None = None,
    ) -> None:
        self.course = course
        self.files = ExerciseFiles(course)
        self.manual = manual
        self.out = out or sys.stdout
        self.keys = keys or Keys()
        self.current = course.find([start])[0][1].name if start else self.next_open("")
        self.resetting = False
        self.seen: dict[str, tuple] = {}
        self.pending: dict[str, tuple] = {}
        self.parts: dict[str, str] = {}

    def run(self) -> int:
        """Watch until q, Ctrl-C or the end of input; 0 when everything is passed by then, else 1."""
        warm()
        self.look()
        with self.keys:
            self.say(
                RULE,
                "Watching exercises/ - save a file to have it checked."
                if not self.manual
                else "Press Enter to check the current exercise.",
            )
            self.introduce()
            try:
                while True:
                    key = self.keys.get(PERIOD)
                    if key is not None and not self.press(key):
                        break
                    if not self.manual:
                        for name in self.look():
                            self.check(name)
            except (KeyboardInterrupt, EOFError):
                pass
        self.say("Stopped watching; see you.")
        return 0 if not self.next_open("") else 1

    def look(self) -> list[str]:
        """The exercises whose text has changed since the last look."""
        changed = []
        for chapter in self.course.chapters():
            stamp = self._stamp(chapter)
            if stamp is None or self.seen.get(chapter.file_name) == stamp:
                continue  # an editor renames: the next look finds the new file
            text = self._text(chapter)
            waited = self.pending.get(chapter.file_name) == stamp
            self.pending[chapter.file_name] = stamp
            if self._stamp(chapter) != stamp or not (waited or _whole(text)):
                continue  # perhaps half a write: the next look sees the end of it
            parts = Parts.of(text or "")
            first = chapter.file_name not in self.seen
            mine = self.current in (exercise.name for exercise in chapter.exercises)
            if not first and not (text or "").strip():  # emptied, or not to be read: once is enough to say so
                self.seen[chapter.file_name] = stamp
                changed.append(self.current if mine else chapter.exercises[0].name)
                continue
            self.seen[chapter.file_name] = stamp
            for exercise in chapter.exercises:
                text = parts.get(exercise.name) or ""
                if not first and self.parts.get(exercise.name) != text:
                    changed.append(exercise.name)
                self.parts[exercise.name] = text
            if not first and not changed and mine:
                changed.append(self.current)
        return changed

    def _stamp(self, chapter: ChapterSource) -> tuple | None:
        with contextlib.suppress(OSError):
            status = self.files.path(chapter).stat()
            return status.st_mtime_ns, status.st_size, status.st_ino
        return None

    def _text(self, chapter: ChapterSource) -> str | None:
        with contextlib.suppress(FilesError):
            return self.files.read(chapter)
        return None

    def check(self, name: str) -> None:
        """Grade one exercise and show what comes next."""
        self.current = name
        self.say("", RULE)
        result = grade(name, self.course)
        first = record(self.course, result, self.out)
        show_grade(self.course, result, self.out, first)
        following = self.next_open(name)
        if result.passed:
            self.say("", f"Passed! n goes on to {following}." if following else "Passed! That was the last one.")
        self.menu()

    def press(self, key: str) -> bool:
        """Act on one key; False ends the loop."""
        try:
            return self._act(key)
        except FilesError as error:  # a folder that cannot be written: the watch goes on
            self.say(str(error))
            self.menu()
            return True

    def _act(self, key: str) -> bool:
        if self.resetting:
            self.resetting = False
            if key == "y":
                for name, kept in lessons.reset(self.course, [self.current]):
                    self.say(*prose(f"{name}: {kept}"))
                self.look()
            else:
                self.say("Nothing was reset.")
            self.menu()
        elif key == "q":
            return False
        elif key == "n":
            self.current = self.next_open(self.current) or self.current
            self.introduce()
        elif key == "h":
            hints = lessons.take_hint(self.course, self.current)
            for number, text in hints.shown:
                self.say(f"{hints.name}, hint {number} of {hints.total}", *paragraph(text))
            self.menu()
        elif key == "l":
            self.say(*listing(self.course))
            self.menu()
        elif key == "r":
            self.resetting = True
            self.say(f"Bring the starter of {self.current} back? Your file is kept aside. y = yes")
        elif key in ("c", ""):
            self.check(self.current)
        return True

    def next_open(self, after: str) -> str:
        """The next exercise after `after` that is not passed, from the start again at the end; '' if all are."""
        entries = Progress(self.course).read()
        pairs = self.course.all()
        names = [exercise.name for _, exercise in pairs]
        begin = names.index(after) + 1 if after in names else 0
        for chapter, exercise in pairs[begin:] + pairs[:begin]:
            if exercise.name != after and not self._done(entries, chapter, exercise):
                return exercise.name
        return ""

    def _done(self, entries: dict, chapter: ChapterSource, exercise: ExerciseSource) -> bool:
        part = self.files.glance(chapter, exercise)
        return standing(entries.get(exercise.name, {}), exercise, part) in DONE

    def introduce(self) -> None:
        """Say which exercise is the current one and where it is."""
        if not self.current:
            self.current = self.course.all()[0][1].name
            self.say("All exercises are passed.")
        chapter, exercise = self.course.exercise(self.current)
        line = next(
            (
                number
                for number, text in enumerate((self._text(chapter) or "").splitlines(), start=1)
                if text.startswith(f"# %% {exercise.name}")
            ),
            1,
        )
        self.say(
            "",
            f"{exercise.name} - {exercise.title} ({exercise.worth}, {exercise.level})",
            f"  exercises/{chapter.file_name}:{line}",
        )
        self.menu()

    def menu(self) -> None:
        """The keys."""
        enter = "" if self.keys.single else "  (then Enter)"
        self.say(f"[n]ext  [h]int  [c]heck  [l]ist  [r]eset  [q]uit{enter}")

    def say(self, *lines: str) -> None:
        """Print to the watcher's stream."""
        say(*lines, to=self.out)


def _whole(text: str | None) -> bool:
    """Whether a file looks finished.  One that does not is looked at twice: an editor may be writing it."""
    with contextlib.suppress(*NOT_PYTHON), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return text is not None and bool(ast.parse(text).body)
    return False
