"""Tensors that are computed when they are written, some rows at a time: a model may be larger than memory.

`Numbers` is a shape and a function that gives rows.  What a converter does to a tensor (take rows in another order, add
1, join many matrices to one) is a function from `Numbers` to `Numbers`; nothing is read until the file is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from ..errors import ConvertError
from .safetensors import SafeTensor


@dataclass(frozen=True, slots=True)
class Numbers:
    """A tensor.

    name : of what it is made from, for messages.  shape : NumPy order.
    gather : gather(row numbers) -> float32 [rows, last axis], where rows are counted over all axes but the last.
    """

    name: str
    shape: tuple[int, ...]
    gather: Callable[[np.ndarray], np.ndarray]

    @property
    def n_rows(self) -> int:
        """Rows, over all axes but the last."""
        return prod(self.shape[:-1])

    def rows(self, start: int, stop: int) -> np.ndarray:
        """float32 [stop - start, last axis]"""
        return self.gather(np.arange(start, stop))


def numbers(tensor: SafeTensor) -> Numbers:
    """What a file holds.

    Raises
    ------
    SafetensorsError : its numbers are not weights.
    """
    matrix, is_bfloat = tensor.matrix(), tensor.dtype == "BF16"

    def gather(rows: np.ndarray) -> np.ndarray:
        taken = matrix[rows]
        # bfloat16 is the first half of a float32
        return (taken.astype(np.uint32) << np.uint32(16)).view(np.float32) if is_bfloat else taken.astype(np.float32)

    return Numbers(tensor.name, tensor.shape, gather)


def constant(name: str, values: np.ndarray) -> Numbers:
    """Numbers that are known."""
    rows = values.reshape(-1, values.shape[-1])
    return Numbers(name, values.shape, lambda index: rows[index])


def reshaped(x: Numbers, *shape: int) -> Numbers:
    """The same numbers with other axes; the last one stays as long as it is."""
    if prod(shape) != prod(x.shape) or shape[-1] != x.shape[-1]:
        raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; expected {list(shape)}")
    return replace(x, shape=shape)


def flat(x: Numbers) -> Numbers:
    """A matrix of one column as a vector."""
    if x.shape[-1] != 1:
        raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; expected a last axis of 1")
    n = x.n_rows
    return Numbers(x.name, (n,), lambda rows: x.gather(np.arange(n)).reshape(1, n)[rows])


def column(x: Numbers) -> Numbers:
    """A vector as a matrix of one column, so that its numbers are rows."""
    if len(x.shape) != 1:
        raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; expected one axis")
    return Numbers(x.name, (x.shape[0], 1), lambda rows: x.gather(np.zeros(1, np.int64))[0, rows][:, None])


def take_rows(x: Numbers, index: np.ndarray, of: int, *lead: int) -> Numbers:
    """Rows of x in the order of `index`; x must have `of` rows.  lead : the first axes of the result, if it has several."""
    if x.n_rows != of:
        raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; config.json makes it {of} rows")
    shape = (*(lead or (len(index),)), x.shape[-1])
    return Numbers(x.name, shape, lambda rows: x.gather(index[rows]))


def take_columns(x: Numbers, index: np.ndarray) -> Numbers:
    """Columns of x in the order of `index`, which names each once."""
    if x.shape[-1] != len(index):
        raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; config.json makes it {len(index)} columns")
    return replace(x, gather=lambda rows: x.gather(rows)[:, index])


def applied(x: Numbers, function: Callable[[np.ndarray], np.ndarray]) -> Numbers:
    """A function of each number."""
    return replace(x, gather=lambda rows: function(x.gather(rows)))


def stacked(parts: Sequence[Numbers]) -> Numbers:
    """Tensors of one shape as one tensor with one more axis in front."""
    first = parts[0]
    for part in parts:
        if part.shape != first.shape:
            raise ConvertError(
                f"tensor {part.name} has the shape {list(part.shape)}, {first.name} has {list(first.shape)}; expected the same"
            )
    n = first.n_rows

    def gather(rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), first.shape[-1]), np.float32)
        which = rows // n
        for i in np.unique(which):
            mine = which == i
            out[mine] = parts[i].gather(rows[mine] % n)
        return out

    return Numbers(first.name, (len(parts), *first.shape), gather)


def transposed(x: Numbers) -> Numbers:
    """[heads, a, b] -> [heads, b, a]"""
    if len(x.shape) != 3:
        raise ConvertError(f"tensor {x.name} has the shape {list(x.shape)}; expected three axes")
    heads, a, b = x.shape

    def gather(rows: np.ndarray) -> np.ndarray:
        out = np.empty((len(rows), a), np.float32)
        which = rows // b
        for head in np.unique(which):
            mine = which == head
            out[mine] = x.gather(np.arange(head * a, (head + 1) * a)).T[rows[mine] % b]
        return out

    return Numbers(x.name, (heads, b, a), gather)
