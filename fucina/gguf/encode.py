"""Metadata from plain Python values: choosing their types, checking that they fit, and the bytes that a file holds."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import checks
from ..errors import GgufError
from .limits import MAX_NAME
from .mapping import shown
from .types import VALUE_DTYPES, ValueType
from .values import Entry, StringArray

_DTYPE_VALUES = {dtype: kind for kind, dtype in VALUE_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value with an explicit type: `Typed(1, ValueType.U8)`.

    `Typed([], ValueType.ARRAY, ValueType.STRING)` is an empty array of strings.
    """

    value: Any
    type: ValueType
    item: ValueType | None = None


@dataclass(frozen=True, slots=True)
class EncodedMetadata:
    """Metadata as typed entries and as the bytes that a file holds."""

    entries: dict[str, Entry]
    data: bytes


def encode_metadata(values: Mapping[str, Any]) -> EncodedMetadata:
    """Type and encode metadata values.

    Types are chosen as converters of the field do: bool -> bool; int -> u32, or i32, i64, u64 where it does not fit;
    float -> f32; str and bytes -> string; a NumPy scalar or vector -> its own dtype; a list -> an array of one type,
    integers i32 where all fit.  `Typed` and `Entry` (as `Metadata.entry` gives it) hold their type.

    Raises
    ------
    GgufError
        A value has no such type, or does not fit its type (1e39 is no f32); a key is empty or longer than a file may
        have; a list is empty or mixed.
    """
    entries: dict[str, Entry] = {}
    out = bytearray()
    for key, value in values.items():
        if not isinstance(key, str) or not key:
            raise GgufError(f"metadata key {checks.shown(key)}: expected a string that is not empty")
        if len(utf8(key)) > MAX_NAME:
            raise GgufError(f"metadata key {shown(key)} has {len(utf8(key))} bytes; expected at most {MAX_NAME}")
        entry = _entry(key, value)
        entries[key] = entry
        out += length_and_bytes(utf8(key)) + struct.pack("<I", entry.type)
        if entry.type == ValueType.ARRAY:
            out += struct.pack("<IQ", entry.item, len(entry.value))
            out += (
                b"".join(map(length_and_bytes, entry.value))
                if entry.item == ValueType.STRING
                else entry.value.tobytes()
            )
        elif entry.type == ValueType.STRING:
            out += length_and_bytes(entry.value)
        else:
            out += np.array(entry.value, VALUE_DTYPES[entry.type]).tobytes()
    return EncodedMetadata(entries, bytes(out))


def length_and_bytes(raw: bytes) -> bytes:
    """A string as a file holds it."""
    return struct.pack("<Q", len(raw)) + raw


def utf8(text: str | bytes) -> bytes:
    """The bytes of a text; raises GgufError for half a surrogate pair."""
    if isinstance(text, bytes):
        return text
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise GgufError(f"string {shown(text)} cannot be written as UTF-8 (it holds half a surrogate pair)") from None


def _entry(key: str, value: Any) -> Entry:
    if isinstance(value, Entry):
        value = Typed(value.value, value.type, value.item)
    if not isinstance(value, Typed):
        value = _guess(key, value)
    kind, item = value.type, value.item
    if kind != ValueType.ARRAY:
        return Entry(kind, None, _scalar(key, value.value, kind))
    if item is None or item == ValueType.ARRAY:
        raise GgufError(f"metadata key {shown(key)}: an array needs an element type other than array")
    if item == ValueType.STRING:
        strings = [length_and_bytes(_scalar(key, v, item)) for v in value.value]
        return Entry(kind, item, StringArray(b"".join(strings), len(strings)))
    numbers = np.array([_scalar(key, v, item) for v in value.value], VALUE_DTYPES[item])
    numbers.flags.writeable = False
    return Entry(kind, item, numbers)


def _scalar(key: str, value: Any, kind: ValueType) -> Any:
    """`value` as the Python object that an Entry of this type holds."""
    if kind == ValueType.STRING and isinstance(value, (str, bytes)):
        return utf8(value)
    dtype = VALUE_DTYPES.get(kind)
    if isinstance(value, np.generic):
        value = value.item()
    if dtype is not None and isinstance(value, (bool, int, float)) and isinstance(value, bool) == (dtype.kind == "b"):
        if isinstance(value, bool):
            return value
        if dtype.kind == "f":
            return _float(key, value, kind)
        if isinstance(value, int) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            return value
    raise GgufError(f"metadata key {shown(key)}: {shown(checks.shown(value))} cannot be written as {kind.label}")


def _float(key: str, value: float, kind: ValueType) -> float:
    """`value` rounded to the float type `kind`; raises GgufError where a number would become infinite or 0."""
    try:
        with np.errstate(all="ignore"):
            rounded = VALUE_DTYPES[kind].type(value).item()
        if rounded == value or math.isnan(rounded) or (math.isfinite(rounded) and rounded != 0):
            return rounded
    except OverflowError:  # an integer beyond every float
        pass
    raise GgufError(
        f"metadata key {shown(key)}: {shown(checks.shown(value))} is out of the range of {kind.label}; "
        "expected a number that fits, or Typed(value, ValueType.F64)"
    )


def _guess(key: str, value: Any) -> Typed:
    if isinstance(value, (np.generic, np.ndarray)):
        kind = _DTYPE_VALUES.get(value.dtype.newbyteorder("<"))
        if kind is not None and value.ndim <= 1:
            return Typed(value, ValueType.ARRAY, kind) if value.ndim else Typed(value.item(), kind)
    elif isinstance(value, StringArray):
        return Typed(value, ValueType.ARRAY, ValueType.STRING)
    elif isinstance(value, (list, tuple)):
        kinds = {_scalar_kind(v, (ValueType.I32, ValueType.U32, ValueType.I64, ValueType.U64), value) for v in value}
        if len(kinds) == 1 and None not in kinds:
            return Typed(value, ValueType.ARRAY, kinds.pop())
    else:
        kind = _scalar_kind(value, (ValueType.U32, ValueType.I32, ValueType.I64, ValueType.U64), [value])
        if kind is not None:
            return Typed(value, kind)
    raise GgufError(
        f"metadata key {shown(key)}: cannot choose a type for {shown(checks.shown(value))}; expected a bool, int, "
        "float, str, bytes, a list of one of these that is not empty, a NumPy vector, or Typed(value, type)"
    )


def _scalar_kind(value: Any, integers: tuple[ValueType, ...], together: Any) -> ValueType | None:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, float):
        return ValueType.F32
    if isinstance(value, (str, bytes)):
        return ValueType.STRING
    if isinstance(value, int):
        ints = [v for v in together if isinstance(v, int)]
        for kind in integers:
            if np.iinfo(VALUE_DTYPES[kind]).min <= min(ints) and max(ints) <= np.iinfo(VALUE_DTYPES[kind]).max:
                return kind
    return None
