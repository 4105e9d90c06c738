"""What a file of rows says about itself: the header of each version, and the two counters of version 3.

docs/kv-files.md has the bytes in tables.
"""

from __future__ import annotations

import secrets
import struct
import zlib
from dataclasses import dataclass
from typing import NamedTuple

from ...errors import KvCacheShapeMismatch, KvFileInvalid
from ..dtypes import DTYPES
from ..parts import Kv, Latent, Layout, Part, Recurrent
from ..rows import row_bytes
from .files import Storage
from .identity import Identity

MAGIC = {1: b"FUXKV001", 2: b"FUXKV002", 3: b"FUXKV003"}
PAGE = 4096
"""Bytes that a device may lose together: each counter has as many for itself."""

CODES = {"f16": 0, "q8_0": 1, "f32": 2}
_NAMES = {code: name for name, code in CODES.items()}
_FIXED = struct.Struct("<8sIIIIQQQ16s32s16s16s")
_COUNTER = struct.Struct("<QQQI")
_MAX_HEADER = 1 << 20
_MAX_PARTS = 1 << 14


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file of rows.

    Attributes
    ----------
    version : 1, 2 or 3.
    parts, dtype : of the state whose rows they are; of versions 1 and 2 what they can say: `Kv` parts without windows.
    prefix_rows : rows at the beginning that belong to no token.
    fingerprint, tokenizer, salt : see `Identity`; empty in versions 1 and 2, which do not have them.
    nonce : 16 random bytes of this file.
    row_bytes, bank_bytes : of one position's rows, and of all recurrent parts.
    rows : positions that the counter says, of versions 1 and 2 at most as many as the file has room for.
    size : bytes of the header.  start : where the records begin.  checksum : of the header; the chain begins with it.
    """

    version: int
    parts: tuple[Part, ...]
    dtype: str
    prefix_rows: int
    fingerprint: bytes = b""
    tokenizer: bytes = b""
    salt: bytes = b""
    nonce: bytes = b""
    row_bytes: int = 0
    bank_bytes: int = 0
    rows: int = 0
    size: int = 0
    start: int = 0
    checksum: int = 0

    def differs(self, other: Identity) -> str:
        """Why these rows are not for a state of this identity; "" if they are."""
        if self.version < 3:
            if not all(isinstance(p, Kv) and p.k_dim == p.v_dim for p in other.parts):
                return f"version {self.version} holds keys and values of one size; the model has other parts"
            plain = tuple(Kv(p.kv_heads, p.k_dim, p.v_dim) for p in other.parts if isinstance(p, Kv))
            return _difference(self.parts, self.dtype, plain, other.dtype)
        if self.fingerprint != other.fingerprint:
            return f"it is of another model: {self.fingerprint.hex() or 'none'}, expected {other.fingerprint.hex()}"
        if any(self.tokenizer) and any(other.tokenizer) and self.tokenizer != other.tokenizer:
            return f"it is of another tokenizer: {self.tokenizer.hex()}, expected {other.tokenizer.hex()}"
        if self.salt != other.salt:
            return "it is of another tenant (its salt differs)"
        return _difference(self.parts, self.dtype, other.parts, other.dtype)


def _difference(parts: tuple[Part, ...], dtype: str, other: tuple[Part, ...], other_dtype: str) -> str:
    if dtype != other_dtype:
        return f"its rows are {dtype}, those of the cache {other_dtype}"
    if len(parts) != len(other):
        return f"it has another geometry: {len(parts)} parts, expected {len(other)}"
    for i, (found, expected) in enumerate(zip(parts, other, strict=True)):
        if found != expected:
            return f"it has another geometry: part {i} is {found}, expected {expected}"
    return ""


# --- version 3 ------------------------------------------------------------------------------------------------------


def make(identity: Identity, prefix_rows: int, nonce: bytes | None = None) -> tuple[Header, bytes]:
    """The header of a new file of version 3, and its bytes; the nonce is random unless given."""
    row_bytes, bank_bytes = _sizes(identity.parts, identity.dtype)
    encoded = b"".join(_encode(part) for part in identity.parts)
    size = -(-(_FIXED.size + len(encoded) + 4) // PAGE) * PAGE
    if size > _MAX_HEADER or len(identity.parts) > _MAX_PARTS:
        raise KvFileInvalid(f"{len(identity.parts)} parts cannot be described in a header of {_MAX_HEADER} bytes")
    nonce = secrets.token_bytes(16) if nonce is None else nonce
    fixed = _FIXED.pack(
        MAGIC[3],
        size,
        len(identity.parts),
        CODES[identity.dtype],
        len(identity.fingerprint),
        row_bytes,
        bank_bytes,
        prefix_rows,
        nonce,
        identity.fingerprint,
        identity.tokenizer,
        identity.salt,
    )
    body = (fixed + encoded).ljust(size - 4, b"\0")
    checksum = zlib.crc32(body)
    header = Header(
        3, *identity[:2], prefix_rows, *identity[2:], nonce, row_bytes, bank_bytes, 0, size, size + 2 * PAGE, checksum
    )
    return header, body + struct.pack("<I", checksum)


def read(file: Storage) -> Header:
    """Read the header of a file of any version.

    Raises
    ------
    KvFileInvalid : it has none, or a damaged one.
    """
    begin = file.read_at(0, _FIXED.size)
    for version, magic in MAGIC.items():
        if begin[:8] == magic:
            return _read3(file, begin) if version == 3 else _read_plain(file, version)
    what = f"begins with {begin[:8]!r}" if begin else "is empty"
    raise KvFileInvalid(f"is no file of rows: it {what}; expected FUXKV001, FUXKV002 or FUXKV003")


def _read3(file: Storage, begin: bytes) -> Header:
    if len(begin) < _FIXED.size:
        raise KvFileInvalid(f"the file ends in the header, after {len(begin)} bytes")
    _, size, count, code, length, row_bytes, bank_bytes, prefix, nonce, name, tokenizer, salt = _FIXED.unpack(begin)
    if not _FIXED.size < size <= _MAX_HEADER or size % PAGE:
        raise KvFileInvalid(f"its header claims {size} bytes; expected a multiple of {PAGE} up to {_MAX_HEADER}")
    data = file.read_at(0, size)
    if len(data) < size:
        raise KvFileInvalid(f"the file ends in the header: {len(data)} bytes of {size}")
    (checksum,) = struct.unpack_from("<I", data, size - 4)
    if checksum != zlib.crc32(data[:-4]):
        raise KvFileInvalid("the header's checksum does not fit its bytes")
    if code not in _NAMES:
        raise KvFileInvalid(f"its rows are of dtype {code}; expected 0 (f16), 1 (q8_0) or 2 (f32)")
    if length > len(name) or count > _MAX_PARTS:
        raise KvFileInvalid(f"its header claims a fingerprint of {length} bytes and {count} parts")
    try:
        parts = _decode(data[_FIXED.size : -4], count)
        sizes = _sizes(parts, _NAMES[code])
    except (KvCacheShapeMismatch, struct.error, IndexError) as error:
        raise KvFileInvalid(f"its header describes no state: {error}") from None
    if sizes != (row_bytes, bank_bytes):
        raise KvFileInvalid(f"its header claims {row_bytes} and {bank_bytes} bytes; its parts take {sizes}")
    counter = newest(file, size, checksum)
    rows = counter.rows if counter else 0
    return Header(
        3, parts, _NAMES[code], prefix, name[:length], tokenizer, salt, nonce, row_bytes, bank_bytes, rows, size,
        size + 2 * PAGE, checksum,
    )  # fmt: skip


def _sizes(parts: tuple[Part, ...], dtype: str) -> tuple[int, int]:
    layout = Layout(parts)
    DTYPES[dtype].check(parts)
    return row_bytes(layout, dtype), layout.areas[-1].width * 4 if layout.recurrent else 0


def _encode(part: Part) -> bytes:
    """A part as 32-bit words: its kind, how many numbers follow, the numbers."""
    words: tuple[int, ...]
    match part:
        case Kv(heads, k_dim, v_dim, window):
            words = (1, 4, heads, k_dim, v_dim, window)
        case Latent(k_dim, v_dim, v_at):
            words = (2, 3, k_dim, v_dim, v_at)
        case Recurrent(shape):
            words = (3, len(shape), *shape)
    return struct.pack(f"<{len(words)}I", *words)


def _decode(data: bytes, count: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    at = 0
    for _ in range(count):
        kind, n = struct.unpack_from("<II", data, at)
        words = struct.unpack_from(f"<{n}I", data, at + 8) if n <= len(data) else ()
        at += 8 + 4 * n
        match kind, len(words):
            case 1, 4:
                parts.append(Kv(*words))
            case 2, 3:
                parts.append(Latent(*words))
            case 3, n if n:
                parts.append(Recurrent(words))
            case _:
                raise KvCacheShapeMismatch(f"part {len(parts)} is of kind {kind} with {n} numbers")
    return tuple(parts)


class Counter(NamedTuple):
    """How much of a file of version 3 counts: number of the counter, where the records end, positions."""

    sequence: int
    end: int
    rows: int


def newest(file: Storage, at: int, checksum: int) -> Counter | None:
    """The newer of the two counters that begin at `at`, of those that are whole; None if none is."""
    whole = []
    for slot in (0, 1):
        data = file.read_at(at + slot * PAGE, _COUNTER.size + 4)
        if len(data) == _COUNTER.size + 4 and data[-4:] == struct.pack("<I", zlib.crc32(data[:-4])):
            *fields, of = _COUNTER.unpack(data[:-4])
            if of == checksum:
                whole.append(Counter(*fields))
    return max(whole, default=None)


def write_counter(file: Storage, header: Header, counter: Counter) -> int:
    """Write a counter in its turn, the two take turns; returns its bytes."""
    data = _COUNTER.pack(*counter, header.checksum)
    data += struct.pack("<I", zlib.crc32(data))
    file.write_at(header.size + counter.sequence % 2 * PAGE, data)
    return len(data)


# --- versions 1 and 2 -----------------------------------------------------------------------------------------------


def plain_bytes(parts: tuple[Part, ...], dtype: str, prefix_rows: int, rows: int) -> bytes:
    """The header of version 1, or with a prefix of version 2."""
    out = MAGIC[2 if prefix_rows else 1] + struct.pack("<Q", rows)
    if prefix_rows:
        out += struct.pack("<Q", prefix_rows)
    out += struct.pack("<II", len(parts), CODES[dtype])
    for part in parts:
        assert isinstance(part, Kv)
        out += struct.pack("<II", part.kv_heads, part.k_dim)
    return out


def plain_row_bytes(parts: tuple[Part, ...], dtype: str) -> int:
    """Bytes of one position's rows in versions 1 and 2: 2 per number, in q8_0 34 per 32 numbers."""
    return DTYPES[dtype].nbytes(sum(2 * p.kv_heads * p.k_dim for p in parts if isinstance(p, Kv)))


def _read_plain(file: Storage, version: int) -> Header:
    fixed = struct.Struct("<QII" if version == 1 else "<QQII")
    data = file.read_at(8, fixed.size)
    if len(data) < fixed.size:
        raise KvFileInvalid(f"the file ends in the header, after {8 + len(data)} bytes")
    rows, *prefix, count, code = fixed.unpack(data)
    if prefix == [0]:
        raise KvFileInvalid("version 2 with a prefix of 0 rows; expected at least 1")
    if code not in (0, 1):
        raise KvFileInvalid(f"its dtype is {code}; expected 0 (f16) or 1 (q8_0)")
    start = 8 + fixed.size + 8 * count
    size = file.size()
    if not 0 < count <= _MAX_PARTS or start > size:
        raise KvFileInvalid(f"its header claims {count} layers; the file has {size} bytes")
    numbers = struct.unpack(f"<{2 * count}I", file.read_at(8 + fixed.size, 8 * count))
    if not all(numbers):
        raise KvFileInvalid("its header has a layer without heads, or with heads of no size")
    parts = tuple(Kv(heads, dim, dim) for heads, dim in zip(numbers[::2], numbers[1::2], strict=True))
    if code == 1 and any(dim % 32 for dim in numbers[1::2]):
        raise KvFileInvalid("its rows are q8_0 and heads are no multiple of 32")
    row = plain_row_bytes(parts, _NAMES[code])
    found = min(rows, (size - start) // (4 + row))
    return Header(
        version, parts, _NAMES[code], prefix[0] if prefix else 0, row_bytes=row, rows=found, size=start, start=start
    )
