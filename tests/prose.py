"""Reads the project's own text: what is prose in notebooks, pages, docstrings, comments and messages, sentence by sentence.

`passages(root)` finds it, `faults` says what is wrong with its words, `grade` how hard it is to read.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of text: its file, where in it, of what kind, and what it says, without code."""

    file: str
    place: str
    kind: str  # "page", "docstring", "comment" or "message"
    text: str

    def sentences(self) -> list[str]:
        """Its sentences, each in one line."""
        return split(self.text)


# --- where prose stands -----------------------------------------------------------------------------------------------

PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "docs/*.md")
SOURCES = ("course/**/*.py", "fucina/**/*.py", "bench/**/*.py", "solutions/*.py")
# Made by bench/report, whose words are read there; and prompts, which are texts for a model.
NOT_READ = ("docs/performance.md", "bench/speculation_tasks.py")


def passages(root: Path) -> Iterator[Passage]:
    """All prose of a checkout.  exercises/ is not read: it is made from solutions/, and then the learner's own."""
    for pattern in PAGES:
        for path in sorted(root.glob(pattern)):
            if (name := path.relative_to(root).as_posix()) not in NOT_READ:
                yield from in_markdown(path.read_text(encoding="utf-8"), name)
    for path in sorted((root / "notebooks").glob("[0-9][0-9]_*.ipynb")):
        yield from in_notebook(json.loads(path.read_text(encoding="utf-8")), path.relative_to(root).as_posix())
    for pattern in SOURCES:
        for path in sorted(root.glob(pattern)):
            if (name := path.relative_to(root).as_posix()) not in NOT_READ:
                yield from in_python(path.read_text(encoding="utf-8"), name)


def in_markdown(text: str, file: str, first: int = 1, place: str = "") -> Iterator[Passage]:
    """Paragraphs, items of lists and cells of tables; code blocks are left out."""
    text = re.sub(r"^( *)(```|~~~).*?^\1\2[^\n]*$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"<!--.*?-->", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    text = re.sub(r"\$\$.*?\$\$", lambda m: "\n" * m[0].count("\n"), text, flags=re.S)
    block: list[str] = []
    start = first
    for number, line in enumerate([*text.splitlines(), ""], first):
        stripped = line.strip()
        ends = not stripped or re.match(r"([-*+]|\d+\.) |[|#]", stripped) or (line.startswith("    ") and not block)
        if ends and block:
            yield Passage(file, place or f"line {start}", "page", without_code(" ".join(block)))
            block = []
        if not stripped or (line.startswith("    ") and not block):
            continue
        if stripped.startswith("|"):
            cells = [cell.strip() for cell in stripped.strip("|").split("|")]
            for cell in cells:
                if len(cell.split()) > 2:
                    yield Passage(file, place or f"line {number}", "page", without_code(cell))
        elif stripped.startswith("#"):
            yield Passage(file, place or f"line {number}", "page", without_code(stripped.lstrip("# ")))
        else:
            if not block:
                start = number
            block.append(re.sub(r"^([-*+]|\d+\.) ", "", stripped))


def in_notebook(notebook: dict, file: str) -> Iterator[Passage]:
    """Markdown cells; docstrings, comments and messages of code cells, exercises left out (they are in solutions/)."""
    for number, cell in enumerate(notebook["cells"]):
        source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
        place = f"cell {number}"
        if cell["cell_type"] == "markdown":
            yield from in_markdown(source, file, place=place)
        elif cell["cell_type"] == "code" and not source.startswith("%%"):
            lines = ["" if line.startswith(("%", "!")) else line for line in source.splitlines()]
            yield from in_python("\n".join(lines), file, place)


def in_python(text: str, file: str, place: str = "") -> Iterator[Passage]:
    """Docstrings, comments, and strings that are sentences."""
    tree = ast.parse(text)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {}
    for node in ast.walk(tree):
        if isinstance(node, documented) and (doc := ast.get_docstring(node)):
            docs[id(node.body[0].value)] = doc  # type: ignore[attr-defined]
            line = node.body[0].lineno
            for part in paragraphs(doc):
                yield Passage(file, place or f"line {line}", "docstring", without_code(part))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        said = message(node) if id(node) not in docs and id(node) not in inside else ""
        if len(said.split()) > 2 and re.search(r"[a-z]{2,} [a-z]", said) and not NO_PROSE.search(said):
            for part in re.split(
                r"\n\s*\n|\n(?=[-* /])", re.sub(r"^.*\S {2,}(?<![.!?] {2})\S.*$", "", said, flags=re.M)
            ):
                yield Passage(file, place or f"line {node.lineno}", "message", without_code(part))  # type: ignore[attr-defined]
    yield from comments(text, file, place)


# Patterns, pages of HTML and code that are kept in strings.
NO_PROSE = re.compile(r"\\[bdsw]|\(\?|</|[{};]\n")


def message(node: ast.AST) -> str:
    """What a string says, values in it as X."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
        return "".join(str(part) for part in parts)
    return ""


def comments(text: str, file: str, place: str) -> Iterator[Passage]:
    """Comments, those of following lines together."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(
            ("#!", "# %%", "# ---", "# type:", "# noqa", "# fmt")
        ):
            continue
        if block and (token.start[0] != last + 1 or token.line.strip()[:1] != "#"):
            yield Passage(file, place or f"line {first}", "comment", without_code(" ".join(block)))
            block = []
        if not block:
            first = token.start[0]
        block.append(token.string.lstrip("# "))
        last = token.start[0]
    if block:
        yield Passage(file, place or f"line {first}", "comment", without_code(" ".join(block)))


def paragraphs(doc: str) -> list[str]:
    """The prose of a docstring: no headings of sections, no examples, no names of parameters, nothing laid out as code."""
    blocks: list[list[str]] = [[]]
    section = ""
    lines = doc.splitlines()
    for number, line in enumerate(lines):
        following = lines[number + 1] if number + 1 < len(lines) else ""
        indent = len(line) - len(line.lstrip())
        if re.fullmatch(r"\s*-{3,}", following):  # the heading of a section
            section = line.strip()
            blocks.append([])
        elif re.fullmatch(r"\s*-{3,}", line) or section in ("Examples", "Example"):
            continue
        elif not line.strip():
            blocks.append([])
        elif (indent == 0 and section and following.startswith("    ")) or re.match(r"\S+(, \S+)* : \S", line):
            blocks.append([])  # the name of a parameter
        elif re.search(r"\S {2,}(?<![.!?:] {2})\S|[│┌└|▼]", line) or (indent >= 4 and not section):
            blocks.append([])  # laid out: a table, code
        else:
            if re.match(r"\s*([-*]|\d+\.) ", line):
                blocks.append([])
            blocks[-1].append(re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip())
    return [text for block in blocks if len((text := " ".join(block)).split()) > 2]


def without_code(text: str) -> str:
    """Prose alone: code and names of programs become one word, links and emphasis their words."""
    text = re.sub(r"``[^`]*``|`[^`]*`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"<[^>\n]+>", " ", text)
    text = re.sub(r"https?://\S+|\b\w*(?:[a-z][A-Z]|\w_\w)\w*\b", "CODE", text)
    return " ".join(re.sub(r"\*\*|(?<!\w)[*_]|[*_](?!\w)", "", text).split())


_SHORT = re.compile(r"\b(e\.g|i\.e|etc|vs|cf|approx|No|Fig)\.$")


def split(text: str) -> list[str]:
    """Sentences of a text: they end at . ! ? or : before a capital letter, or at a semicolon."""
    out: list[str] = []
    for piece in re.split(r"(?<=[.!?:])[\"')\]]?\s+(?=[\"'(\[]?[A-Z0-9])|;\s+", text):
        if out and _SHORT.search(out[-1]):
            out[-1] += " " + piece
        elif piece.strip():
            out.append(piece.strip())
    return out
