"""Kernels called from Python on arrays, one thread, everything checked: for tests, for reading along, for measuring.

The interpreter does not come through here: it fills records itself and calls kernels by address.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Sequence

import numpy as np

from fucina.errors import KernelArgumentError
from fucina.kernels import record as R
from fucina.kernels.attention import part_bytes, scratch_bytes
from fucina.kernels.compile import address
from fucina.kernels.formats import FORMATS, activation_bytes
from fucina.kernels.pack import PackedWeight, aligned

PROTOTYPE = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 5)


@cache
def function(name: str, isa: str | None = None):
    """The kernel as a ctypes function; it releases the GIL."""
    return PROTOTYPE(address(name, isa))


def invoke(
    name: str,
    params: Sequence[int | float],
    *,
    units: tuple[int, int],
    rows: int = 1,
    unit: int = 1,
    per_row: int = 1,
    table: np.ndarray | None = None,
    out_rows: np.ndarray | None = None,
    job: dict[int, int] | None = None,
    isa: str | None = None,
) -> None:
    """One call of a kernel for units[0] … units[1]-1.  Ints are words, floats float32 words.  Checks nothing."""
    record = np.zeros(R.WORDS, np.int64)
    record[R.UNIT], record[R.UNITS] = unit, per_row
    for i, p in enumerate(params):
        if isinstance(p, float):
            record[R.P0 + i : R.P0 + i + 1].view(np.float32)[0] = p
        else:
            record[R.P0 + i] = p
    words = np.zeros(16, np.int64)
    words[R.M] = rows
    if table is not None:
        words[R.ROWTAB] = table.ctypes.data
    if out_rows is not None:
        words[R.NOUT], words[R.OUTROWS] = len(out_rows), out_rows.ctypes.data
    for word, value in (job or {}).items():
        words[word] = value
    function(name, isa)(record.ctypes.data, words.ctypes.data, *units, 0)


def _floats(name: str, x: np.ndarray, shape: tuple[int | None, ...]) -> np.ndarray:
    fits = isinstance(x, np.ndarray) and x.dtype == np.float32 and x.flags.c_contiguous and x.ndim == len(shape)
    if not fits or any(want is not None and want != have for want, have in zip(shape, x.shape)):
        got = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise KernelArgumentError(f"{name} must be a contiguous float32 array of shape {shape}, got {got}")
    return x


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise KernelArgumentError(message)


def _positions(positions: np.ndarray, m: int, limit: int) -> None:
    fits = positions.shape == (m,) and positions.min() >= 0 and positions.max() < limit
    _require(fits, f"positions must be {m} numbers in 0 ... {limit - 1}, got {positions.tolist()}")


def _at(x: np.ndarray) -> int:
    return x.ctypes.data


def quantise(
    x: np.ndarray, kind: str, isa: str | None = None, rule: str = "rows", parts: int = 1
) -> dict[str, np.ndarray]:
    """float32 [m, cols] to the arrays of `formats.activation_bytes`: q, d, s and s16, each [m, …]."""
    _floats("x", x, (None, None))
    m, cols = x.shape
    block = {"q8": 32, "q8k": 256}.get(kind)
    _require(block is not None, f"kind of activations must be q8 or q8k, got {kind!r}")
    _require(cols % block == 0, f"{kind} needs columns a multiple of {block}, got {cols}")
    raw = {n: aligned(size) for n, size in activation_bytes(kind, m, cols).items()}
    words = [_at(x), cols, *(_at(raw[n]) for n in ("q", "d", "s", "s16"))]
    if rule == "rows":
        invoke(f"quantise.{kind}.rows", words, units=(0, m * parts), rows=m, per_row=parts, isa=isa)
    else:
        invoke(f"quantise.{kind}.cols", words, units=(0, cols // block), rows=m, unit=block, isa=isa)
    sums = (np.float32, np.int32) if kind == "q8" else (np.int16, np.int16)
    types = dict(q=np.int8, d=np.float32, s=sums[0], s16=sums[1])
    return {n: a.view(types[n]).reshape(m, -1) for n, a in raw.items()}


def linear(
    x: np.ndarray, w: PackedWeight, isa: str | None = None, unit: int = 8, cut: Sequence[int] = ()
) -> np.ndarray:
    """x Wᵀ: float32 [m, cols] to [m, w.rows].  `cut`: units at which the work is cut into several calls."""
    _floats("x", x, (None, w.cols))
    _require(unit > 0 and unit % 8 == 0, f"a unit is a multiple of 8 columns, got {unit}")
    m, f = len(x), FORMATS[w.format]
    out = np.empty((m, w.rows), np.float32)
    if f.activations == "f32":
        data = [_at(x), 0, 0]
    else:
        a = quantise(x, f.activations, isa)
        data = [_at(a["q"]), _at(a["d"]), _at(a[f.sums])]
    last = -(-w.rows // unit)
    bounds, words = [0, *cut, last], [w.addr, w.cols, *data, _at(out), w.rows]
    for lo, hi in zip(bounds, bounds[1:]):
        invoke(f"linear.{w.format}", words, units=(lo, hi), rows=m, unit=unit, isa=isa)
    return out


def row_table(tokens=None, positions=None, caches=None, strides=None) -> np.ndarray:
    """int64 [m, 4]: token, position, address of the cache, rows a plane."""
    m = max(len(c) for c in (tokens, positions, caches, strides) if c is not None)
    table = np.zeros((m, R.ROW_WORDS), np.int64)
    for field, values in ((R.TOK, tokens), (R.POS, positions), (R.KV, caches), (R.STRIDE, strides)):
        if values is not None:
            table[:, field] = values
    return table


def embed(tokens: Sequence[int], w: PackedWeight, scale: float = 1.0, isa: str | None = None) -> np.ndarray:
    """float32 [len(tokens), w.cols]: rows of w, scaled."""
    tokens = np.asarray(tokens, np.int64)
    _require(tokens.size > 0 and tokens.min() >= 0 and tokens.max() < w.rows, f"tokens must be in 0 ... {w.rows - 1}")
    out = np.empty((len(tokens), w.cols), np.float32)
    table = row_table(tokens=tokens)
    words = [w.addr, w.cols, _at(out), float(scale)]
    invoke(f"embed.{w.format}", words, units=(0, len(tokens)), rows=len(tokens), table=table, isa=isa)
    return out


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float, heads: int = 1, isa: str | None = None) -> np.ndarray:
    """Each of the `heads` parts of each row by its root mean square, times w [cols / heads]."""
    _floats("x", x, (None, None))
    m, cols = x.shape
    _require(heads > 0 and cols % heads == 0, f"{cols} columns do not divide into {heads} heads")
    _floats("w", w, (cols // heads,))
    out = np.empty_like(x)
    invoke("rms_norm", [_at(x), _at(out), _at(w), cols // heads, heads, float(eps)], units=(0, m), rows=m, isa=isa)
    return out


def elementwise(name: str, x: np.ndarray, y: np.ndarray, isa: str | None = None, unit: int = 32) -> np.ndarray:
    """`add`, `swiglu` or `geglu` of two float32 arrays [m, cols]."""
    _require(name in ("add", "swiglu", "geglu"), f"no elementwise kernel is called {name!r}")
    _floats("x", x, (None, None))
    _floats("y", y, x.shape)
    out = np.empty_like(x)
    words = [_at(x), _at(y), _at(out), x.shape[1]]
    invoke(name, words, units=(0, -(-x.shape[1] // unit)), rows=len(x), unit=unit, isa=isa)
    return out


def rope(
    x: np.ndarray, heads: int, dims: int, table: np.ndarray, positions, pairing: str, isa: str | None = None
) -> np.ndarray:
    """Rotates the first `dims` numbers of each head; `table` is float32 [positions, dims]: cosines, then sines."""
    _floats("x", x, (None, None))
    _require(pairing in ("interleaved", "half"), f"pairing must be interleaved or half, got {pairing!r}")
    _require(heads > 0 and x.shape[1] % heads == 0, f"{x.shape[1]} columns do not divide into {heads} heads")
    head_dim, positions = x.shape[1] // heads, np.asarray(positions, np.int64)
    _require(dims % 2 == 0 and 0 < dims <= head_dim, f"dims must be even and at most {head_dim}, got {dims}")
    _floats("table", table, (None, dims))
    _positions(positions, len(x), len(table))
    out, rows = np.empty_like(x), row_table(positions=positions)
    words = [_at(x), _at(out), heads, head_dim, dims, _at(table)]
    invoke(f"rope.{pairing}", words, units=(0, len(x)), rows=len(x), table=rows, isa=isa)
    return out


def gather_rows(x: np.ndarray, rows, isa: str | None = None) -> np.ndarray:
    """x[rows]"""
    _floats("x", x, (None, None))
    rows = np.asarray(rows, np.int64)
    _require(rows.size > 0 and rows.min() >= 0 and rows.max() < len(x), f"rows must be in 0 ... {len(x) - 1}")
    out = np.empty((len(rows), x.shape[1]), np.float32)
    invoke("gather_rows", [_at(x), x.shape[1], _at(out)], units=(0, len(rows)), rows=len(x), out_rows=rows, isa=isa)
    return out


def _cache(cache: np.ndarray, kv_heads: int, k_dim: int, v_dim: int) -> tuple[str, int]:
    """Name of the dtype and rows a plane of a one-layer cache: [kv_heads*k_dim + kv_heads*v_dim numbers] x stride."""
    name = {np.dtype(np.float16): "f16", np.dtype(np.float32): "f32"}.get(cache.dtype)
    width = kv_heads * (k_dim + v_dim)
    fits = name is not None and cache.ndim == 1 and cache.flags.c_contiguous
    _require(fits, f"a cache is a flat float16 or float32 array, got {cache.dtype} {cache.shape}")
    _require(k_dim % 8 == 0 and v_dim % 8 == 0, f"widths of heads are multiples of 8, got {k_dim} and {v_dim}")
    _require(cache.size % width == 0, f"cache of {cache.size} numbers is not a multiple of {width}")
    return name, cache.size // width


def kv_append(
    cache: np.ndarray, key: np.ndarray, value: np.ndarray, kv_heads: int, positions, isa: str | None = None
) -> None:
    """Writes rows of keys and values into a one-layer cache, all K planes before all V planes."""
    _floats("key", key, (None, None))
    _floats("value", value, (len(key), None))
    k_dim, v_dim = key.shape[1] // kv_heads, value.shape[1] // kv_heads
    name, stride = _cache(cache, kv_heads, k_dim, v_dim)
    positions = np.asarray(positions, np.int64)
    _positions(positions, len(key), stride)
    table = row_table(positions=positions, caches=[_at(cache)] * len(key), strides=[stride] * len(key))
    words = [_at(key), _at(value), kv_heads, k_dim, v_dim, 0, kv_heads * k_dim]
    invoke(f"kv_append.{name}", words, units=(0, len(key)), rows=len(key), table=table, isa=isa)


def attention(
    cache: np.ndarray,
    q: np.ndarray,
    heads: int,
    kv_heads: int,
    v_dim: int,
    positions,
    scale: float,
    window: int = 0,
    split: bool = False,
    isa: str | None = None,
) -> np.ndarray:
    """Attention of rows q [m, heads*k_dim] at `positions` over a one-layer cache; float32 [m, heads*v_dim]."""
    _floats("q", q, (None, None))
    _require(kv_heads > 0 and heads % kv_heads == 0 and q.shape[1] % heads == 0, "heads do not divide")
    m, group, k_dim = len(q), heads // kv_heads, q.shape[1] // heads
    name, stride = _cache(cache, kv_heads, k_dim, v_dim)
    positions = np.asarray(positions, np.int64)
    _positions(positions, m, stride)
    out = np.empty((m, heads * v_dim), np.float32)
    table = row_table(positions=positions, caches=[_at(cache)] * m, strides=[stride] * m)
    parts = int(positions.max()) // R.CHUNK + 1
    scratch = aligned(scratch_bytes(group, k_dim, v_dim))
    shared = aligned(m * kv_heads * parts * part_bytes(group, v_dim))
    job = {R.SCRATCH: _at(scratch), R.SCRATCH_STEP: scratch.size, R.PART: _at(shared)}
    job |= {R.SPLIT: int(split), R.NPART: parts}
    words = [_at(q), _at(out), kv_heads, 0, kv_heads * k_dim, window, float(scale)]
    first = np.maximum(positions - window + 1, 0) // R.CHUNK if window else 0 * positions
    units = int(np.sum(positions // R.CHUNK + 1 - first)) * kv_heads if split else m * kv_heads
    shape = f"{name}.{group}.{k_dim}.{v_dim}"
    invoke(f"attention.{shape}", words, units=(0, units), rows=m, table=table, job=job, isa=isa)
    invoke(f"combine.{shape}", words, units=(0, m * kv_heads), rows=m, table=table, job=job, isa=isa)
    return out
