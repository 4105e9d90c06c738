"""Rules told once and where they are broken; what an answer may not use; points on top; names that only a notebook knows."""

from __future__ import annotations

import ast
import csv
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import course.notebook as notebook
from course.catalogue import Course, UnknownExercise
from course.cells import hoisted, in_cell
from course.files import ExerciseFiles
from course.grading import Grade, feedback
from course.grading.barred import use_of_barred
from course.grading.tools import Failed, Tools, other_kind
from course.parser import parse_chapter
from course.platform import main
from course.progress import Progress
from course.report import STYLE
from course.rules import ALONE, IMPORTS, RULES, TYPES, UNCHANGED
from course.score import tally, worth
from course.source import ROOT
from course.standings import standings
from course.teaching.cohort import grade_folder
from course.teaching.sheets import as_csv, page
from tests.unit.course_kit import REAL, Desk, make_course

CEILING, NEXT = "ch00.decode_ceiling", "ch00.next_token"
RIGHT = "    if min(weight_bytes, bandwidth) <= 0:\n        raise ValueError\n    return bandwidth * 1e9 / weight_bytes"
DEF = "def decode_ceiling(weight_bytes, bandwidth):\n"


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = make_course(tmp_path)
    monkeypatch.setattr(notebook, "_course", course)
    return course


class Shell:
    """As much of IPython as the magic uses."""

    def __init__(self, **names: Any) -> None:
        self.user_ns: dict[str, Any] = names

    def run_cell(self, text: str, store_history: bool = True) -> None:
        exec(text, self.user_ns)


def told(text: str) -> str:
    return " ".join(text.split())


# --- the rules -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chapter", REAL.chapters(), ids=lambda c: c.chapter)
def test_every_exercise_file_begins_with_how_to_work_and_the_rules(chapter) -> None:
    doc = told(ast.get_docstring(ast.parse(chapter.starter())) or "")
    assert all(told(rule) in doc for rule in RULES)
    assert doc.count("your code here") == 1, "the generator says how to work; the chapter's docstring need not"
    assert f"python3 -m course check {chapter.chapter}" in doc
    lines = chapter.starter().splitlines()
    assert all(line in lines for line in IMPORTS)


def test_docs_tell_the_same_rules() -> None:
    page = told((ROOT / "docs" / "learning.md").read_text(encoding="utf-8"))
    for rule in RULES:
        assert told(rule) in page


def graded(name: str, *changes: tuple[str, str], tmp_path: Path) -> Grade:
    """The grade of our solution with some of its text replaced."""
    desk = Desk(make_course(tmp_path), name)
    text = desk.chapter.solved()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return desk.grade(text)


def first_failure(grade: Grade) -> str:
    return next(check.what for check in grade.checks if not check.passed)


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("ch03.swiglu", "return gate / (1 + np.exp(-gate)) * up", "return list(gate / (1 + np.exp(-gate)) * up)"),
        ("ch03.forward", "return x @ w.output.T", "return list(x @ w.output.T)"),
        ("ch04.top_p", "return order[: np.searchsorted(running, p) + 1]", "return [1, 3]"),
    ],
)
def test_a_list_for_an_array_names_the_rule(name: str, old: str, new: str, tmp_path: Path) -> None:
    what = first_failure(graded(name, (old, new), tmp_path=tmp_path))
    assert "list" in what and TYPES[1:] in what


def test_writing_to_what_cannot_be_written_names_the_rule(tmp_path: Path) -> None:
    change = ("weights = blocks", "raw[:] = raw\n    weights = blocks")
    what = first_failure(graded("ch01.dequantize_q8_0", change, tmp_path=tmp_path))
    assert "read-only" in what and UNCHANGED[1:] in what


def test_a_change_far_back_in_an_array_is_shown(tmp_path: Path) -> None:
    change = ("blocks = x.reshape(-1, 32)", "x[20] = 0; blocks = x.reshape(-1, 32)")
    grade = graded("ch01.quantize_row", change, tmp_path=tmp_path)
    assert "its element [20] was 20.0, afterwards 0.0" in " ".join(check.what for check in grade.checks)


def test_only_the_places_named_may_change() -> None:
    def pops(a: list, b: list) -> None:
        a.pop()

    tools = Tools("a seed")
    tools.call(pops, [1], [2], changes=(0,))
    with pytest.raises(Failed, match="argument number 1"):
        tools.call(pops, [1], [2], changes=(1,))


def test_methods_may_be_made_in_init(tmp_path: Path) -> None:
    closures = """
class Ban:
    def __init__(self, tokens, first=None):
        if any(token < 0 for token in tokens):
            raise ValueError("below 0")
        said, ids = [], list(tokens)

        def process(logits, history):
            if first is None or len(said) < first:
                logits[ids] = -np.inf

        self.process, self.commit, self.reset = process, said.append, said.clear
"""
    desk = Desk(make_course(tmp_path), "ch04.ban")
    grade = desk.grade(desk.with_part(closures))
    assert grade.passed, grade.message
    assert "no method" in desk.grade(desk.with_part(closures.replace("self.reset", "reset"))).message


def test_the_first_check_tells_the_rules_and_the_second_does_not(course: Course, capsys) -> None:
    desk = Desk(course, CEILING)
    main(["check", CEILING], course)
    assert ALONE not in told(capsys.readouterr().out)  # the untouched starter is no attempt
    desk.write(desk.with_part(DEF + "    return 1"))
    main(["check", CEILING], course)
    assert ALONE in told(capsys.readouterr().out)
    main(["check", CEILING], course)
    assert ALONE not in told(capsys.readouterr().out)


def test_the_first_check_in_a_notebook_tells_them_too(course: Course, capsys) -> None:
    for times in (1, 0):
        notebook.exercise_cell(CEILING, DEF + "    return 1", Shell())
        assert told(capsys.readouterr().out).count(ALONE) == times


def test_a_broken_rule_is_told_again(course: Course) -> None:
    part = "def next_token(logits, k):\n    logits.sort()\n    return [(0, 0.25), (1, 0.25)]"
    desk = Desk(course, "ch03.rms_norm")
    body = desk.exercise.solution.replace("return", "x *= 2\n    return", 1)
    said = " ".join(check.what for check in desk.grade(desk.with_part(body)).checks)
    assert UNCHANGED[1:] in said
    part = "def next_token(logits, k):\n    return ((0, 0.25), (1, 0.25))"
    desk = Desk(course, NEXT)
    said = desk.grade(desk.with_part(part)).checks[0].what
    assert TYPES[1:] in said and "The values are right" in said


@pytest.mark.parametrize(
    ("got", "want", "remarked"),
    [((1, 2), [1, 2], True), ([(1,), 2], [[1], 2], True), ([1, 2], [1, 3], False), (3, [3], False), ("ab", [1], False)],
)
def test_only_right_values_of_the_wrong_kind_are_remarked(got: Any, want: Any, remarked: bool) -> None:
    assert bool(other_kind(got, want)) == remarked


# --- names ---------------------------------------------------------------------------------------------------------


def test_numpy_is_there_in_every_cell(course: Course, capsys) -> None:
    cell = "def next_token(logits, k):\n" + textwrap.indent(
        "if not 1 <= k <= len(logits):\n    raise ValueError\n"
        "p = np.exp(np.array(logits) - max(logits))\np /= p.sum()\n"
        "ids = np.argsort(-np.array(logits), kind='stable')[:k]\nreturn [(int(i), float(p[i])) for i in ids]",
        "    ",
    )
    notebook.exercise_cell(NEXT, cell, Shell())
    assert "passed, 5 of 5 points" in capsys.readouterr().out


def test_a_name_that_only_the_notebook_knows_is_told_so(course: Course, capsys) -> None:
    cell = "def next_token(logits, k):\n    return softmax(logits)[:k]"
    notebook.exercise_cell(NEXT, cell, Shell(softmax=max))
    out = told(capsys.readouterr().out)
    assert "`softmax` is known in your notebook, not in exercises/ch00_welcome.py: put its import or definition" in out
    notebook.exercise_cell(NEXT, cell + "  # again", Shell())
    out = told(capsys.readouterr().out)
    assert (
        "`softmax` is neither imported nor defined in exercises/ch00_welcome.py." in out and "your notebook" not in out
    )
    main(["check", NEXT], course)
    assert "neither imported nor defined" in told(capsys.readouterr().out)


def test_a_name_that_the_file_defines_too_late_is_not_called_unknown(course: Course) -> None:
    desk = Desk(course, CEILING)
    grade = desk.grade(desk.with_part("x = later\nlater = 2\n\n\n" + DEF + RIGHT))
    assert "NameError" in grade.message and not grade.notes


# --- what an answer may not use --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("from fucina.gguf import dequantize\n" + DEF + RIGHT, "imports fucina.gguf"),
        (DEF + "    import fucina as f\n" + RIGHT, "imports fucina"),
        ("import importlib\nm = importlib.import_module('fucina.gguf')\n" + DEF + RIGHT, "imports fucina.gguf"),
        ("name = 'fuc' + 'ina.gguf'\n__import__(name)\n" + DEF + RIGHT, "reaches for fucina"),
        ("try:\n    exec('import fuc' 'ina')\nexcept ImportError:\n    pass\n" + DEF + RIGHT, "reaches for fucina"),
        ("import course.catalogue\n" + DEF + RIGHT, "imports course.catalogue"),
        ("import sys\nc = sys.modules['course.parser']\n" + DEF + RIGHT, "imports course.parser"),
    ],
)
def test_engine_and_course_are_no_answer(course: Course, code: str, word: str) -> None:
    desk = Desk(course, CEILING)
    grade = desk.grade(desk.with_part(code))
    assert not grade.passed and grade.score == 0
    assert word in grade.message
    assert desk.grade(desk.with_part(DEF + RIGHT)).passed


CHAPTER = '''"""Chapter 00 - A test."""

import fucina

from course.exercises import Exercise

ex = Exercise("ch00.free", title="t", points=5, level="easy", section="0", hints=["a", "b"], engine=True, bonus=True)


@ex.solution
def free():
    """Contract."""
    return fucina


ex = Exercise("ch00.own", title="t", points=10, level="easy", section="0", hints=["a", "b"])


@ex.solution
def own():
    """Contract."""
    return 1
'''


def test_an_exercise_can_allow_the_engine() -> None:
    chapter = parse_chapter(CHAPTER, Path("ch00_test.py"))
    free, own = chapter.exercises
    assert "import fucina" in chapter.head

    def used(exercise, **parts: str) -> str:
        text = chapter.assemble({f"ch00.{name}": part for name, part in parts.items()})
        return use_of_barred(ast.parse(text), text, chapter, exercise)

    assert used(free, free="def free():\n    import fucina.gguf\n    return fucina") == ""
    assert used(own, free="import fucina.gguf\ndef free():\n    return fucina") == ""
    assert "uses fucina" in used(own, own="def own():\n    return fucina.load")
    assert "imports fucina.gguf" in used(own, own="def own():\n    from fucina.gguf import read")
    assert "uses fucina.gguf.f" in used(own, free="from fucina.gguf import f", own="def own():\n    return f")
    assert "imports course" in used(free, free="import course")


# --- a bonus ---------------------------------------------------------------------------------------------------------


def test_a_bonus_is_earned_on_top(course: Course, capsys) -> None:
    chapter = course.exercise("ch01.dequantize_q4_k")[0]
    bonus = [e for e in chapter.exercises if e.bonus]
    assert [e.name for e in bonus] == ["ch01.dequantize_q4_k"] and "20 bonus points" in bonus[0].marker
    total = sum(e.points for e in chapter.exercises)
    assert worth(chapter.exercises) == total - 20
    path = ExerciseFiles(course).path(chapter)
    path.write_text(chapter.solved(), encoding="utf-8")
    assert main(["check", "ch01"], course) == 0
    assert f"{total} of {total - 20} points, 20 of them bonus" in capsys.readouterr().out
    (row,) = [row for row in standings(course).chapters if row.chapter == "ch01"]
    assert (row.score, row.bonus, row.points) == (total, 20, total - 20)
    main(["progress"], course)
    assert f"{total} of {total - 20} points (20 bonus)" in told(capsys.readouterr().out)


def test_a_class_counts_a_bonus_on_top(course: Course, tmp_path: Path) -> None:
    chapter = course.exercise("ch01.dequantize_q4_k")[0]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "ada.py").write_text(chapter.solved(), encoding="utf-8")
    document = grade_folder(course, tmp_path / "in", ["ch01"])
    (entry,) = document["submissions"]
    assert (entry["score"], entry["bonus"], entry["points"]) == (70, 20, 50)
    assert "70 of 50 points, 20 of them bonus" in page(document)
    header, *rows = csv.reader(as_csv(document).removeprefix("\ufeff").splitlines())
    column = header.index("bonus")
    assert [row[2] for row in rows if row[column] == "yes"] == ["ch01.dequantize_q4_k"]


def test_what_comes_next_is_a_bonus_only_at_the_very_end(course: Course, monkeypatch) -> None:
    for chapter, exercise in course.all():
        if not exercise.bonus:
            ExerciseFiles(course).save(chapter, exercise, exercise.solution)
            part = ExerciseFiles(course).part(chapter, exercise)
            Progress(course).record(exercise, Grade.of(exercise, "passed", "", ""), part)
    following = standings(course).following
    assert following is not None and following[1].bonus


def test_tally() -> None:
    assert tally(45, 50) == "45 of 50 points"
    assert tally(60, 50, 20) == "60 of 50 points, 20 of them bonus"


# --- cells -----------------------------------------------------------------------------------------------------------


def test_a_cell_that_is_not_saved_is_graded_itself(course: Course, capsys) -> None:
    chapter, exercise = course.exercise(CEILING)
    notebook.exercise_cell(CEILING, DEF + "    return 1", Shell())
    ExerciseFiles(course).save(chapter, exercise, DEF + RIGHT)  # meanwhile, in an editor
    capsys.readouterr()
    notebook.exercise_cell(CEILING, DEF + "    return 2", Shell())
    out = told(capsys.readouterr().out)
    assert "decode_ceiling: not yet" in out and "Not saved" in out and "the grade is not kept" in out
    assert ExerciseFiles(course).part(chapter, exercise) == DEF + RIGHT


def test_lines_are_those_of_the_cell(course: Course, capsys) -> None:
    notebook.exercise_cell(CEILING, "\n" + DEF + "    return 1 / 0", Shell())
    out = capsys.readouterr().out
    assert "this cell, line 4, in decode_ceiling" in out and "ch00_welcome.py, line" not in out
    text = "head\n# %% ch00.x - t\n\ndef f():\n    pass\n# %% ch00.y - t\n\ny = 1\n"
    grade = Grade("ch00.x", "", 5, "not yet", path="p", message="line 4 imports a, line 8 b", trace=["p, line 5, in f"])
    in_cell(grade, text, "def f():\n    pass\n")
    assert grade.message == "line 2 of this cell imports a, line 8 b"
    assert grade.trace == ["this cell, line 3, in f"]


@pytest.mark.parametrize(
    ("lines", "first"),
    [
        (["# mine\n", "\n", "%%exercise ch00.x\n", "def f(): pass\n"], "%%exercise ch00.x\n"),
        (["import a\n", "%%exercise ch00.x"], "%%exercise ch00.x\n"),
        (["%%exercise ch00.x\n", "%%exercise ch00.y\n"], "%%exercise ch00.x\n"),
        (["%%time\n", "%%exercise ch00.y\n"], "%%time\n"),
        (["x = 1\n"], "x = 1\n"),
        ([], None),
    ],
)
def test_the_magic_may_stand_below_the_first_line(lines: list[str], first: str | None) -> None:
    got = hoisted(list(lines))
    assert (got[0] if got else None) == first
    assert sorted(line.strip() for line in got) == sorted(line.strip() for line in lines)


def test_a_function_stands_for_its_exercise(course: Course, capsys) -> None:
    def decode_ceiling() -> None: ...

    notebook.hint(decode_ceiling)
    assert f"{CEILING}, hint 1 of 3" in capsys.readouterr().out
    notebook.hint(CEILING, all=True)
    assert "solution(" in capsys.readouterr().out  # after the last hint
    notebook.check()
    out = capsys.readouterr().out
    assert out.count("not attempted") == 0 and "Not attempted: ch00.decode_ceiling, ch00.next_token" in out


# --- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (
            DEF + '    x = 1\n    raise NotImplementedError("ch00.decode_ceiling: your code here")\n' + RIGHT,
            "delete it",
        ),
        (DEF + RIGHT + "\n\n\n{starter}", "the last definition counts: delete the starter"),
        ("{starter}\n\n\n" + DEF + "    return bandwidth / weight_bytes", ""),
    ],
)
def test_left_over_starters_are_named(course: Course, part: str, words: str) -> None:
    desk = Desk(course, CEILING)
    grade = desk.grade(desk.with_part(part.replace("{starter}", desk.exercise.starter)))
    said = " ".join([grade.message, *grade.notes])
    assert words in said and "never uses" not in said
    assert grade.outcome == "not yet"


def test_resetting_a_starter_makes_no_copy(course: Course, capsys) -> None:
    assert main(["reset", "ch00"], course) == 0
    assert "the starter is there already" in capsys.readouterr().out
    assert not (course.state / "backups").exists()
    desk = Desk(course, CEILING)
    desk.write(desk.with_part(DEF + RIGHT))
    assert main(["reset", "ch00"], course) == 0
    assert len(list((course.state / "backups").iterdir())) == 1
    assert desk.path.read_text(encoding="utf-8") == desk.chapter.starter()


def test_commands_and_chapters_that_do_not_exist(course: Course, capsys) -> None:
    assert main(["chekc"], course) == 2
    err = told(capsys.readouterr().err)
    assert "Did you mean `check`?" in err and "generate" not in err and "build" not in err
    with pytest.raises(UnknownExercise, match="there is no chapter 'ch10' with exercises; there are ch00, ch01, ch02"):
        course.find(["ch10"])


@pytest.mark.parametrize("width", [50, 80, 200])
def test_prose_keeps_to_the_terminal(course: Course, capsys, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    desk = Desk(course, CEILING)
    desk.write(desk.with_part(desk.exercise.mutant(desk.exercise.wrongs[0])))
    main(["check", CEILING], course)
    main(["hint", CEILING, "--all"], course)
    main(["list"], course)
    out = capsys.readouterr().out.splitlines()
    assert "Known mistake" in "".join(out)
    code = ("graded:", "decode_ceiling(", ">>>", "`python3", "this is", "one more")
    long = [row for row in out if len(row) > min(width, 97) and not any(word in row.lower() for word in code)]
    assert long == []


# --- contrast --------------------------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_words_can_be_read_on_light_and_on_dark() -> None:
    for outcome, ground in feedback.COLOURS.items():
        assert f"background:{ground};color:#fff" in feedback.badge(outcome)
        assert contrast("#fff", ground) >= 4.5
    light, dark = STYLE.split("@media(prefers-color-scheme:dark)")
    for sheet, ground in ((light, "#fff"), (dark, "#181818")):
        words = re.findall(r"(?<![a-z-])color:(#[0-9a-f]+)", sheet)
        assert len(words) >= 4 and all(contrast(word, ground) >= 4.5 for word in words)
    assert "color-scheme:light dark" in light  # the browser's own meters follow
