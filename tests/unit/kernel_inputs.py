"""Inputs for the tests of kernels: weights of every format, plain and extreme."""

from __future__ import annotations

import numpy as np

from fucina.gguf import quantize
from fucina.kernels import isa
from fucina.kernels.formats import FORMATS
from fucina.kernels.packing import PackedWeight, pack

ISAS = [n for n in isa.supported() if n != "avxvnni"] if len(isa.supported()) > 3 else list(isa.supported())
QUANTISED = [n for n, f in FORMATS.items() if f.activations != "f32"]
FLOATS = [n for n, f in FORMATS.items() if f.activations == "f32"]


def rows(rng: np.random.Generator, m: int, cols: int) -> np.ndarray:
    """float32 [m, cols], rows of very different sizes."""
    x = rng.standard_normal((m, cols)).astype(np.float32)
    return x * (10.0 ** rng.integers(-4, 4, (m, 1))).astype(np.float32)


def weights(rng: np.random.Generator, fmt: str, n: int, cols: int) -> np.ndarray:
    """Rows of a file: uint8 [n, row bytes]."""
    return np.ascontiguousarray(quantize(rows(rng, n, cols), FORMATS[fmt].ggml_type))


def random_bits(rng: np.random.Generator, fmt: str, n: int, cols: int) -> np.ndarray:
    """Rows of a file in which every bit is random, float16 scales finite and some of them subnormal or zero."""
    f = FORMATS[fmt]
    raw = rng.integers(0, 256, (n, cols // f.cols, f.raw), dtype=np.uint8)
    halves = {"q4_1": (0, 2), "q4_k": (0, 2), "q6_k": (208,)}.get(fmt, (0,))
    for at in halves:
        scale = (rng.standard_normal(raw.shape[:2]) * 10.0 ** rng.integers(-8, 1, raw.shape[:2])).astype(np.float16)
        raw[..., at : at + 2] = scale[..., None].view(np.uint8)
    return raw.reshape(n, -1)


def extreme(fmt: str, n: int, cols: int) -> np.ndarray:
    """Rows of a file with every weight at its largest integer, which is where int16 sums would overflow first."""
    f = FORMATS[fmt]
    raw = np.full((n, cols // f.cols, f.raw), 255, np.uint8)
    if fmt == "q8_0":
        raw[:] = 0x80  # -128: the quantiser never writes it, a file may hold it
    if fmt == "q6_k":
        raw[..., 192:208] = 0x80  # scales of -128
    one = np.array([1.0], np.float16).view(np.uint8)
    for at in {"q4_1": (0, 2), "q4_k": (0, 2), "q6_k": (208,)}.get(fmt, (0,)):
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
