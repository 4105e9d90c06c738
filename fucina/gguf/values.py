"""Metadata values as they are held in memory: arrays of strings, and entries that carry their type."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

from .mapping import shown
from .types import ValueType


class StringArray(Sequence[bytes]):
    """An array of strings as the file holds it (length, bytes, length, bytes, …), cut into `bytes` on first use."""

    __slots__ = ("_count", "_items", "_raw")

    def __init__(self, raw: bytes, count: int) -> None:
        self._raw, self._count = raw, count
        self._items: list[bytes] | None = None

    def to_list(self) -> list[bytes]:
        """The strings (the same list each time: do not change it)."""
        raw = self._raw  # read before _items: another thread sets _items first and clears _raw after
        items = self._items
        if items is None:
            at, unpack, items = 0, struct.Struct("<Q").unpack_from, []
            for _ in range(self._count):
                stop = at + 8 + unpack(raw, at)[0]
                items.append(raw[at + 8 : stop])
                at = stop
            self._items = items
            self._raw = b""
        return items

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: SupportsIndex) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> bytes | list[bytes]:
        return self.to_list()[index]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (StringArray, list, tuple)):
            return self.to_list() == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._count} strings>"


@dataclass(frozen=True, slots=True)
class Entry:
    """One metadata value: its type, for arrays the element type, and the value.

    Scalars are Python numbers, bool or bytes; number arrays are read-only NumPy arrays; string arrays `StringArray`.
    """

    type: ValueType
    item: ValueType | None
    value: Any

    def describe(self) -> str:
        """Type and value for messages: `u32 32`, `string 'llama'`, `array of 3 i32`."""
        if self.item is not None:
            return f"array of {len(self.value)} {self.item.label}"
        if self.type == ValueType.STRING:
            return f"string {shown(self.value[:80], 60)}"
        return f"{self.type.label} {self.value}"
