"""The process that runs learners' code: one request a line on stdin, events and the grade as lines of JSON.

Started as `python -m course.grading.worker` by `course.grading.client`.  It is kept between requests; after each it
forgets what the learner's code imported, and says `dirty` when anything else is left behind (`course.grading.state`): it is
then replaced.  An argument is the largest file, in MB, that running code may write.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, BinaryIO

import numpy.random  # noqa: F401 (NumPy imports it late; every check needs it)

from course.grading.core import ChapterChecks
from course.grading.guard import Guard
from course.grading.learner import show_line
from course.grading.limits import Watchdog, limit_address_space, limit_cpu, limit_files
from course.grading.outcome import NOT_ATTEMPTED, NOT_YET, Grade
from course.grading.state import Anchor, Fingerprint, compare
from course.grading.tools import describe
from course.parser import load_chapter
from course.source import ROOT, digest

RECURSION = 1000
FAULT = 70  # exit code
set_recursion_limit = sys.setrecursionlimit  # kept: the code may replace it


class Worker:
    """Answers requests until its input ends."""

    def __init__(self, requests: BinaryIO, answers: BinaryIO) -> None:
        self.requests = requests
        self.answers = answers
        self.lock = threading.Lock()
        self.pid = os.getpid()
        self.chapters: dict[str, ChapterChecks] = {}
        self.guards: dict[Path, Guard] = {}
        self.path, self.lines = "", [""]
        self.main_thread = threading.get_ident()
        self.watchdog = Watchdog(self.stopped)

    def send(self, kind: str, data: dict[str, Any]) -> None:
        """One line of JSON, ASCII."""
        if os.getpid() != self.pid:
            os._exit(0)  # a copy that the learner's code made with fork: one answer is enough
        line = json.dumps({"kind": kind, **data}) + "\n"
        with self.lock:
            self.answers.write(line.encode("ascii"))
            self.answers.flush()

    def stopped(self, kind: str) -> None:
        """Called by the watchdog thread: tell where the learner's code is, and end the process."""
        frame = sys._current_frames().get(self.main_thread)
        while frame is not None and frame.f_code.co_filename != self.path:
            frame = frame.f_back
        line = frame.f_lineno if frame is not None else 0
        text = show_line(self.lines[line - 1]) if 0 < line <= len(self.lines) else ""
        self.send("limit", {"limit": kind, "line": line, "text": text})
        os._exit(3)

    def serve(self) -> None:
        """The loop over requests."""
        self.send("ready", {"pid": os.getpid()})
        for line in self.requests:
            self.answer(json.loads(line))

    def answer(self, request: dict[str, Any]) -> None:
        """Grade what a request names; the last line sent is the grade."""
        modules = set(sys.modules)
        checks = self.checks(Path(request["source"]))
        exercise = checks.chapter.exercise(request["exercise"])
        solutions = checks.chapter.path.parent
        if solutions not in self.guards:
            self.guards[solutions] = Guard(str(solutions))
        self.path, self.lines = request["path"], request["text"].splitlines()
        cpu = request.get("cpu_seconds") or exercise.cpu_seconds
        memory = (request.get("memory_mb") or exercise.memory_mb) << 20
        limit_address_space(memory)
        limit_cpu(cpu + 1.0)
        self.watchdog.arm(cpu, 4 * cpu, memory)
        before, anchor, began, busy = Fingerprint(), Anchor(), time.perf_counter(), time.process_time()
        trouble: BaseException | None = None
        try:
            try:
                guard, brief = self.guards[solutions], request.get("brief", False)
                grade = checks.grade(exercise, request["text"], self.path, guard, self.send, brief)
            finally:
                anchor.hold()
                set_recursion_limit(RECURSION)
        except BaseException as error:
            trouble = error
            grade = Grade.of(exercise, NOT_YET, self.path, digest(request["text"]))
        busy = time.process_time() - busy
        self.watchdog.disarm()
        limit_cpu(3600.0)
        for name in set(sys.modules) - modules:
            if not name.startswith("_checks_"):
                self.forget(name)
        changes, tools = compare(before)
        if trouble is not None:
            if not changes and not anchor.moved and not isinstance(trouble, (MemoryError, RecursionError)):
                raise trouble  # a fault of ours
            grade.message = f"the grader could not go on after your code had run: {describe(trouble)}"
        grade.seconds = time.perf_counter() - began
        report_changes(grade, changes, tools)
        report_time(grade, busy, cpu)
        self.send("grade", {"grade": grade.to_json(), "dirty": bool(changes) or anchor.moved or trouble is not None})

    def forget(self, name: str) -> None:
        """Drop modules of the learner's, so that an edit of them is seen; packages of the environment stay."""
        module = sys.modules.get(name)
        file = getattr(module, "__file__", None) or ""
        if name.startswith("_graded_") or Path(file).parent == Path(self.path).parent:
            sys.modules.pop(name, None)

    def checks(self, source: Path) -> ChapterChecks:
        """The checks of a chapter file, read again when it has changed."""
        chapter = load_chapter(source)
        known = self.chapters.get(str(source))
        if known is None or known.chapter.digest != chapter.digest:
            same = (checks for checks in self.chapters.values() if checks.chapter.digest == chapter.digest)
            twin = next(same, None)
            known = self.chapters[str(source)] = ChapterChecks(chapter) if twin is None else twin.at(chapter)
        return known


def report_changes(grade: Grade, changes: list[str], tools: list[str]) -> None:
    """Say what the code changed for the whole process; nothing passes that replaced what the grader works with."""
    if tools and grade.passed:
        grade.outcome = NOT_YET
        grade.message = f"the code replaces {', '.join(tools[:3])}, which all other code uses too, the grader included"
    elif changes and not grade.passed and grade.outcome != NOT_ATTEMPTED:
        grade.notes.append(f"The code changes settings that outlive it: {', '.join(changes[:3])}.")


def report_time(grade: Grade, busy: float, most: float) -> None:
    """Warn of code that passes and came near its limit: on a slower machine it would not."""
    if grade.passed and busy > most / 2:
        grade.notes.append(
            f"This took {busy:.1f} s of processor time, and at {most:.0f} s it is ended: on a slower machine it would not "
            "pass. Do less: fewer or smaller cases often show as much."
        )


def main() -> None:
    """Keep the real stdin and stdout for the protocol, and give running code empty ones."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    sys.stdin = io.StringIO("")
    sys.stdout = io.StringIO()
    set_recursion_limit(RECURSION)
    if len(sys.argv) > 1:
        limit_files(int(sys.argv[1]) << 20)
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    worker = Worker(requests, answers)
    try:
        worker.serve()
    except BaseException:
        worker.send("fault", {"text": traceback.format_exc()[-3000:]})
        os._exit(FAULT)


if __name__ == "__main__":
    main()
