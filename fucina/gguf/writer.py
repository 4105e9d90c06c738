"""Writing GGUF files (version 3): metadata in, tensors in, one file out, or none at all.

The layout is described in `fucina.gguf.parse`.  The file is written under a temporary name in the same folder and
renamed when it is complete, so that nobody ever sees half a model.
"""

from __future__ import annotations

import os
import secrets
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fucina.errors import BlockFormatError, GgufError
from fucina.gguf.mapping import shown
from fucina.gguf.metadata import Entry, StringArray
from fucina.gguf.parse import DEFAULT_ALIGNMENT, MAX_DIMS
from fucina.gguf.quants import quantize
from fucina.gguf.reader import TensorInfo
from fucina.gguf.types import (
    SUPPORTED,
    VALUE_DTYPES,
    GgmlType,
    ValueType,
    block_shape,
    ggml_type,
    plain_dtype,
    row_bytes,
)

_DTYPE_VALUES = {dtype: kind for kind, dtype in VALUE_DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Typed:
    """A metadata value whose type is said, not guessed: `Typed(1, ValueType.U8)`.

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
    integers i32 where all fit.  `Typed` and `Entry` (as `Metadata.entry` gives it) say the type themselves.

    Raises
    ------
    GgufError
        A value has no such type, or does not fit the type said; a key is empty; a list is empty or mixed.
    """
    entries: dict[str, Entry] = {}
    out = bytearray()
    for key, value in values.items():
        if not isinstance(key, str) or not key:
            raise GgufError(f"metadata key {key!r}: expected a string that is not empty")
        entry = _entry(key, value)
        entries[key] = entry
        out += _string(_utf8(key)) + struct.pack("<I", entry.type)
        if entry.type == ValueType.ARRAY:
            out += struct.pack("<IQ", entry.item, len(entry.value))
            out += b"".join(map(_string, entry.value)) if entry.item == ValueType.STRING else entry.value.tobytes()
        elif entry.type == ValueType.STRING:
            out += _string(entry.value)
        else:
            out += np.array(entry.value, VALUE_DTYPES[entry.type]).tobytes()
    return EncodedMetadata(entries, bytes(out))


def _string(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def _utf8(text: str | bytes) -> bytes:
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
        strings = [_string(_scalar(key, v, item)) for v in value.value]
        return Entry(kind, item, StringArray(b"".join(strings), len(strings)))
    numbers = np.array([_scalar(key, v, item) for v in value.value], VALUE_DTYPES[item])
    numbers.flags.writeable = False
    return Entry(kind, item, numbers)


def _scalar(key: str, value: Any, kind: ValueType) -> Any:
    """`value` as the Python object that an Entry of this type holds."""
    if kind == ValueType.STRING and isinstance(value, (str, bytes)):
        return _utf8(value)
    dtype = VALUE_DTYPES.get(kind)
    if isinstance(value, np.generic):
        value = value.item()
    if dtype is not None and isinstance(value, (bool, int, float)) and isinstance(value, bool) == (dtype.kind == "b"):
        if dtype.kind == "f" or isinstance(value, bool):
            with np.errstate(over="ignore"):
                return dtype.type(value).item()
        if isinstance(value, int) and np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
            return value
    raise GgufError(f"metadata key {shown(key)}: {shown(repr(value))} cannot be written as {kind.label}")


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
        f"metadata key {shown(key)}: cannot choose a type for {shown(repr(value))}; expected a bool, int, float, str, "
        "bytes, a list of one of these that is not empty, a NumPy vector, or Typed(value, type)"
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


# --- tensors -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    format: GgmlType
    dims: tuple[int, ...]  # NumPy order
    nbytes: int
    array: np.ndarray


def _array_and_format(value: Any) -> tuple[np.ndarray, GgmlType | int | str]:
    if isinstance(value, TensorInfo):
        return value.data.reshape(*value.shape[:-1], value.row_bytes), value.ggml_type
    return value


def _tensor(name: str, array: np.ndarray, format: GgmlType | int | str) -> _Tensor:
    if not isinstance(name, str) or not name:
        raise GgufError(f"tensor name {name!r}: expected a string that is not empty")
    label = f"tensor {shown(name)}"
    t = ggml_type(format)
    block_cols, block_bytes = block_shape(t)
    if not isinstance(array, np.ndarray) or not 1 <= array.ndim <= MAX_DIMS or 0 in array.shape:
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
        raise GgufError(f"{label}: got {found}; expected an array of 1 to {MAX_DIMS} axes, none of them 0")
    *lead, last = array.shape
    if array.dtype == np.uint8:  # bytes of the format, as they are
        if last % block_bytes:
            raise BlockFormatError(f"{label}: rows of {last} bytes; expected a multiple of {block_bytes} for {t.name}")
        return _Tensor(name, t, (*lead, last // block_bytes * block_cols), array.nbytes, array)
    if not (_is_stored_as_is(array, t) or (t in SUPPORTED and array.dtype.kind == "f")):
        raise BlockFormatError(f"{label}: {array.dtype} numbers cannot be written as {t.name}")
    return _Tensor(name, t, array.shape, int(np.prod(lead, dtype=np.int64)) * row_bytes(last, t), array)


def _is_stored_as_is(array: np.ndarray, format: GgmlType) -> bool:
    plain = plain_dtype(format)  # None must not reach a comparison: for NumPy, None is the same dtype as float64
    return array.dtype == np.uint8 or (plain is not None and array.dtype == plain)


def _write_tensor(out: BinaryIO, tensor: _Tensor, chunk: int = 1 << 22) -> None:
    rows = tensor.array.reshape(-1, tensor.array.shape[-1])
    step = max(1, chunk // rows.shape[1])
    for i in range(0, len(rows), step):  # some rows at a time: quantising needs several times their memory
        part = rows[i : i + step]
        if not _is_stored_as_is(part, tensor.format):
            part = quantize(part, tensor.format)
        out.write(np.ascontiguousarray(part).data)


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, Any],
    tensors: Mapping[str, TensorInfo | tuple[np.ndarray, GgmlType | int | str]],
) -> None:
    """Write a GGUF file.

    Parameters
    ----------
    path
        Where; an existing file is replaced, in one step, once the new one is complete.
    metadata
        Keys and values; see `encode_metadata` for the types.  `general.alignment` is obeyed.
    tensors
        Name -> (array, format).  A uint8 array holds the bytes of the format, [..., row_bytes]; a float array is
        quantised to the format, [..., cols]; integers are written as the plain format of their dtype.  The array's axes
        are the tensor's: [n] is a vector, [1, n] a matrix of one row.  A `TensorInfo` of an open file is copied as it
        is.

    Raises
    ------
    GgufError
        A name, value, array or alignment that cannot be written; nothing is left behind.
    OSError
        The file cannot be written; nothing is left behind.
    """
    path = Path(path)
    encoded = encode_metadata(metadata)
    alignment = DEFAULT_ALIGNMENT
    if "general.alignment" in encoded.entries:
        entry = encoded.entries["general.alignment"]
        alignment = entry.value
        if entry.type != ValueType.U32 or alignment < 8 or alignment & (alignment - 1):
            raise GgufError(f"general.alignment is {entry.describe()}; expected a u32, a power of two, at least 8")
    todo = [_tensor(name, *_array_and_format(value)) for name, value in tensors.items()]
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(todo), len(encoded.entries)) + encoded.data)
    offset = 0
    for t in todo:
        dims = t.dims[::-1]
        header += _string(_utf8(t.name)) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, t.format, offset)
        offset += -(-t.nbytes // alignment) * alignment
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as out:
            out.write(header)
            for t in todo:
                out.write(bytes(-out.tell() % alignment))
                _write_tensor(out, t)
            out.write(bytes(-out.tell() % alignment))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
