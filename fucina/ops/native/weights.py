"""What a recorded forward points at: packed matrices, vectors, and the tables of rotary positions."""

from __future__ import annotations

from math import prod

import numpy as np

from ...errors import ModelError
from ...gguf.weights import Matrix
from ...kernels.formats import BY_TYPE
from ...kernels.memory import aligned
from ...kernels.packing import PackedWeight, pack
from ..rope import RopeSpec, rope_table
from .recording import Packed

_BLOCK = 1024  # positions by which a rope table grows


class RopeTable:
    """Cosines and sines of every position of a context: row p is cos[dims/2] then sin[dims/2].

    The memory is reserved for the whole context, and filled in blocks just before a pass that needs them: a page that no
    pass has needed costs nothing.
    """

    def __init__(self, spec: RopeSpec, context: int) -> None:
        self._spec, self._context, self.filled = spec, context, 0
        nbytes = context * spec.dims * 4
        self.table = aligned(max(nbytes, 4), zero=False)[:nbytes].view(np.float32).reshape(context, spec.dims)

    def fill(self, positions: int) -> None:
        """Make sure that positions [0, positions) are there."""
        while self.filled < positions:
            stop = min(self.filled + _BLOCK, self._context)
            cos, sin = rope_table(self._spec, self.filled, stop)
            half = self._spec.dims // 2
            self.table[self.filled : stop, :half] = cos
            self.table[self.filled : stop, half:] = sin
            self.filled = stop


def _copy(values: np.ndarray) -> np.ndarray:
    copy = aligned(values.nbytes).view(np.float32)
    copy[:] = values.reshape(-1)
    return copy


class WeightStore:
    """Weights in the layout of the kernels, each packed once however often it is used; and rope tables.

    Parameters
    ----------
    context : positions that a rope table covers.
    threads : threads that pack.
    """

    def __init__(self, context: int, threads: int) -> None:
        self.context, self._threads = context, threads
        self._matrices: dict[str, PackedWeight] = {}
        self._vectors: dict[str, np.ndarray] = {}
        self._rope: dict[RopeSpec, RopeTable] = {}
        self.rope_filled = 0

    def matrix(self, w: Matrix) -> Packed:
        """A packed matrix, or a stack of them, one after the other."""
        if w.name not in self._matrices:
            if int(w.ggml_type) not in BY_TYPE:
                known = ", ".join(f.name for f in BY_TYPE.values())
                raise ModelError(
                    f"{w.name} is {w.ggml_type.name}; the fast engine multiplies {known} (backend='naive' reads it too)"
                )
            *stack, rows, cols = w.shape
            self._matrices[w.name] = pack(
                w.raw, w.ggml_type, rows, cols, count=prod(stack), release=w.release_pages, threads=self._threads
            )
        packed = self._matrices[w.name]
        return Packed(packed.addr, packed.format, packed.step)

    def vector(self, w: Matrix) -> int:
        """Address of a float32 vector, or of a small matrix whose columns follow each other."""
        if w.name not in self._vectors:
            self._vectors[w.name] = _copy(w.float32().T)
        return self._vectors[w.name].ctypes.data

    def constant(self, x: float, n: int) -> int:
        """Address of n times the same float32 number."""
        name = f"{x!r} {n} times"
        if name not in self._vectors:
            self._vectors[name] = _copy(np.full(n, x, np.float32))
        return self._vectors[name].ctypes.data

    def rope(self, spec: RopeSpec) -> int:
        """Address of a table of cosines and sines."""
        if spec not in self._rope:
            self._rope[spec] = RopeTable(spec, self.context)
            self._rope[spec].fill(self.rope_filled)
        return self._rope[spec].table.ctypes.data

    def fill_rope(self, positions: int) -> None:
        """Make sure that every rope table holds positions [0, positions)."""
        for table in self._rope.values():
            table.fill(positions)
        self.rope_filled = min([t.filled for t in self._rope.values()], default=self.context)

    @property
    def nbytes(self) -> int:
        """Bytes of packed weights."""
        return sum(p.nbytes for p in self._matrices.values()) + sum(a.nbytes for a in self._vectors.values())
