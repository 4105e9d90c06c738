"""Takes definitions out of a file of exercises, with everything that they need and nothing else.

A file is cut into its top-level statements.  Each binds names and uses names; what a definition needs is found by
following these, as a linker does with symbols.  The text of a statement is never changed, but for one case: a helper
whose name is taken already gets another one.
"""

from __future__ import annotations

import ast
import builtins
import re
import symtable
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from course.grading.learner import statements
from course.grading.regions import MARKER

BUILTIN = frozenset(dir(builtins))


class CannotLink(Exception):
    """A piece cannot be taken out of its file; the message says why, for the learner."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One top-level statement: its lines with the comment above it, and the names that it binds, changes and uses."""

    text: str
    line: int
    part: str
    binds: frozenset[str]
    changes: frozenset[str]
    uses: frozenset[str]


@dataclass(slots=True)
class Linked:
    """What a piece needs: statements in the order of the file, and imports by the name that they bind."""

    statements: list[Statement] = field(default_factory=list)
    imports: dict[str, str] = field(default_factory=dict)

    @property
    def binds(self) -> set[str]:
        """All names that the statements define."""
        return {name for statement in self.statements for name in statement.binds}


class SourceFile:
    """A file of exercises as statements.

    Raises
    ------
    CannotLink
        Python cannot read it.
    """

    def __init__(self, text: str) -> None:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise CannotLink(f"Python cannot read the file: {error}") from None
        self.lines = text.split("\n")
        self.imports: dict[str, str] = {}
        self.statements: list[Statement] = []
        for node in tree.body:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.imports.update(bound_imports(node))
            elif not isinstance(node, (ast.Expr, ast.Assert)) and not _is_main(node):
                self.statements.append(self._statement(node))

    def _statement(self, node: ast.stmt) -> Statement:
        decorators = [d.lineno for d in getattr(node, "decorator_list", [])]
        first = min([node.lineno, *decorators])
        text = "\n".join(self.lines[first - 1 : node.end_lineno])
        above = first - 1
        while above > 0 and self.lines[above - 1].startswith("#") and not MARKER.match(self.lines[above - 1]):
            above -= 1
        part = next((m[1] for line in reversed(self.lines[:first]) if (m := MARKER.match(line))), "")
        binds, uses = names_of(text)
        whole = "\n".join(self.lines[above : node.end_lineno])
        return Statement(whole, first, part, binds, frozenset(_changed(node)), uses)

    def link(self, wanted: tuple[str, ...], provided: Mapping[str, str], exercise: str) -> Linked:
        """The definitions `wanted` and what they need.

        `provided` are names that are there already, with the part of a file that they come from: the same name in
        another part means something else, and comes along.

        Raises
        ------
        CannotLink
            A name is defined nowhere in the file.
        """
        found, seen, todo = Linked(), set(), list(wanted)
        chosen: dict[int, Statement] = {}
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            own = [s for s in self.statements if name in s.binds]
            if name in provided and name not in wanted and all(s.part == provided[name] for s in own):
                continue
            if name in wanted and any(s.part == exercise for s in own):
                own = [s for s in own if s.part == exercise]
            if not own:
                if name in self.imports:
                    found.imports[name] = self.imports[name]
                elif name not in BUILTIN or name in wanted:
                    raise CannotLink(f"`{name}` is defined nowhere in the file")
                continue
            for statement in [*own, *(s for s in self.statements if name in s.changes)]:
                if statement.line not in chosen:
                    chosen[statement.line] = statement
                    todo += statement.uses | statement.binds
        found.statements = [chosen[line] for line in sorted(chosen)]
        return found


def bound_imports(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    """Each name that an import binds, with an import of that name alone."""
    for alias in node.names:
        asname = f" as {alias.asname}" if alias.asname else ""
        if isinstance(node, ast.Import):
            yield (alias.asname or alias.name.split(".")[0]), f"import {alias.name}{asname}"
        elif node.module not in (None, "__future__") and not node.level:
            yield (alias.asname or alias.name), f"from {node.module} import {alias.name}{asname}"


def names_of(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """(names that a statement binds in its module, names of its module that it uses)."""
    top = symtable.symtable(text, "piece", "exec")
    binds = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    uses = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
    todo = list(top.get_children())
    while todo:
        table = todo.pop()
        uses |= {s.get_name() for s in table.get_symbols() if s.is_global()}
        binds |= {s.get_name() for s in table.get_symbols() if s.is_declared_global() and s.is_assigned()}
        todo += table.get_children()
    return frozenset(binds), frozenset(uses)


def renamed(statement: Statement, old: str, new: str) -> Statement:
    """The same with the module's name `old` called `new`.

    Raises
    ------
    CannotLink
        The name means something else as well, inside a function.
    """
    tree = ast.parse(statement.text)
    places: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        inner = isinstance(node, (ast.arg, ast.keyword)) and node.arg == old
        if inner or (isinstance(node, (ast.Global, ast.Nonlocal)) and old in node.names):
            raise CannotLink(f"the name `{old}` is in use for something else already; rename yours")
        if isinstance(node, ast.Name) and node.id == old:
            places.append((node.lineno, node.col_offset))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and node.name == old:
            head = statement.text.split("\n")[node.lineno - 1].encode("utf-8")
            found = re.compile(rb"(?:def|class)\s+").search(head, node.col_offset)
            assert found is not None
            places.append((node.lineno, found.end()))
    lines = [line.encode("utf-8") for line in statement.text.split("\n")]
    for line, column in sorted(places, reverse=True):
        was = lines[line - 1]
        lines[line - 1] = was[:column] + new.encode("utf-8") + was[column + len(old.encode("utf-8")) :]
    swap = {old: new}
    text = b"\n".join(lines).decode("utf-8")
    binds, uses = (frozenset(swap.get(n, n) for n in names) for names in (statement.binds, statement.uses))
    return replace(statement, text=text, binds=binds, uses=uses)


def _changed(node: ast.stmt) -> set[str]:
    """Names whose object a statement changes without binding them: `TABLE[1] = 2`, `Automaton.append = append`."""
    found = set()
    for inner in [node, *statements(node)]:
        targets = inner.targets if isinstance(inner, ast.Assign) else [getattr(inner, "target", None)]
        for target in targets:
            root = target
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            if root is not target and isinstance(root, ast.Name):
                found.add(root.id)
    return found


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
