"""A learner's course in any state of solving, and a small quantised model for engines that are assembled from it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from course.catalogue import Course
from course.files import ExerciseFiles
from course.grading import PASSED, Grade
from course.my_engine import Assembly
from course.my_engine.pieces import PIECES
from course.progress import Progress
from fucina.gguf import GgufFile, write_gguf
from tests.models import TINY

PROMPT = [17, 80, 3, 200, 41, 9, 80, 3]
FORMATS = {
    "attn_q": "Q4_1",
    "attn_k": "Q8_0",
    "attn_v": "Q4_K",
    "attn_output": "Q4_1",
    "ffn_gate": "Q4_1",
    "ffn_up": "Q8_0",
    "ffn_down": "Q4_K",
}


def solve(
    course: Course, names: Iterable[str] = PIECES, texts: Mapping[str, str] | None = None, passed: bool = True
) -> None:
    """Write solutions, or other texts, into the learner's files; `passed` marks them as passed without grading."""
    texts = dict(texts or {})
    for name in dict.fromkeys((*names, *texts)):
        chapter, exercise = course.exercise(name)
        text = texts.get(name, exercise.solution)
        ExerciseFiles(course).save(chapter, exercise, text)
        if passed:
            part = ExerciseFiles(course).part(chapter, exercise)
            Progress(course).record(exercise, Grade(name, exercise.title, exercise.points, PASSED), part)


def broken(course: Course, name: str, first_line: str) -> str:
    """A solution whose functions and methods begin with a line of our own."""
    _, exercise = course.exercise(name)
    import ast

    lines = exercise.solution.split("\n")
    written = {d.name for d in exercise.written}
    for node in sorted(ast.walk(ast.parse(exercise.solution)), key=lambda n: -getattr(n, "lineno", 0)):
        if isinstance(node, ast.ClassDef) and node.name in written:
            inside = [n for n in node.body if isinstance(n, ast.FunctionDef) and n.name != "__init__"]
        elif isinstance(node, ast.FunctionDef) and node.name in written:
            inside = [node]
        else:
            continue
        for function in reversed(inside):
            indent = " " * (function.col_offset + 4)
            at = function.body[1] if len(function.body) > 1 else function.body[0]
            lines.insert(at.lineno - 1, indent + first_line)
    return "\n".join(lines)


def small_model(folder: Path) -> Path:
    """A model of two layers with random weights, in the formats that chapter 01 decodes."""
    with GgufFile(TINY / "llama.gguf") as file:
        metadata = {key: file.metadata[key] for key in file.metadata}
    sizes = {"embedding_length": 256, "feed_forward_length": 512, "attention.head_count": 4}
    sizes |= {"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 64}
    metadata |= {f"llama.{key}": value for key, value in sizes.items()}
    rng = np.random.default_rng(5)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    shapes = {
        "attn_q": (256, 256),
        "attn_k": (128, 256),
        "attn_v": (128, 256),
        "attn_output": (256, 256),
        "ffn_gate": (512, 256),
        "ffn_up": (512, 256),
        "ffn_down": (256, 512),
    }
    tensors: dict[str, Any] = {
        "token_embd.weight": (matrix(256, 256), "Q8_0"),
        "output_norm.weight": (np.ones(256, np.float32), "F32"),
        "output.weight": (8 * matrix(256, 256), "Q8_0"),
    }
    for i in range(2):
        for name, shape in shapes.items():
            tensors[f"blk.{i}.{name}.weight"] = (matrix(*shape), FORMATS[name])
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{i}.{name}.weight"] = (np.ones(256, np.float32), "F32")
    path = folder / "small.gguf"
    write_gguf(path, metadata, tensors)
    return path


def execute(assembly: Assembly, folder: Path) -> ModuleType:
    """The assembled file as a module."""
    path = folder / "my_engine.py"
    assembly.write(path)
    module = ModuleType("assembled_engine")
    sys.modules[module.__name__] = module
    exec(compile(assembly.text, str(path), "exec"), module.__dict__)
    return module
