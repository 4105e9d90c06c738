"""What an answer may not use: the solutions and the course's own machinery; the engine, where the point is to build it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from course.grading.regions import region_of_lines
from course.source import ChapterSource, ExerciseSource

ALWAYS = ("solutions", "course")
ENGINE = "fucina"
OWN_WORK = "an exercise is graded on its own file alone. Write it yourself, or read the solution with `solution`."
BUILD_IT = (
    "here you build what the engine has already. Write it yourself; `mine` puts yours into the engine afterwards."
)
_BY_NAME = ("import_module", "__import__", "find_spec", "run_module")


def barred(exercise: ExerciseSource) -> tuple[str, ...]:
    """Packages that an answer to `exercise` may not import."""
    return ALWAYS if exercise.engine else (*ALWAYS, ENGINE)


def why(name: str) -> str:
    """Why a name is barred, as the end of a sentence."""
    return BUILD_IT if _root(name) == ENGINE else OWN_WORK


def use_of_barred(tree: ast.Module, text: str, chapter: ChapterSource, exercise: ExerciseSource) -> str:
    """The first use of something barred in the learner's text, told with its line; empty where there is none.

    What the exercise's own part and the head of the file import or use counts; imports that the course itself put into
    the head, for other exercises of the chapter, do not.
    """
    regions = region_of_lines(text)
    names = barred(exercise)
    given = {name for _, name in _imports(ast.parse(chapter.head))}
    engine = _bound(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        own = regions[line] in ("", exercise.name) if line < len(regions) else True
        for _, name in _named(node):
            if _root(name) in ALWAYS or (own and _root(name) in names and not (name in given and not regions[line])):
                return f"line {line} imports {name}: {why(name)}"
        if isinstance(node, ast.Name) and regions[line] == exercise.name and node.id in engine and ENGINE in names:
            return f"line {line} uses {engine[node.id]}: {BUILD_IT}"
    return ""


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        yield from _named(node)


def _named(node: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, module) of what a node imports: by a statement, or by a name in quotes."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield node.lineno, alias.name
    elif isinstance(node, ast.ImportFrom) and not node.level:
        yield node.lineno, node.module or ""
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in _BY_NAME and isinstance(node.args[0].value, str):
            yield node.lineno, node.args[0].value
    elif isinstance(node, ast.Subscript) and getattr(node.value, "attr", "") == "modules":
        name = getattr(node.slice, "value", None)  # sys.modules["solutions"]
        yield node.lineno, name if isinstance(name, str) else ""


def _bound(tree: ast.Module) -> dict[str, str]:
    """Names that imports of the engine bind anywhere in a file, and what they stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {a.asname or _root(a.name): a.name for a in node.names if _root(a.name) == ENGINE}
        elif isinstance(node, ast.ImportFrom) and _root(node.module or "") == ENGINE and not node.level:
            found |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    return found


def _root(name: str) -> str:
    return name.partition(".")[0]
