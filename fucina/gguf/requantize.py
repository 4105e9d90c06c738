"""Writing a model once more with its matrices in another format: which tensor gets which."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import BlockFormatError, GgufError
from .encode import Typed
from .quants import WRITABLE
from .reader import GgufFile
from .types import SUPPORTED, GgmlType, ValueType, block_shape, ggml_type, type_label
from .writer import write_gguf

FILE_TYPES: dict[GgmlType, int] = {
    GgmlType.F32: 0,
    GgmlType.F16: 1,
    GgmlType.Q4_0: 2,
    GgmlType.Q4_1: 3,
    GgmlType.Q8_0: 7,
    GgmlType.Q5_0: 8,
    GgmlType.Q5_1: 9,
    GgmlType.Q2_K: 10,
    GgmlType.Q3_K: 11,
    GgmlType.Q4_K: 14,
    GgmlType.Q5_K: 16,
    GgmlType.Q6_K: 18,
    GgmlType.IQ4_NL: 25,
    GgmlType.BF16: 32,
    GgmlType.TQ2_0: 37,
}
"""The formats that a model can be written in, and what `general.file_type` says then."""

NARROWER: dict[GgmlType, GgmlType] = {
    GgmlType.Q2_K: GgmlType.Q4_0,
    GgmlType.Q3_K: GgmlType.Q4_0,
    GgmlType.TQ2_0: GgmlType.Q4_0,
    GgmlType.Q4_K: GgmlType.Q5_0,
    GgmlType.Q5_K: GgmlType.Q5_1,
    GgmlType.Q6_K: GgmlType.Q8_0,
}
"""What stands in for a format of 256 columns where rows are not whole blocks of it."""

PLAIN = (GgmlType.F32, GgmlType.F16, GgmlType.BF16)
KEPT = ("_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d.weight", "shortconv.conv.weight")
"""Ends of the names of matrices that stay as they are: small, and sensitive."""


class Described(Protocol):
    """What decides about a tensor's format, beside its name."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Axes in NumPy order."""

    @property
    def ggml_type(self) -> GgmlType:
        """The format that it has."""


def planned(tensors: Mapping[str, Described], format: GgmlType) -> dict[str, GgmlType]:
    """The format of each tensor in a model of this format, by the rules of docs/files.md.

    They are those of llama.cpp for its plain types: the matrix that makes the logits is kept more precisely, widths that
    are not whole blocks get a format that fits.
    """
    output = "output.weight" if "output.weight" in tensors else "token_embd.weight"
    plan = {}
    for name, tensor in tensors.items():
        t = format
        if name == output and format not in (*PLAIN, GgmlType.Q8_0):
            t = GgmlType.Q6_K
        elif name == "token_embd.weight" and format == GgmlType.TQ2_0:
            t = GgmlType.Q4_K
        if (
            not name.endswith(".weight")
            or name.endswith(KEPT)
            or len(tensor.shape) < 2
            or tensor.ggml_type not in SUPPORTED
        ):
            t = tensor.ggml_type
        plan[name] = fitting(t, tensor.shape[-1])
    return plan


def fitting(format: GgmlType, cols: int) -> GgmlType:
    """The format itself, or what stands in for it where rows of `cols` columns are not whole blocks."""
    for t in (format, NARROWER.get(format, format)):
        if cols % block_shape(t)[0] == 0:
            return t
    return GgmlType.F16


def quantize_file(
    source: GgufFile | str | os.PathLike[str],
    target: str | os.PathLike[str],
    format: GgmlType | int | str,
    progress: Callable[[int, int], None] | None = None,
    threads: int = 1,
) -> dict[str, GgmlType]:
    """Write a model with its matrices in another format.

    Parameters
    ----------
    source
        An open file, or the path of one.  A model that is already quantised loses a little more.
    target
        The new file; an existing one is replaced when the new one is complete.
    format
        One of `FILE_TYPES`, by member, number or name.
    progress
        Called as progress(bytes written, bytes in all).
    threads
        Threads that quantise.

    Returns
    -------
    dict
        The format that each tensor got.

    Raises
    ------
    BlockFormatError
        A model cannot be written in this format, or a tensor holds numbers that its format cannot.
    GgufError
        The source cannot be read, or source and target are the same file.
    OSError
        The target cannot be written; nothing is left of it.
    """
    t = ggml_type(format)
    if t not in FILE_TYPES:
        names = ", ".join(s.name for s in FILE_TYPES)
        raise BlockFormatError(f"models cannot be written in {type_label(t)}; formats: {names}")
    if not isinstance(source, GgufFile):
        with GgufFile(source) as file:
            return quantize_file(file, target, t, progress, threads)
    if any(Path(target).exists() and os.path.samefile(target, part) for part in source.parts):
        raise GgufError(f"{target} is the model that is read; expected another name for the new file")
    metadata: dict[str, Any] = {key: source.metadata.entry(key) for key in source.metadata}
    metadata["general.file_type"] = Typed(FILE_TYPES[t], ValueType.U32)
    metadata["general.quantization_version"] = Typed(2, ValueType.U32)
    plan = planned(source.tensors, t)
    tensors = {name: (tensor, plan[name]) for name, tensor in source.tensors.items()}
    write_gguf(target, metadata, tensors, progress, threads)
    return plan


assert set(FILE_TYPES) <= WRITABLE
