"""GGUF files made byte by byte, well-formed or not, without the project's writer; and split models."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fucina.gguf import write_gguf

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def kv(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return string(key) + struct.pack("<I", kind) + payload


def array(item: int, count: int, payload: bytes) -> bytes:
    return struct.pack("<IQ", item, count) + payload


def tensor(name: str | bytes, dims: list[int], kind: int, offset: int, n_dims: int | None = None) -> bytes:
    n = len(dims) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", n, *dims, kind, offset)


def build(
    kvs: list[bytes] = (),
    tensors: list[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_tensors: int | None = None,
    n_kv: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A file; counts can be lied about."""
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(tensors) if n_tensors is None else n_tensors,
        len(kvs) if n_kv is None else n_kv,
    )
    head += b"".join(kvs) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data if tensors else head


def sample(version: int = 3) -> bytes:
    """A small valid file with every metadata type and three tensors (F32 vector, Q4_1 matrix, F16 stack)."""
    kvs = [
        kv("general.architecture", STRING, string("llama")),
        kv("general.alignment", U32, struct.pack("<I", 64)),
        kv("t.u8", U8, b"\x07"),
        kv("t.i8", I8, b"\xff"),
        kv("t.u16", U16, struct.pack("<H", 65535)),
        kv("t.i16", I16, struct.pack("<h", -3)),
        kv("t.i32", I32, struct.pack("<i", -70000)),
        kv("t.f32", F32, struct.pack("<f", 0.5)),
        kv("t.bool", BOOL, b"\x01"),
        kv("t.u64", U64, struct.pack("<Q", 2**64 - 1)),
        kv("t.i64", I64, struct.pack("<q", -(2**63))),
        kv("t.f64", F64, struct.pack("<d", 1e300)),
        kv("t.bytes", STRING, string(b"\xff\xfe")),
        kv("t.strings", ARRAY, array(STRING, 3, string("a") + string("") + string(b"\xe6\xad"))),
        kv("t.ints", ARRAY, array(I32, 3, struct.pack("<3i", 1, -2, 3))),
        kv("t.floats", ARRAY, array(F32, 2, struct.pack("<2f", 1.5, -2.5))),
        kv("t.bools", ARRAY, array(BOOL, 2, b"\x01\x00")),
        kv("t.none", ARRAY, array(STRING, 0, b"")),
    ]
    tensors = [tensor("norm", [5], 0, 0), tensor("w", [64, 3], 3, 64), tensor("e", [4, 3, 2], 1, 192)]
    data = struct.pack("<5f", 1, 2, 3, 4, 5).ljust(64, b"\0") + bytes(range(120)).ljust(128, b"\0") + bytes(48)
    return build(kvs, tensors, data, version=version, alignment=64)


def write_split(
    folder: Path, stem: str, metadata: Mapping[str, Any], tensors: Mapping[str, Any], parts: int
) -> list[Path]:
    """A model split over several files, the tensors dealt out in order; all metadata goes to the first part."""
    names = list(tensors)
    paths = []
    for i in range(parts):
        chosen = names[i * len(names) // parts : (i + 1) * len(names) // parts]
        extra = {
            "split.no": np.uint16(i),
            "split.count": np.uint16(parts),
            "split.tensors.count": np.int32(len(names)),
        }
        path = folder / f"{stem}-{i + 1:05d}-of-{parts:05d}.gguf"
        write_gguf(path, {**(metadata if i == 0 else {}), **extra}, {n: tensors[n] for n in chosen})
        paths.append(path)
    return paths
