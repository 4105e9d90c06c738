"""For teachers: assignments that nbgrader understands, and folders of submissions of which none stops the rest."""

from __future__ import annotations

import csv
import html
import io
import json
import os
import re
import stat
import sys
import time
import zipfile
from pathlib import Path

import nbformat
import pytest

from course.catalogue import Course
from course.grading import NOT_ATTEMPTED, NOT_YET, PASSED, WorkerClient, grade_text
from course.platform import main
from course.source import ChapterSource, normalise
from course.teaching import sheets
from course.teaching.cohort import NoSubmissions, grade_folder
from course.teaching.export import BEGIN, END, STUB, assignment, export
from course.teaching.points import answers, points
from course.teaching.submissions import SIZE, find, read, readable
from tests.unit.course_kit import FILES, REAL, make_course

CH05 = "ch05_the_loop_and_the_cache.py"
GOOD = (
    "def truncate(cache, keep):\n    if keep < 0:\n        raise ValueError(keep)\n    cache.len = min(keep, cache.len)"
)
HALF = "def truncate(cache, keep):\n    cache.len = keep"
POSIX = pytest.mark.skipif(os.name == "nt", reason="links and permissions of POSIX")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def chapter(course: Course) -> ChapterSource:
    return course.exercise("ch05.truncate")[0]


# --- assignments ------------------------------------------------------------------------------------------------------


def released(notebook: dict) -> list[tuple[dict, str]]:
    """(nbgrader metadata, source) of the cells as a student gets them: every solution region replaced by the stub."""
    cells = []
    for cell in notebook["cells"]:
        rows, inside = [], False
        for row in "".join(cell["source"]).splitlines():
            if row.strip() == BEGIN:
                inside = True
                rows.append(row.replace(BEGIN, STUB))
            elif row.strip() == END:
                inside = False
            elif not inside:
                rows.append(row)
        cells.append((cell["metadata"]["nbgrader"], "\n".join(rows)))
    return cells


@pytest.mark.parametrize("name", FILES)
def test_an_assignment_has_the_metadata_of_nbgrader(name: str) -> None:
    source = next(c for c in REAL.chapters() if c.file_name == name)
    notebook = assignment(source)
    nbformat.validate(nbformat.from_dict(notebook))
    ids = set()
    for cell in notebook["cells"]:
        data = cell["metadata"]["nbgrader"]
        assert data["schema_version"] == 3 and data["task"] is False
        assert set(data) - {"points"} == {"schema_version", "grade_id", "grade", "locked", "solution", "task"}
        assert re.fullmatch(r"[a-zA-Z0-9_-]+", data["grade_id"]) and data["grade_id"] not in ids
        ids.add(data["grade_id"])
        text = "".join(cell["source"])
        assert data["solution"] == (BEGIN in text) == (END in text)
        bonus = any(e.bonus and text == f'points("{e.name}")' for e in source.exercises)  # nbgrader would count it
        assert data["grade"] == ("points" in data) == (text.startswith("points(") and not bonus)
        assert data["locked"] is not data["solution"]
        assert not data["solution"] or cell["cell_type"] == "code"
        assert (cell["metadata"].get("editable"), cell["metadata"].get("deletable")) == (
            (False, False) if data["locked"] else (None, None)
        )
    total = sum(c["metadata"]["nbgrader"].get("points", 0) for c in notebook["cells"])
    assert total == sum(exercise.points for exercise in source.exercises if not exercise.bonus)
    exercise_ids = {e.name.replace(".", "-") for e in source.exercises}
    assert {f"{i}-points" for i in exercise_ids} | exercise_ids <= ids


@pytest.mark.parametrize("name", FILES)
def test_a_released_assignment_holds_starters_and_the_source_holds_solutions(name: str) -> None:
    source = next(c for c in REAL.chapters() if c.file_name == name)
    notebook = assignment(source)
    shown = answers(source, [text for data, text in released(notebook) if data["solution"]])
    full = answers(source, ["".join(c["source"]) for c in notebook["cells"] if c["metadata"]["nbgrader"]["solution"]])
    for exercise in source.exercises:
        stub = re.sub(r'raise NotImplementedError\("[^"]*"\)', STUB, exercise.starter)
        assert normalise(shown[exercise.name]).replace("\n\n", "\n") == normalise(stub).replace("\n\n", "\n")
        marked = "\n".join(row for row in full[exercise.name].splitlines() if row.strip() not in (BEGIN, END))
        assert normalise(marked) == normalise(exercise.solution)


def test_points_of_answers_are_those_of_the_grader(
    course: Course, chapter: ChapterSource, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = ["".join(c["source"]) for c in assignment(chapter)["cells"] if c["cell_type"] == "code"]
    for exercise in chapter.exercises:
        assert points(exercise.name, cells, course) == exercise.points
    capsys.readouterr()
    starters = [text for data, text in released(assignment(chapter))]
    assert points("ch05.truncate", starters, course) == 0
    assert "ch05.truncate: not attempted" in capsys.readouterr().out
    bare = [text.replace(STUB, "# YOUR CODE HERE\n    raise NotImplementedError()") for text in starters]
    assert points("ch05.truncate", bare, course) == 0
    assert "ch05.truncate: not attempted" in capsys.readouterr().out
    assert points("ch05.truncate", [], course) == 0
    assert "run the cell that begins with `# %% ch05.truncate`" in capsys.readouterr().out
    assert points("ch05.truncate", [GOOD, HALF], course) == 3  # the last counts, with or without its first line
    assert "graded: the answers of this notebook" in capsys.readouterr().out


def test_an_answer_that_does_not_run_costs_the_others_nothing(
    course: Course, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = "# %% ch05.decode_loop\ndef decode(model, cache\n"
    raising = "# %% ch05.row_cache\nclass RowCache:\n    pass\n1 / 0"
    assert points("ch05.truncate", [GOOD, broken, raising], course) == 5
    capsys.readouterr()
    assert points("ch05.decode_loop", [GOOD, broken], course) == 0
    assert "Python cannot read the file" in capsys.readouterr().out


def test_export_leaves_changed_files_alone(course: Course, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out \u00e9"
    assert main(["export", "--nbgrader", str(folder), "ch05"], course) == 0
    path = folder / "source" / "ch05" / "ch05_the_loop_and_the_cache.ipynb"
    assert nbformat.read(path, as_version=4).cells and not (folder / "source" / "ch01").exists()
    compile((folder / "nbgrader_config.py").read_text(encoding="utf-8"), "nbgrader_config.py", "exec")
    assert "nbgrader autograde CHAPTER" in (folder / "README.md").read_text(encoding="utf-8")
    assert main(["export", "--nbgrader", str(folder), "ch05"], course) == 0
    path.write_text("{}", encoding="utf-8")
    assert main(["export", "--nbgrader", str(folder), "ch05"], course) == 1
    assert path.read_text(encoding="utf-8") == "{}" and "left alone" in capsys.readouterr().out
    assert main(["export", "--nbgrader", str(folder), "ch05", "--force"], course) == 0
    assert path.read_text(encoding="utf-8") != "{}"
    assert main(["export", "--nbgrader", str(folder), "ch77"], course) == 2
    assert main(["export", str(folder)], course) == 2
    assert len(export(course, tmp_path / "all").written) == len(FILES) + 2
    export(course, tmp_path / "some", ["ch00"])
    later = export(course, tmp_path / "some", ["ch05"])  # another chapter: nobody has changed what is there
    assert (len(later.written), later.kept) == (1, [])


# --- submissions ------------------------------------------------------------------------------------------------------


def hand_in(folder: Path, text: str | bytes, name: str = CH05) -> Path:
    """Put a file down; returns the student's folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return folder


def only_truncate(chapter: ChapterSource, text: str) -> str:
    return chapter.assemble({"ch05.truncate": text})


def notebook_of(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]})


def test_one_broken_submission_never_stops_the_rest(course: Course, chapter: ChapterSource, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    students = tmp_path / "students"
    hand_in(students / "ada", only_truncate(chapter, GOOD))
    hand_in(students / "bob", "def truncate(:\n")
    hand_in(students / "cem", only_truncate(chapter, "def truncate(cache, keep):\n    while True:\n        pass"))
    hand_in(students / "dan", b"\x00\xff\x93 binary \x00 junk" * 50)
    hand_in(students / "eve", "nothing of ours", "notes.txt")
    hand_in(students / "fay", only_truncate(chapter, f"import os\n{GOOD}\nos._exit(1)"))
    traces = f"import sys\nopen({str(marker)!r}, 'w')\nsys.modules['numpy'].left_behind = 1\n"
    hand_in(students / "gus", traces + chapter.solved())
    hand_in(students / "hal", chapter.starter())
    hand_in(students, b"no archive", "ivy.zip")
    hand_in(students / "zoe", chapter.solved())
    hand_in(students, "a,b", "old.csv")
    told: list[str] = []
    modules = set(sys.modules)
    document = grade_folder(course, students, ["ch05"], told=lambda entry: told.append(entry["student"]))
    entries = {entry["student"]: entry for entry in document["submissions"]}
    assert told == sorted(entries) == ["ada", "bob", "cem", "dan", "eve", "fay", "gus", "hal", "ivy", "zoe"]
    assert document["ignored"] == ["old.csv"]
    assert {name: entry["score"] for name, entry in entries.items()} == {
        "ada": 5,
        "bob": 0,
        "cem": 0,
        "dan": 0,
        "eve": 0,
        "fay": 0,
        "gus": 60,
        "hal": 0,
        "ivy": 0,
        "zoe": 60,
    }
    assert all([len(c["exercises"]) for c in entry["chapters"]] == [5] for entry in entries.values())

    def first(name: str) -> dict:
        return entries[name]["chapters"][0]["exercises"][0]

    assert first("ada")["outcome"] == PASSED and len(first("ada")["digest"]) == 64
    assert "Python cannot read the file" in first("bob")["message"]
    assert first("cem")["outcome"] == NOT_YET and "did not come to an end" in json.dumps(first("cem"))
    assert "exit code 1" in first("fay")["message"] and not entries["fay"]["problems"]
    assert first("hal")["outcome"] == NOT_ATTEMPTED
    assert "not UTF-8" in entries["dan"]["problems"][0] and first("dan")["outcome"] == NOT_ATTEMPTED
    assert "holds no exercises" in entries["eve"]["problems"][0]
    assert "cannot be read" in entries["ivy"]["problems"][0]
    assert first("zoe")["notes"] == ["The text is the course's own solution."] and not first("ada")["notes"]
    assert not any(entry["fault"] for entry in entries.values())
    assert marker.exists()  # in the worker: here nothing was imported or changed
    import numpy as np

    assert not hasattr(np, "left_behind") and not any(name.startswith("_graded") for name in set(sys.modules) - modules)


def test_code_of_students_is_boxed(
    course: Course, chapter: ChapterSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sees an empty folder of its own and no secrets of the teacher's; it cannot write a large file."""
    monkeypatch.setenv("TEACHERS_TOKEN", "secret")
    box = tmp_path / "box"
    box.mkdir()
    spy = (
        f"import os, tempfile\nwhere = [os.getcwd(), os.path.expanduser('~'), tempfile.gettempdir()]\n"
        f"assert [os.path.realpath(w) for w in where] == [{os.path.realpath(box)!r}] * 3, where\n"
        "assert 'TEACHERS_TOKEN' not in os.environ\n"
    )
    if os.name != "nt":
        spy += (
            "try:\n    with open('big', 'wb') as file:\n        file.truncate(1 << 30)\n"
            "    raise AssertionError('a large file')\nexcept OSError:\n    pass\n"
        )
    client = WorkerClient(box=box)
    try:
        result = grade_text("ch05.truncate", only_truncate(chapter, spy + GOOD), "x.py", course, client=client)
    finally:
        client.close()
    assert result.passed, result.message


@POSIX
@pytest.mark.parametrize(
    ("code", "said"),
    [
        (
            "import os\nfor fd in range(3, 40):\n    try:\n        os.write(fd, b'junk')\n    except OSError:\n        pass",
            "broke the connection to the grader",
        ),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended the whole process (exit code -9)"),
        ("import os\nos.closerange(0, 100)", "your code "),
        ("import os\nos._exit(1)", "ended the whole process (exit code 1)"),
    ],
)
def test_a_worker_that_is_killed_or_cut_off_is_a_result(
    course: Course, chapter: ChapterSource, tmp_path: Path, code: str, said: str
) -> None:
    client = WorkerClient(box=tmp_path)
    try:
        broken = grade_text("ch05.truncate", only_truncate(chapter, f"{code}\n{GOOD}"), "x.py", course, client=client)
        whole = grade_text("ch05.truncate", only_truncate(chapter, GOOD), "x.py", course, client=client)
    finally:
        client.close()
    assert (broken.outcome, broken.score) == (NOT_YET, 0) and said in broken.message, broken.message
    assert whole.passed and client.starts == 2


@POSIX
def test_what_the_code_started_ends_with_it(course: Course, chapter: ChapterSource, tmp_path: Path) -> None:
    code = (
        f"import subprocess\nchild = subprocess.Popen(['sleep', '600'])\nopen('pid', 'w').write(str(child.pid))\n{GOOD}"
    )
    client = WorkerClient(box=tmp_path)
    grade_text("ch05.truncate", only_truncate(chapter, code), "x.py", course, client=client)
    pid = int((tmp_path / "pid").read_text(encoding="ascii"))
    assert _runs(pid)
    client.close()
    deadline = time.monotonic() + 30
    while _runs(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    """Whether a process exists and is more than a zombie that nobody has collected."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] != "Z"
    except OSError:
        return False


def test_submissions_are_folders_archives_files_and_notebooks(
    course: Course, chapter: ChapterSource, tmp_path: Path
) -> None:
    hand_in(tmp_path / "a", chapter.starter(), f"deep/er/exercises/{CH05}")
    hand_in(tmp_path / "a", chapter.solved(), f"deep/er/solutions/{CH05}")
    hand_in(tmp_path, only_truncate(chapter, HALF), "b_1234_ch05.py")
    hand_in(
        tmp_path,
        notebook_of(
            "1 + 1",
            f"%%exercise ch05.truncate\n{HALF}",
            f"%%exercise truncate\n{HALF}",
            f"%%exercise ch05.truncate\n{GOOD}",
            "%%exercise ch05.row_cache\nclass RowCache(:",
        ),
        "c.ipynb",
    )
    hand_in(tmp_path / "d", chapter.starter())
    hand_in(tmp_path / "d", notebook_of(f"# %% ch05.truncate - x\n\n{GOOD}"), "work.ipynb")
    hand_in(tmp_path, only_truncate(chapter, GOOD), "e.py")
    hand_in(tmp_path / "f", only_truncate(chapter, GOOD))
    hand_in(tmp_path / "f", only_truncate(chapter, HALF), "old/" + CH05)
    with zipfile.ZipFile(tmp_path / "g.zip", "w") as archive:
        archive.writestr(f"g/exercises/{CH05}", only_truncate(chapter, GOOD))
        archive.writestr(f"g/solutions/{CH05}", chapter.solved())
    hand_in(tmp_path, "{]", "h.ipynb")
    document = grade_folder(course, tmp_path, jobs=2)
    scores = {entry["student"]: (entry["score"], entry["chapters"][0]["file"]) for entry in document["submissions"]}
    assert scores == {
        "a": (0, f"deep/er/exercises/{CH05}"),
        "b_1234_ch05": (3, "b_1234_ch05.py"),
        "c": (5, "c.ipynb"),
        "d": (5, "work.ipynb"),
        "e": (5, "e.py"),
        "f": (5, CH05),
        "g": (5, f"g/exercises/{CH05}"),
        "h": (0, ""),
    }
    problems = {entry["student"]: entry["problems"] for entry in document["submissions"]}
    assert problems["f"] == [f"ch05: graded is {CH05}; also handed in: old/{CH05}"]
    assert {name for name, found in problems.items() if found} == {"f", "h"}
    assert [c["chapter"] for c in document["chapters"]] == ["ch05"]


def test_a_folder_of_chapter_files_is_one_submission(course: Course) -> None:
    found, _ = find(course.exercises, course)
    assert [name for name, _ in found] == ["exercises"]
    assert set(read("exercises", course.exercises, course).files) == {c.chapter for c in course.chapters()}


def test_an_archive_cannot_reach_out(course: Course, chapter: ChapterSource, tmp_path: Path) -> None:
    path = tmp_path / "evil.zip"
    link = zipfile.ZipInfo("link/" + CH05)
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"../../{CH05}", chapter.solved())
        archive.writestr(f"/etc/{CH05}", chapter.solved())
        archive.writestr(f"C:\\{CH05}", chapter.solved())
        archive.writestr(link, "/etc/passwd")
        archive.writestr(f"bomb/{CH05}", b"#" * (SIZE[".py"] + 1))
    before = sorted(tmp_path.parent.rglob("*"))
    submission = read("evil", path, course)
    assert submission.files == {} and sorted(tmp_path.parent.rglob("*")) == before
    told = "\n".join(submission.problems)
    assert told.count("leads out of the archive") == 3 and "link" in told and "larger than 1 MB" in told


def test_a_submission_of_any_size_takes_bounded_memory(
    course: Course, chapter: ChapterSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(tmp_path / "big", chapter.solved(), f"a/{CH05}")
    for i in range(20):
        hand_in(tmp_path / "big", "#" * 10_000, f"b/{i:02d}.py")
    hand_in(tmp_path / "big", chapter.solved(), f"c/{CH05}")
    monkeypatch.setattr("course.teaching.submissions.WHOLE", 1 << 17)
    submission = read("big", tmp_path / "big", course)
    assert submission.files["ch05"].path == f"a/{CH05}" and len(submission.problems) == 1
    assert "more than 0 MB" in submission.problems[0]


def test_damaged_archives_are_told(course: Course, chapter: ChapterSource, tmp_path: Path) -> None:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(CH05, chapter.solved())
    data = bytearray(whole.getvalue())
    for position in range(0, len(data), 97):  # one bit flipped, all over the file
        broken = bytearray(data)
        broken[position] ^= 0x10
        (tmp_path / "x.zip").write_bytes(broken)
        submission = read("x", tmp_path / "x.zip", course)
        assert submission.problems or submission.files
    for cut in (0, 10, len(data) // 2, len(data) - 4):
        (tmp_path / "x.zip").write_bytes(data[:cut])
        submission = read("x", tmp_path / "x.zip", course)
        assert submission.problems and not submission.files


@POSIX
def test_links_pipes_and_locked_files_are_not_followed(course: Course, chapter: ChapterSource, tmp_path: Path) -> None:
    secret = hand_in(tmp_path / "elsewhere", chapter.solved())
    students = tmp_path / "students"
    hand_in(students / "a", "x = 1", "notes.py")
    (students / "a" / CH05).symlink_to(secret / CH05)
    (students / "a" / "folder").symlink_to(secret)
    (students / "b").symlink_to(secret)
    (students / "c").mkdir()
    os.mkfifo(students / "c" / CH05)
    hand_in(students / "d", chapter.solved())
    (students / "d" / CH05).chmod(0)
    document = grade_folder(course, students, ["ch05"])
    entries = {entry["student"]: entry for entry in document["submissions"]}
    assert f"{CH05} is a link" in entries["a"]["problems"][0]
    assert "it is a link" in entries["b"]["problems"][0]
    assert "no ordinary file" in entries["c"]["problems"][0]
    assert [entries[name]["score"] for name in "abc"] == [0, 0, 0]
    if os.geteuid() != 0:  # root may read it all the same
        assert "Permission denied" in entries["d"]["problems"][0]


def test_names_of_any_bytes_and_tables_that_no_spreadsheet_obeys(
    course: Course, chapter: ChapterSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert readable("caf\udce9\n") == "caf\\xe9\\x0a"
    assert [sheets.plain(text) for text in ("=1+1", " @x", "-3", "ok", "a\nb", 5, "")] == [
        "'=1+1",
        "' @x",
        "'-3",
        "ok",
        "a b",
        5,
        "",
    ]
    students = tmp_path / "stud\u00e9nts"
    hand_in(students / "=HYPERLINK(1)", only_truncate(chapter, GOOD.replace("ValueError(keep)", "ValueError('=x')")))
    name = "Zo\u00eb" if os.name == "nt" else "<b>Zo\u00eb"
    hand_in(students / name, only_truncate(chapter, HALF))
    if sys.platform == "linux":
        hand_in(Path(os.fsdecode(os.fsencode(students) + b"/caf\xe9")), chapter.starter())
    table, data, page = tmp_path / "t.csv", tmp_path / "t.json", tmp_path / "t.html"
    command = ["grade", str(students), "--csv", str(table), "--json", str(data), "--html", str(page)]
    assert main(command, course) == 0
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8-sig"))))
    assert {row["student"] for row in rows} >= {"'=HYPERLINK(1)", name}
    assert len(rows) == 5 * (3 if sys.platform == "linux" else 2)
    assert not any(value[:1] in tuple("=+-@") for row in rows for value in row.values() if value)
    zoe = next(row for row in rows if row["student"] == name)
    assert (zoe["exercise"], zoe["outcome"], zoe["score"], zoe["points"]) == ("ch05.truncate", "not yet", "3", "5")
    assert len(zoe["file_sha256"]) == len(zoe["graded_sha256"]) == 64 and zoe["message"]
    document = json.loads(data.read_text(encoding="utf-8"))
    assert document["chapters"][0]["solutions_sha256"] == chapter.digest
    text = page.read_text(encoding="utf-8")
    assert html.escape(name) in text and "<b>Zo" not in text and "http" not in text and "<script" not in text
    capsys.readouterr()


def test_exit_codes_of_grade(
    course: Course,
    chapter: ChapterSource,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    for command in (
        ["grade", str(tmp_path / "nowhere")],
        ["grade", str(empty)],
        ["grade"],
        ["grade", str(empty), "--jobs", "0"],
    ):
        assert main(command, course) == 2
    with pytest.raises(NoSubmissions, match="holds no submissions"):
        grade_folder(course, empty)
    hand_in(empty / "ada", only_truncate(chapter, HALF))
    capsys.readouterr()
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["grade", str(empty), "--csv", str(tmp_path / "file" / "t.csv")], course) == 2
    said = capsys.readouterr()
    assert "cannot write" in said.err and "ada" not in said.out  # said before the work, not after
    assert main(["grade", str(empty), "--json", "-"], course) == 0  # graded, though not passed
    assert json.loads(capsys.readouterr().out)["submissions"][0]["score"] == 3
    assert main(["grade", str(empty), "--chapter", "ch99"], course) == 2
    hand_in(empty / "bob", "", "readme.md")
    assert main(["grade", str(empty)], course) == 1
    monkeypatch.setattr("course.teaching.cohort.grade_text", lambda *_, **__: 1 / 0)
    out = tmp_path / "t.json"
    assert main(["grade", str(empty), "--json", str(out)], course) == 3
    entries = json.loads(out.read_text(encoding="utf-8"))["submissions"]
    assert [entry["fault"] for entry in entries] == [True, False] and "grader broke" in entries[0]["problems"][0]
