"""The kernels once more in NumPy: slow, readable, with the same bits.

Each function follows its kernel's quantisation, block order and rounding, so results are equal and not merely close.
float32 operations of NumPy are IEEE; the one thing it lacks, a fused multiply-add, is `fma` below.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..cache.parts import CHUNK
from ..gguf import GgmlType, dequantize
from ..gguf.quants import CODED
from .formats import FORMATS
from .lang import ATANH, EXP, LOWEST
from .reference_weights import ZERO, half, integers

F = np.float32


def fma(x, y, z) -> np.ndarray:
    """x · y + z of float32 arrays, rounded once.

    The product is exact in float64.  The sum may not be: it is then rounded to odd (the neighbour whose last bit is
    set), which keeps the final rounding to float32 from rounding twice.
    """
    p, z = np.multiply(x, y, dtype=np.float64), np.asarray(z, np.float64)
    s = p + z
    t = s - p
    with np.errstate(invalid="ignore", over="ignore"):
        error = (p - (s - t)) + (z - t)
        even = np.ascontiguousarray(s).view(np.int64).reshape(s.shape) & 1 == 0
        odd = np.nextafter(s, np.copysign(np.inf, error))
        return np.where(even & (error != 0) & np.isfinite(s), odd, s).astype(F)


def fold(v: np.ndarray, op=np.add) -> np.ndarray:
    """The last axis, of 8 lanes, in the order of the kernel language's `fold`."""
    v = op(v[..., :4], v[..., 4:])
    v = op(v[..., :2], v[..., 2:])
    return op(v[..., 0], v[..., 1])


def round_even(x: np.ndarray) -> np.ndarray:
    return (x + F(12582912)) - F(12582912)


def exp(x) -> np.ndarray:
    """e^x, clamped to [-87, 88]."""
    x = np.minimum(np.maximum(np.asarray(x, F), F(-87)), F(88))
    n = round_even(x * F(1.4426950408889634))
    r = fma(n, F(-0.693145751953125), x)
    r = fma(n, F(-1.428606765330187e-06), r)
    p = np.full_like(x, EXP[0])
    for c in EXP[1:]:
        p = fma(p, r, F(c))
    p = fma(p, r * r, r + F(1))
    return p * ((n.astype(np.int32) + 127) << 23).view(F)


# --- activations and weights ----------------------------------------------------------------------------------


def quantise(x: np.ndarray, kind: str) -> dict[str, np.ndarray]:
    """float32 [m, cols] to the arrays of `formats.activation_bytes`: q, d, s and s16, each [m, …]."""
    block = 32 if kind == "q8" else 256
    b = x.reshape(len(x), -1, block)  # [m, nb, block]
    most = np.abs(b).max(-1)  # [m, nb]
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(most < F(2.0**-120), F(0), F(127) / most)
    d = most / F(127)
    q = round_even(b * inverse[..., None]).astype(np.int32)
    if kind == "q8":
        total = q.sum(-1, dtype=np.int32)
        s, s16 = d * total.astype(F), -128 * total
    else:
        s, s16 = (q.reshape(len(x), -1, n).sum(-1).astype(np.int16) for n in (32, 16))
    return {"q": q.astype(np.int8).reshape(x.shape), "d": d, "s": s, "s16": s16}


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A matrix taken apart once, to be multiplied often.

    fmt : its format.  integers : int8 [nb, n, block], the weights of each block without scale, zero point taken off
    (float formats: the numbers themselves, float32 [n, cols]).  d, m : float32 [nb, n], scale and minimum of a block.
    scales, mins : int32 [nb, n, parts], factors inside a 256-block.
    """

    fmt: str
    integers: np.ndarray
    d: np.ndarray | None = None
    m: np.ndarray | None = None
    scales: np.ndarray | None = None
    mins: np.ndarray | None = None


def unpack(raw: np.ndarray, fmt: str) -> Unpacked:
    """A matrix as it lies in the file, uint8 [n, row bytes], taken apart."""
    f = FORMATS[fmt]
    if f.activations == "f32":
        return Unpacked(fmt, dequantize(raw, f.ggml_type))
    blocks = raw.reshape(len(raw), -1, f.raw)  # [n, nb, raw bytes]
    first = lambda v: np.ascontiguousarray(np.swapaxes(v, 0, 1))  # [nb, n, …]
    coded = CODED.get(GgmlType(f.ggml_type))
    if coded is None:
        w = first((integers(fmt, blocks) - ZERO[fmt]).astype(np.int8))
        return Unpacked(fmt, w, first(half(blocks, 0)), first(half(blocks, 2)) if fmt == "q4_1" else None)
    b = coded.read(blocks)
    w = first(np.array(coded.values, np.int8)[b.codes])
    scales, mins, m = (v if v is None else first(v) for v in (b.scales, b.floors, b.dmin))
    if f.activations == "q8":
        return Unpacked(fmt, w, first(b.d), None if m is None else -m)
    ones = np.ones((*b.d.shape[::-1], 1), np.int32)
    scales = ones if scales is None else scales.astype(np.int32)
    return Unpacked(fmt, w, first(b.d * F(coded.factor)), m, scales, None if mins is None else mins.astype(np.int32))


def product(x: np.ndarray, u: Unpacked) -> np.ndarray:
    """x Wᵀ of a matrix taken apart: float32 [m, cols] -> float32 [m, n]."""
    f = FORMATS[u.fmt]
    if f.activations == "f32":
        acc = np.zeros((4, len(x), len(u.integers)), F)
        for c in range(x.shape[1]):
            acc[c % 4] = fma(x[:, None, c], u.integers[None, :, c], acc[c % 4])
        return (acc[0] + acc[1]) + (acc[2] + acc[3])

    assert u.d is not None  # only float formats have none
    a = quantise(x, f.activations)
    nb, n, block = u.integers.shape
    q = a["q"].reshape(len(x), nb, block).astype(F)
    acc = np.zeros((len(x), n), F)
    for b in range(nb):
        dx = a["d"][:, None, b]
        w = u.integers[b].astype(F)
        if f.activations == "q8":
            acc = fma(u.d[b] * dx, q[:, b] @ w.T, acc)  # sums of integers below 2^24 are exact in float32
            if u.m is not None:
                acc = fma(u.m[b], a["s"][:, None, b], acc)
            continue
        assert u.scales is not None
        parts = u.scales.shape[-1]
        dots = np.einsum("mjc,njc->mnj", q[:, b].reshape(len(x), parts, -1), w.reshape(n, parts, -1))
        acc = fma(u.d[b] * dx, (dots.astype(np.int32) * u.scales[b]).sum(-1).astype(F), acc)
        if u.m is not None and u.mins is not None:
            less = a["s" if parts == 8 else "s16"].reshape(len(x), nb, parts)[:, b].astype(np.int32) @ u.mins[b].T
            acc = fma(u.m[b] * -dx, less.astype(F), acc)
    return acc


def linear(x: np.ndarray, raw: np.ndarray, fmt: str) -> np.ndarray:
    """x Wᵀ, W as rows of the file: float32 [m, cols], uint8 [n, row bytes] -> float32 [m, n]."""
    return product(x, unpack(raw, fmt))


def embed(tokens, raw: np.ndarray, fmt: str, scale: float = 1.0) -> np.ndarray:
    """scale · rows `tokens` of the matrix."""
    return dequantize(np.ascontiguousarray(raw[np.asarray(tokens)]), FORMATS[fmt].ggml_type) * F(scale)


# --- rows -----------------------------------------------------------------------------------------------------


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float, heads: int = 1) -> np.ndarray:
    n = x.shape[1] // heads
    v = x.reshape(len(x), heads, n)
    padded = np.zeros((*v.shape[:2], -(-n // 32) * 32), F)
    padded[..., :n] = v
    acc = np.zeros((*v.shape[:2], 4, 8), F)
    for part in np.moveaxis(padded.reshape(*v.shape[:2], -1, 4, 8), 2, 0):
        acc = fma(part, part, acc)
    total = fold((acc[..., 0, :] + acc[..., 1, :]) + (acc[..., 2, :] + acc[..., 3, :]))
    scale = F(1) / np.sqrt(total / F(n) + F(eps))
    return (v * scale[..., None] * w).reshape(x.shape)


def rope(x: np.ndarray, heads: int, dims: int, table: np.ndarray, positions, pairing: str) -> np.ndarray:
    v = x.reshape(len(x), heads, -1)
    out = v.copy()
    cos, sin = (table[np.asarray(positions)][:, None, h] for h in (slice(dims // 2), slice(dims // 2, dims)))
    first = slice(0, dims, 2) if pairing == "interleaved" else slice(0, dims // 2)
    second = slice(1, dims, 2) if pairing == "interleaved" else slice(dims // 2, dims)
    a, b = v[..., first], v[..., second]
    out[..., first] = fma(a, cos, b * -sin)
    out[..., second] = fma(b, cos, a * sin)
    return out.reshape(x.shape)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return F(1) / (exp(-x) + F(1))


def softplus(x: np.ndarray) -> np.ndarray:
    u = exp(-np.abs(x))
    s = u / (u + F(2))
    square, series = s * s, np.full_like(x, ATANH[0])
    for c in ATANH[1:]:
        series = fma(series, square, F(c))
    return fma(s + s, series, np.maximum(x, F(0)))


def softcap(x: np.ndarray, cap: float) -> np.ndarray:
    e = exp(x * (F(2) / F(cap)))
    return (e - F(1)) / (e + F(1)) * F(cap)


def swiglu(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x / (exp(-x) + F(1)) * y


def geglu(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    z = fma(x * x * F(0.044715), x, x) * F(1.5957691216057308)
    return x / (exp(-z) + F(1)) * y


# --- attention ------------------------------------------------------------------------------------------------


def attention(
    keys: np.ndarray, values: np.ndarray, q: np.ndarray, position: int, scale: float, window: int = 0
) -> np.ndarray:
    """One query head of one row: keys float32 [n, k_dim], values [n, v_dim] as read back from the cache -> [v_dim]."""
    lo = max(position - window + 1, 0) if window else 0
    state, most = np.zeros(values.shape[1], F), F(LOWEST)
    total: np.ndarray | np.float32 = F(0)
    for c in range(lo // CHUNK, position // CHUNK + 1):
        a, b = max(c * CHUNK, lo), min((c + 1) * CHUNK, position + 1)
        lanes = np.zeros((b - a, 8), F)
        for j in range(0, keys.shape[1], 8):
            lanes = fma(keys[a:b, j : j + 8], q[j : j + 8], lanes)
        pairs = lanes[:, 0::2] + lanes[:, 1::2]
        s = np.full(-(-(b - a) // 8) * 8, LOWEST, F)
        s[: b - a] = ((pairs[:, 0] + pairs[:, 1]) + (pairs[:, 2] + pairs[:, 3])) * F(scale)
        here = s.max()
        w = exp(s - here)
        sums = np.zeros(8, F)
        for part in w.reshape(-1, 8):
            sums = sums + part
        weighted = np.zeros_like(state)
        for t in range(b - a):
            weighted = fma(w[t], values[a + t], weighted)
        common = max(most, here)
        old, new = exp(most - common), exp(here - common)
        state = fma(state, old, weighted * new)
        total = fma(total, old, fold(sums) * new)
        most = common
    return state * (F(1) / total)


# --- recurrence ------------------------------------------------------------------------------------------------


def conv(window: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    """One row: its latest inputs [taps, n], kernel [n, taps] -> [n]."""
    total = np.zeros(window.shape[1], F)
    for x, w in zip(window, kernel.T, strict=True):
        total = fma(w, x, total)
    return total


def delta_rule(
    s: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """One row: matrices [heads, k_dim, v_dim], q, k [heads, k_dim], v [heads, v_dim], decay, beta [heads] -> the
    matrices after it, and its output [heads, v_dim]."""
    s = s * exp(decay)[:, None, None]
    seen, out = np.zeros_like(v), np.zeros_like(v)
    for i in range(k.shape[1]):
        seen = fma(k[:, i, None], s[:, i], seen)
    change = beta[:, None] * (v - seen)
    for i in range(k.shape[1]):
        s[:, i] = fma(k[:, i, None], change, s[:, i])
        out = fma(q[:, i, None], s[:, i], out)
    return s, out
