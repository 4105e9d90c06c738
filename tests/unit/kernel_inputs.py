"""Inputs for the tests of kernels: weights of every format, plain and extreme."""

from __future__ import annotations

import numpy as np

from fucina.gguf import WRITABLE, GgmlType, quantize
from fucina.kernels import isa
from fucina.kernels.formats import FORMATS
from fucina.kernels.packing import PackedWeight, pack
from tests.unit.block_bits import SCALES, random_blocks

ISAS = [n for n in isa.supported() if n != "avxvnni"] if len(isa.supported()) > 3 else list(isa.supported())
QUANTISED = [n for n, f in FORMATS.items() if f.activations != "f32"]
FLOATS = [n for n, f in FORMATS.items() if f.activations == "f32"]


def rows(rng: np.random.Generator, m: int, cols: int) -> np.ndarray:
    """float32 [m, cols], rows of very different sizes."""
    x = rng.standard_normal((m, cols)).astype(np.float32)
    return x * (10.0 ** rng.integers(-4, 4, (m, 1))).astype(np.float32)


def weights(rng: np.random.Generator, fmt: str, n: int, cols: int) -> np.ndarray:
    """Rows of a file: uint8 [n, row bytes]."""
    f = FORMATS[fmt]
    if GgmlType(f.ggml_type) not in WRITABLE:  # random codes, and scales as a model may have them
        raw = random_bits(rng, fmt, n, cols).reshape(n, -1, f.raw)
        for at in SCALES[fmt.upper()]:
            raw[..., at : at + 2] = np.float16(rng.uniform(0.01, 2, (*raw.shape[:2], 1))).view(np.uint8)
        if fmt == "mxfp4":
            raw[..., 0] = rng.integers(120, 124, raw.shape[:2])
        if fmt == "iq1_m":  # its scale lies in four places; these are its exponent
            raw[..., 55], raw[..., 53] = raw[..., 55] & 0x0F | 0x30, raw[..., 53] & 0x0F | 0xC0
        return raw.reshape(n, -1)
    return np.ascontiguousarray(quantize(rows(rng, n, cols), f.ggml_type))


def random_bits(rng: np.random.Generator, fmt: str, n: int, cols: int) -> np.ndarray:
    """Rows of a file in which every bit is random, float16 scales finite and some of them subnormal or zero."""
    f = FORMATS[fmt]
    raw = random_blocks(rng, GgmlType(f.ggml_type), n, cols // f.cols).reshape(n, -1, f.raw)
    for at in SCALES[fmt.upper()]:
        scale = (rng.standard_normal(raw.shape[:2]) * 10.0 ** rng.integers(-8, 1, raw.shape[:2])).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    if fmt == "mxfp4":  # exponents near one, and the two that give subnormal numbers
        raw[..., 0] = rng.choice([0, 1, 2, 100, 126, 127, 128, 140], raw.shape[:2])
    return raw.reshape(n, -1)


def extreme(fmt: str, n: int, cols: int) -> np.ndarray:
    """Rows of a file with every weight at its largest integer, which is where int16 sums would overflow first."""
    f = FORMATS[fmt]
    # coded formats: the codes of the value that is farthest from zero, and scales all ones or -128
    raw = np.full((n, cols // f.cols, f.raw), 0 if fmt.startswith(("iq4", "q3", "q2")) else 255, np.uint8)
    if fmt == "q8_0":
        raw[:] = 0x80  # -128: the quantiser never writes it, a file may hold it
    if fmt == "q6_k":
        raw[..., 192:208] = 0x80  # scales of -128
    if fmt == "q2_k":
        raw[:] = 255
    if fmt == "mxfp4":
        raw[:] = 0xFF  # -12
        raw[..., 0] = 128
    if fmt == "iq1_m":
        raw[..., 48:56] = 0xFF
        raw[..., 55] = 0x3F  # d = 1.9, scales of 15
    one = np.array([1.0], np.float16).view(np.uint8)
    for at in SCALES[fmt.upper()]:
        raw[..., at : at + 2] = one
    return raw.reshape(n, -1)


def packed(raw: np.ndarray, fmt: str) -> PackedWeight:
    f = FORMATS[fmt]
    return pack(raw, f.ggml_type, len(raw), raw.shape[1] // f.raw * f.cols)


def stacked(raw: np.ndarray, fmt: str, count: int) -> PackedWeight:
    """A weight of `count` matrices, from their rows one after the other."""
    f = FORMATS[fmt]
    return pack(raw, f.ggml_type, len(raw) // count, raw.shape[1] // f.raw * f.cols, count)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a.view(np.uint8), b.view(np.uint8))
