"""Weights as the families see them: a name, a shape and blocks in the file, decoded only on demand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from ..errors import ModelError
from .quants import dequantize
from .reader import GgufFile, TensorInfo
from .types import SUPPORTED, GgmlType


class Matrix(Protocol):
    """What an interpreter needs of a weight, be it a vector, a matrix or a stack of matrices.

    name : unique within a model.
    shape : (n,), (rows, cols) or (stack, rows, cols); rows are outputs, cols inputs.
    """

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def ggml_type(self) -> GgmlType:
        """Block format of `raw`."""

    @property
    def raw(self) -> np.ndarray:
        """The blocks, uint8 [rows, bytes per row]; the rows of a stack follow each other, a vector is one row."""

    def float32(self) -> np.ndarray:
        """The numbers, a new float32 array of `shape`."""

    def release_pages(self, start: int = 0, stop: int | None = None) -> None:
        """Give the pages of bytes start..stop of `raw` back to the system for now."""


class Weight:
    """One tensor of a GGUF file: a `Matrix` whose bytes stay in the file.

    Attributes
    ----------
    name, shape, ggml_type : see `Matrix`.
    """

    __slots__ = ("_info", "ggml_type", "name", "shape")

    def __init__(self, info: TensorInfo) -> None:
        self._info = info
        self.name, self.shape, self.ggml_type = info.name, info.shape, info.ggml_type

    def __repr__(self) -> str:
        return f"Weight({self.name} {list(self.shape)} {self.ggml_type.name})"

    @property
    def raw(self) -> np.ndarray:
        """The blocks as they are in the file: uint8 [rows, bytes per row], read-only."""
        return self._info.rows()

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self._info.nbytes

    def float32(self) -> np.ndarray:
        """The decoded numbers, a new float32 array of `shape`."""
        return dequantize(self.raw, self.ggml_type).reshape(self.shape)

    def decoded_by(self, decode: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """The numbers as another decoder sees them; ModelError names it when shape, dtype or values are impossible."""
        who = getattr(decode, "__name__", repr(decode))
        result = np.asarray(decode(self.raw))
        expected = (math.prod(self.shape[:-1]), self.shape[-1])
        if result.shape != expected:
            raise ModelError(f"{who}() returned shape {list(result.shape)} for {self.name}, expected {list(expected)}")
        if result.dtype.kind not in "fiu":
            raise ModelError(f"{who}() returned dtype {result.dtype} for {self.name}, expected float32")
        result = result.astype(np.float32)
        if not np.isfinite(result).all():
            raise ModelError(f"{who}() returned values that are not finite for {self.name}")
        return result.reshape(self.shape)

    def release_pages(self, start: int = 0, stop: int | None = None) -> None:
        """Give the file's pages of this byte range back to the operating system (they can be read again)."""
        self._info.release_pages(start, stop)


class WeightFinder:
    """Looks tensors up for a family, checks their shapes, and knows which ones were not used."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._found: dict[str, Weight] = {}
        self._skipped: list[str] = []

    def skip(self, prefix: str) -> None:
        """Tensors whose names begin so belong to a part of the file that is not run."""
        self._skipped.append(prefix)

    def has(self, name: str) -> bool:
        """Return whether the file holds this tensor."""
        return name in self._file.tensors

    def rows(self, name: str) -> int:
        """Rows of a matrix whose shape only the file knows.  ModelError if it is absent or no matrix."""
        shape = self._info(name, "a matrix").shape
        if len(shape) != 2:
            raise ModelError(f"tensor {name} has shape {list(shape)}, expected a matrix")
        return shape[0]

    def __call__(self, name: str, *shape: int) -> Weight:
        """The tensor of this name.  ModelError if it is absent or not of this shape."""
        info = self._info(name, str(list(shape)))
        if tuple(info.shape) != shape:
            raise ModelError(f"tensor {name} has shape {list(info.shape)}, expected {list(shape)}")
        if info.ggml_type not in SUPPORTED:
            raise ModelError(f"tensor {name} is of type {info.ggml_type.name}, expected a format of weights")
        if len(shape) == 1 and info.ggml_type not in (GgmlType.F32, GgmlType.F16, GgmlType.BF16):
            raise ModelError(f"tensor {name} is a vector of type {info.ggml_type.name}, expected F32, F16 or BF16")
        return self._found.setdefault(name, Weight(info))

    def _info(self, name: str, expected: str) -> TensorInfo:
        info = self._file.tensors.get(name)
        if info is None:
            raise ModelError(f"tensor {name} is missing from {self._file.path.name}; expected {expected}")
        return info

    def check_all_used(self) -> None:
        """ModelError if the file holds tensors that were not looked up: the forward would not be that model's."""
        left = [n for n in self._file.tensors if n not in self._found and not n.startswith(tuple(self._skipped))]
        if left:
            some = ", ".join(left[:4]) + (f" and {len(left) - 4} more" if len(left) > 4 else "")
            raise ModelError(
                f"{self._file.path.name} holds tensors that this family does not use ({some}): "
                "it is a variant that is not implemented"
            )
