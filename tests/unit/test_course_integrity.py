"""Every exercise is proven: starter, solution, wrong solutions, and everything that goes wrong by accident.

`test_course_mutations.py` runs this file against graders with deliberate faults: each must turn a test here red.
"""

from __future__ import annotations

import ast
import textwrap

import pytest

from course.catalogue import Course
from course.generate import committed_manifest, find_leaks, generate, manifest
from course.grading import NOT_ATTEMPTED, NOT_YET, PASSED, Grade
from course.platform import main
from course.source import WrongSolution, digest
from tests.unit.course_kit import EXERCISES, FILES, REAL, Desk, make_course

every_exercise = pytest.mark.parametrize("name", EXERCISES)
WITH_RESULTS = ["ch00.decode_ceiling", "ch00.next_token", "ch05.decode_loop", "ch05.find_the_fault"]
OURS = ("course/", "course\\", "<checks of", "core.py", "tools.py", "Traceback")


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Course:
    return make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture
def desk(course: Course, name: str) -> Desk:
    desk = Desk(course, name)
    desk.write(desk.chapter.starter())
    return desk


def said(grade: Grade) -> str:
    """Everything that the learner is told."""
    parts = [grade.message, *grade.trace, grade.misconception, *grade.notes]
    for check in grade.checks:
        parts += [check.what, *check.case, *check.trace]
    return "\n".join(parts)


def rejected(grade: Grade) -> str:
    """The grade is a clean rejection; returns what the learner is told."""
    assert grade.outcome == NOT_YET
    assert grade.score < grade.points
    text = said(grade)
    assert text
    for frame in OURS:
        assert frame not in text
    return text


# --- the three anchors ------------------------------------------------------------------------------------------------


@every_exercise
def test_untouched_starter_is_not_attempted(desk: Desk) -> None:
    grade = desk.grade()
    assert (grade.outcome, grade.score, grade.checks) == (NOT_ATTEMPTED, 0, [])


@every_exercise
def test_solution_earns_everything(desk: Desk) -> None:
    grade = desk.grade(desk.chapter.solved())
    assert (grade.outcome, grade.score) == (PASSED, desk.exercise.points), said(grade)
    texts = [check.text for check in grade.checks]
    assert texts[-len(desk.exercise.checks) :] == list(desk.exercise.checks)
    assert len(texts) == len(set(texts)) >= 3


@every_exercise
def test_grade_names_the_text_that_was_executed(desk: Desk) -> None:
    text = desk.chapter.solved() + "\n# a remark\n"
    grade = desk.grade(text)
    assert grade.path == str(desk.path)
    assert grade.digest == digest(text)
    assert text.splitlines()[grade.line - 1].split("(")[0].strip(":").split()[1] == desk.exercise.written[0].name


_graded: dict[tuple[str, str], Grade] = {}


def grade_of(desk: Desk, wrong: WrongSolution) -> Grade:
    """The grade of a known wrong solution, which two tests look at."""
    key = desk.exercise.name, wrong.name
    if key not in _graded:
        _graded[key] = desk.grade(desk.with_part(desk.exercise.mutant(wrong)))
    return _graded[key]


WRONG = [(exercise.name, wrong.name) for _, exercise in REAL.all() for wrong in exercise.wrongs]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_known_wrong_solution_gets_its_own_message(desk: Desk, wrong: str) -> None:
    mutant = next(w for w in desk.exercise.wrongs if w.name == wrong)
    grade = grade_of(desk, mutant)
    text = rejected(grade)
    assert grade.misconception == mutant.message
    assert grade.sure
    # rejected for its misconception, not because it does not run at all
    for accident in ("NameError", "RecursionError", "AttributeError", "SyntaxError", "UnboundLocalError"):
        assert accident not in text


@every_exercise
def test_every_check_is_failed_by_some_wrong_solution(desk: Desk) -> None:
    assert len(desk.exercise.wrongs) >= 3
    failed = set()
    for wrong in desk.exercise.wrongs:
        grade = grade_of(desk, wrong)
        failed |= {check.text for check in grade.checks if not check.passed}
    assert failed >= set(desk.exercise.checks)


# --- accidents --------------------------------------------------------------------------------------------------------


@every_exercise
def test_empty_file(desk: Desk) -> None:
    grade = desk.grade("\n")
    assert (grade.outcome, grade.score) == (NOT_ATTEMPTED, 0)
    assert "empty" in grade.message and "reset" in grade.message


@every_exercise
def test_no_file(desk: Desk) -> None:
    desk.path.unlink()
    grade = desk.grade()
    assert (grade.outcome, grade.score) == (NOT_ATTEMPTED, 0)
    assert desk.path.name in grade.message


@every_exercise
def test_syntax_error_names_line_and_part(desk: Desk) -> None:
    grade = desk.grade(desk.with_part("def broken(:\n    pass"))
    text = rejected(grade)
    assert "Python cannot read the file" in text and "line" in text and "def broken(:" in text
    other = desk.grade(desk.chapter.solved() + "\n# %% ch99.other\ndef broken(:\n")
    assert "in the part of ch99.other" in rejected(other)


@every_exercise
def test_renamed_and_deleted_definition(desk: Desk) -> None:
    target = desk.exercise.written[0].name
    solved = desk.exercise.solution
    for kind in ("def", "class"):
        solved = solved.replace(f"{kind} {target}", f"{kind} {target}_2")
    text = rejected(desk.grade(desk.with_part(solved)))
    assert f"`{target}`" in text and f"`{target}_2`" in text
    kept = "\n\n".join(d.text for d in desk.exercise.definitions if d.name != target)
    assert f"`{target}`" in rejected(desk.grade(desk.with_part(kept or "pass")))


@every_exercise
def test_returning_nothing(desk: Desk) -> None:
    grade = desk.grade(desk.with_part(rebuilt(desk, lambda body: [ast.Return(ast.Constant(None))])))
    text = rejected(grade)
    if desk.exercise.name in WITH_RESULTS:
        assert "None" in text
        assert grade.score == 0


@every_exercise
def test_empty_body_earns_less_than_half(desk: Desk) -> None:
    grade = desk.grade(desk.with_part(rebuilt(desk, lambda body: [ast.Pass()])))
    rejected(grade)
    assert grade.score <= grade.points // 2


@pytest.mark.parametrize("name", WITH_RESULTS)
def test_printing_instead_of_returning(desk: Desk) -> None:
    class Printing(ast.NodeTransformer):
        def visit_Return(self, node: ast.Return) -> ast.AST:
            return ast.parse(f"print({ast.unparse(node.value)})").body[0] if node.value else node

    def change(body: list[ast.stmt]) -> list[ast.stmt]:
        return [Printing().visit(statement) for statement in body]

    grade = desk.grade(desk.with_part(rebuilt(desk, change)))
    assert "None" in rejected(grade)
    if desk.exercise.name.startswith("ch00"):
        assert "printing is not returning" in said(grade)


@pytest.mark.parametrize("name", ["ch00.next_token", "ch05.row_cache"])
def test_changing_the_inputs(desk: Desk) -> None:
    spoil = textwrap.dedent("""
        def _spoil(function):
            def spoiling(*args):
                result = function(*args)
                for argument in args:
                    if type(argument).__name__ == "ndarray":
                        argument[...] = 7
                    elif isinstance(argument, list):
                        argument.reverse()
                        argument.append(0.0)
                return result
            return spoiling
    """)
    target = "RowCache.append" if desk.exercise.name == "ch05.row_cache" else desk.exercise.written[0].name
    part = f"{desk.exercise.solution}\n{spoil}\n{target} = _spoil({target})\n"
    assert "changes its argument" in rejected(desk.grade(desk.with_part(part)))


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("ch00.decode_ceiling", "    return 200.0"),
        ("ch00.next_token", "    return [(0, 0.25), (1, 0.25)]"),
        ("ch05.truncate", "    cache.len = 1"),
    ],
)
def test_answer_typed_in_for_the_example(desk: Desk, body: str) -> None:
    stub = desk.exercise.written[0].starter.splitlines()
    grade = desk.grade(desk.with_part("\n".join([*stub[:-1], body])))
    assert "never uses its argument" in rejected(grade)
    assert grade.checks[0].passed
    assert grade.misconception == "" or not grade.sure


@every_exercise
def test_importing_the_solution(desk: Desk) -> None:
    module = desk.path.stem
    target = desk.exercise.written[0].name
    ways = [
        f"from solutions.{module} import {target}",
        f"import solutions.{module} as s\n{target} = s.{target}",
        f"import importlib\n{target} = importlib.import_module('solutions.{module}').{target}",
        f"text = open({str(desk.chapter.path)!r}, encoding='utf-8').read()\ndef {target}(*a): return text",
        f"try:\n    import solutions.{module}\nexcept ImportError:\n    pass\n" + desk.exercise.solution,
        f"import importlib\ntry:\n    importlib.import_module('solu' + 'tions.{module}')\nexcept ImportError:\n    pass\n"
        + desk.exercise.solution,
    ]
    others = "".join(f"\n\n{d.text}" for d in desk.exercise.definitions if d.name != target)
    for way in ways:
        grade = desk.grade(desk.with_part(way + others))
        assert "solutions" in rejected(grade)
        assert grade.score == 0
    assert desk.grade(desk.chapter.solved()).passed  # and nothing of it stays behind


# Any exercise would do, and each costs a process: functions and classes, of every chapter.
ENDS = [exercises[i].name for exercises in [chapter.exercises for chapter in REAL.chapters()] for i in (0, -1)]


@pytest.mark.parametrize("name", ENDS)
def test_endless_loop_ends(desk: Desk) -> None:
    part = rebuilt(desk, lambda body: ast.parse("while True:\n    x = 1").body)
    grade = desk.grade(desk.with_part(part), cpu_seconds=0.3)
    assert "did not come to an end" in rejected(grade)
    assert any("while True:" in line for check in grade.checks for line in check.trace)


@pytest.mark.parametrize("name", ["ch00.decode_ceiling"])
def test_endless_loop_that_holds_the_interpreter_or_the_file_ends(desk: Desk) -> None:
    part = rebuilt(desk, lambda body: ast.parse("return sum(range(10**15))").body)
    assert "did not come to an end" in rejected(desk.grade(desk.with_part(part), cpu_seconds=0.3))
    part = "while True:\n    pass\n" + desk.exercise.solution
    assert "did not come to an end" in rejected(desk.grade(desk.with_part(part), cpu_seconds=0.3))


@pytest.mark.parametrize("name", ["ch00.next_token", "ch05.truncate"])
def test_runaway_memory_ends(desk: Desk) -> None:
    hog = "x = []\nwhile True:\n    x.append(bytearray(1 << 20))"
    grade = desk.grade(desk.with_part(rebuilt(desk, lambda body: ast.parse(hog).body)), memory_mb=64)
    assert "takes more memory" in rejected(grade)


@pytest.mark.parametrize("name", ["ch00.decode_ceiling"])
@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("import os; os._exit(0)", "ended the whole process"),
        ("import sys; sys.exit(0)", "ends the program"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("input('? ')", "asks for keyboard input"),
        ("return [][1]", "IndexError: list index out of range"),
        ("return decode_ceiling(weight_bytes, bandwidth)", "RecursionError"),
    ],
)
def test_other_ways_out(desk: Desk, statement: str, told: str) -> None:
    grade = desk.grade(desk.with_part(rebuilt(desk, lambda body: ast.parse(statement).body)))
    assert told in rejected(grade)
    assert grade.score == 0
    if "IndexError" in told:
        assert any(statement in line for line in grade.checks[0].trace)


@pytest.mark.parametrize("name", ["ch00.next_token"])
def test_nothing_leaks_from_one_attempt_into_the_next(desk: Desk) -> None:
    vandal = "import math\nmath.exp = lambda x: 1.0\n" + desk.exercise.solution
    rejected(desk.grade(desk.with_part(vandal)))
    assert desk.grade(desk.chapter.solved()).passed


@pytest.mark.parametrize("name", ["ch05.row_cache"])
def test_half_written_class_says_what_is_missing(desk: Desk) -> None:
    line = "return self.k[layer, :self.len]"
    part = desk.exercise.solution.replace(line, f"raise NotImplementedError('your code here')\n        {line}")
    assert "NotImplementedError" in rejected(desk.grade(desk.with_part(part)))


def rebuilt(desk: Desk, change) -> str:
    """The exercise's solution with the body of every function that the learner writes changed."""
    parts = []
    for definition in desk.exercise.definitions:
        if not definition.written:
            parts.append(definition.text)
            continue
        tree, starter = ast.parse(definition.text), ast.parse(definition.starter)
        functions = [node for node in ast.walk(starter) if isinstance(node, ast.FunctionDef)]
        stubs = {node.name for node in functions if "your code here" in ast.unparse(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and node.name in stubs:
                node.body = change(node.body[1:])
        parts.append(ast.unparse(ast.fix_missing_locations(tree)))
    return "\n\n".join(parts)


# --- exit codes -------------------------------------------------------------------------------------------------------


@every_exercise
def test_check_tells_the_truth_by_its_exit_code(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", desk.exercise.name], desk.course) == 1
    desk.write(desk.with_part(desk.exercise.mutant(desk.exercise.wrongs[0])))
    assert main(["check", desk.exercise.name], desk.course) == 1
    desk.write(desk.chapter.solved())
    assert main(["check", desk.exercise.name], desk.course) == 0
    out = capsys.readouterr().out
    assert out.isascii()
    assert f"exercises/{desk.path.name}" in out


def test_check_of_everything_fails_while_one_is_open(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    for chapter in course.chapters():
        (course.exercises / chapter.file_name).write_text(chapter.solved(), encoding="utf-8")
    assert main(["check"], course) == 0
    chapter = course.chapters()[-1]
    last = chapter.exercises[-1]
    (course.exercises / chapter.file_name).write_text(
        chapter.assemble({e.name: e.solution for e in chapter.exercises if e.name != last.name}), encoding="utf-8"
    )
    assert main(["check"], course) == 1
    assert f"{last.name}: not attempted" in capsys.readouterr().out
    assert main(["check", "no.such"], course) == 2
    assert main(["check", "--nonsense"], course) == 2


# --- what learners are given ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_name", FILES)
def test_starter_runs_and_holds_no_solution(file_name: str, tmp_path) -> None:
    chapter = next(c for c in REAL.chapters() if c.file_name == file_name)
    text = chapter.starter()
    assert find_leaks(chapter) == []
    assert text.isascii()
    assert text.count("your code here") > len(chapter.exercises)
    exec(compile(text, file_name, "exec"), {"__name__": "starter"})
    for exercise in chapter.exercises:
        assert exercise.marker in text
        for definition in exercise.written:
            assert definition.doc.splitlines()[0] in text


@pytest.mark.parametrize("file_name", FILES)
def test_leak_scan_finds_what_is_planted(file_name: str) -> None:
    chapter = next(c for c in REAL.chapters() if c.file_name == file_name)
    for exercise in chapter.exercises:
        last = exercise.written[0].text.splitlines()[-1]
        assert find_leaks(chapter, chapter.assemble({exercise.name: exercise.solution}))
        assert find_leaks(chapter, chapter.starter() + "\n#   " + exercise.hints[-1])
        assert find_leaks(chapter, chapter.starter() + "\n# " + exercise.wrongs[0].message)
        if len(last.strip()) > 20:
            assert find_leaks(chapter, chapter.starter() + "\n# >>> " + last.strip())
    assert find_leaks(chapter, "import solutions.x\n" + chapter.starter())


def test_manifest_is_what_the_solutions_give(tmp_path) -> None:
    """Compared in a temporary folder: a file in exercises/ that somebody works in turns nothing red."""
    generate(REAL, into=tmp_path)
    assert committed_manifest(REAL) == manifest(REAL)
    for name, entry in committed_manifest(REAL)["files"].items():
        assert digest((tmp_path / name).read_text(encoding="utf-8")) == entry["sha256"]
