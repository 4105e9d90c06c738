"""Reads solutions/chNN_*.py as text: the single source of starters, solutions, wrong solutions and hints.

Nothing here executes a chapter file.  The text is parsed, and every piece that ends up in a starter is cut from the
source line by line, so that its comments, blank lines and layout survive.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from course.exercises import LEVELS
from course.rules import IMPORTS, head_doc
from course.source import STUB, ChapterSource, Definition, ExerciseSource, SourceError, WrongSolution

NAME = re.compile(r"ch\d\d\.[a-z][a-z0-9_]*")
CUT = ("solution", "wrong")


def parse_chapter(text: str, path: Path) -> ChapterSource:
    """Parse the text of a chapter file.

    Raises
    ------
    SourceError
        Where the file does not follow the format of `course.exercises`.
    """
    return _Parser(text, path).parse()


@lru_cache(maxsize=64)
def _load(path: Path, stamp: tuple[int, int]) -> ChapterSource:
    return replace(_parse(path.read_text(encoding="utf-8"), path.name), path=path)


@lru_cache(maxsize=64)
def _parse(text: str, name: str) -> ChapterSource:
    """The same text is parsed once, wherever its file lies."""
    return parse_chapter(text, Path(name))


def load_chapter(path: Path) -> ChapterSource:
    """Read and parse a chapter file; kept in memory until the file changes."""
    status = path.stat()
    return _load(path, (status.st_mtime_ns, status.st_size))


def check_code(chapter: ChapterSource) -> ast.Module:
    """The chapter file without its solutions and wrong solutions: all that a grading process ever executes of it."""
    tree = ast.parse(chapter.text, filename=str(chapter.path))
    tree.body = [node for node in tree.body if not (set(_marks(node)) & set(CUT))]
    return tree


def _marks(node: ast.stmt) -> list[str]:
    """The names of the decorators of `course.exercises` on a definition."""
    names = []
    for decorator in getattr(node, "decorator_list", []):
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.append(called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", ""))
    return names


class _Parser:
    """Walks the top-level statements of a chapter file, in order."""

    def __init__(self, text: str, path: Path) -> None:
        self.lines = text.splitlines()
        self.text = text
        self.path = path
        self.exercises: list[dict] = []
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.head: list[Definition] = []

    def parse(self) -> ChapterSource:
        found = re.fullmatch(r"(ch\d\d)_[a-z0-9_]+\.py", self.path.name)
        if not found:
            raise SourceError(f"{self.path.name}: expected a name like ch05_the_loop.py")
        tree = ast.parse(self.text, filename=str(self.path))
        doc = ast.get_docstring(tree, clean=False)
        if not doc:
            raise SourceError(f"{self.path.name}: no module docstring; the learner reads it at the top of the file")
        for node in tree.body[1:]:
            self.statement(node)
        exercises = tuple(self.finish(fields) for fields in self.exercises)
        for exercise in exercises:
            if not exercise.name.startswith(found[1] + "."):
                raise SourceError(f"{self.path.name}: {exercise.name} belongs to another chapter")
        if not exercises:
            raise SourceError(f"{self.path.name}: no exercise in it")
        text = head_doc(doc, found[1], exercises[0].name)
        head = "\n\n".join(['"""' + text + '"""', "\n".join(self.kept_imports(exercises))])
        if self.head:
            head += "\n\n\n" + "\n\n\n".join(d.starter for d in self.head)
        return ChapterSource(found[1], self.path, self.text, doc, head, exercises)

    def fail(self, node: ast.AST, message: str) -> SourceError:
        return SourceError(f"{self.path.name}, line {getattr(node, 'lineno', 0)}: {message}")

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self.imports.append(node)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Name) and called.id == "Exercise":
                self.exercises.append({**self.arguments(node.value), "definitions": [], "wrongs": [], "checks": []})
            elif isinstance(called, ast.Name) and called.id == "given":
                name = ast.unparse(node.targets[0])
                value = self.cut(node.value.args[0], whole_lines=False)
                text = f"{name} = {value}"
                self.place(Definition(name, text, text, "", False))
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            self.definition(node)

    def place(self, definition: Definition) -> None:
        (self.exercises[-1]["definitions"] if self.exercises else self.head).append(definition)

    def arguments(self, call: ast.Call) -> dict:
        """The literal arguments of `Exercise(...)`, checked."""
        try:
            name = ast.literal_eval(call.args[0])
            fields = {k.arg: ast.literal_eval(k.value) for k in call.keywords}
        except (ValueError, IndexError) as error:
            raise self.fail(call, f"Exercise takes a name and literals only ({error})") from None
        if not NAME.fullmatch(name):
            raise self.fail(call, f"{name!r}: expected chNN.word")
        for key in ("title", "points", "level", "section", "hints"):
            if key not in fields:
                raise self.fail(call, f"{name}: no {key}")
        if not 2 <= len(fields["hints"]) <= 4:
            raise self.fail(call, f"{name}: {len(fields['hints'])} hints, expected 2 to 4")
        if fields["level"] not in LEVELS:
            raise self.fail(call, f"{name}: level {fields['level']!r}, expected one of {LEVELS}")
        fields["hints"] = tuple(inspect.cleandoc(hint) for hint in fields["hints"])
        return {"name": name, "cpu_seconds": 3.0, "memory_mb": 512, "bonus": False, "engine": False, **fields}

    def definition(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if isinstance(called, ast.Name) and called.id == "given":
                text = self.cut(node)
                self.place(Definition(node.name, text, text, ast.get_docstring(node) or "", False))
                return
            if not (isinstance(called, ast.Attribute) and called.attr in ("solution", "wrong", "check")):
                continue
            arguments = decorator.args if isinstance(decorator, ast.Call) else []
            keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
            if not self.exercises:
                raise self.fail(node, f"{called.attr} before the first Exercise")
            fields = self.exercises[-1]
            if called.attr == "solution":
                self.place(self.solution(node, fields["name"]))
            elif called.attr == "wrong":
                message = inspect.cleandoc(ast.literal_eval(arguments[0]))
                replaces = [*arguments[1:], *(k.value for k in keywords)]
                target = ast.literal_eval(replaces[0]) if replaces else None
                fields["wrongs"].append((node, message, target))
            else:
                fields["checks"].append(ast.literal_eval(arguments[0]))

    def finish(self, fields: dict) -> ExerciseSource:
        written = [d.name for d in fields["definitions"] if d.written]
        if not written:
            raise SourceError(f"{self.path.name}: {fields['name']} has no @ex.solution")
        wrongs = []
        for node, message, target in fields["wrongs"]:
            target = target or written[0]
            if target not in written:
                raise self.fail(node, f"replaces {target!r}, expected one of {written}")
            wrongs.append(WrongSolution(node.name, target, message, self.cut(node)))
        return ExerciseSource(
            **{
                **fields,
                "definitions": tuple(fields["definitions"]),
                "wrongs": tuple(wrongs),
                "checks": tuple(fields["checks"]),
            }
        )

    def cut(self, node: ast.stmt | ast.expr, whole_lines: bool = True) -> str:
        """The source of a node without its decorators and without any `@given` inside it."""
        if not whole_lines:
            return ast.get_source_segment(self.text, node) or ""
        lines = self.lines[node.lineno - 1 : node.end_lineno]
        return "\n".join(line for line in lines if line.strip() != "@given")

    def solution(self, node: ast.FunctionDef | ast.ClassDef, name: str) -> Definition:
        doc = ast.get_docstring(node)
        if not doc:
            raise self.fail(node, f"{node.name} has no docstring; it is the contract")
        starter = self.class_starter(node, name) if isinstance(node, ast.ClassDef) else self.stub(node, name)
        return Definition(node.name, self.cut(node), starter, doc, True)

    def stub(self, node: ast.FunctionDef, name: str) -> str:
        """Signature and docstring of a function, and one line that says that nothing is there yet."""
        has_doc = ast.get_docstring(node) is not None
        last = node.body[0].end_lineno if has_doc else node.body[0].lineno - 1
        head = self.lines[node.lineno - 1 : last]
        indent = " " * (node.col_offset + 4)
        return "\n".join([*head, indent + STUB.format(name=name)])

    def class_starter(self, node: ast.ClassDef, name: str) -> str:
        """A class with its docstring, its fields and given methods whole, and stubs for the other methods."""
        blocks = ["\n".join(self.lines[node.lineno - 1 : node.body[0].end_lineno])]
        for item in node.body[1:]:
            if isinstance(item, ast.FunctionDef):
                kept = any(isinstance(d, ast.Name) and d.id == "given" for d in item.decorator_list)
                extra = [d for d in item.decorator_list if not (isinstance(d, ast.Name) and d.id == "given")]
                decorators = [" " * item.col_offset + "@" + ast.unparse(d) for d in extra]
                blocks.append("\n".join([*decorators, self.cut(item) if kept else self.stub(item, name)]))
            else:
                blocks.append(self.cut(item))
        return "\n\n".join(blocks)

    def kept_imports(self, exercises: tuple[ExerciseSource, ...]) -> list[str]:
        """The imports that every file has, and those that solutions and given code use; those of the checks stay out."""
        texts = [d.text for d in self.head] + [d.text for e in exercises for d in e.definitions]
        used = {
            node.id
            for text in texts
            for node in ast.walk(ast.parse(textwrap.dedent(text)))
            if isinstance(node, ast.Name)
        }
        kept = list(IMPORTS)
        for node in self.imports:
            if isinstance(node, ast.ImportFrom) and node.module in ("course.exercises", "__future__"):
                continue
            if any((alias.asname or alias.name.split(".")[0]) in used for alias in node.names):
                kept.append(ast.unparse(node))
        standard = [line for line in dict.fromkeys(kept) if line.split()[1].split(".")[0] in sys.stdlib_module_names]
        return sorted(standard, key=lambda line: line.split()[1]) + [
            k for k in dict.fromkeys(kept) if k not in standard
        ]
