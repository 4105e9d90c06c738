"""Grades one exercise: the learner's text against the checks of its chapter file.  Runs inside the worker process.

What is executed of the chapter file has no solution in it (`course.parser.check_code`).  What is executed of the
learner is the whole text that was handed in, and its hash is part of the grade.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import doctest
import io
import math
import re
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from course.exercises import Check, Exercise, collect
from course.grading import learner
from course.grading.barred import barred, use_of_barred
from course.grading.guard import Guard
from course.grading.learner import Unusable
from course.grading.outcome import NOT_ATTEMPTED, NOT_YET, CheckResult, Grade, judge
from course.grading.tools import Failed, LearnerError, Tools, describe, other_kind, rule_broken, show
from course.parser import check_code
from course.rules import unknown_name
from course.source import NOT_PYTHON, ChapterSource, ExerciseSource, digest

EXAMPLE = "the example of the contract"
RETURNS_NONE = re.compile(r"^ *Returns\n *-{3,}\n[^\n]*\bNone\b", re.MULTILINE)  # `int or None`, in a contract
LONGEST = 2000  # characters of a message
TOO_MUCH_MEMORY = "takes more memory than an exercise may use"
Event = Callable[[str, dict[str, Any]], None]


def silent(kind: str, data: dict[str, Any]) -> None:
    """No one listens."""


class ChapterChecks:
    """The checks of one chapter file, ready to run, and how its known wrong solutions behave."""

    def __init__(self, chapter: ChapterSource) -> None:
        self.chapter = chapter
        module = types.ModuleType(f"_checks_{chapter.chapter}")
        sys.modules[module.__name__] = module
        code = compile(check_code(chapter), f"<checks of {chapter.chapter}>", "exec")
        self.exercises: dict[str, Exercise] = collect(lambda: exec(code, module.__dict__))
        self._known: dict[str, list[tuple[str, str, list[tuple]]]] = {}

    def at(self, chapter: ChapterSource) -> ChapterChecks:
        """The same checks for a chapter file with the same text in another place."""
        other = copy.copy(self)
        other.chapter = chapter
        return other

    def known_wrongs(self, exercise: ExerciseSource) -> list[tuple[str, str, list[tuple]]]:
        """(name, message, signatures of its checks) of each known wrong solution, measured once."""
        if exercise.name not in self._known:
            rows = []
            for wrong in exercise.wrongs:
                text = self.chapter.assemble({exercise.name: exercise.mutant(wrong)})
                results = self._results(exercise, text, "<known wrong solution>", silent)
                rows.append((wrong.name, wrong.message, [result.signature() for result in results]))
            self._known[exercise.name] = rows
        return self._known[exercise.name]

    def _results(
        self, exercise: ExerciseSource, text: str, path: str, event: Event, brief: bool = False
    ) -> list[CheckResult]:
        tree = learner.parse(text, path, exercise)
        module = learner.run_module(tree, text, path, f"_graded_{exercise.name}")
        return run_checks(self.exercises[exercise.name], exercise, module, path, event, brief)

    def grade(
        self,
        exercise: ExerciseSource,
        text: str,
        path: str,
        guard: Guard | None = None,
        event: Event = silent,
        brief: bool = False,
    ) -> Grade:
        """Grade `text`, the content of the learner's file `path`; `brief`: to the first failure, without a remark."""
        grade = Grade.of(exercise, NOT_YET, path, digest(text))
        with contextlib.ExitStack() as stack:
            if guard:
                stack.enter_context(guard.armed_for(barred(exercise)))
            try:
                self._fill(grade, exercise, text, path, event, brief)
            except Unusable as problem:
                grade.message, grade.trace = str(problem), problem.trace
        if guard and guard.tripped:
            grade.outcome, grade.checks, grade.message = NOT_YET, [], guard.message()
            return grade
        if grade.unknown and not learner.defines(text, grade.unknown):
            here = path.endswith(self.chapter.file_name)
            grade.notes.insert(0, unknown_name(grade.unknown, f"exercises/{self.chapter.file_name}" if here else path))
        if grade.checks and not grade.passed and not brief:
            self._name_misconception(grade, exercise)
        return grade

    def _fill(self, grade: Grade, exercise: ExerciseSource, text: str, path: str, event: Event, brief: bool) -> None:
        if not text.strip():
            grade.outcome = NOT_ATTEMPTED
            raise Unusable(f"the file is empty. `python3 -m course reset {exercise.name}` brings the starter back.")
        tree = learner.parse(text, path, exercise)
        grade.line = next((n.lineno for n in tree.body if getattr(n, "name", "") == exercise.written[0].name), 0)
        if used := use_of_barred(tree, text, self.chapter, exercise):
            raise Unusable(used)
        written, stubs, missing = learner.unwritten(tree, exercise)
        if missing:
            raise Unusable(learner.missing_message(tree, missing, exercise))
        if not written:
            if hidden := learner.hidden_by_stub(tree, exercise):
                raise Unusable(hidden)
            grade.outcome = NOT_ATTEMPTED
            return
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            grade.checks = self._results(exercise, text, path, event, brief)
        grade.outcome = judge(grade.checks)
        if not grade.passed:
            own = [w for w in caught if w.filename == path]
            grade.notes += [f"line {w.lineno} warns: {show(str(w.message))[1:-1]}" for w in own[:1]]
            grade.notes += [f"`{name}` is still to be written." for name in stubs]
            grade.notes += learner.leftover_raises(tree, exercise)
            if not any(_raised(check.signature()) for check in grade.checks[:1]):  # it came as far as an answer
                grade.notes += learner.unused_arguments(tree, exercise)

    def _name_misconception(self, grade: Grade, exercise: ExerciseSource) -> None:
        mine = [check.signature() for check in grade.checks]
        known = self.known_wrongs(exercise)
        same = [row for row in known if row[2] == mine]
        grade.sure = bool(same)
        if not same:
            first = next(signature for signature in mine if signature[1] == "failed")
            same = [row for row in known if _first_failure(row[2]) == first and not _raised(first)]
        if len(same) == 1:
            grade.wrong, grade.misconception = same[0][0], same[0][1]


def _first_failure(signatures: list[tuple]) -> tuple | None:
    return next((signature for signature in signatures if signature[1] == "failed"), None)


def _raised(signature: tuple) -> bool:
    return signature[2].startswith("raises ") or " is None, expected" in signature[2]


def run_checks(
    exercise: Exercise,
    source: ExerciseSource,
    module: types.ModuleType,
    path: str,
    event: Event = silent,
    brief: bool = False,
) -> list[CheckResult]:
    """Run every check (`brief`: to the first failure), the contract's own example first; report each as it ends."""
    names = [d.name for d in source.written]
    mine: Any = (
        getattr(module, names[0])
        if len(names) == 1
        else types.SimpleNamespace(**{name: getattr(module, name) for name in names})
    )
    checks = list(exercise.checks)
    examples = [(d.name, example) for d in source.written for example in doctest.DocTestParser().get_examples(d.doc)]
    if examples:
        checks.insert(0, Check(EXAMPLE, lambda _, t: run_examples(examples, module, t)))
    results = []
    full = False
    legal = any(RETURNS_NONE.search(d.text) for d in source.written)
    for check in checks:
        event("started", {"text": check.text})
        result = CheckResult(check.text, "not run") if full else run_check(check, mine, path, legal)
        full = full or result.what == TOO_MUCH_MEMORY
        results.append(result)
        event("checked", {"result": {name: getattr(result, name) for name in CheckResult.__slots__}})
        if brief and not result.passed:
            break
    return results


def run_check(check: Check, mine: Any, path: str, none_is_legal: bool = False) -> CheckResult:
    """One check: passed, or failed with the case that shows it."""
    tools = Tools(check.text, none_is_legal)
    result = CheckResult(check.text, "failed")
    try:
        check.run(mine, tools)
        result.status = "passed"
        return result
    except Failed as failed:
        result.what = str(failed)[:LONGEST].encode("ascii", "backslashreplace").decode("ascii")
    except MemoryError as error:
        result.what, result.trace = TOO_MUCH_MEMORY, learner.trimmed(error, path)
    except LearnerError as caught:
        result.what, result.trace = f"raises {describe(caught.error)}", learner.trimmed(caught.error, path)
        if isinstance(caught.error, SystemExit):
            result.what = "ends the program (SystemExit) instead of returning"
        elif broken := rule_broken(caught.error, ours=not result.trace):
            result.what += f". {broken}"
        elif isinstance(caught.error, EOFError):
            result.what = "asks for keyboard input; everything it needs comes in as arguments"
    except BaseException as error:
        # What the learner's code returned cannot be used as the contract says; our own frames are of no help to them.
        result.trace = learner.trimmed(error, path)
        back = f"gave {show(tools.last)}; using it as the contract says " if tools.story else ""
        result.what = f"{back}raises {describe(error)}"
        if broken := rule_broken(error, ours=not result.trace):
            result.what += f". {broken}"
    result.case = list(tools.story)
    result.printed = tools.printed
    return result


def run_examples(examples: list[tuple[str, doctest.Example]], module: types.ModuleType, tools: Tools) -> None:
    """The docstring's example, statement by statement, compared as the interpreter would show it."""
    scope = dict(vars(module))
    for _, example in examples:
        source, want = example.source.strip(), example.want.strip()
        lines = source.splitlines()
        tools.story += [">>> " + lines[0], *("... " + line for line in lines[1:])]
        expression = _is_expression(source)
        code = compile(source, "<example>", "eval" if expression else "exec")
        out = io.StringIO()

        def once(code: Any = code, out: io.StringIO = out, printing: bool = source.startswith("print(")) -> Any:
            with contextlib.redirect_stdout(out) if printing else contextlib.nullcontext():
                return eval(code, scope)

        if example.exc_msg:
            tools.raises(example.exc_msg.split(":")[0].strip(), once, shown=None)
            continue
        value = tools.call(once, changes=True, shown=None)
        if source.startswith("print("):
            value, got = None, out.getvalue().strip()
        else:
            got = "" if value is None else show(plain(value), LONGEST)
        if got != want and not _agrees(plain(value), want):
            remark = tools.no_return() if want and not got else ""
            with contextlib.suppress(*NOT_PYTHON):  # what the contract shows need not be a literal
                remark = remark or other_kind(value, ast.literal_eval(want))
            tools.fail(f"gives {got or None}, the contract says {want or None}{remark}")


def plain(value: Any) -> Any:
    """NumPy scalars and arrays as Python's own, so that both are right where the contract shows Python's."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    return value


def _agrees(value: Any, want: str) -> bool:
    """Whether a value is what the contract shows, up to the last bits of floats."""
    try:
        return _close(value, ast.literal_eval(want))
    except BaseException:  # what the contract shows is no literal, or the value's own __eq__ raises
        return False


def _close(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(_close(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-9)
    return type(a) is type(b) and a == b


def _is_expression(source: str) -> bool:
    try:
        ast.parse(source, mode="eval")
    except SyntaxError:
        return False
    return True
