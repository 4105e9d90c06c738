"""Progress: two writers, a crash in the middle, damaged files, passes that survive, resets that back up."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import course.progress as progress_module
from course.catalogue import Course
from course.files import ExerciseFiles, FilesError, Parts, write_text
from course.grading import NOT_ATTEMPTED, NOT_YET, PASSED, Grade, grade
from course.platform import main
from course.progress import Progress, locked, part_hash, standing
from course.source import ROOT
from tests.unit.course_kit import make_course

WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from course.catalogue import Course
    from course.progress import Progress
    progress = Progress(Course(Path(sys.argv[1])))
    for i in range(int(sys.argv[3])):
        def add(entries):
            entry = entries.setdefault(sys.argv[2], {"count": 0})
            entry["count"] += 1
            both = entries.setdefault("shared", {"count": 0})
            both["count"] += 1
        progress.change(add)
""")


@pytest.fixture
def course(tmp_path: Path) -> Course:
    return make_course(tmp_path)


def a_grade(course: Course, outcome: str, passed_checks: int = 0) -> Grade:
    from course.grading import CheckResult

    exercise = course.exercise("ch05.truncate")[1]
    checks = [CheckResult(str(i), "passed" if i < passed_checks else "failed") for i in range(5)]
    return Grade(exercise.name, exercise.title, exercise.points, outcome, checks=checks)


def test_concurrent_writers_lose_nothing(tmp_path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), f"writer{i}", "40"], cwd=ROOT) for i in range(3)
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0, 0]
    entries = Progress(Course(tmp_path)).read()
    assert entries["shared"]["count"] == 120
    assert [entries[f"writer{i}"]["count"] for i in range(3)] == [40, 40, 40]


def test_an_exercise_that_the_course_no_longer_has_does_no_harm(course: Course) -> None:
    """Neither in the progress file nor in the learner's exercises file."""
    from course.terminal import summary

    before = summary(course)
    Progress(course).note("ch06.throughput", best=5, outcome="passed", passed_at="2026-01-01", hash="0")
    assert summary(course) == before
    chapter, exercise = course.exercise("ch06.predict")
    path = course.exercises / chapter.file_name
    old = "# %% ch06.throughput\n\ndef throughput(seconds, n):\n    return n / seconds[n], n * seconds[1] / seconds[n]\n\n\n"
    path.write_text(chapter.solved().replace(exercise.marker, old + exercise.marker), encoding="utf-8")
    assert "ch06.throughput" in path.read_text(encoding="utf-8")
    for each in chapter.exercises:
        assert grade(each.name, course).passed


@pytest.mark.parametrize("where", ["os.fsync", "os.replace"])
def test_crash_in_the_middle_of_a_write_keeps_the_old_state(tmp_path: Path, where: str) -> None:
    course = Course(tmp_path)
    Progress(course).note("ch05.truncate", hints=2)
    crash = textwrap.dedent(f"""
        import os, sys
        from pathlib import Path
        from course.catalogue import Course
        from course.progress import Progress
        def die(*a):
            os._exit(9)
        {where} = die
        Progress(Course(Path(sys.argv[1]))).note("ch05.truncate", hints=3)
    """)
    assert subprocess.run([sys.executable, "-c", crash, str(tmp_path)], cwd=ROOT, check=False).returncode == 9
    assert Progress(course).entry("ch05.truncate") == {"hints": 2}
    Progress(course).note("ch05.truncate", hints=4)  # and the dead process holds no lock
    assert Progress(course).entry("ch05.truncate") == {"hints": 4}


def test_a_damaged_file_is_put_aside_and_the_state_before_it_is_read(course: Course) -> None:
    progress = Progress(course)
    progress.note("a", hints=1)
    progress.note("b", hints=1)
    progress.path.write_text('{"version": 1, "exercises": {"a"', encoding="utf-8")
    assert progress.read() == {"a": {"hints": 1}}
    damaged = list(progress.path.parent.glob("progress.damaged-*.json"))
    assert len(damaged) == 1 and damaged[0].read_text(encoding="utf-8").startswith('{"version"')


def test_a_newer_format_is_refused_and_left_alone(course: Course) -> None:
    progress = Progress(course)
    text = json.dumps({"version": 99, "exercises": {}})
    write_text(progress.path, text)
    with pytest.raises(FilesError, match="newer version"):
        progress.note("a", hints=1)
    assert progress.path.read_text(encoding="utf-8") == text


def test_a_pass_is_never_lost(course: Course) -> None:
    _, exercise = course.exercise("ch05.truncate")
    progress = Progress(course)
    progress.record(exercise, a_grade(course, NOT_ATTEMPTED), exercise.starter)
    assert progress.read() == {} and not progress.path.exists()
    progress.record(exercise, a_grade(course, NOT_YET, 3), "one")
    assert progress.entry(exercise.name)["best"] == 3
    progress.record(exercise, a_grade(course, PASSED, 5), "two")
    progress.record(exercise, a_grade(course, NOT_YET, 1), "three")
    entry = progress.entry(exercise.name)
    assert (entry["best"], entry["attempts"], entry["outcome"]) == (5, 3, NOT_YET)
    assert standing(entry, exercise, "two") == "passed"
    assert standing(entry, exercise, "two  \r\n") == "passed"
    assert standing(entry, exercise, "three") == "changed"
    assert standing({**entry, "starter": "older"}, exercise, "two") == "updated"
    assert standing({}, exercise, exercise.starter) == NOT_ATTEMPTED


def test_lock_is_exclusive_and_says_so(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "x.lock"),
        pytest.raises(FilesError, match="another process"),
        locked(tmp_path / "x.lock", seconds=0.05),
    ):
        pass


def test_an_error_inside_the_lock_is_not_taken_for_one_of_the_lock(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="inside"), locked(tmp_path / "x.lock"):
        raise OSError(5, "inside")
    with locked(tmp_path / "x.lock", seconds=0.0):
        pass
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(FilesError, match="cannot write"), locked(tmp_path / "file" / "x.lock"):
        pass


def test_reset_keeps_the_old_file(course: Course) -> None:
    chapter, exercise = course.exercise("ch05.truncate")
    files = ExerciseFiles(course)
    files.save(chapter, exercise, "def truncate(cache, keep):\n    cache.len = 7\n")
    row_cache = course.exercise("ch05.row_cache")[1]
    files.save(chapter, row_cache, "RowCache = None")
    edited = files.read(chapter)
    kept = files.reset(chapter, exercise)
    assert kept is not None and kept.read_text(encoding="utf-8") == edited
    assert files.part(chapter, exercise) == exercise.starter
    assert files.part(chapter, row_cache) == "RowCache = None"
    assert files.reset(chapter, exercise) != kept  # a second in the same second does not overwrite it
    files.reset(chapter)
    assert files.read(chapter) == chapter.starter()


def test_parts_survive_a_round_trip_and_lost_markers(course: Course) -> None:
    for chapter in course.chapters():
        for exercise in chapter.exercises:
            assert Parts.of(chapter.starter()).replaced(exercise, exercise.starter) == chapter.starter()
    chapter, exercise = course.exercise("ch05.truncate")
    text = Parts.of("x = 1\n").replaced(exercise, "def truncate(): pass")
    assert text.startswith("x = 1\n") and exercise.marker in text and text.endswith("def truncate(): pass\n")


def test_files_are_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    monkeypatch.setattr("course.files.os.replace", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(FilesError, match="No space left"):
        write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_state_folder_can_be_named(course: Course, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUCINA_COURSE_STATE", str(tmp_path / "elsewhere"))
    Progress(course).note("a", hints=1)
    assert (tmp_path / "elsewhere" / "progress.json").exists()
    assert part_hash("x\r\n") == part_hash("x  \n\n")
    assert progress_module.VERSION == 1


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("~/kept", "home/kept"),
        ("kept/here", "course/kept/here"),
        ("./kept", "course/kept"),
        ("", "course/.fucina/course"),
    ],
)
def test_where_the_state_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, place: str) -> None:
    """The same folder from wherever a command is called, and never one that is called `~`."""
    (tmp_path / "home").mkdir()
    for variable in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(variable, str(tmp_path / "home"))
    monkeypatch.setenv("FUCINA_COURSE_STATE", named)
    for folder in (tmp_path, tmp_path / "home"):
        monkeypatch.chdir(folder)
        assert Course(tmp_path / "course").state == tmp_path / place


def test_a_home_that_nobody_has_is_told(course: Course, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUCINA_COURSE_STATE", "~no-such-user-here/kept")
    with pytest.raises(FilesError, match="FUCINA_COURSE_STATE is '~no-such-user-here/kept'"):
        Progress(course).read()
    assert main(["list"], course) == 2
