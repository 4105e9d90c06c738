"""Execute notebooks and store them with the starters of their exercises, and check that what is stored is fit to show.

`python3 -m course build [NAME ...]` runs the notebooks from top to bottom in fresh kernels and stores their outputs,
folded where they answer a prediction; `--check` only looks.  A notebook is refused when a code cell was not executed,
when it wrote to stderr or stored an error, when it shows a path of the machine that built it, or an answer that it asks to
predict.  Its prose may state a time or rate only where a command stands beside it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from course.catalogue import Course
from course.cells import starter_cell
from course.files import write_text
from course.questions import faults, fold

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
MANIFEST = NOTEBOOKS / "manifest.json"

_MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|work|Users|var/folders)/[\w.-]+|[A-Z]:\\Users\\\w+")
_BARE_TIME = re.compile(r"\b\d[\d.,]*\s?(?:ms|µs|us|seconds|tok/s|tokens/s|tokens a second|tokens per second|GB/s)\b")


def notebook_paths(names: list[str] | None = None) -> list[Path]:
    """Notebooks in chapter order; `names` are file names or their beginnings ("05")."""
    every = sorted(NOTEBOOKS.glob("[0-9][0-9]_*.ipynb"))
    if not names:
        return every
    chosen = [p for p in every if any(p.name.startswith(Path(n).name) for n in names)]
    if not chosen:
        raise SystemExit(
            f"no notebook begins with {', '.join(names)}; there are: {', '.join(p.name for p in every) or 'none'}"
        )
    return chosen


def read_manifest() -> dict[str, str]:
    """Hash of every notebook as it was stored, by file name: one that differs has been worked in."""
    return json.loads(MANIFEST.read_text(encoding="utf-8")) if MANIFEST.exists() else {}


def write_manifest() -> None:
    """Record the notebooks as they are now."""
    hashes = {p.name: digest(p) for p in notebook_paths()}
    write_text(MANIFEST, json.dumps(hashes, indent=1) + "\n")


def digest(path: Path) -> str:
    """Hash of a notebook's text, the same whatever line ends a checkout has."""
    return hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def execute(path: Path, timeout: int = 600) -> None:
    """Run a notebook in a fresh kernel and store it with its outputs; raises at the first cell that fails."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.source.startswith("%%exercise "):
            _, exercise = Course().exercise(cell.source.split("\n", 1)[0].split()[1])
            cell.source = starter_cell(exercise).rstrip("\n")
    # coalesce_streams: text printed piece by piece is stored as one output
    where = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(notebook, timeout=timeout, kernel_name="python3", resources=where, coalesce_streams=True)
    with tempfile.TemporaryDirectory() as state:
        # a learner who has done nothing yet; and sliders store a figure, not a widget that needs its kernel
        client.execute(env={**os.environ, "FUCINA_COURSE_STATE": state, "FUCINA_STATIC": "1"})
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # time stamps would change every file on every build
        fold(cell)
    temporary = path.with_suffix(".ipynb.new")
    nbformat.write(notebook, temporary)
    os.replace(temporary, path)


def problems(notebook: Any) -> list[str]:
    """What keeps a notebook (as read by nbformat or json) from being shown, one line each."""
    found = []
    for number, cell in enumerate(notebook["cells"]):
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            prose = re.sub(r"`[^`]*`", "", source)
            if (bare := _BARE_TIME.search(prose)) and "`" not in source and "their" not in source:
                found.append(f"cell {number}: states '{bare.group()}' with no command beside it")
            continue
        if cell["cell_type"] != "code" or not source.strip():
            continue
        if cell.get("execution_count") is None:
            found.append(f"cell {number}: not executed")
        for output in cell.get("outputs", []):
            if output["output_type"] == "error":
                if "raises-exception" not in cell["metadata"].get("tags", []):
                    found.append(f"cell {number}: stored an error, {output.get('ename')}")
            elif output["output_type"] == "stream" and output.get("name") == "stderr":
                found.append(f"cell {number}: wrote to stderr: {_text(output['text']).strip()[:80]}")
            for text in _texts(output):
                if path := _MACHINE_PATH.search(text):
                    found.append(f"cell {number}: shows a path of one machine, {path.group()}")
    return found


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def _texts(output: Any) -> list[str]:
    texts = [_text(output["text"])] if "text" in output else []
    for kind, data in output.get("data", {}).items():
        if kind.startswith("text/") or kind == "image/svg+xml":
            texts.append(_text(data))
    return texts


def build(names: list[str], check: bool) -> int:
    """Execute and store (unless `check`), then look; 0 if every notebook is fit to show."""
    import nbformat

    failed = 0
    if not check:
        try:
            tempfile.TemporaryFile(dir=NOTEBOOKS).close()
        except OSError as error:
            print(
                f"cannot write in {NOTEBOOKS.name}/: {error.strerror}. --check only looks at what is stored.",
                file=sys.stderr,
            )
            return 2
    for path in notebook_paths(names):
        if not check:
            print(f"executing {path.name}", flush=True)
            execute(path)
        stored = nbformat.read(path, as_version=4)
        bad = problems(stored) + faults(stored["cells"], path.name[:2])
        failed += bool(bad)
        print("\n".join(f"{path.name}, {line}" for line in bad) if bad else f"{path.name}: fit to show")
    if not check:
        write_manifest()
    return 1 if failed else 0
