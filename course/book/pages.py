"""The sources of the book: notebooks with exercises and folds in place, pages of docs/, and the pages that bind them."""

from __future__ import annotations

import html
import json
import re
import shutil
from pathlib import Path
from typing import Any

from course.book.contract import escape
from course.book.exercise import anchor, as_text
from course.catalogue import Course
from course.files import write_text
from course.score import worth
from course.timetable import timetable

WELCOME = """# The book of the course

This is the whole course to read: every chapter with its outputs, every exercise with its contract and hints, and the pages
about the engine. What a question asks you to predict stays folded until you open it.

To run and change things, start the course itself: `python3 -m course`. Exercises are graded there.
"""
AFTER_MAP = """[All exercises](exercises.md) lists them by chapter. The [glossary](docs/glossary.md) says what words mean here.
"""
PREDICT = re.compile(r"\*\*Predict\b")
MAGIC = re.compile(r"%%exercise\s+(ch\d\d\.\w+)")


def write_sources(course: Course, folder: Path) -> None:
    """Write all sources into an empty folder."""
    notebooks = sorted((course.root / "notebooks").glob("[0-9][0-9]_*.ipynb"))
    pages = doc_pages(course.root / "docs")
    terms = glossary_terms(course.root / "docs" / "glossary.md")
    for path in notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        write_text(folder / "chapters" / path.name, json.dumps(chapter_page(course, notebook, terms)))
    for path in pages:
        text = path.read_text(encoding="utf-8")
        write_text(folder / "docs" / path.name, doc_page(text, path, course.root, terms))
    if (course.root / "docs" / "images").is_dir():
        shutil.copytree(course.root / "docs" / "images", folder / "docs" / "images")
    write_text(folder / "exercises.md", exercises_page(course, notebooks))
    write_text(folder / "index.md", index_page(course, notebooks, pages))


def chapter_page(course: Course, notebook: dict[str, Any], terms: set[str]) -> dict[str, Any]:
    """A notebook as the book shows it: exercises as contracts with hints, outputs that answer a question folded."""
    chapters = {exercise.name: (chapter, exercise) for chapter, exercise in course.all()}
    asked = False  # whether a question stands just above, which the next output answers
    cells = []
    for cell in notebook["cells"]:
        source = text_of(cell["source"])
        if cell["cell_type"] == "markdown":
            asked = bool(PREDICT.search(source))
            cells.append({**cell, "source": link_terms(source, terms)})
            continue
        if (found := MAGIC.match(source)) and found[1] in chapters:
            cells.append({"cell_type": "markdown", "metadata": {}, "source": as_text(*chapters[found[1]])})
            continue
        if cell["cell_type"] == "code":
            if re.search(r"^predict\(", source, re.M):  # the question itself; what it shows is for a kernel
                cells.append({**cell, "outputs": []})
                continue
            cells.append(folded(cell) if asked or answers(cell) else cell)
            asked = False
    metadata = {"kernelspec": notebook["metadata"].get("kernelspec", {}), "language_info": {"name": "ipython3"}}
    return {**notebook, "cells": [without_id(cell) for cell in cells], "metadata": metadata, "nbformat_minor": 4}


def answers(cell: dict[str, Any]) -> bool:
    """Whether a cell's output answers a question that the learner was asked."""
    hidden = cell["metadata"].get("jupyter", {}).get("outputs_hidden") or cell["metadata"].get("collapsed")
    return bool(hidden) or re.search(r"\btruth\(", text_of(cell["source"])) is not None


def folded(cell: dict[str, Any]) -> dict[str, Any]:
    """The same cell, its output closed until the reader opens it."""
    tags = [*cell["metadata"].get("tags", []), "hide-output"]
    return {**cell, "metadata": {**cell["metadata"], "tags": tags}}


def without_id(cell: dict[str, Any]) -> dict[str, Any]:
    """Cells that were made here have no id, so none has."""
    return {key: value for key, value in cell.items() if key != "id"}


def text_of(value: str | list[str]) -> str:
    """A notebook's text, which may be stored line by line."""
    return value if isinstance(value, str) else "".join(value)


def doc_pages(folder: Path) -> list[Path]:
    """The pages of docs/: its README first, then those that it lists, in its order, then the rest."""
    first = folder / "README.md"
    names = re.findall(r"\]\((\w+\.md)\)", first.read_text(encoding="utf-8"))
    listed = [folder / name for name in dict.fromkeys(names) if (folder / name).exists()]
    rest = [path for path in sorted(folder.glob("*.md")) if path not in listed and path != first]
    return [first, *listed, *rest]


def doc_page(text: str, path: Path, root: Path, terms: set[str]) -> str:
    """A page of docs/: links that leave the book become names of files, words of the glossary lead to it."""

    def link(match: re.Match[str]) -> str:
        target = match[2].partition("#")[0]
        if "://" in target or not target or (path.parent / target).resolve().parent == path.parent.resolve():
            return match[0]
        if target.startswith("images/"):
            return match[0]
        outside = (path.parent / target).resolve()
        inside = outside.is_relative_to(root.resolve())
        return f"`{outside.relative_to(root.resolve()).as_posix()}`" if inside else match[1]

    text = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, text)
    if path.name == "glossary.md":
        return re.sub(
            r"^\| \*\*(.+?)\*\* \|", lambda m: f'| <a id="{term_anchor(m[1])}"></a>**{m[1]}** |', text, flags=re.M
        )
    return link_terms(text, terms, "", r"(?<![*\w])\*(\w[\w -]*)\*(?!\*)")


def glossary_terms(path: Path) -> set[str]:
    """The words that the glossary explains."""
    return set(re.findall(r"^\| \*\*(.+?)\*\* \|", path.read_text(encoding="utf-8"), re.M)) if path.exists() else set()


def term_anchor(term: str) -> str:
    """The anchor of a word in the glossary."""
    return "term-" + re.sub(r"\W+", "-", term.lower())


def link_terms(text: str, terms: set[str], folder: str = "../docs/", pattern: str = r"\*\*(\w[\w -]*)\*\*") -> str:
    """Let words that are set apart in the text lead to the glossary, where it has them."""
    pieces = re.split(r"(^```.*?^```$|`[^`\n]+`|^#[^\n]*$)", text, flags=re.M | re.S)

    def link(match: re.Match[str]) -> str:
        word = match[1].lower()
        term = next((w for w in (word, word[:-1], word[:-2]) if w in terms), None)
        # raw HTML: Sphinx knows no anchors in tables
        return match[0] if term is None else f'<a href="{folder}glossary.html#{term_anchor(term)}">{match[0]}</a>'

    return "".join(piece if i % 2 else re.sub(pattern, link, piece) for i, piece in enumerate(pieces))


def exercises_page(course: Course, notebooks: list[Path]) -> str:
    """All exercises by chapter, each with a link to its place."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in notebooks)
    placed = set(MAGIC.findall(text))
    out = ["# All exercises\n", "Each has a contract, hints that open one by one, and a solution after them.\n"]
    for chapter in course.chapters():
        out.append(f"## {chapter.chapter[2:]} · {escape(chapter.title)}\n")
        out += ["| exercise | | points | level |", "|---|---|---:|---|"]
        for exercise in chapter.exercises:
            name = f"`{exercise.name}`"
            title = escape(exercise.title)
            linked = f"[{title}](#{anchor(exercise.name)})" if exercise.name in placed else title
            out.append(f"| {name} | {linked} | {exercise.points} | {exercise.level} |")
        out.append("")
    return "\n".join(out)


def index_page(course: Course, notebooks: list[Path], pages: list[Path]) -> str:
    """The first page: what this is, the map, and the order of everything."""
    here = {path.stem[:2]: path for path in notebooks}
    points = {chapter.chapter[2:]: worth(chapter.exercises) for chapter in course.chapters()}
    columns, trees = [], []
    for name, plans in timetable(course):
        items = [map_item(plan.name, here.get(plan.chapter), points.get(plan.chapter, 0)) for plan in plans]
        mine = [f"chapters/{here[plan.chapter].stem}" for plan in plans if plan.chapter in here]
        columns.append(f"<section><h2>{html.escape(name)}</h2><ol>{''.join(items)}</ol></section>")
        trees += [tree(f"Part {name}", mine)] if mine else []
    trees.append(tree("Exercises", ["exercises"]))
    trees.append(tree("Appendix: the engine", [f"docs/{path.stem}" for path in pages]))
    return "\n".join([WELCOME, f'<div class="map">{"".join(columns)}</div>\n', AFTER_MAP, *trees])


def map_item(chapter: str, path: Path | None, points: int) -> str:
    """One chapter on the map; those that are not written yet are no links."""
    number, _, title = chapter.partition(" ")
    label = f"<b>{number}</b> {html.escape(title)}"
    if path is None:
        return f'<li class="later">{label} <small>not written yet</small></li>'
    worth = f" <small>{points} points</small>" if points else ""
    return f'<li><a href="chapters/{path.stem}.html">{label}</a>{worth}</li>'


def tree(caption: str, names: list[str]) -> str:
    """A part of the table of contents, which stands at the side of every page."""
    return "\n".join(["```{toctree}", ":hidden:", ":maxdepth: 1", f":caption: {caption}", "", *names, "```", ""])
