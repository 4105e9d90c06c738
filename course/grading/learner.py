"""Takes the learner's file apart before it runs, runs it as a module, and trims tracebacks to it."""

from __future__ import annotations

import ast
import contextlib
import difflib
import io
import linecache
import re
import sys
import traceback
import types
from collections.abc import Iterator

from course.grading.regions import region_at
from course.grading.state import Anchor
from course.grading.tools import describe
from course.source import NOT_PYTHON, ExerciseSource, why_unreadable

WIDEST = 300  # characters of a source line that are shown


class Unusable(Exception):
    """The file, or the definition in it, cannot be graded; the message is for the learner."""

    def __init__(self, message: str, trace: list[str] | None = None) -> None:
        super().__init__(message)
        self.trace = trace or []


def parse(text: str, path: str, exercise: ExerciseSource) -> ast.Module:
    """The syntax tree of the learner's file; a syntax error names its line and whose part it is in."""
    try:
        return ast.parse(text, filename=path)
    except NOT_PYTHON as error:
        line = getattr(error, "lineno", None) or 0
        where = region_at(text, line)
        part = f" (in the part of {where})" if where and where != exercise.name else ""
        trace = []
        if line and line <= len(text.splitlines()):
            source = text.splitlines()[line - 1]
            trace = [f"{path}, line {line}", "    " + show_line(source)]
            column = (getattr(error, "offset", None) or 1) - 1 - (len(source) - len(source.lstrip()))
            if column < WIDEST:
                trace.append("    " + " " * max(0, column) + "^")
        reason = why_unreadable(error)
        at = f", line {line}{part}" if line else ""
        raise Unusable(f"Python cannot read the file: {reason}{at}.", trace) from None


def unwritten(tree: ast.Module, exercise: ExerciseSource) -> tuple[list[str], list[str], list[str]]:
    """Which definitions are written, which are still the starter's, and which are missing, by dotted name."""
    found = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    bound = bound_names(tree)
    written: list[str] = []
    stubs: list[str] = []
    missing: list[str] = []
    for definition in exercise.written:
        starter = ast.parse(definition.starter).body[0]
        mine = found.get(definition.name)
        if mine is None:
            (written if definition.name in bound else missing).append(definition.name)
        elif isinstance(starter, ast.ClassDef) and (not isinstance(mine, ast.ClassDef) or mine.bases):
            written.append(definition.name)  # what it is, or inherits, shows when it runs
        elif isinstance(starter, ast.ClassDef):
            methods = {m.name: m for m in mine.body if isinstance(m, ast.FunctionDef)}
            set_up = _attributes(mine)  # a method may be a closure that __init__ makes
            for method in starter.body:
                if isinstance(method, ast.FunctionDef) and is_stub(method):
                    name = f"{definition.name}.{method.name}"
                    own = methods.get(method.name)
                    there = own is not None or method.name in set_up
                    (missing if not there else stubs if own and is_stub(own) else written).append(name)
        else:
            (stubs if is_stub(mine) else written).append(definition.name)
    return written, stubs, missing


def _attributes(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """What a class binds in its body, or its methods in `self`."""
    stores = [n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)]
    own = {n.attr for n in stores if isinstance(n.value, ast.Name) and n.value.id == "self"}
    return own | {t.id for n in node.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run when the file does: those inside `if`, `try` and the like, too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)):
            yield from statements(child)


def is_stub(node: ast.AST) -> bool:
    """Whether nothing is written in a function yet: it holds a docstring and one line that says so."""
    body = list(getattr(node, "body", []))
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    if len(body) != 1 or not isinstance(body[0], ast.Raise):
        return False
    text = ast.unparse(body[0])
    return "your code here" in text or text in ("raise NotImplementedError", "raise NotImplementedError()")


def missing_message(tree: ast.Module, missing: list[str], exercise: ExerciseSource) -> str:
    """What a definition that is not there may have become."""
    there = [n.name for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    kind = "method" if "." in missing[0] else "definition"
    message = f"the file has no {kind} `{missing[0]}`"
    if any(isinstance(n, ast.AsyncFunctionDef) and n.name == missing[0] for n in tree.body):
        return f"`{missing[0]}` is an `async def`, so calling it gives no result yet. Write a plain `def`."
    near = difflib.get_close_matches(missing[0], there, 1, 0.6)
    if near and "." not in missing[0]:
        message += f"; was it renamed to `{near[0]}`? The grader goes by the name"
    return message + f". `python3 -m course reset {exercise.name}` brings the starter back (your file is kept aside)."


def defines(text: str, name: str) -> bool:
    """Whether a file binds a name at its top level, if only after it is used, or deletes it."""
    try:
        tree = ast.parse(text)
    except NOT_PYTHON:
        return False
    return name in bound_names(tree)


def bound_names(tree: ast.Module) -> set[str]:
    """What the statements of a file bind when it runs."""
    bound = {node.name for node in statements(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for node in statements(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        bound |= {n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)}
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name for alias in node.names}
    return bound


def unused_arguments(tree: ast.Module, exercise: ExerciseSource) -> list[str]:
    """Arguments that a learner's function never reads: a sign of an answer typed in for one case."""
    notes = []
    for node in _own_functions(tree, exercise):
        if node in tree.body and not is_stub(node):  # a method may have to take what others use
            used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
            unused = [a.arg for a in node.args.args if a.arg not in used and a.arg != "self"]
            if unused:
                plural = "s" if len(unused) > 1 else ""
                notes.append(f"`{node.name}` never uses its argument{plural} {', '.join(unused)}.")
    return notes


def leftover_raises(tree: ast.Module, exercise: ExerciseSource) -> list[str]:
    """The starter's own `raise` lines in functions that hold more than that."""
    notes = []
    for node in _own_functions(tree, exercise):
        lines = [n.lineno for n in ast.walk(node) if isinstance(n, ast.Raise) and "your code here" in ast.unparse(n)]
        if lines and not is_stub(node):
            notes.append(f"line {lines[0]} is still the starter's `raise NotImplementedError(...)`: delete it.")
    return notes


def hidden_by_stub(tree: ast.Module, exercise: ExerciseSource) -> str:
    """What to tell where a definition is written, and the starter's stub of the same name follows it."""
    for definition in exercise.written:
        same = [n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == definition.name]
        if len(same) > 1 and isinstance(same[-1], ast.FunctionDef) and not is_stub(same[0]):
            return (
                f"the starter of `{definition.name}` (line {same[-1].lineno}) follows what you wrote (line "
                f"{same[0].lineno}), and the last definition counts: delete the starter."
            )
    return ""


def _own_functions(tree: ast.Module, exercise: ExerciseSource) -> list[ast.FunctionDef]:
    """The functions that answer an exercise, methods included; of two with one name the last."""
    mine = {n.name: n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    nodes = [mine[d.name] for d in exercise.written if d.name in mine]
    methods = [m for n in nodes if isinstance(n, ast.ClassDef) for m in n.body if isinstance(m, ast.FunctionDef)]
    return [*(n for n in nodes if isinstance(n, ast.FunctionDef)), *methods]


def run_module(tree: ast.Module, text: str, path: str, name: str) -> types.ModuleType:
    """Execute the learner's file as a fresh module."""
    module = types.ModuleType(name)
    module.__file__ = path
    sys.modules[name] = module
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    anchor = Anchor()
    try:
        code = compile(tree, path, "exec")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                exec(code, module.__dict__)
            finally:
                anchor.hold()
    except BaseException as error:
        trace = trimmed(error, path)
        line = next((int(found[1]) for entry in reversed(trace) if (found := re.search(r"line (\d+)", entry))), 0)
        where = region_at(text, line)
        part = f", in the part of {where}" if where and not name.endswith(where) else ""
        raise Unusable(f"running the file raises {describe(error)}{part}", trace) from None
    return module


def trimmed(error: BaseException, path: str) -> list[str]:
    """The frames of a traceback that lie in the learner's file, as lines; the last three of them."""
    lines: list[str] = []
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    for frame in frames[-3:]:
        lines.append(f"{path}, line {frame.lineno}, in {frame.name}")
        if frame.line:
            lines.append("    " + show_line(frame.line))
    return lines


def show_line(line: str) -> str:
    """A source line in ASCII; of a very long one the beginning."""
    return line.strip()[:WIDEST].encode("ascii", "backslashreplace").decode("ascii")
