"""The memory of a state: buffers that cost nothing until they are touched, and rows in them."""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterator
from functools import partial
from math import prod

import numpy as np

from ..errors import KvCacheOverflow
from .dtypes import DTYPES, CacheDtype, cache_dtype
from .parts import CHUNK, Kv, Latent, Layout, Recurrent


def allocate(nbytes: int, what: str) -> np.ndarray:
    """A buffer of zeros, uint8 [nbytes], that starts on a page.

    Raises
    ------
    KvCacheOverflow : the system has not that much; the message begins with `what`.
    """
    # An anonymous mapping, not np.empty: NumPy asks for huge pages, and then a few rows in each plane would make the
    # whole buffer resident.  Here pages that no row has touched cost nothing.
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    except (OSError, OverflowError, MemoryError):
        raise KvCacheOverflow(
            f"{what} takes {nbytes} bytes, which this machine does not give; expected a smaller capacity, or context"
        ) from None


def bytes_held(layout: Layout, dtype: str, capacity: int, rows: int) -> int:
    """What a state of `capacity` positions takes of the machine's memory while it holds `rows` of them, in bytes.

    Rows count in blocks of 64, since memory is given in pages; pages that no row has touched take nothing.
    """
    rows = -(-rows // CHUNK) * CHUNK
    planes = sum(area.width * min(n, rows) for area, n in zip(layout.areas, layout.strides(capacity), strict=False))
    banks = 3 * layout.areas[-1].width * 4 if layout.recurrent else 0
    return DTYPES[dtype].nbytes(planes) + banks


def runs(first: int, last: int, *strides: int) -> Iterator[tuple[int, int]]:
    """Positions [first, last), cut wherever a plane of one of these strides begins again at its first row."""
    while first < last:
        stop = min(last, *(first - first % stride + stride for stride in strides))
        yield first, stop
        first = stop


class Planes:
    """Rows of one slot.

    Attributes
    ----------
    k, v : views [heads, stride, k_dim] and [heads, stride, v_dim], in q8_0 bytes in place of numbers; of a latent, `v`
        lies inside `k`.
    stored : the arrays that hold bytes of their own: (k, v), of a latent (k,).
    area : index of the area that they are part of.
    """

    def __init__(self, area: int, stored: tuple[np.ndarray, ...], v: np.ndarray) -> None:
        self.area, self.stored, self.k, self.v = area, stored, stored[0], v
        self.stride: int = self.k.shape[1]

    def rows(self, first: int, last: int) -> slice | np.ndarray:
        """Index of the rows of positions [first, last): a slice unless they wrap around the end of a ring."""
        at = first % self.stride
        return (
            slice(at, at + last - first) if at + last - first <= self.stride else np.arange(first, last) % self.stride
        )

    def get(self, first: int, last: int) -> tuple[np.ndarray, ...]:
        """Copies of the stored rows of positions [first, last): each [heads, last - first, dim]."""
        rows = self.rows(first, last)
        return tuple(plane[:, rows].copy() for plane in self.stored)

    def put(self, first: int, rows: tuple[np.ndarray, ...]) -> None:
        """Store what `get` gave, from position `first` on."""
        for plane, new in zip(self.stored, rows, strict=True):
            for start, stop in runs(first, first + new.shape[1], self.stride):
                at = start % self.stride
                plane[:, at : at + stop - start] = new[:, start - first : stop - first]

    def copy(self, source: Planes, first: int, last: int) -> None:
        """Store another slot's rows of positions [first, last) at the same positions."""
        for mine, theirs in zip(self.stored, source.stored, strict=True):
            for start, stop in runs(first, last, self.stride, source.stride):
                to, of, n = start % self.stride, start % source.stride, stop - start
                mine[:, to : to + n] = theirs[:, of : of + n]


def allocate_planes(layout: Layout, capacity: int, dtype: str) -> tuple[list[np.ndarray], dict[int, Planes]]:
    """The buffer of each area of planes, and the planes of each slot that has some.

    Raises
    ------
    KvCacheShapeMismatch : a `dtype` that is none, or that cannot keep rows of these widths.
    KvCacheOverflow : the machine does not have the memory.
    """
    form, strides = cache_dtype(dtype), layout.strides(capacity)
    form.check(layout.parts)
    buffers = [
        allocate(form.nbytes(area.width * stride), f"a cache of {capacity} positions")
        for area, stride in zip(layout.areas, strides, strict=False)  # the recurrent area has no stride
    ]
    planes = {}
    for i, slot in enumerate(layout.slots):
        part = slot.part
        if isinstance(part, Recurrent):
            continue
        items, stride = buffers[slot.area].view(form.item), strides[slot.area]
        plane = partial(_planes, form, items)
        heads = part.kv_heads if isinstance(part, Kv) else 1
        k = plane(slot.k_offset, heads, stride, part.k_dim)
        if isinstance(part, Latent):
            first, last = form.items(part.v_at), form.items(part.v_at + part.v_dim)
            planes[i] = Planes(slot.area, (k,), k[..., first:last])
        else:
            v = plane(slot.v_offset, heads, stride, part.v_dim)
            planes[i] = Planes(slot.area, (k, v), v)
    return buffers, planes


def _planes(form: CacheDtype, items: np.ndarray, offset: int, heads: int, stride: int, dim: int) -> np.ndarray:
    first, last = form.items(stride * offset), form.items(stride * (offset + heads * dim))
    return items[first:last].reshape(heads, stride, form.items(dim))


class Banks:
    """The arrays of all recurrent parts, several times: each bank holds them as they were after some position.

    There are three from the start: one to read, one to write, and the one that was read before.  Checkpoints add more.
    """

    def __init__(self, layout: Layout) -> None:
        self._numbers = layout.areas[-1].width
        self._slots = {
            i: (slot.k_offset, slot.part.shape)
            for i, slot in enumerate(layout.slots)
            if isinstance(slot.part, Recurrent)
        }
        self._banks: list[np.ndarray] = []
        for _ in range(3):
            self._add()

    def _add(self) -> None:
        self._banks.append(allocate(self._numbers * 4, "a bank of the recurrent parts").view(np.float32))

    def spare(self, used: Collection[int]) -> int:
        """Index of a bank that is not among `used`; allocates one if there is none."""
        for i in range(len(self._banks)):
            if i not in used:
                return i
        self._add()
        return len(self._banks) - 1

    def __len__(self) -> int:
        return len(self._banks)

    def __getitem__(self, bank: int) -> np.ndarray:
        """All numbers of a bank, flat float32."""
        return self._banks[bank]

    def address(self, bank: int) -> int:
        """Address of a bank's first number."""
        return self._banks[bank].ctypes.data

    def view(self, bank: int, slot: int) -> np.ndarray:
        """A slot's array in a bank, float32 of the part's shape."""
        start, shape = self._slots[slot]
        return self._banks[bank][start : start + prod(shape)].reshape(shape)

    def byte_size(self) -> int:
        """Bytes of all banks."""
        return sum(bank.nbytes for bank in self._banks)
