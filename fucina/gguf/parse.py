"""The header of a GGUF file, read with everything checked.

A GGUF file (little-endian throughout) is::

    magic       4 bytes   "GGUF"
    version     u32       2 or 3 (they differ in nothing that matters here)
    n_tensors   u64
    n_kv        u64
    n_kv times  key: string, value type: u32, value
    n_tensors times  name: string, n_dims: u32, dims: u64 each, format: u32, offset: u64
    padding     up to the next multiple of general.alignment (32 unless the metadata says otherwise)
    data        the tensors' bytes; `offset` above counts from here

A string is a u64 length and that many bytes of UTF-8.  An array is u32 element type, u64 count, elements.  Dims are
written innermost first: a matrix of 3 rows and 64 columns has dims [64, 3].

The file may be anything: a web page, half a download, or made to do harm.  So every length is compared with what is
left of the file before it is used, and no count alone decides how much memory is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from typing import NoReturn

import numpy as np

from ..errors import GgufError, GgufIncomplete
from .limits import MAX_DIMS, MAX_FILE, MAX_HEADER, MAX_NAME, alignment_of
from .mapping import shown
from .types import READABLE, VALUE_DTYPES, GgmlType, ValueType, block_shape, supported_names, type_label
from .values import Entry, StringArray

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_Found = tuple[str, tuple[int, ...], GgmlType, int]  # name, shape, format and offset of a tensor


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor's entry: `shape` in NumPy order, `start` counted from the beginning of the file."""

    name: str
    shape: tuple[int, ...]
    format: GgmlType
    start: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """Everything before the tensor data."""

    version: int
    alignment: int
    entries: dict[str, Entry]
    tensors: tuple[TensorHeader, ...]


class _Cursor:
    """A position in the header; every read is checked against what is left."""

    def __init__(self, view: memoryview, where: str) -> None:
        self.view = view
        self.size = len(view)
        self.end = min(self.size, MAX_HEADER)
        self.at = 0
        self.where = where

    def fail(self, message: str) -> NoReturn:
        raise GgufError(f"{self.where}: {message}")

    def need(self, count: int, field: str) -> None:
        """Check that `count` more bytes are there."""
        if count > self.end - self.at:
            self.ends_early(f"{field} needs {count} bytes at offset {self.at}", self.at + count)

    def ends_early(self, message: str, stop: int) -> NoReturn:
        """Raise: the header goes on to byte `stop` at least, which is not there."""
        if stop > MAX_HEADER:  # no header is that long: a number is damaged, not the file cut short
            self.fail(f"{message}, more than a header of {MAX_HEADER} bytes, the longest that is read")
        raise GgufIncomplete(
            f"{self.where}: the file is incomplete: {message}, but the file ends at {self.size}; expected at least "
            f"{stop} bytes (an interrupted download?)"
        )

    def u32(self, field: str) -> int:
        self.need(4, field)
        (value,) = _U32.unpack_from(self.view, self.at)
        self.at += 4
        return value

    def u64(self, field: str) -> int:
        self.need(8, field)
        (value,) = _U64.unpack_from(self.view, self.at)
        self.at += 8
        return value

    def take(self, count: int, field: str) -> bytes:
        self.need(count, field)
        out = bytes(self.view[self.at : self.at + count])
        self.at += count
        return out

    def string(self, field: str) -> bytes:
        return self.take(self.u64(f"length of {field}"), field)

    def name(self, field: str) -> str:
        length = self.u64(f"length of {field}")
        if length > MAX_NAME:
            self.fail(f"{field} needs {length} bytes; expected at most {MAX_NAME}")
        raw = self.take(length, field)
        if not raw:
            self.fail(f"{field} is empty; expected at least one character")
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            self.fail(f"{field} {shown(raw)} is not valid UTF-8")

    def count(self, field: str, least_bytes: int) -> int:
        """A number of items of at least `least_bytes` each, that can fit in what is left."""
        count = self.u64(field)
        at, need = self.at, count * least_bytes
        if at + need > self.end:
            self.ends_early(f"{field} is {count}, which takes at least {need} bytes at offset {at}", at + need)
        return count


def parse_header(view: memoryview, where: str) -> Header:
    """Read and check the header of a GGUF file.

    Parameters
    ----------
    view
        The whole file, as bytes.  Nothing returned refers to it.
    where
        The file's name, for messages.

    Raises
    ------
    GgufIncomplete
        The file ends before its header does, or before its tensors do.
    GgufError
        Anything else is wrong; the message names the field, what was found and what was expected.
    """
    cursor = _Cursor(view, where)
    version = _magic_and_version(cursor)
    n_tensors = cursor.count("tensor count", least_bytes=8 + 1 + 4 + 8 + 4 + 8)
    n_kv = cursor.count("metadata count", least_bytes=8 + 1 + 4 + 1)
    entries: dict[str, Entry] = {}
    for i in range(n_kv):
        key = cursor.name(f"metadata key {i} of {n_kv}")
        if key in entries:
            cursor.fail(f"metadata key {shown(key)} appears twice")
        entries[key] = _value(cursor, f"metadata value {shown(key)}")
    alignment = alignment_of(entries, where)
    found = [_tensor(cursor, i, n_tensors) for i in range(n_tensors)]
    data = -(-cursor.at // alignment) * alignment
    return Header(version, alignment, entries, _place(cursor, found, data, alignment))


def _magic_and_version(cursor: _Cursor) -> int:
    start = bytes(cursor.view[:64])
    if not b"GGUF".startswith(start[:4]):
        cursor.fail(f"not a GGUF file (starts with {shown(start[:16])}, expected 'GGUF'){_hint(start)}")
    cursor.take(4, "magic")
    version = cursor.u32("version")
    if version in (2, 3):
        return version
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if 1 <= swapped <= 3:
        cursor.fail(f"big-endian GGUF (version {swapped} with its bytes reversed); expected a little-endian file")
    cursor.fail(f"GGUF version {version} is not supported; expected 2 or 3")


def _hint(start: bytes) -> str:
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "; this is a web page: the download saved an error or login page instead of the file"
    if text.startswith(b"version https://git-lfs"):
        return "; this is a Git LFS pointer, not the file it points to: run `git lfs pull` or download the file itself"
    if start[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg", b"ggml", b"ggmf", b"ggjt", b"ggla"):
        return "; this is a model in a format older than GGUF: convert it again"
    if start[:4] == b"FUGG":
        return "; this is a GGUF file with its bytes reversed (big-endian)"
    if start[:2] == b"PK":
        return "; this is a zip archive or PyTorch checkpoint"
    if start[:2] == b"\x1f\x8b":
        return "; this is a gzip archive: unpack it first"
    if start[8:10] == b'{"':
        return "; this looks like a safetensors file"
    if not start.strip(b"\0"):
        return "; the file is filled with zeros (an interrupted download?)"
    return ""


def _value_type(cursor: _Cursor, field: str) -> ValueType:
    number = cursor.u32(f"type of {field}")
    try:
        return ValueType(number)
    except ValueError:
        cursor.fail(f"{field} has unknown type {number}; expected 0 to {max(ValueType)}")


def _value(cursor: _Cursor, field: str) -> Entry:
    kind = _value_type(cursor, field)
    if kind == ValueType.STRING:
        return Entry(kind, None, cursor.string(field))
    if kind != ValueType.ARRAY:
        return Entry(kind, None, _numbers(cursor, kind, 1, field)[0].item())
    item = _value_type(cursor, f"elements of {field}")
    if item == ValueType.ARRAY:
        cursor.fail(f"{field} is an array of arrays; expected an array of numbers, booleans or strings")
    if item == ValueType.STRING:
        return Entry(kind, item, _strings(cursor, field))
    count = cursor.count(f"element count of {field}", VALUE_DTYPES[item].itemsize)
    return Entry(kind, item, _numbers(cursor, item, count, field))


def _numbers(cursor: _Cursor, kind: ValueType, count: int, field: str) -> np.ndarray:
    dtype = VALUE_DTYPES[kind]
    raw = cursor.take(count * dtype.itemsize, field)
    if kind == ValueType.BOOL and raw.strip(b"\0\1"):
        bad = next(b for b in raw if b > 1)
        cursor.fail(f"{field} holds the byte {bad} as a boolean; expected 0 or 1")
    return np.frombuffer(raw, dtype)


def _strings(cursor: _Cursor, field: str) -> StringArray:
    # A vocabulary has 100 000 strings and more: here their lengths are checked, the strings are cut when they are asked
    # for.  Opening a file spends most of its time in this loop, hence the local names.
    count = cursor.count(f"element count of {field}", 8)
    view, end, unpack, at = cursor.view, cursor.end, _U64.unpack_from, cursor.at
    last = end - 8
    for i in range(count):
        if at > last:
            cursor.at = at
            cursor.need(8, f"length of string {i} in {field}")
        at += 8 + unpack(view, at)[0]
    cursor.need(at - cursor.at, f"all strings of {field}")
    raw = bytes(view[cursor.at : at])
    cursor.at = at
    return StringArray(raw, count)


def _tensor(cursor: _Cursor, index: int, count: int) -> _Found:
    name = cursor.name(f"name of tensor {index} of {count}")
    label = f"tensor {shown(name)}"
    n_dims = cursor.u32(f"n_dims of {label}")
    if not 1 <= n_dims <= MAX_DIMS:
        cursor.fail(f"{label} has {n_dims} dimensions; expected 1 to {MAX_DIMS}")
    dims = [cursor.u64(f"dimension {i} of {label}") for i in range(n_dims)]
    if 0 in dims:
        cursor.fail(f"{label} has dimensions {dims}; expected every dimension to be at least 1")
    number = cursor.u32(f"type of {label}")
    if number not in READABLE:
        cursor.fail(f"{label} has type {type_label(number)}; supported: {supported_names()}")
    offset = cursor.u64(f"offset of {label}")
    return name, tuple(reversed(dims)), GgmlType(number), offset


def _place(cursor: _Cursor, found: list[_Found], data: int, alignment: int) -> tuple[TensorHeader, ...]:
    """Check sizes and offsets, and turn offsets into positions in the file."""
    tensors: dict[str, TensorHeader] = {}
    for name, shape, format, offset in found:
        label = f"tensor {shown(name)}"
        if name in tensors:
            cursor.fail(f"{label} appears twice")
        block_cols, block_bytes = block_shape(format)
        if shape[-1] % block_cols:
            cursor.fail(f"{label} has rows of {shape[-1]} columns; {format.name} needs a multiple of {block_cols}")
        nbytes = block_bytes
        for n in shape:  # Python integers do not overflow: 2**64 * 2**64 is compared with the file like any other
            nbytes *= n
        nbytes //= block_cols
        if offset % alignment:
            cursor.fail(f"{label} has offset {offset}; expected a multiple of the alignment {alignment}")
        tensors[name] = TensorHeader(name, shape, format, data + offset, nbytes)
    _check_places(cursor, sorted(tensors.values(), key=lambda t: t.start))
    return tuple(tensors.values())


def _check_places(cursor: _Cursor, tensors: list[TensorHeader]) -> None:
    """Check that tensors, sorted by their start, do not overlap and lie inside the file."""
    for previous, tensor in pairwise(tensors):
        if tensor.start < previous.start + previous.nbytes:
            cursor.fail(f"tensors {shown(previous.name)} and {shown(tensor.name)} overlap at byte {tensor.start}")
    end = tensors[-1].start + tensors[-1].nbytes if tensors else 0
    if end <= cursor.size:
        return
    first = next(t for t in tensors if t.start + t.nbytes > cursor.size)
    what = f"tensor {shown(first.name)} {list(first.shape)} {first.format.name}"
    message = f"{what} takes bytes {first.start} to {first.start + first.nbytes}, but the file has {cursor.size}"
    if end > MAX_FILE:
        cursor.fail(f"{message}; expected at most {MAX_FILE} bytes (a damaged dimension or offset?)")
    message = f"{message}; expected a complete file, of {end} bytes at least (an interrupted download?)"
    raise GgufIncomplete(f"{cursor.where}: the file is incomplete: {message}")
