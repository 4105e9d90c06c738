"""Notebooks that ask to predict hide the answer: builds fold it, and what still shows it is found.

A markdown cell with `**Predict.** question` is followed by a cell that is one `predict(NAME, ...)`; a later cell, before the next
question, calls `truth(NAME, value)`, and its outputs are stored folded.  What is said about the answer right after it is folded
as well, in a `<details>` that the reader opens; so are the outputs of cells with the tag "folded", which show the answer again.
"""

from __future__ import annotations

import ast
import re
from typing import Any

from course.source import NOT_PYTHON

ANSWER = "The answer:"
TAG = "folded"  # a cell whose outputs would tell the answer of a question above it
AFTER = "<details><summary>What it shows</summary>"
_SAFE = re.compile(rf"{re.escape(AFTER)}\n\n|#|\*\*Predict")  # how text right after an answer may begin


def fold(cell: Any) -> None:
    """Fold the outputs of a cell that answers a prediction or has the tag, and of no other: a learner guesses first.

    Running the cell unfolds them (JupyterLab, Notebook 7).
    """
    if cell["cell_type"] != "code":
        return
    jupyter = {k: v for k, v in cell["metadata"].pop("jupyter", {}).items() if k != "outputs_hidden"}
    cell["metadata"].pop("collapsed", None)
    if called(source(cell), "truth") or TAG in cell["metadata"].get("tags", []):
        cell["metadata"]["collapsed"] = True
        jupyter["outputs_hidden"] = True
    if jupyter:
        cell["metadata"]["jupyter"] = jupyter


def announce(info: Any) -> None:
    """Print a first line before a cell that answers: it is the one line that JupyterLab shows of a folded output.

    For IPython's event `pre_run_cell`.
    """
    if called(info.raw_cell or "", "truth"):
        print(ANSWER)


def folded(cell: Any) -> bool:
    """Whether a cell's outputs are stored folded, for every front end."""
    metadata = cell["metadata"]
    return bool(metadata.get("collapsed") and metadata.get("jupyter", {}).get("outputs_hidden"))


def called(source: str, function: str) -> list[ast.Call]:
    """The calls of a function by its plain name in a cell, in order; magics and what is no Python count as nothing."""
    plain = re.sub(r"^\s*[%!].*$", "pass", source, flags=re.MULTILINE)
    try:
        tree = ast.parse(plain)
    except NOT_PYTHON:
        return []
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    mine = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]
    return sorted(mine, key=lambda call: (call.lineno, call.col_offset))


def source(cell: dict[str, Any]) -> str:
    """The text of a cell, which files store as lines."""
    return "".join(cell["source"])


def asks(cell: dict[str, Any]) -> bool:
    """Whether a cell ends with a question to predict."""
    return cell["cell_type"] == "markdown" and "**Predict" in source(cell)


def names(cell: dict[str, Any], function: str) -> list[str]:
    """The names of predictions that a cell hands to `predict` or `truth`."""
    calls = called(source(cell), function) if cell["cell_type"] == "code" else []
    return [str(call.args[0].value) for call in calls if call.args and isinstance(call.args[0], ast.Constant)]


def only_predicts(cell: dict[str, Any]) -> bool:
    """Whether a cell is one predict call that nobody has answered, and nothing else."""
    calls = called(source(cell), "predict") if cell["cell_type"] == "code" else []
    if len(calls) != 1 or len(calls[0].args) != 2 or ast.unparse(calls[0].args[1]) != "...":
        return False
    try:
        return ast.unparse(ast.parse(source(cell))) == ast.unparse(calls[0])
    except NOT_PYTHON:  # a magic beside it
        return False


def visible(cell: dict[str, Any]) -> str:
    """What a reader sees of a cell before running anything: prose, and outputs that are not folded."""
    if cell["cell_type"] == "markdown":
        return source(cell)
    if cell["cell_type"] != "code" or folded(cell):
        return ""
    pages = [data for output in cell["outputs"] for kind, data in output.get("data", {}).items() if kind[:5] == "text/"]
    return "\n".join("".join(page) for page in [o.get("text", "") for o in cell["outputs"]] + pages)


def first_line(cell: dict[str, Any]) -> str:
    """What JupyterLab shows of a folded output: its first line, where that is text."""
    first = cell["outputs"][0] if cell["outputs"] else {}
    return "".join(first.get("text", "")).partition("\n")[0]


def answer_shown(cells: list[dict[str, Any]], answer: dict[str, Any]) -> str:
    """The number of three digits or more that `answer` gives as the truth, where a cell before it shows it already."""
    stored = visible({**answer, "metadata": {}})
    for number in re.findall(r"^It is (\d[\d.]{2,})\b", stored, re.MULTILINE):
        if any(re.search(rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)", visible(cell)) for cell in cells):
            return number
    return ""


def told_after(cells: list[dict[str, Any]], answer: int) -> list[str]:
    """What stands right after an answer and may tell it: outputs and prose that are not folded, a line each."""
    found = []
    for i in range(answer + 1, len(cells)):
        cell = cells[i]
        if cell["cell_type"] != "code":
            if not _SAFE.match(source(cell)):
                found.append(
                    f"cell {i}: the text after the answer of cell {answer} is not folded: it begins with {AFTER}"
                )
            elif source(cell).count("<details>") != source(cell).count("\n\n</details>"):
                found.append(f"cell {i}: a fold does not end, or not on a line of its own after an empty one")
            break
        if names(cell, "predict"):
            break
        if cell["outputs"] and not folded(cell):
            found.append(f"cell {i}: outputs right after the answer of cell {answer} are not folded (tag {TAG!r})")
    return found


def written_out(cell: dict[str, Any]) -> list[str]:
    """The names of predictions whose answer stands in the code of the cell that is to find it."""
    calls = [call for call in called(source(cell), "truth") if len(call.args) == 2]
    return [ast.unparse(call.args[0]) for call in calls if isinstance(call.args[1], ast.Constant)]


def faults(cells: list[dict[str, Any]], chapter: str) -> list[str]:
    """What is wrong with the predictions of a notebook, a line each."""
    found = []
    answered: set[str] = set()
    for i, cell in enumerate(cells):
        for name in names(cell, "truth"):
            answered.add(name)
            if not folded(cell):
                found.append(f"cell {i}: the answer of {name} is not folded")
            elif not first_line(cell).startswith(ANSWER):
                found.append(f"cell {i}: the folded output of {name} does not begin with {ANSWER!r}")
            if not any(name in names(before, "predict") for before in cells[:i]):
                found.append(f"cell {i}: the truth of {name}, which no cell above asks for")
        if TAG in cell["metadata"].get("tags", []) and not first_line(cell).startswith(ANSWER.rstrip(":")):
            found.append(
                f"cell {i}: the first line of a folded output is seen; let it begin with {ANSWER.rstrip(':')!r}"
            )
        if cell["cell_type"] == "code":
            found += [f"cell {i}: the answer of {name} is written out in the cell" for name in written_out(cell)]
            found += told_after(cells, i) if names(cell, "truth") else []
        if names(cell, "predict") and not (i and asks(cells[i - 1])):
            found.append(f"cell {i}: predict without a question above it")
        if not asks(cell):
            continue
        following = cells[i + 1] if i + 1 < len(cells) else {"cell_type": "none"}
        if not only_predicts(following):
            found.append(f"cell {i}: no unanswered predict cell after the question")
            continue
        (name,) = names(following, "predict")
        if not re.fullmatch(rf"{chapter}\.[a-z][a-z0-9_]*", name):
            found.append(f"cell {i + 1}: {name} is not named after chapter {chapter}")
        end = next((k for k in range(i + 1, len(cells)) if asks(cells[k])), len(cells))
        answer = next((k for k in range(i + 2, end) if name in names(cells[k], "truth")), None)
        if answer is None:
            found.append(f"cell {i}: no truth of {name} before the next question")
        elif number := answer_shown(cells[i:answer], cells[answer]):
            found.append(f"cell {i}: the answer of {name}, {number}, stands above the cell that gives it")
    return found
