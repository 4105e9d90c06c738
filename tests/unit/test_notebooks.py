"""Stored notebooks are fit to show: executed, quiet, free of one machine's paths."""

import json
import os

import pytest

from course.build import digest, notebook_paths, problems, read_manifest

PATHS = notebook_paths()


def test_there_are_notebooks():
    assert [p.name for p in PATHS][:1] == ["00_welcome.ipynb"]


@pytest.mark.parametrize("path", PATHS, ids=lambda p: p.stem)
def test_stored_notebook_is_fit_to_show(path):
    if read_manifest().get(path.name) != digest(path):
        assert not os.environ.get("CI"), "stored without a build: run python3 -m course build"
        pytest.skip("this notebook has been worked in since it was stored")
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert problems(notebook) == []
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    code = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert any(c["outputs"] for c in code)


def cell(kind="code", **fields):
    return {
        "cell_type": kind,
        "source": "x",
        "metadata": {},
        **({"execution_count": 1, "outputs": []} if kind == "code" else {}),
        **fields,
    }


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (cell(execution_count=None), "not executed"),
        (cell(outputs=[{"output_type": "error", "ename": "ValueError"}]), "stored an error"),
        (cell(outputs=[{"output_type": "stream", "name": "stderr", "text": ["careful\n"]}]), "stderr"),
        (
            cell(outputs=[{"output_type": "stream", "name": "stdout", "text": "in /home/ada/file"}]),
            "path of one machine",
        ),
        (
            cell(outputs=[{"output_type": "display_data", "data": {"text/html": ["C:\\Users\\ada"]}}]),
            "path of one machine",
        ),
        (cell("markdown", source="This takes 12 ms."), "no command"),
    ],
)
def test_each_fault_is_found(bad, word):
    (line,) = problems({"cells": [cell(), bad]})
    assert word in line and "cell 1" in line


@pytest.mark.parametrize(
    "good",
    [
        cell(outputs=[{"output_type": "error", "ename": "E"}], metadata={"tags": ["raises-exception"]}),
        cell(source="", execution_count=None),
        cell("markdown", source="`python -m bench` says 12 ms."),
        cell(outputs=[{"output_type": "stream", "name": "stdout", "text": "see https://example.org/home/page"}]),
    ],
)
def test_what_is_allowed_passes(good):
    assert problems({"cells": [good]}) == []
