"""The rules that hold for every exercise, in one place: at the head of each exercise file, at the first check, in docs."""

from __future__ import annotations

from course.prose import wrapped

ALONE = (
    "An exercise is graded alone, in a process of its own. It knows what its file in exercises/ holds, and nothing of "
    "your notebook: import and define what you use there, or in the exercise's cell."
)
UNCHANGED = "Arguments stay as they are, unless the contract says that they change: work on a copy."
TYPES = (
    "Types count: where the contract says list, a tuple or an array is wrong. A number of NumPy's counts as a number."
)
YOUR_OWN = "You build it yourself: the engine (`fucina`) and the solutions are no part of an answer, unless the contract says so."
RULES = (ALONE, UNCHANGED, TYPES, YOUR_OWN)

# What the reader of a notebook may expect to be there, in every exercise file.
IMPORTS = ("import math", "import numpy as np")
WIDTH = 88


def head_doc(doc: str, chapter: str, first: str) -> str:
    """The docstring of an exercise file: what the chapter says, how to work, the rules."""
    work = (
        f"Write your code below each docstring, in place of the line that says `your code here`. Check it with `python3 -m "
        f"course check {chapter}`, or in the notebook with a cell that begins with `%%exercise {first}`. Both are the same "
        f"file: this one. Stuck? `python3 -m course hint {first}`."
    )
    rows = [doc.strip("\n"), "", *wrapped(work, "", WIDTH), "", "Rules for all exercises:", ""]
    for rule in RULES:
        rows += wrapped(f"- {rule}", "  ", WIDTH)
    return "\n".join(rows) + "\n"


def unknown_name(name: str, file: str) -> str:
    """What to tell about a name that an answer uses and its file does not have."""
    return f"`{name}` is neither imported nor defined in {file}."


def known_in_the_notebook(name: str, file: str) -> str:
    """The same where the notebook has the name."""
    return (
        f"`{name}` is known in your notebook, not in {file}: put its import or definition into this cell too. "
        "An exercise is graded alone."
    )
