"""The two small alphabets of GGUF: tensor formats (`GgmlType`) and metadata value types (`ValueType`).

A tensor is stored row by row. Plain formats (F32, F16, BF16) keep one number after the other. Block formats cut a row
into blocks of 32 or 256 neighbouring weights and keep, for every block, a few shared numbers (scales, minima) and a
few bits per weight. So the only two figures that a reader needs of a format are *columns per block* and *bytes per
block*:

    Q4_1   32 columns   20 bytes     2 scale + 2 minimum + 16 (32 weights of 4 bits)      = 5.0  bits per weight
    Q6_K  256 columns  210 bytes     2 scale + 16 sub-scales + 192 (256 weights of 6 bits) = 6.56 bits per weight

The layouts byte by byte are in `fucina.gguf.quants` and `fucina.gguf.kquants`.
"""

from __future__ import annotations

import operator
from enum import IntEnum

import numpy as np

from ..checks import shown
from ..errors import BlockFormatError


class GgmlType(IntEnum):
    """Tensor formats by their number in a GGUF file.  Names are known for all; `SUPPORTED` says which can be read."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q4_2 = 4  # removed from the format
    Q4_3 = 5  # removed from the format
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q8_1 = 9
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    Q8_K = 15
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ1_S = 19
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I8 = 24
    I16 = 25
    I32 = 26
    I64 = 27
    F64 = 28
    IQ1_M = 29
    BF16 = 30
    Q4_0_4_4 = 31  # removed from the format
    Q4_0_4_8 = 32  # removed from the format
    Q4_0_8_8 = 33  # removed from the format
    TQ1_0 = 34
    TQ2_0 = 35
    IQ4_NL_4_4 = 36  # removed from the format
    IQ4_NL_4_8 = 37  # removed from the format
    IQ4_NL_8_8 = 38  # removed from the format
    MXFP4 = 39
    NVFP4 = 40
    Q1_0 = 41
    Q2_0 = 42

    def __str__(self) -> str:
        return self.name


# Formats that can be dequantised: (columns per block, bytes per block).
_BLOCKS: dict[GgmlType, tuple[int, int]] = {
    GgmlType.F32: (1, 4),
    GgmlType.F16: (1, 2),
    GgmlType.BF16: (1, 2),
    GgmlType.Q8_0: (32, 34),
    GgmlType.Q4_0: (32, 18),
    GgmlType.Q4_1: (32, 20),
    GgmlType.Q5_0: (32, 22),
    GgmlType.Q5_1: (32, 24),
    GgmlType.Q2_K: (256, 84),
    GgmlType.Q3_K: (256, 110),
    GgmlType.Q4_K: (256, 144),
    GgmlType.Q5_K: (256, 176),
    GgmlType.Q6_K: (256, 210),
    GgmlType.IQ1_S: (256, 50),
    GgmlType.IQ1_M: (256, 56),
    GgmlType.IQ2_XXS: (256, 66),
    GgmlType.IQ2_XS: (256, 74),
    GgmlType.IQ2_S: (256, 82),
    GgmlType.IQ3_XXS: (256, 98),
    GgmlType.IQ3_S: (256, 110),
    GgmlType.IQ4_NL: (32, 18),
    GgmlType.IQ4_XS: (256, 136),
    GgmlType.TQ1_0: (256, 54),
    GgmlType.TQ2_0: (256, 66),
    GgmlType.Q1_0: (128, 18),
    GgmlType.Q2_0: (64, 18),
    GgmlType.MXFP4: (32, 17),
    GgmlType.NVFP4: (64, 36),
}

# Plain numbers that a file may hold beside its weights (routing tables and the like): readable, not "dequantised".
_PLAIN: dict[GgmlType, np.dtype] = {
    GgmlType.I8: np.dtype("i1"),
    GgmlType.I16: np.dtype("<i2"),
    GgmlType.I32: np.dtype("<i4"),
    GgmlType.I64: np.dtype("<i8"),
    GgmlType.F64: np.dtype("<f8"),
}

SUPPORTED: frozenset[GgmlType] = frozenset(_BLOCKS)
"""Formats whose rows `fucina.gguf.dequantize` turns into float32."""

READABLE: frozenset[GgmlType] = SUPPORTED | frozenset(_PLAIN)
"""Formats that a file may hold: the supported ones and plain numbers."""


def supported_names() -> str:
    """The readable formats, for error messages."""
    return ", ".join(t.name for t in sorted(READABLE))


def type_label(number: int) -> str:
    """`39 (MXFP4)` or `200 (unknown)`."""
    try:
        return f"{int(number)} ({GgmlType(number).name})"
    except ValueError:
        return f"{int(number)} (unknown)"


def ggml_type(value: GgmlType | int | str) -> GgmlType:
    """A `GgmlType` from a member, its number, or its name.

    Raises
    ------
    BlockFormatError
        The number or name is not one of ggml's.
    """
    try:
        return GgmlType[value] if isinstance(value, str) else GgmlType(operator.index(value))
    except (KeyError, ValueError, TypeError):
        raise BlockFormatError(
            f"{shown(value)} is not a tensor format; expected a GgmlType, a number or a name"
        ) from None


def block_shape(format: GgmlType | int | str) -> tuple[int, int]:
    """(columns per block, bytes per block) of a tensor format.

    Raises
    ------
    BlockFormatError
        The format is unknown, or known and not readable here; the message lists those that are.
    """
    t = ggml_type(format)
    if t in _BLOCKS:
        return _BLOCKS[t]
    if t in _PLAIN:
        return 1, _PLAIN[t].itemsize
    raise BlockFormatError(f"tensor format {type_label(t)} is not supported; supported: {supported_names()}")


def row_bytes(cols: int, format: GgmlType | int | str) -> int:
    """Bytes of one row of `cols` columns.

    Raises
    ------
    BlockFormatError
        `cols` is not a positive whole number of blocks, or the format is not readable.
    """
    block_cols, block_bytes = block_shape(format)
    if cols <= 0 or cols % block_cols:
        raise BlockFormatError(
            f"a row of {cols} columns is not a whole number of {ggml_type(format).name} blocks of {block_cols} columns"
        )
    return cols // block_cols * block_bytes


def plain_dtype(format: GgmlType) -> np.dtype | None:
    """The NumPy dtype of a format that is plain numbers (F32, F16, I8 … F64), None for blocks and BF16."""
    if format == GgmlType.F32:
        return np.dtype("<f4")
    if format == GgmlType.F16:
        return np.dtype("<f2")
    return _PLAIN.get(format)


class ValueType(IntEnum):
    """Types of metadata values by their number in a GGUF file."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12

    @property
    def label(self) -> str:
        """Lower-case name for messages: `u32`, `string`, …"""
        return self.name.lower()


VALUE_DTYPES: dict[ValueType, np.dtype] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
"""How a file holds fixed-size metadata values (little-endian)."""

INTEGERS = frozenset({ValueType.U8, ValueType.I8, ValueType.U16, ValueType.I16, ValueType.U32, ValueType.I32,
                      ValueType.U64, ValueType.I64})  # fmt: skip
FLOATS = frozenset({ValueType.F32, ValueType.F64})
