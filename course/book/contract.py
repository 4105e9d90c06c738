"""A contract (a docstring in NumPy's style) as Markdown: sections, definitions of parameters, examples as code."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap

_SECTION = re.compile(r"^(\S[^\n]*)\n-{3,}$", re.M)
_SPECIAL = re.compile(r"([\\*_<>\[\]{}$|~#])")


def escape(text: str) -> str:
    """Prose as Markdown that says the same: signs keep their face, `code` stays code."""
    pieces = re.split(r"(`[^`\n]+`)", text)
    return "".join(piece if i % 2 else _whole(_SPECIAL.sub(r"\\\1", piece)) for i, piece in enumerate(pieces))


def _whole(text: str) -> str:
    """Prose in which a line never ends after the sign of -inf."""
    return re.sub(r"(?<!\w)-inf\b", '<span class="whole">-inf</span>', text)


def prose(text: str) -> str:
    """Paragraphs of a docstring; what is indented is shown as it stands."""
    blocks = re.split(r"\n\s*\n", text.strip("\n"))
    return "\n\n".join(_block(block) for block in blocks if block.strip())


def _block(block: str) -> str:
    lines = block.splitlines()
    if all(line.startswith("    ") for line in lines if line.strip()):
        return fenced(textwrap.dedent(block), "text")
    if ">>>" in lines[0]:
        return fenced(block, "pycon")
    return escape(block)


def fenced(text: str, language: str = "python") -> str:
    """A block of code, between fences that its text does not hold."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.strip(chr(10))}\n{fence}"


def as_markdown(doc: str) -> str:
    """A whole docstring as Markdown."""
    pieces = _SECTION.split(inspect.cleandoc(doc))
    out = [prose(pieces[0])]
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        out.append(f"**{escape(title.strip())}**")
        out.append(prose(body) if title.strip() in ("Examples", "Notes") else entries(body))
    return "\n\n".join(part for part in out if part)


def entries(body: str) -> str:
    """The entries of a section: names with their types, and under each what it is."""
    found: list[tuple[str, list[str]]] = []
    for line in inspect.cleandoc(body).splitlines():
        if line.strip() and not line.startswith(" "):
            found.append((line, []))
        elif found:
            found[-1][1].append(line)
    return "\n\n".join(_entry(head, inspect.cleandoc("\n".join(rest))) for head, rest in found)


def _entry(head: str, rest: str) -> str:
    name, colon, kind = head.partition(" : ")
    term = f"`{name}`: {escape(kind)}" if colon else (f"`{head}`" if re.fullmatch(r"[\w.]+", head) else escape(head))
    if not rest:
        return term
    said = prose(rest)
    return f"{term}\n: " + textwrap.indent(said, "  ")[2:]


def signature(text: str) -> str:
    """The first lines of a definition, up to its colon: what the learner is given to fill."""
    node = ast.parse(text).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.ClassDef))
    last = node.body[0].lineno - 1
    return "\n".join(text.splitlines()[node.lineno - 1 : last]).rstrip()


def methods(text: str) -> list[tuple[str, str]]:
    """Signature and docstring of each method of a class, the ones without a docstring left out."""
    node = ast.parse(text).body[0]
    found = []
    for item in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(item, ast.FunctionDef) and (doc := ast.get_docstring(item)):
            returns = f" -> {ast.unparse(item.returns)}" if item.returns else ""
            found.append((f"{item.name}({ast.unparse(item.args)}){returns}", doc))
    return found
