"""`python3 -m course book`: build the book in a folder of its own, and put it in the place of the one before."""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import sys
import tempfile
import webbrowser
from pathlib import Path

from course.catalogue import Course
from course.files import FilesError, write_text
from course.terminal import say

MARK = ".fucina-book"  # in every folder that holds a book, so that nothing else is ever replaced
DEFAULT = Path("build") / "book"


def add_command(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("--out", metavar="DIR", type=Path, help=f"where to write it (default: {DEFAULT.as_posix()})")
    parser.add_argument("--open", action="store_true", help="open it in a browser when it is built")


def run(course: Course, arguments: argparse.Namespace) -> int:
    """Build the book; 0 when it stands, 1 when something in it is not as it should be."""
    out = Path(os.path.abspath(arguments.out or course.root / DEFAULT))
    say("Building the book from the stored notebooks; nothing is executed.")
    warnings = build(course, out)
    say(*warnings, to=sys.stderr)
    index = out / "index.html"
    say(f"written: {index}", "It is a folder of plain files: a browser opens it without a server or a network.")
    if arguments.open:
        webbrowser.open(index.as_uri())
    return 1 if warnings else 0


def build(course: Course, out: Path) -> list[str]:
    """Build the book into a folder, which appears whole or not at all.

    Parameters
    ----------
    course : Course
        Whose notebooks, exercises and pages it holds.
    out : Path
        Missing, empty, or an earlier book.

    Returns
    -------
    list of str
        What Sphinx warned about, and links that lead nowhere.

    Raises
    ------
    FilesError
        The folder holds something else, or cannot be written.
    """
    from course.book.links import broken  # here: other commands need none of this
    from course.book.pages import write_sources

    if out.exists() and not (out / MARK).exists() and (not out.is_dir() or any(out.iterdir())):
        raise FilesError(f"{out} holds something that is no book: name a folder that is empty or does not exist")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise FilesError(f"cannot write {out}: {error.strerror or error}. Name another folder: --out DIR") from error
    try:
        with tempfile.TemporaryDirectory(prefix="fucina-book-") as work:
            write_sources(course, Path(work) / "source")
            warnings = typeset(Path(work) / "source", made, Path(work) / "trees") + broken(made)
        (made / MARK).touch()
        made.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return warnings


def typeset(source: Path, out: Path, trees: Path) -> list[str]:
    """Let Sphinx make HTML of the sources; returns its warnings."""
    from sphinx.application import Sphinx  # here: it comes with a dependency group of its own
    from sphinx.util.docutils import docutils_namespace, patch_docutils

    write_text(source / "conf.py", "from course.book.settings import settings\n\nglobals().update(settings())\n")
    heard = io.StringIO()
    with patch_docutils(), docutils_namespace():
        Sphinx(source, source, out, trees, "html", status=None, warning=heard, freshenv=True).build()
    for name in (".buildinfo", "objects.inv"):  # for other builds of Sphinx, not for readers
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "_sources", ignore_errors=True)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", heard.getvalue())
    return [line.replace(str(source) + os.sep, "") for line in plain.splitlines() if line.strip()]
