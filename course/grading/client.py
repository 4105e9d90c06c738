"""Hands learners' code to a worker process and waits for the grade; the worker stays warm between calls."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.grading.outcome import NOT_YET, PASSED, CheckResult, Grade, judge
from course.grading.stopped import partial_grade, why_stopped
from course.source import ROOT, ChapterSource, ExerciseSource

PATIENCE = 3.0  # seconds beyond a limit before the process is ended from outside
START = 60.0  # seconds for Python and NumPy to start on a slow disk
SAID = 1 << 16  # bytes of what the worker wrote to stderr that are kept
FIELDS = {
    "ready": {"pid"},
    "started": {"text"},
    "checked": {"result"},
    "grade": {"grade", "dirty"},
    "limit": {"limit", "line", "text"},
    "fault": {"text"},
}  # what the worker says
OURS = "this is a fault of the course, not of your code."
BOX_FILE_MB = 64  # the largest file that boxed code may write
BOX_VARIABLES = (
    "PATH",
    "PATHEXT",
    "SYSTEMROOT",
    "SYSTEMDRIVE",
    "COMSPEC",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "VIRTUAL_ENV",
    "PYTHONNOUSERSITE",
    "FUCINA_CACHE_DIR",
    "FUCINA_HOME",
    "FUCINA_ISA",
)
BOX_PLACES = ("HOME", "USERPROFILE", "TMPDIR", "TEMP", "TMP", "FUCINA_COURSE_STATE")


class GradingFault(Exception):
    """The grader itself broke; the message holds what the worker said."""


class WorkerClient:
    """One worker process; started when first needed, replaced when it is dirty or gone.

    Parameters
    ----------
    box : Path, optional
        For code of strangers: an empty folder that is its working folder, home and place for temporary files.  It gets
        few of the caller's environment variables and cannot write large files.  That keeps accidents away from what
        else there is; it is no sandbox against malice.
    """

    def __init__(self, box: Path | None = None) -> None:
        self._box = box
        self._errors = bytearray()
        self._process: subprocess.Popen | None = None
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._lock = threading.Lock()
        self._ready = False
        self.starts = 0
        atexit.register(self.close)

    def start(self) -> None:
        """Start the process without waiting for it, so that the first check finds it warm."""
        if self._process is not None and self._process.poll() is None:
            return
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {
            **os.environ,
            "PYTHONPATH": path,
            "PYTHONHASHSEED": "0",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
        }
        # -P: nothing is imported from the working folder
        command = [sys.executable, "-P", "-X", "utf8", "-m", "course.grading.worker"]
        if self._box is not None:
            homes = dict.fromkeys(BOX_PLACES, str(self._box))
            kept = {name: value for name, value in os.environ.items() if name in BOX_VARIABLES}
            own = ("PYTHONPATH", "PYTHONHASHSEED", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MPLBACKEND")
            environment = {**kept, **homes, **{name: environment[name] for name in own}, "PYTHONDONTWRITEBYTECODE": "1"}
            command.append(str(BOX_FILE_MB))
        flags: dict[str, Any] = {"start_new_session": True}
        if sys.platform == "win32":
            flags = {"creationflags": subprocess.CREATE_NEW_PROCESS_GROUP}
        self._process = subprocess.Popen(
            command,
            cwd=self._box or ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **flags,
        )
        self._lines = queue.Queue()
        self._errors = bytearray()
        self._ready = False
        self.starts += 1
        for pipe, into in ((self._process.stdout, self._read), (self._process.stderr, self._read_errors)):
            threading.Thread(target=into, args=(pipe, self._lines), daemon=True).start()

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)  # what the code started, too: the worker leads its own session
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def grade(
        self,
        chapter: ChapterSource,
        exercise: ExerciseSource,
        text: str,
        path: str,
        cpu_seconds: float | None = None,
        memory_mb: int | None = None,
        brief: bool = False,
    ) -> Grade:
        """Grade `text`, the content of `path`.  Limits default to the exercise's own.

        `brief`: stop at the first check that fails, and do not look for a known mistake.

        Raises
        ------
        GradingFault
            The worker broke for a reason that is not the learner's.
        """
        request = {
            "source": str(chapter.path),
            "exercise": exercise.name,
            "text": text,
            "path": path,
            "cpu_seconds": cpu_seconds,
            "memory_mb": memory_mb,
            "brief": brief,
        }
        limit = 4 * (cpu_seconds or exercise.cpu_seconds)
        with self._lock:
            try:
                return self._ask(request, exercise, limit, memory_mb or exercise.memory_mb)
            except BaseException:  # an interrupt too: what the process is doing is unknown
                self.close()
                raise

    def _ask(self, request: dict[str, Any], exercise: ExerciseSource, limit: float, memory_mb: int) -> Grade:
        for attempt in (1, 2):
            self.start()
            try:
                if not self._ready and self._next(time.monotonic() + START).get("kind") != "ready":
                    raise GradingFault(self._fault("the grading process did not start"))
                self._ready = True
                assert self._process is not None and self._process.stdin is not None
                self._process.stdin.write((json.dumps(request) + "\n").encode("ascii"))
                self._process.stdin.flush()
                break
            except OSError:
                self.close()
                if attempt == 2:
                    raise GradingFault("the grading process ends as soon as it starts") from None
        return self._listen(request, exercise, time.monotonic() + limit + PATIENCE, memory_mb)

    def _listen(self, request: dict, exercise: ExerciseSource, deadline: float, memory_mb: int) -> Grade:
        results: list[CheckResult] = []
        running = ""
        while True:
            event = self._next(deadline)
            kind = event["kind"]
            if kind == "started":
                running = event["text"]
            elif kind == "checked":
                results.append(CheckResult(**event["result"]))
                running = ""
            elif kind == "grade":
                if event["dirty"]:
                    self.close()
                return _agreed(Grade.from_json(event["grade"]))
            elif kind == "fault":
                raise GradingFault(f"the grading process broke; {OURS}\n{event['text'].strip()}")
            else:
                what = why_stopped(event, memory_mb)
                self.close()
                return partial_grade(request, exercise, results, running, what, event)

    def _next(self, deadline: float) -> dict[str, Any]:
        try:
            event = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return {"kind": "limit", "limit": "time", "line": 0, "text": ""}
        if event is None:
            code = self._exit_code()
            if code is not None and code < 0 and -code == getattr(signal, "SIGXCPU", None):
                return {"kind": "limit", "limit": "time", "line": 0, "text": ""}
            return {"kind": "ended", "code": code}
        return event

    def _exit_code(self) -> int | None:
        """How the process ended; one that lives on with a broken pipe is beyond use."""
        if self._process is None:
            return None
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.close()
            return None

    def _fault(self, what: str) -> str:
        said = self._said()[-3000:].decode("utf-8", "replace").strip()
        return f"{what}; {OURS}\n{said}"

    def _said(self) -> bytes:
        """What the worker wrote to stderr in the end."""
        time.sleep(0.05)
        return bytes(self._errors)

    @staticmethod
    def _read(pipe: Any, lines: queue.Queue) -> None:
        with contextlib.suppress(ValueError, OSError):
            for line in pipe:
                event = json.loads(line)
                if not isinstance(event, dict) or not FIELDS.get(str(event.get("kind")), {""}) <= event.keys():
                    break  # not the worker's: the code writes to files that it did not open
                lines.put(event)
        lines.put(None)

    def _read_errors(self, pipe: Any, _: queue.Queue) -> None:
        errors = self._errors
        with contextlib.suppress(ValueError, OSError):
            while block := pipe.read1(SAID):
                errors += block
                del errors[:-SAID]


def _agreed(grade: Grade) -> Grade:
    """The grade, if its outcome is what its checks say: code that reached into the grader passes nothing."""
    if grade.passed and judge(grade.checks) != PASSED:
        grade.outcome = NOT_YET
        grade.message = "the grader is not as it was: the code changes something in `course`"
    return grade


_shared = WorkerClient()


def warm() -> None:
    """Start the shared worker in the background."""
    _shared.start()


def grade_text(
    name: str, text: str, path: str, course: Course | None = None, client: WorkerClient | None = None, **limits: Any
) -> Grade:
    """Grade `text` as the content of `path`; the exercise is found by name in `course`."""
    chapter, exercise = (course or Course()).exercise(name)
    return (client or _shared).grade(chapter, exercise, text, path, **limits)
