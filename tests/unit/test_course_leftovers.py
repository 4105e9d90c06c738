"""What a learner's file leaves behind reaches no other grade, and no mistake of theirs is called a fault of the course."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from course.catalogue import Course
from course.cells import save_cell
from course.grading import NOT_YET, GradingFault, WorkerClient
from course.source import ROOT
from course.teaching.cohort import grade_folder
from tests.unit.course_kit import Desk, make_course

NAME = "ch00.decode_ceiling"
BODY = '    raise NotImplementedError("ch00.decode_ceiling: your code here")'
RIGHT = "    if min(weight_bytes, bandwidth) <= 0:\n        raise ValueError\n    return bandwidth * 1e9 / weight_bytes"

# What a file can change for the whole process; each statement stands at its top.
LEFTOVERS = """
import numpy as np; np.seterr(all="raise")
import numpy as np; np.seterrcall(print)
import numpy as np; np.set_printoptions(precision=1)
import numpy as np; np.setbufsize(16000)
import numpy as np; np.random.seed(1)
import numpy as np; np.isclose = lambda *a, **k: np.True_
import numpy as np; np.random.default_rng = None
import numpy as np; np.mine = 1
import random; random.seed(1)
import random; random.random = lambda: 0.5
import decimal; decimal.getcontext().prec = 3
import decimal; decimal.DefaultContext.traps[decimal.Inexact] = True
import locale; locale.setlocale(locale.LC_ALL, "C" if locale.setlocale(locale.LC_ALL) != "C" else "C.UTF-8")
import warnings; warnings.simplefilter("error")
import warnings; warnings.showwarning = print
import builtins; del builtins.len
import builtins; builtins.sum = max
import builtins; builtins.__import__ = None
import builtins; builtins.mine = 1
import math; math.exp = lambda x: 1.0
import math; del math.tau
import time; time.sleep = print
import json; json.dumps = str
import os; os.chdir("/")
import os; os.environ["MINE"] = "1"
import os; os.environ.pop("PATH")
import os; os.umask(0o077)
import os; kept = open(os.devnull)
import os; os.dup2(os.open("/", os.O_RDONLY), 2)
import os; os.nice(1)
import sys; sys.setrecursionlimit(50)
import sys; sys.settrace(lambda *a: None)
import sys; sys.setprofile(lambda *a: None)
import sys; sys.path.insert(0, "/mine")
import sys; sys.meta_path.append(None)
import sys; sys.stdout = None
import sys; sys.stdin.close()
import sys; sys.excepthook = print
import sys; sys.set_int_max_str_digits(0)
import sys; sys.setswitchinterval(1.0)
import sys; sys.argv.append("mine")
import sys; sys.modules["math"] = None
import sys; sys.modules.pop("zlib")
import sys; sys.dont_write_bytecode = not sys.dont_write_bytecode
import threading; threading.settrace(lambda *a: None)
import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()
import threading; threading.stack_size(1 << 20)
import gc; gc.disable()
import gc; gc.set_threshold(1)
import gc; gc.callbacks.append(lambda *a: None)
import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)
import signal; signal.alarm(1000)
import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
import logging; logging.disable(50)
import logging; logging.basicConfig(level=10)
import atexit; atexit.register(print)
import tracemalloc; tracemalloc.start()
import socket; socket.setdefaulttimeout(1)
import os, time; os.environ["TZ"] = "Asia/Tokyo"; time.tzset(); os.environ.pop("TZ")
import course.grading.outcome as o; o.judge = lambda checks: "passed"
import course.grading.tools as t; t.Tools.equal = lambda *a: None
import course.grading.tools as t; t.describe.__code__ = (lambda error: "").__code__
import course.grading.client as c; c.FIELDS["mine"] = set()
"""

PROBE = """
import os, sys
import course.grading.core, course.grading.client
from course.grading.state import Anchor, Fingerprint
silent = []
for line in sys.stdin.read().strip().splitlines():
    child = os.fork()
    if not child:
        before, anchor, note, leave = Fingerprint(), Anchor(), sys.__stdout__.write, os._exit
        try:
            exec(line, {})
        finally:
            anchor.hold()
        sys.setrecursionlimit(1000)
        names = before.differences(Fingerprint())
        leave(0 if names or anchor.moved else 3)
    if os.waitpid(child, 0)[1]:
        silent.append(line)
print("\\n".join(silent))
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture
def client() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


def file_of(course: Course, body: str = RIGHT, top: str = "") -> str:
    """A file of chapter 00 with a body for its first exercise, and a line at the top."""
    text = Desk(course, NAME).chapter.starter()
    assert BODY in text
    return text.replace(BODY, body).replace("import math\n", f"import math\n{top}\n")


@pytest.mark.skipif(sys.platform != "linux", reason="forks, and several of these settings are Linux's")
def test_everything_that_can_be_left_behind_is_seen() -> None:
    answer = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROBE],
        input=LEFTOVERS,
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert answer.stdout.strip() == ""


@pytest.mark.parametrize(
    "top",
    [
        'import numpy as np; np.seterr(all="raise")',
        "import builtins; del builtins.len",
        "import sys; sys.setrecursionlimit(60)",
        "import sys; sys.settrace(lambda *a: 1 / 0)",
        "import decimal, gc, os; decimal.getcontext().prec = 1; gc.disable(); os.chdir('/')",
    ],
)
def test_one_file_does_not_spoil_the_next_grade(course: Course, client: WorkerClient, top: str) -> None:
    desk, other = Desk(course, NAME), Desk(course, "ch04.softmax_temperature")
    first = desk.grade(file_of(course, top=top), client=client)
    assert first.outcome in ("passed", "not yet")
    following = other.grade(other.chapter.solved(), client=client)
    assert following.passed, following
    assert client.starts <= 2  # replaced, unless what was changed is put back at once


def test_an_ordinary_file_keeps_the_worker(course: Course, client: WorkerClient) -> None:
    desk = Desk(course, NAME)
    for body in (RIGHT, "    return 1", "    return [][0]", "    print('x'); return bandwidth"):
        desk.grade(file_of(course, body, "import random, statistics, functools"), client=client)
    assert client.starts == 1


@pytest.mark.parametrize(
    ("top", "told"),
    [
        ("math.exp = math.exp.__call__", "the code replaces math.exp"),
        (
            "import numpy as np; np.isclose = lambda a, b, **k: np.ones(np.shape(a), bool)",
            "the code replaces numpy.isclose",
        ),
    ],
)
def test_nothing_passes_that_replaces_what_the_grader_works_with(
    course: Course, client: WorkerClient, top: str, told: str
) -> None:
    grade = Desk(course, NAME).grade(file_of(course, top=top), client=client)
    assert grade.outcome == NOT_YET and told in grade.message


def test_settings_that_outlive_a_wrong_answer_are_named(course: Course, client: WorkerClient) -> None:
    grade = Desk(course, NAME).grade(file_of(course, "    return 1", "import gc; gc.disable()"), client=client)
    assert any("garbage collector" in note for note in grade.notes)


MINE = """    class Mine(BaseException):
        pass

    class Odd:
        def {method}(self, *other):
            raise Mine

    return Odd()"""
DEEP = "x = " + "not " * 6000 + "1"
TERMS = "x = " + " + ".join(["1"] * 20000)

MISTAKES = {
    "a text of 50 MB": ("    return 'word ' * 10_000_000", ""),
    "bytes of 50 MB": ("    return bytes(50_000_000)", ""),
    "a list of long texts": ("    return ['x' * 1_000_000] * 50", ""),
    "a long message": ("    raise ValueError('x' * 50_000_000)", ""),
    "much that is printed": ("    print('word ' * 10_000_000)", ""),
    "__eq__ raises": (MINE.format(method="__eq__"), ""),
    "__repr__ raises": (MINE.format(method="__repr__"), ""),
    "__str__ raises": ("    class Odd(Exception):\n        def __str__(self):\n            exit()\n    raise Odd", ""),
    "__float__ raises": (MINE.format(method="__float__"), ""),
    "__gt__ exits": ("    class Odd(float):\n        __gt__ = __eq__ = lambda *a: exit()\n    return Odd()", ""),
    "a deep expression": (RIGHT, DEEP),
    "a long expression": (RIGHT, TERMS),
    "deep brackets": (RIGHT, "x = " + "(" * 300 + ")" * 300),
    "len is gone while it runs": ("    import builtins\n    del builtins.len, builtins.str\n    return 1", ""),
    "all names are gone": ("    import builtins\n    vars(builtins).clear()\n    return 1", ""),
    "a recursion limit that is too low": ("    return 1", "import sys; sys.setrecursionlimit(45)"),
    "a traceback of its own": ("    import os\n    os.write(2, b'Traceback (most')\n    os._exit(1)", ""),
    "a line of 2 MB": ("    return '" + "x" * 2_000_000 + "'[", ""),
    "a trace function that raises": ("    import sys\n    sys.settrace(lambda *a: 1 / 0)\n    return 1", ""),
}


@pytest.fixture(scope="module")
def shared() -> Iterator[WorkerClient]:
    client = WorkerClient()
    yield client
    client.close()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_mistake_is_a_fault_of_the_course(course: Course, shared: WorkerClient, mistake: str) -> None:
    body, top = MISTAKES[mistake]
    desk = Desk(course, NAME)
    grade = desk.grade(file_of(course, body, top), client=shared)
    assert grade.outcome == NOT_YET and grade.score < grade.points
    assert len(json.dumps(grade.to_json())) < 50_000
    assert grade.message or any(check.what for check in grade.checks)
    assert desk.grade(file_of(course), client=shared).passed


def test_a_cohort_goes_on_after_them(course: Course, tmp_path: Path) -> None:
    for number, mistake in enumerate(("a text of 50 MB", "__repr__ raises", "a deep expression", "all names are gone")):
        folder = tmp_path / f"student{number}"
        folder.mkdir()
        (folder / "ch00_welcome.py").write_text(file_of(course, *MISTAKES[mistake]), encoding="utf-8")
    document = grade_folder(course, tmp_path)
    assert [entry["problems"] for entry in document["submissions"]] == [[]] * 4
    assert not any(entry["fault"] for entry in document["submissions"])


@pytest.mark.parametrize("text", [DEEP, TERMS, "x = " + "(" * 300 + ")" * 300, "x = 1\0", "return 1"])
def test_a_cell_that_is_too_deep_is_told(course: Course, text: str) -> None:
    saved = save_cell(course, NAME, text)
    assert saved.action == "unreadable" and "Nothing was saved" in saved.note and len(saved.note) < 300


def test_a_fault_of_ours_is_still_called_one(course: Course) -> None:
    client = WorkerClient()
    try:
        desk = Desk(course, NAME)
        request = {"source": str(desk.chapter.path), "exercise": "ch00.no_such", "text": "", "path": "x"}
        with pytest.raises(GradingFault, match="this is a fault of the course(.|\n)*KeyError"):
            client._ask({**request, "cpu_seconds": None, "memory_mb": None}, desk.exercise, 5.0, 64)
    finally:
        client.close()
