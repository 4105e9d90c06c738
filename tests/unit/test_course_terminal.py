"""The commands: names, hints, solutions, resets, reports, watch; on terminals that know no UTF-8."""

from __future__ import annotations

import io
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from course.catalogue import Course, UnknownExercise
from course.files import ExerciseFiles
from course.keys import Keys
from course.platform import main
from course.source import ROOT
from course.watch import Watcher
from tests.unit.course_kit import EXERCISES, make_course

NAME = "ch05.truncate"
GOOD = (
    "def truncate(cache, keep):\n    if keep < 0:\n        raise ValueError(keep)\n    cache.len = min(keep, cache.len)"
)
COMMAND = (
    "import sys; from pathlib import Path; from course.catalogue import Course;"
    "from course.platform import main;"
    "sys.exit(main(sys.argv[2:], Course(Path(sys.argv[1]))))"
)


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path)


def write_part(course: Course, text: str) -> Path:
    chapter, exercise = course.exercise(NAME)
    return ExerciseFiles(course).save(chapter, exercise, text)


def test_names(course: Course) -> None:
    chapter = [name for name in EXERCISES if name.startswith("ch05")]
    for typed, wanted in [
        ("ch05.truncate", [NAME]),
        ("truncate", [NAME]),
        ("CH05.Truncate", [NAME]),
        ("ch05", chapter),
        ("5", chapter),
        ("exercises/ch05_the_loop_and_the_cache.py", chapter),
    ]:
        assert [exercise.name for _, exercise in course.find([typed])] == wanted
    assert len(course.find(["ch05", "truncate"])) == len(chapter)
    with pytest.raises(UnknownExercise, match=r"near: ch05\.truncate"):
        course.find(["trunkate"])
    with pytest.raises(UnknownExercise, match="means 5 exercises"):
        course.exercise("ch05")


def test_hint_and_solution_commands(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hint", "truncate"], course) == 0
    assert "hint 1 of 3" in capsys.readouterr().out
    assert main(["hint", "truncate"], course) == 0
    assert "hint 2 of 3" in capsys.readouterr().out
    assert main(["hint", "truncate", "7"], course) == 2
    assert main(["solution", "truncate"], course) == 1
    out = capsys.readouterr().out
    assert "not passed yet" in out and "min(" not in out
    write_part(course, GOOD)
    assert main(["check", "truncate"], course) == 0
    assert main(["solution", "truncate"], course) == 0
    assert "cache.len = min(cache.len, keep)" in capsys.readouterr().out
    assert main(["solution", "row_cache", "--yes"], course) == 0


def test_list_progress_and_reset(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    write_part(course, GOOD)
    main(["check", NAME], course)
    capsys.readouterr()
    assert main(["list"], course) == 0
    assert f"[x] {NAME}" in capsys.readouterr().out
    assert main(["progress"], course) == 0
    assert "1 of 5 passed" in capsys.readouterr().out
    assert main(["progress", "--json"], course) == 0
    assert json.loads(capsys.readouterr().out)[NAME]["outcome"] == "passed"
    assert main(["reset", NAME], course) == 0
    assert "your file is kept as" in capsys.readouterr().out
    main(["list"], course)
    assert "changed since it passed" in " ".join(capsys.readouterr().out.split())  # a narrow terminal wraps it
    assert main(["reset", NAME, "--progress"], course) == 0
    main(["list"], course)
    assert f"[ ] {NAME}" in capsys.readouterr().out
    assert len(list((course.state / "backups").glob("progress.*.json"))) == 1


def test_check_as_json(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    write_part(course, "def truncate(cache, keep):\n    cache.len = keep")
    assert main(["check", NAME, "--json"], course) == 1
    (grade,) = json.loads(capsys.readouterr().out)
    assert (grade["outcome"], grade["score"]) == ("not yet", 3)


def test_generate_leaves_edited_files_alone(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "--check"], course) == 0
    path = write_part(course, GOOD)
    assert main(["generate"], course) == 1
    assert "left alone" in capsys.readouterr().out and GOOD in path.read_text(encoding="utf-8")
    assert main(["generate", "--check"], course) == 0  # an edited exercise is not the manifest's business
    assert main(["generate", "--force"], course) == 0
    assert GOOD not in path.read_text(encoding="utf-8")
    source = course.exercise(NAME)[0].path
    source.write_text(source.read_text(encoding="utf-8").replace("points=5", "points=6"), encoding="utf-8")
    assert main(["generate", "--check"], course) == 1
    assert main(["generate"], course) == 0
    assert main(["generate", "--check"], course) == 0


def test_report(course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_part(course, GOOD.replace("keep < 0", "keep < -1"))
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    assert main(["report", "--html", str(page), "--json", str(data)], course) == 0
    report = json.loads(data.read_text(encoding="utf-8"))
    graded = {g["exercise"]: g for c in report["chapters"] for g in c["exercises"]}
    assert set(graded) == set(EXERCISES)
    assert graded[NAME]["outcome"] == "not yet" and len(graded[NAME]["digest"]) == 64
    assert graded[NAME]["path"].startswith("exercises/")
    assert report["versions"]["python"]
    text = page.read_text(encoding="utf-8")
    for wanted in (NAME, graded[NAME]["digest"], "rows stay where they are", "not attempted", "<meter"):
        assert wanted in text
    assert "http" not in text and "<script" not in text
    assert capsys.readouterr().out.isascii()
    assert main(["report", "--json", "-"], course) == 0
    assert json.loads(capsys.readouterr().out)["points"] == report["points"]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_no_terminal_breaks_it(tmp_path: Path, encoding: str) -> None:
    course = make_course(tmp_path / "a folder \u00e9\u4e2d")
    write_part(course, "def truncate(cache, keep):\n    print('\u4e2d')\n    raise ValueError('\u00e9\u4e2d')")
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT)}
    for command, wanted in ((["check", NAME], 1), (["list"], 0), (["progress"], 0), (["reset", NAME], 0)):
        result = subprocess.run(
            [sys.executable, "-c", COMMAND, str(course.root), *command],
            env=environment,
            capture_output=True,
            check=False,
            cwd=tmp_path,
        )
        assert result.returncode == wanted, result.stderr.decode("utf-8", "replace")
        assert b"Traceback" not in result.stderr


class FakeKeys:
    """Keys that a test types."""

    single = True

    def __init__(self) -> None:
        self.typed: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> FakeKeys:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def get(self, seconds: float) -> str | None:
        try:
            return self.typed.get(timeout=seconds)
        except queue.Empty:
            return None


class Session:
    """A watcher in a thread, its keys and its screen."""

    def __init__(self, course: Course, **options: bool) -> None:
        self.out, self.keys = io.StringIO(), FakeKeys()
        self.watcher = Watcher(course, out=self.out, keys=self.keys, start=NAME, **options)
        self.codes: list[int] = []
        self.thread = threading.Thread(target=lambda: self.codes.append(self.watcher.run()))
        self.thread.start()
        self.wait("[q]uit")

    def wait(self, text: str, seconds: float = 60.0) -> str:
        """Wait until `text` is on the screen; returns what is there, and clears it."""
        deadline = time.monotonic() + seconds
        while text not in self.out.getvalue():
            assert time.monotonic() < deadline, f"{text!r} did not come: {self.out.getvalue()}"
            time.sleep(0.01)
        time.sleep(0.05)
        screen = self.out.getvalue()
        self.out.truncate(0)
        self.out.seek(0)
        return screen

    def press(self, key: str, expect: str) -> str:
        """Type a key."""
        self.keys.typed.put(key)
        return self.wait(expect)


def test_watch_reacts_to_saves_and_keys(course: Course) -> None:
    session = Session(course)
    write_part(course, "def truncate(cache, keep):\n    cache.len = keep")
    assert f"{NAME}: not yet" in session.wait("[q]uit")
    chapter, _ = course.exercise(NAME)
    path = ExerciseFiles(course).path(chapter)
    text = path.read_text(encoding="utf-8").replace("    cache.len = keep", GOOD.split("\n", 1)[1])
    new = path.with_suffix(".new")  # an editor that writes another file and renames it
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)
    assert "Passed! n goes on to ch05.decode_loop" in session.wait("[q]uit")
    assert "ch05.decode_loop - " in session.press("n", "[q]uit")
    assert "hint 1 of 4" in session.press("h", "[q]uit")
    assert "[x] ch05.truncate" in session.press("l", "[q]uit")
    assert "y = yes" in session.press("r", "y = yes")
    assert "Nothing was reset" in session.press("x", "[q]uit")
    session.press("r", "y = yes")
    assert "the starter is there already" in session.press("y", "[q]uit")
    assert not (course.state / "backups").exists()
    assert "not attempted" in session.press("c", "[q]uit")
    session.press("q", "see you")
    session.thread.join(timeout=30)
    assert session.codes == [1]


def test_watch_by_hand(course: Course) -> None:
    session = Session(course, manual=True)
    write_part(course, GOOD)
    assert "Passed!" in session.press("", "Passed!")
    session.press("q", "see you")
    session.thread.join(timeout=30)


@pytest.mark.skipif(os.name == "nt", reason="pseudo terminals are a POSIX thing")
def test_arrow_and_function_keys_are_no_letters() -> None:
    import pty

    master, slave = pty.openpty()
    try:
        with open(slave, encoding="utf-8") as stream, Keys(stream) as keys:
            for special in (b"\x1b[H", b"\x1b[C", b"\x1bOR"):  # Home, right, F3
                os.write(master, special)
                assert keys.get(5) is None
                assert keys.get(0.05) is None
            os.write(master, b"h")
            assert keys.get(5) == "h"
    finally:
        os.close(master)


@pytest.mark.skipif(os.name == "nt", reason="pseudo terminals are a POSIX thing")
def test_watch_in_a_real_terminal_takes_single_keys_and_gives_the_terminal_back(course: Course) -> None:
    import pty
    import termios

    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, str(course.root), "watch", "truncate"],
        stdin=slave,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        seen = b""
        while b"[q]uit" not in seen:
            seen += os.read(process.stdout.fileno(), 4096)
        os.write(master, b"h")  # no Enter
        while b"hint 1 of 3" not in seen:
            seen += os.read(process.stdout.fileno(), 4096)
        os.write(master, b"q")
        assert process.wait(timeout=60) == 1
        assert termios.tcgetattr(slave) == before
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        os.close(master)
        os.close(slave)


def test_a_read_only_checkout_says_so_and_goes_on(
    course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What stands in for it: a state folder that cannot be made, since permissions do not bind root."""
    (course.root / ".fucina").write_text("in the way", encoding="utf-8")
    write_part(course, GOOD)
    assert main(["check", NAME], course) == 0
    said = capsys.readouterr()
    assert f"{NAME}: passed" in said.out and "Progress is not kept" in said.err and "FUCINA_COURSE_STATE" in said.err
    assert main(["hint", "row_cache"], course) == 0
    said = capsys.readouterr()
    assert "hint 1 of 4" in said.out and "hint ch05.row_cache 2`" in said.out and "not kept" in said.err
    assert main(["reset", NAME], course) == 2
    assert "FUCINA_COURSE_STATE" in capsys.readouterr().err
    session = Session(course)
    session.press("r", "y = yes")
    assert "cannot write" in session.press("y", "[q]uit")  # and the watch goes on
    first = session.press("h", "[q]uit")
    assert "hint 1 of 3" in first and "hint 2 of 3" in session.press("h", "[q]uit")
    session.press("q", "see you")
    session.thread.join(timeout=30)
    monkeypatch.setenv("FUCINA_COURSE_STATE", str(tmp_path / "elsewhere"))
    assert [main([command, NAME], course) for command in ("check", "hint", "reset")] == [0, 0, 0]
    assert "not kept" not in capsys.readouterr().err
    assert (tmp_path / "elsewhere" / "progress.json").exists()


@pytest.mark.skipif(os.name == "nt", reason="C locale of POSIX")
def test_teachers_commands_in_the_poorest_locale(tmp_path: Path) -> None:
    course = make_course(tmp_path / "a folder \u00e9\u4e2d")
    student = tmp_path / "h\u00e4nded in" / "Zo\u00eb"
    student.mkdir(parents=True)
    answer = course.exercise(NAME)[0].assemble({NAME: f"# \u4e2d\n{GOOD}"})
    (student / "ch05.py").write_text(answer, encoding="utf-8")
    environment = {
        **os.environ,
        "PYTHONIOENCODING": "ascii",
        "PYTHONPATH": str(ROOT),
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    outputs = [str(tmp_path / f"\u00e9.{kind}") for kind in ("csv", "json", "html")]
    grading = ["grade", str(student.parent), "--csv", outputs[0], "--json", outputs[1], "--html", outputs[2]]
    for command in (grading, ["export", "--nbgrader", str(tmp_path / "\u00e9"), "ch05"]):
        result = subprocess.run(
            [sys.executable, "-c", COMMAND, str(course.root), *command],
            env=environment,
            capture_output=True,
            check=False,
            cwd=tmp_path,
        )
        assert result.returncode == 0 and b"Traceback" not in result.stderr, result.stderr.decode("utf-8", "replace")
        assert result.stdout.isascii()
    assert "Zo\u00eb,ch05,ch05.truncate,passed,5,5" in Path(outputs[0]).read_text(encoding="utf-8-sig")
