"""Small mechanical changes of the solutions, and which of them the checks let pass.

`python -m course.mutants [NAME ...]` changes one thing at a time in each solution (a comparison, a sign, a constant, a
statement that is gone, two arguments that change places) and grades the result.  What still passes is either as right as
the solution, and then stands with its reason in `tests/data/equivalent_mutants.toml`, or a hole in the checks.
"""

from __future__ import annotations

import argparse
import ast
import copy
import sys
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from course.catalogue import Course
from course.grading import WorkerClient
from course.source import ROOT, ChapterSource, ExerciseSource
from course.terminal import say

EQUIVALENT = ROOT / "tests" / "data" / "equivalent_mutants.toml"
PROOF = ".prove"  # how the names of exercises end in which the learner writes the test
CPU_SECONDS = 2.0  # a mutant that takes longer has not passed

COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type, tuple[type, ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,),
    ast.Mod: (ast.FloorDiv,),
    ast.Pow: (ast.Mult,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "float32": "float64", "float64": "float32"}
COPIES = ("list", "dict", "tuple", "set", "sorted")


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change: the exercise, what was changed in words, and the text of the exercise's part with it."""

    exercise: str
    change: str
    text: str


def mutants(exercise: ExerciseSource) -> list[Mutant]:
    """Every mutant of an exercise's solution.  What learners are given is left as it is.

    Where the learner writes the test there are none: a changed proof that still finds all that is wrong, and spares all
    that is right, is a proof.
    """
    if exercise.name.endswith(PROOF):
        return []
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for definition in exercise.written:
        tree = ast.parse(definition.text)
        others = {d.name: d.text for d in exercise.definitions}
        for function in written_functions(tree, definition.starter):
            for change, restore in changes(function):
                text = ast.unparse(ast.fix_missing_locations(tree))
                restore()
                seen[change] = seen.get(change, 0) + 1
                label = f"{function.name}: {change}" + (f" ({seen[change]})" if seen[change] > 1 else "")
                found.append(Mutant(exercise.name, label, "\n\n\n".join({**others, definition.name: text}.values())))
    return found


def written_functions(tree: ast.Module, starter: str) -> list[ast.FunctionDef]:
    """The functions of a definition whose bodies learners write."""
    stubs = {
        node.name
        for node in ast.walk(ast.parse(starter))
        if isinstance(node, ast.FunctionDef) and "your code here" in ast.unparse(node)
    }
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in stubs]


def changes(function: ast.FunctionDef) -> Iterator[tuple[str, Callable[[], None]]]:
    """Make each change in turn: yields it in words, with the call that takes it back."""
    for index, statement in enumerate(function.body):
        if index or ast.get_docstring(function) is None:
            yield from _changes(function, "body", index, statement, statement)


def _changes(
    parent: ast.AST, field: str, index: int | None, node: ast.AST, statement: ast.stmt
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The changes of a node and of all that is in it; `statement` is the innermost one around it."""
    if isinstance(node, ast.JoinedStr):
        return  # the words of a message
    where = f" in `{first_line(statement)}`" if node is not statement else ""
    for other in alternatives(node):
        yield f"{first_line(node)} -> {first_line(other)}{where}", put(parent, field, index, other, node)
    for name, value in ast.iter_fields(node):
        for i, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST):
                yield from _changes(node, name, i, child, child if isinstance(child, ast.stmt) else statement)


def put(parent: ast.AST, field: str, index: int | None, new: ast.AST, old: ast.AST) -> Callable[[], None]:
    """Put `new` in the place of `old`; returns the call that takes it back."""

    def place(node: ast.AST) -> None:
        if index is None:
            setattr(parent, field, node)
        else:
            getattr(parent, field)[index] = node

    place(new)
    return lambda: place(old)


def first_line(node: ast.AST) -> str:
    """The first line of a node's text."""
    lines = ast.unparse(ast.fix_missing_locations(node)).splitlines() or [""]
    return " ".join(lines[0].split())


def alternatives(node: ast.AST) -> list[ast.AST]:
    """What a node may become; each alternative shares no node with another."""
    return [copy.deepcopy(other) for other in _alternatives(node)]


def _alternatives(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for i, operator in enumerate(node.ops):
            for other in COMPARISONS[type(operator)]:
                yield ast.Compare(node.left, [*node.ops[:i], other(), *node.ops[i + 1 :]], node.comparators)
    elif isinstance(node, ast.BinOp):
        for other in OPERATORS.get(type(node.op), ()):
            yield ast.BinOp(node.left, other(), node.right)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        yield from node.values
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Constant):
        yield from (ast.Constant(value) for value in constants(node.value))
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Slice):
        if node.lower is not None:
            yield ast.Slice(None, node.upper, node.step)
        if node.upper is not None:
            yield ast.Slice(node.lower, None, node.step)
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield ast.Attribute(node.value, NAMES[node.attr], node.ctx)
    elif isinstance(node, ast.stmt):
        yield from _statements(node)


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
    if len(node.args) >= 2 and name not in ("min", "max"):
        yield ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
    if isinstance(node.func, ast.Name) and name in NAMES:
        yield ast.Call(ast.Name(NAMES[name], ast.Load()), node.args, node.keywords)
    if (name in COPIES and isinstance(node.func, ast.Name)) or name == "array":
        yield from node.args[:1]
    if name == "copy" and isinstance(node.func, ast.Attribute) and not node.args:
        yield node.func.value
    for i in range(len(node.keywords)):
        yield ast.Call(node.func, node.args, node.keywords[:i] + node.keywords[i + 1 :])


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, (ast.Expr, ast.Assign, ast.AugAssign, ast.Raise, ast.Break, ast.Continue, ast.Delete)):
        yield ast.Pass()
    if isinstance(node, ast.AugAssign):
        for other in OPERATORS.get(type(node.op), ()):
            yield ast.AugAssign(node.target, other(), node.value)
    elif isinstance(node, ast.If):
        yield ast.If(ast.Constant(True), node.body, [])
        yield ast.If(ast.Constant(True), node.orelse or [ast.Pass()], [])
    elif isinstance(node, ast.Try) and node.finalbody:
        yield ast.If(ast.Constant(True), [*node.body, *node.finalbody], [])  # nothing happens after an error
        yield ast.If(ast.Constant(True), node.body, [])


def constants(value: object) -> list[bool | int | float]:
    """Values near a constant."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1] if value != 1 else [2, 0]
    if isinstance(value, float):
        return [value + 1.0, 0.0] if value else [1.0]
    return []


def equivalent() -> dict[str, dict[str, str]]:
    """The known equivalent mutants: exercise -> change -> why it is as right as the solution."""
    found: dict[str, dict[str, str]] = {}
    for entry in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", []):
        found.setdefault(entry["exercise"], {})[entry["change"]] = entry["why"]
    return found


def survivors(
    pairs: list[tuple[ChapterSource, ExerciseSource]], jobs: int = 1, course: Course | None = None
) -> list[Mutant]:
    """Grade every mutant of these exercises; returns those that pass and are not known to be equivalent."""
    known, course = equivalent(), course or Course()

    def of(pair: tuple[ChapterSource, ExerciseSource]) -> list[Mutant]:
        chapter, exercise = pair
        client = WorkerClient()
        try:
            return [
                mutant
                for mutant in mutants(exercise)
                if mutant.change not in known.get(exercise.name, {}) and passes(client, chapter, exercise, mutant)
            ]
        finally:
            client.close()

    with ThreadPoolExecutor(jobs) as pool:
        return [mutant for found in pool.map(of, pairs) for mutant in found]


def passes(client: WorkerClient, chapter: ChapterSource, exercise: ExerciseSource, mutant: Mutant) -> bool:
    """Whether the checks let a mutant pass."""
    text = chapter.assemble({exercise.name: mutant.text})
    limit = min(CPU_SECONDS, exercise.cpu_seconds)
    return client.grade(chapter, exercise, text, "<mutant>", cpu_seconds=limit, brief=True).passed


def main(argv: list[str]) -> int:
    """0 when the checks let nothing pass that is not listed; else 1."""
    parser = argparse.ArgumentParser(prog="python -m course.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises or chapters; without a name, all")
    parser.add_argument("--jobs", type=int, default=1, help="exercises at a time (default: 1)")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    arguments = parser.parse_args(argv)
    course = Course()
    pairs = course.find(arguments.names) if arguments.names else course.all()
    if arguments.list:
        for _, exercise in pairs:
            say(*(f"{mutant.exercise}  {mutant.change}" for mutant in mutants(exercise)))
        return 0
    total = left = 0
    for pair in pairs if arguments.jobs == 1 else [None]:
        group = pairs if pair is None else [pair]
        found = survivors(group, arguments.jobs, course)
        total, left = total + sum(len(mutants(exercise)) for _, exercise in group), left + len(found)
        say(*(f"passes: {mutant.exercise}  {mutant.change}" for mutant in found))
    say(f"{total} mutants, {left} pass that are not known to be equivalent")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
