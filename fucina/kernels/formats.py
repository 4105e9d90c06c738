"""Weight formats as the kernels see them, in layout p8: output rows interleaved by eight.

A group holds eight output rows (the last one is filled up by repeating the matrix's last row).  Within a group a block
holds, for one stretch of `cols` columns, the fields below; in each field, row 0's bytes come first, then row 1's, …, so
that one vector load brings the same field of eight rows: lane = output row, and no sum ever crosses lanes.

    f32, f16, bf16   a block is one column: 8 numbers
    q8_0    8 x f16 scale | 8 columns-of-four x 8 rows x 4 int8
    q4_0    8 x f16 scale | 4 x 8 x 4 bytes of nibbles (byte j: element j low, element j + 16 high)
    q4_1    8 x f16 scale | 8 x f16 minimum | nibbles as q4_0
    q5_0    8 x f16 scale | 8 x 4 bytes of fifth bits (byte j, bit c: element 4c + j) | nibbles as q4_0
    q4_k    8 x f16 d | 8 x f16 dmin | 8 x 8 scales | 4 pairs x 8 rows x 2 minimums | 4 x 8 x 8 x 4 bytes of nibbles
    q6_k    8 x f16 d | 16 x 8 int8 scales | 2 halves x 8 x (low bits a, low bits b, high bits) x 8 x 4 bytes

All others are *coded* formats (`fucina.gguf.coded`).  They share one layout, whatever their layout in the file is: codes of
2 to 5 bits, a table of values, a scale for each part of 16 or 32 columns.  So there is one way to pack them and one to
multiply with them (`superblocks`).  A block is

    8 x f16 d (mxfp4: 8 exponents) | 8 x f16 dmin | parts x 8 scales | floors | planes of each 32 columns

in which what a format lacks is left out.  Scales are int8.  Floors come in pairs of parts, as the minimums of q4_k do;
those of q2_k share a byte with the scale (low half) instead.  The planes of 32 columns hold the codes' bits, for eight rows
in fours of bytes, byte j of a four belonging to columns 4c + j:

    four low bits   4 x 8 x 4 bytes: columns 4c + j (low half), 16 + 4c + j (high half)
    two bits        2 x 8 x 4 bytes: bits 2i, 2i + 1 of four h are those of columns 16h + 4i + j
    one bit         1 x 8 x 4 bytes: bit c is that of columns 4c + j; it is the codes' uppermost one
"""

from __future__ import annotations

from dataclasses import dataclass

from ..gguf.coded import Coded
from ..gguf.quants import CODED
from ..gguf.types import GgmlType, block_shape


@dataclass(frozen=True, slots=True)
class Format:
    """One weight format.

    Attributes
    ----------
    ggml_type : int
        Its number in GGUF files.
    cols : int
        Columns per block.
    raw : int
        Bytes per block of one row in the file.
    packed : int
        Bytes per block of eight rows in layout p8.
    activations : str
        What it is multiplied with: "f32", "q8" (int8 in blocks of 32) or "q8k" (int8 in blocks of 256).
    sums : str or None
        Which of the activations' two arrays of sums `linear` takes as its word `s`: "s" or "s16".
    coded : Coded or None
        Its codes and values, where it has the layout that such formats share.
    floors : str
        How that layout holds floors: not at all, "one" a block, in "pairs", or as "nibbles" of the scales.
    """

    name: str
    ggml_type: int
    cols: int
    raw: int
    packed: int
    activations: str = "f32"
    sums: str | None = None
    coded: Coded | None = None
    floors: str = ""

    @property
    def exponent(self) -> bool:
        """Its step is a byte, the power of two."""
        return self.name == "mxfp4"

    @property
    def planes(self) -> int:
        """Bytes before the planes of a coded format's packed block."""
        assert self.coded is not None
        scales = self.coded.parts * 8 if self.coded.parts > 1 else 0
        return (
            (8 if self.exponent else 16) + {"": 0, "one": 16, "pairs": 16 + scales, "nibbles": 16}[self.floors] + scales
        )


def _coded(name: str, activations: str, sums: str, floors: str = "") -> Format:
    t = GgmlType[name.upper()]
    (cols, raw), coded = block_shape(t), CODED[t]
    header = Format(name, t, cols, raw, 0, activations, sums, coded, floors).planes
    return Format(name, t, cols, raw, header + cols * coded.bits, activations, sums, coded, floors)


FORMATS = {
    f.name: f
    for f in (
        Format("f32", 0, 1, 4, 32),
        Format("f16", 1, 1, 2, 16),
        Format("bf16", 30, 1, 2, 16),
        Format("q8_0", 8, 32, 34, 272, "q8", "s16"),
        Format("q4_0", 2, 32, 18, 144, "q8", "s16"),
        Format("q4_1", 3, 32, 20, 160, "q8", "s"),
        Format("q5_0", 6, 32, 22, 176, "q8", "s16"),
        Format("q4_k", 12, 256, 144, 1184, "q8k", "s"),
        Format("q6_k", 14, 256, 210, 1680, "q8k", "s16"),
        _coded("q5_1", "q8", "s", "one"),
        _coded("iq4_nl", "q8", "s16"),
        _coded("mxfp4", "q8", "s16"),
        _coded("q2_k", "q8k", "s16", "nibbles"),
        _coded("q3_k", "q8k", "s16"),
        _coded("q5_k", "q8k", "s", "pairs"),
        _coded("iq4_xs", "q8k", "s"),
        _coded("iq3_xxs", "q8k", "s"),
        _coded("iq3_s", "q8k", "s"),
        _coded("iq2_xxs", "q8k", "s"),
        _coded("iq2_xs", "q8k", "s16"),
        _coded("iq2_s", "q8k", "s16"),
        _coded("iq1_s", "q8k", "s"),
        _coded("iq1_m", "q8k", "s16"),
        _coded("tq1_0", "q8k", "s"),
        _coded("tq2_0", "q8k", "s"),
    )
}
BY_TYPE = {f.ggml_type: f for f in FORMATS.values()}
NAMES = tuple(FORMATS)
GROUP = 8  # output rows per group


def groups(rows: int) -> int:
    """Groups of eight that hold `rows` rows."""
    return -(-rows // GROUP)


def packed_bytes(fmt: str, rows: int, cols: int) -> int:
    """Bytes of a packed matrix."""
    f = FORMATS[fmt]
    return groups(rows) * (cols // f.cols) * f.packed


def activation_bytes(kind: str, rows: int, cols: int) -> dict[str, int]:
    """Bytes of the arrays that `quantise.<kind>` fills for `rows` rows of `cols` columns: q, d, s and s16.

    q8: int8 q; float32 d and s = d · sum; s16 = int32 -128 · sum of each 32.
    q8k: int8 q; float32 d of each 256; int16 s, sums of each 32; int16 s16, sums of each 16.
    """
    n = rows * cols
    return {
        "q8": {"q": n, "d": n // 8, "s": n // 8, "s16": n // 8},
        "q8k": {"q": n, "d": n // 64, "s": n // 16, "s16": n // 8},
    }[kind]
