"""Bounds of a GGUF file's numbers: what the reader accepts and the writer keeps to."""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import GgufError
from .types import ValueType
from .values import Entry

MAX_HEADER = 1 << 28
"""Largest header, in bytes.  Real ones are below 2**25; the bound keeps a hostile file from costing minutes."""

MAX_NAME = (1 << 16) - 1
"""Longest key or tensor name, in bytes (the format's own bound for keys)."""

MAX_DIMS = 4
"""Largest number of dimensions of a tensor."""

MAX_FILE = 1 << 50
"""Largest size of a file that tensors may ask for, in bytes; more means that a dimension or an offset is damaged."""

DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 21
"""Largest `general.alignment`: a huge page of the operating system."""


def alignment_of(entries: Mapping[str, Entry], where: str) -> int:
    """Return the alignment of tensors that the metadata asks for, in bytes.

    Raises
    ------
    GgufError
        `general.alignment` is not a u32, or not a power of two from 8 to MAX_ALIGNMENT.
    """
    entry = entries.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    value = entry.value
    if entry.type != ValueType.U32 or not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise GgufError(
            f"{where}: general.alignment is {entry.describe()}; expected a u32, a power of two, at least 8 and at most "
            f"{MAX_ALIGNMENT}"
        )
    return value
