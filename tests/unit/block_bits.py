"""Blocks of random bits with scales that are finite numbers."""

from __future__ import annotations

import numpy as np

from fucina.gguf import GgmlType, block_shape

SCALES: dict[str, tuple[int, ...]] = {
    "Q8_0": (0,), "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2),
    "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
    "IQ1_S": (0,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,), "IQ3_S": (0,),
    "IQ4_NL": (0,), "IQ4_XS": (0,), "TQ1_0": (52,), "TQ2_0": (64,), "Q1_0": (0,), "Q2_0": (0,),
    "IQ1_M": (), "MXFP4": (), "NVFP4": (),
}  # fmt: skip
"""Where each block format keeps its float16 numbers, in bytes from the start of a block."""


def random_blocks(rng: np.random.Generator, t: GgmlType, rows: int, blocks: int) -> np.ndarray:
    """uint8 [rows, row bytes]: every bit random, except that no scale is an infinity or a NaN."""
    _, size = block_shape(t)
    raw = rng.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    for at in SCALES[t.name]:
        raw[..., at + 1] &= 0xBF  # one bit of the exponent
    if t == GgmlType.IQ1_M:
        raw[..., 55] &= 0xBF  # the same bit of its scale, which is scattered
    if t == GgmlType.MXFP4:
        raw[..., 0] &= 0x7F
    return raw.reshape(rows, -1)
