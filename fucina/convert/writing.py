"""A folder of safetensors, config.json and tokenizer.json becomes one GGUF file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import checks
from ..errors import BlockFormatError, ConvertError, FucinaError
from ..gguf import GgmlType, GgufFile, write_gguf
from ..gguf.requantize import FILE_TYPES, planned
from ..gguf.types import ggml_type, type_label
from ..gguf.writer import Computed
from ..models import read_family
from ..replacing import replacing
from .config import Config
from .deepseek import DEEPSEEK
from .files import json_file
from .gemma import GEMMA3, GEMMA4
from .plain import LLAMA, QWEN3, QWEN3MOE
from .qwen35 import QWEN35, QWEN35MOE
from .safetensors import SafeTensor, read_folder
from .tensors import Source, renamed
from .vocabulary import vocabulary

SOURCES = {name: s for s in (LLAMA, QWEN3, QWEN3MOE, GEMMA3, GEMMA4, QWEN35, QWEN35MOE, DEEPSEEK) for name in s.classes}
"""Names in `architectures` of config.json, and how such a model is converted."""


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written: the architecture, the format of each tensor, and what a GGUF cannot say or does without."""

    architecture: str
    formats: dict[str, GgmlType]
    remarks: list[str]


@dataclass(frozen=True, slots=True)
class _Shape:
    shape: tuple[int, ...]
    ggml_type: GgmlType = GgmlType.F32


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: GgmlType | int | str | None = None,
    progress: Callable[[int, int], None] | None = None,
    threads: int = 1,
) -> Converted:
    """Write a published model as a GGUF file.

    Parameters
    ----------
    source
        Folder with `config.json`, `tokenizer.json`, `model.safetensors` (or several files and their index), and perhaps
        `tokenizer_config.json`, `generation_config.json` and `chat_template.jinja`.
    target
        The new file; an existing one is replaced when the new one is complete and was opened as a model.
    format
        Of the matrices: one of `fucina.gguf.requantize.FILE_TYPES`, by member, number or name.  None: what the source
        has, BF16, F16 or F32.  Vectors and other small tensors are F32.
    progress
        Called as progress(bytes written, bytes in all).
    threads
        Threads that quantise.

    Raises
    ------
    ConvertError
        The model is of no known kind, or something in its files is missing, damaged, not known or not implemented.
    UnsupportedTokenizerFormat
        GGUF has no tokenizer like that of tokenizer.json.
    BlockFormatError
        There is no such format, or a tensor holds numbers that it cannot.
    OSError
        The target cannot be written; nothing is left of it.
    """
    folder = Path(source)
    if not folder.is_dir():
        raise ConvertError(f"{folder}: no such folder; expected one with config.json, tokenizer.json and safetensors")
    kind, config = read_config(folder)
    tensors = read_folder(folder)
    t = _source_format(tensors) if format is None else ggml_type(format)
    if t not in FILE_TYPES:
        raise BlockFormatError(
            f"models cannot be written in {type_label(t)}; formats: {', '.join(s.name for s in FILE_TYPES)}"
        )
    keys = kind.metadata(config)
    made, remarks = renamed(tensors, kind, config)
    embedding = made.get("token_embd.weight")
    if embedding is None:
        raise ConvertError(f"{folder} has no tensor model.embed_tokens.weight")
    rows = embedding.n_rows
    keys["vocab_size"] = config.count("vocab_size", rows, rows, default=rows)
    config.check_all_known()
    words, more = vocabulary(folder, kind.architecture, rows)
    metadata: dict[str, Any] = {
        "general.architecture": kind.architecture,
        "general.name": folder.resolve().name,
        "general.file_type": FILE_TYPES[t],
        "general.quantization_version": 2,
    }
    metadata |= {f"{kind.architecture}.{key}": value for key, value in keys.items()} | words
    plan = planned({name: _Shape(x.shape) for name, x in made.items()}, t)
    todo = {name: (Computed(x.shape, x.rows), plan[name]) for name, x in made.items()}
    with replacing(target) as temporary:
        write_gguf(temporary, metadata, todo, progress, threads)
        _check(temporary)
    return Converted(kind.architecture, plan, [*remarks, *more])


def read_config(folder: Path) -> tuple[Source, Config]:
    """The kind of model that config.json describes, and the config of its text model.

    Raises
    ------
    ConvertError : there is no such file, or the model is of no known kind.
    """
    values = json_file(folder / "config.json", "which says what kind of model this is")
    names = values.get("architectures")
    found = [n for n in names if isinstance(n, str) and n in SOURCES] if isinstance(names, list) else []
    if not found:
        raise ConvertError(
            f"config.json has the architectures {checks.shown(names)}; implemented: {', '.join(sorted(SOURCES))}"
        )
    text, what = values.get("text_config"), "config.json"
    if text is not None:
        if not isinstance(text, dict):
            raise ConvertError(f"config.json has text_config {checks.shown(text)}; expected an object")
        shared = ("tie_word_embeddings", "quantization_config", "architectures")
        text = {**text, **{key: values[key] for key in shared if key in values}}
        values, what = text, "text_config of config.json"
    return SOURCES[found[0]], Config(values, what)


def _source_format(tensors: Mapping[str, SafeTensor]) -> GgmlType:
    """The format of most numbers of the matrices."""
    sizes = dict.fromkeys(("F32", "F16", "BF16"), 0)
    for tensor in tensors.values():
        if tensor.dtype in sizes and len(tensor.shape) > 1:
            sizes[tensor.dtype] += tensor.data.nbytes
    return ggml_type(max(sizes, key=lambda name: sizes[name]))


def _check(path: Path) -> None:
    """ConvertError if the file cannot be opened as a model: a tensor is missing, or shapes and config do not fit."""
    try:
        with GgufFile(path) as file:
            read_family(file)
    except FucinaError as error:
        raise ConvertError(f"the files do not make a whole model: {error}") from error
