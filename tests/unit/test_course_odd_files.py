"""Exercise files as editors really leave them: other encodings, half written, links; and code that meddles."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from course.catalogue import Course
from course.cells import save_cell
from course.files import ExerciseFiles, Parts
from course.grading import WorkerClient
from course.platform import main
from course.source import ROOT
from course.watch import Watcher
from tests.unit.course_kit import Desk, make_course

NAME = "ch00.decode_ceiling"
BODY = '    raise NotImplementedError("ch00.decode_ceiling: your code here")'
RIGHT = "    if min(weight_bytes, bandwidth) <= 0:\n        raise ValueError\n    return bandwidth * 1e9 / weight_bytes"


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path)


@pytest.fixture
def desk(course: Course) -> Desk:
    return Desk(course, NAME)


def solved(desk: Desk, body: str = RIGHT) -> str:
    """The file with a body for the first exercise."""
    text = desk.chapter.starter()
    assert BODY in text
    return text.replace(BODY, body)


@pytest.mark.parametrize(
    "data",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(),
    ],
    ids=["mark", "crlf", "mark and crlf"],
)
def test_what_windows_editors_write_is_graded(desk: Desk, data: Callable[[str], bytes]) -> None:
    desk.path.write_bytes(data(solved(desk)))
    assert desk.grade().passed
    assert ExerciseFiles(desk.course).read(desk.chapter).startswith('"""')


def test_another_encoding_is_told_and_stops_nothing_else(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    data = solved(desk).replace("import math", "import math\n# caff\u00e8").encode("latin-1")
    desk.path.write_bytes(data)
    grade = desk.grade()
    assert (grade.outcome, grade.score) == ("not yet", 0)
    line = data[: data.index(b"\xe8")].count(b"\n") + 1
    assert f"line {line} is not UTF-8 text. Save the file as UTF-8" in grade.message
    assert main(["check", NAME], desk.course) == 1
    assert main(["list"], desk.course) == 0
    shown = capsys.readouterr()
    assert "is not UTF-8" in " ".join(shown.out.split()) and "ch01.read_header" in shown.out
    assert not shown.err
    assert main(["progress"], desk.course) == 0
    assert main(["reset", "ch00.next_token"], desk.course) == 0
    assert desk.grade().passed  # what else was in the file stays, now in UTF-8
    assert [path.read_bytes() for path in (desk.course.state / "backups").iterdir()] == [data]


def test_a_link_stays_a_link(desk: Desk, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.py"
    os.replace(desk.path, elsewhere)
    try:
        desk.path.symlink_to(elsewhere)
    except OSError:
        pytest.skip("this system makes no links here")
    save_cell(desk.course, NAME, solved(desk).split("section 00.3)\n")[1].split("# %%")[0])
    assert desk.path.is_symlink()
    assert RIGHT in elsewhere.read_text(encoding="utf-8")


SAVER = """
import sys
from pathlib import Path
from course.catalogue import Course
from course.files import ExerciseFiles
course, name = Course(Path(sys.argv[1])), sys.argv[2]
chapter, exercise = course.exercise(name)
files = ExerciseFiles(course)
print("ready", flush=True)
sys.stdin.readline()
for i in range(60):
    text = f"x = {i}"
    files.save(chapter, exercise, text)
    if files.part(chapter, exercise).strip() != text:
        sys.exit(f"lost: {text}")
"""


def test_two_programs_save_into_one_file(course: Course) -> None:
    savers = [
        subprocess.Popen(
            [sys.executable, "-c", SAVER, str(course.root), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        for name in (NAME, "ch00.next_token")
    ]
    for saver in savers:
        assert saver.stdout.readline() == "ready\n"
    for saver in savers:
        saver.stdin.write("go\n")
        saver.stdin.flush()
    for saver in savers:
        saver.communicate(timeout=120)
    assert [saver.returncode for saver in savers] == [0, 0]


def test_unusual_line_ends_inside_strings_survive_a_save(course: Course) -> None:
    chapter, exercise = course.exercise(NAME)
    part = exercise.starter.replace(BODY, "    return 'a\x0cb\u2028c'")
    whole = Parts.of(chapter.starter()).replaced(exercise, part)
    _, other = course.exercise("ch00.next_token")
    assert "'a\x0cb\u2028c'" in Parts.of(whole).replaced(other, "def next_token(logits, k):\n    return 1")


def test_watch_waits_for_the_end_of_a_write(desk: Desk) -> None:
    watcher = Watcher(desk.course, start=NAME)
    assert watcher.look() == []
    assert watcher.look() == []
    for half in ("", solved(desk)[:-40] + "(("):
        desk.write(half)
        assert watcher.look() == []
        desk.write(solved(desk, RIGHT + "  # " + str(len(half))))
        assert watcher.look() == [NAME]
        assert watcher.look() == []


def test_watch_says_in_the_end_what_cannot_be_read(desk: Desk) -> None:
    watcher = Watcher(desk.course, start=NAME)
    watcher.look()
    for data in (b"", b"# caff\xe8\n", solved(desk, "    return ((").encode()):
        desk.path.write_bytes(data)
        assert watcher.look() == []
        assert watcher.look() == [NAME]
        assert watcher.look() == []


def test_watch_begins_beside_a_file_that_cannot_be_read(desk: Desk) -> None:
    desk.path.write_bytes(b"# caff\xe8\n")
    watcher = Watcher(desk.course)
    assert watcher.current == NAME
    watcher.introduce()


def test_a_definition_inside_an_if_is_found(desk: Desk) -> None:
    head, rest = solved(desk).split("def decode_ceiling", 1)
    inner, tail = rest.split("# %% ch00.next_token", 1)
    inner = "\n".join("    " + line for line in ("def decode_ceiling" + inner).splitlines())
    assert desk.grade(f"{head}if True:\n{inner}\n\n\n# %% ch00.next_token{tail}").passed


def test_an_async_definition_is_named(desk: Desk) -> None:
    grade = desk.grade(solved(desk).replace("def decode_ceiling", "async def decode_ceiling"))
    assert grade.score == 0
    assert "is an `async def`" in grade.message


def test_code_that_changes_the_grader_passes_nothing(desk: Desk) -> None:
    reach = "import math, sys\ncore = sys.modules['course.grading' + '.core']"  # plain imports are told before
    vandal = f"{reach}\ncore.judge = lambda checks: 'passed'"
    grade = desk.grade(solved(desk, "    return 1").replace("import math", vandal))
    assert (grade.outcome, grade.passed) == ("not yet", False)
    assert "the code changes something in `course`" in grade.message


MEDDLE = """    import os
    for number in range(3, 20):
        try:
            os.write(number, b'{"kind": "grade", "dirty": false}' + bytes([10]))
        except OSError:
            pass
"""


def test_code_that_writes_into_the_answers_is_told(desk: Desk) -> None:
    client = WorkerClient()
    try:
        grade = desk.grade(solved(desk, MEDDLE + RIGHT), client=client)
    finally:
        client.close()
    assert (grade.outcome, grade.score) == ("not yet", 0)
    assert any("broke the connection" in check.what for check in grade.checks)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_copy_of_the_process_does_not_answer_too(desk: Desk) -> None:
    client = WorkerClient()
    try:
        text = solved(desk).replace("import math", "import math, os\nos.fork()")
        assert desk.grade(text, client=client).exercise == NAME
        other = Desk(desk.course, "ch00.next_token")
        for _ in range(3):
            assert other.grade(desk.chapter.starter(), client=client).exercise == "ch00.next_token"
    finally:
        client.close()
