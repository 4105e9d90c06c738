"""The KV cache: keys and values of every position that a stream has seen.

One buffer holds all layers.  A *plane* is the run of rows of one head of one layer: K of (layer, head) is a plane of
`stride` rows of `k_dim` numbers, V one of `v_dim`.  `stride` is the capacity rounded up to a multiple of 64, so that
every plane starts on a cache line and a kernel may read whole chunks of 64 positions.

The cache can *rewind*: a position occupies whole rows, and every reader looks only at rows below `len`, so dropping
positions is one integer store.  That single fact carries speculation, reuse across requests and turn trimming.
(Fucina reference, section 13.4.)
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np

from ..errors import KvCacheOverflow, KvCacheShapeMismatch

_DTYPES = {"f16": np.float16, "f32": np.float32}
_ROWS = 64  # planes are multiples of this many rows


@dataclass(frozen=True, slots=True)
class LayerGeometry:
    """Shape of one layer's rows: `kv_heads` heads, keys of `k_dim` and values of `v_dim` numbers each."""

    kv_heads: int
    k_dim: int
    v_dim: int

    @property
    def width(self) -> int:
        """Numbers a position of this layer takes, keys and values together."""
        return self.kv_heads * (self.k_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class CacheSnapshot:
    """A copy of the first `len` positions of a cache, made by `KvCache.snapshot`."""

    geometry: tuple[LayerGeometry, ...]
    dtype: str
    fingerprint: bytes
    len: int
    rows: tuple[tuple[np.ndarray, np.ndarray], ...]


class KvCache:
    """Keys and values of one stream.

    Parameters
    ----------
    geometry : the shape of every layer's rows.
    capacity : positions that fit, at least 1.
    dtype : "f16" (the default) or "f32".
    fingerprint : names the model that the rows belong to; a pass of another model refuses the cache.

    Attributes
    ----------
    len : positions held.  Rows at or past `len` are scratch: they may hold anything and are never read.
    """

    can_truncate = True

    def __init__(
        self, geometry: tuple[LayerGeometry, ...], capacity: int, dtype: str = "f16", fingerprint: bytes = b""
    ) -> None:
        if not geometry:
            raise KvCacheShapeMismatch("a cache needs the geometry of at least one layer, got none")
        if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)) or capacity < 1:
            raise KvCacheOverflow(f"capacity must be an integer of at least 1 position, got {capacity!r}")
        if dtype not in _DTYPES:
            raise KvCacheShapeMismatch(f"cache dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
        self.geometry = tuple(geometry)
        self.capacity = int(capacity)
        self.dtype = dtype
        self.fingerprint = fingerprint
        self.len = 0
        self.stride = -(-self.capacity // _ROWS) * _ROWS
        item = np.dtype(_DTYPES[dtype]).itemsize
        elements = sum(g.width for g in self.geometry) * self.stride
        # An anonymous mapping, not np.empty: NumPy asks for huge pages, and then a few rows in each plane would make the
        # whole cache resident.  Here pages that no row has touched cost nothing.
        try:
            self._buffer = np.frombuffer(mmap.mmap(-1, elements * item), np.uint8)
        except (OSError, OverflowError, MemoryError):
            raise KvCacheOverflow(
                f"a cache of {self.capacity} positions takes {elements * item} bytes, which this machine does not give; "
                "expected a smaller capacity, or context"
            ) from None
        flat = self._buffer.view(_DTYPES[dtype])
        self._planes: list[tuple[np.ndarray, np.ndarray]] = []
        at = 0
        for g in self.geometry:
            k_end = at + g.kv_heads * g.k_dim * self.stride
            v_end = k_end + g.kv_heads * g.v_dim * self.stride
            self._planes.append(
                (
                    flat[at:k_end].reshape(g.kv_heads, self.stride, g.k_dim),
                    flat[k_end:v_end].reshape(g.kv_heads, self.stride, g.v_dim),
                )
            )
            at = v_end

    def __repr__(self) -> str:
        return f"KvCache({self.len} of {self.capacity} positions, {len(self.geometry)} layers, {self.dtype})"

    @property
    def address(self) -> int:
        """Address of the first element, for kernels."""
        return self._buffer.ctypes.data

    def byte_size(self) -> int:
        """Bytes of all planes."""
        return self._buffer.nbytes

    def planes(self, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Views of a layer's keys [kv_heads, stride, k_dim] and values [kv_heads, stride, v_dim]."""
        return self._planes[layer]

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, layer: int, position: int, k: np.ndarray, v: np.ndarray) -> None:
        """Store the row of one position: `k` [kv_heads, k_dim], `v` [kv_heads, v_dim].  `len` does not move."""
        keys, values = self._planes[layer]
        keys[:, position] = k
        values[:, position] = v

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Write m rows of a layer behind the last position, without moving `len`.

        Every layer of a step writes at the same place; `advance(m)` then moves `len` once.

        Parameters
        ----------
        k, v : float arrays [m, kv_heads, k_dim] and [m, kv_heads, v_dim].

        Raises
        ------
        KvCacheShapeMismatch : no such layer, or rows of another shape.
        KvCacheOverflow : the rows do not fit.
        """
        if not 0 <= layer < len(self.geometry):
            raise KvCacheShapeMismatch(f"layer {layer} of a cache with {len(self.geometry)} layers")
        g = self.geometry[layer]
        k, v = np.asarray(k), np.asarray(v)
        m = k.shape[0] if k.ndim else 0
        expected = (m, g.kv_heads, g.k_dim), (m, g.kv_heads, g.v_dim)
        if k.shape != expected[0] or v.shape != expected[1]:
            raise KvCacheShapeMismatch(
                f"layer {layer} expects k [m, {g.kv_heads}, {g.k_dim}] and v [m, {g.kv_heads}, {g.v_dim}], "
                f"got {list(k.shape)} and {list(v.shape)}"
            )
        self._check_room(m)
        keys, values = self._planes[layer]
        keys[:, self.len : self.len + m] = k.transpose(1, 0, 2)
        values[:, self.len : self.len + m] = v.transpose(1, 0, 2)

    def advance(self, m: int) -> None:
        """Declare the m rows behind `len` written.  KvCacheOverflow if they would pass the capacity."""
        if m < 0:
            raise KvCacheOverflow(f"advance takes a count of at least 0, got {m}; truncate() rewinds")
        self._check_room(m)
        self.len += m

    def _check_room(self, m: int) -> None:
        if self.len + m > self.capacity:
            raise KvCacheOverflow(f"{m} rows at position {self.len} pass the capacity of {self.capacity}")

    # --- rewinding and copying ------------------------------------------------------------------------------------

    def truncate(self, keep: int) -> None:
        """Keep the first `keep` positions; a value at or above `len` changes nothing.  One integer store."""
        if keep < 0:
            raise KvCacheOverflow(f"truncate keeps at least 0 positions, got {keep}")
        self.len = min(self.len, int(keep))

    def reset(self) -> None:
        """Forget every position."""
        self.len = 0

    def copy_rows(self, source: KvCache, start: int, end: int) -> None:
        """Copy positions [start, end) of another cache to the same positions of this one, and set `len` to `end`.

        Keys carry their position (RoPE), so rows cannot move.  `end <= start` changes nothing.

        Raises
        ------
        KvCacheShapeMismatch : other geometry, dtype or model; `len` is not `start`; the source holds no such rows.
        KvCacheOverflow : `end` passes the capacity.
        """
        if source.geometry != self.geometry or source.dtype != self.dtype:
            raise KvCacheShapeMismatch("copy_rows needs two caches of the same geometry and dtype")
        if source.fingerprint != self.fingerprint:
            raise KvCacheShapeMismatch("copy_rows needs two caches of the same model")
        if end <= start:
            return
        if start < 0 or self.len != start:
            raise KvCacheShapeMismatch(
                f"rows from {start} can only be copied behind {start} rows, this cache holds {self.len}"
            )
        if end > source.len:
            raise KvCacheShapeMismatch(f"rows up to {end} were asked for, the source holds {source.len}")
        if end > self.capacity:
            raise KvCacheOverflow(f"{end} rows pass the capacity of {self.capacity}")
        for mine, theirs in zip(self._planes, source._planes, strict=True):
            for to, of in zip(mine, theirs, strict=True):
                to[:, start:end] = of[:, start:end]
        self.len = end

    def snapshot(self) -> CacheSnapshot:
        """A copy of the positions held, independent of what happens to this cache later."""
        rows = tuple((k[:, : self.len].copy(), v[:, : self.len].copy()) for k, v in self._planes)
        return CacheSnapshot(self.geometry, self.dtype, self.fingerprint, self.len, rows)

    def restore(self, snapshot: CacheSnapshot) -> None:
        """Become what the snapshot holds.

        Raises
        ------
        KvCacheShapeMismatch : it was taken from a cache of another geometry, dtype or model.
        KvCacheOverflow : it holds more positions than fit here.
        """
        if snapshot.geometry != self.geometry or snapshot.dtype != self.dtype:
            raise KvCacheShapeMismatch("the snapshot was taken from a cache of another geometry or dtype")
        if snapshot.fingerprint != self.fingerprint:
            raise KvCacheShapeMismatch("the snapshot was taken from a cache of another model")
        if snapshot.len > self.capacity:
            raise KvCacheOverflow(f"the snapshot holds {snapshot.len} positions, the capacity is {self.capacity}")
        for (k, v), (sk, sv) in zip(self._planes, snapshot.rows, strict=True):
            k[:, : snapshot.len] = sk
            v[:, : snapshot.len] = sv
        self.len = snapshot.len
