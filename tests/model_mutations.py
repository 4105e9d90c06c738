"""Model files that are damaged on purpose: bytes, keys, tensors; split over two files too.

A file is taken apart into its entries by a reader of its own, and put together again with some of them changed.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

from .gguf_files import ARRAY, BOOL, F32, I32, STRING, U8, U32, U64, array, build, kv, string, tensor

SIZES = {U8: 1, 1: 1, 2: 2, 3: 2, U32: 4, I32: 4, F32: 4, BOOL: 1, U64: 8, 11: 8, 12: 8}
WORDS = [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 2**16, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63, 2**64 - 1]
FLOATS = [0.0, -1.0, 1e-45, 1e-30, 0.5, 2.0, 1e4, 3e38, float("inf"), float("-inf"), float("nan")]
TEXTS = [b"", b"x", b"none", b"linear", b"yarn", b"llama", b"gemma4", b"qwen35", b"gpt2", b"\xff\xfe", b"x" * 70_000]
KEYS = [
    "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.attn_factor", "rope.freq_base",
    "rope.scaling.original_context_length", "rope.dimension_count", "rope.dimension_sections", "attention.clamp_kqv",
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.causal", "attention.head_count_kv",
    "attention.shared_kv_layers", "attention.key_length", "attention.value_length", "attention.scale", "expert_count",
    "expert_used_count", "expert_group_count", "expert_gating_func", "final_logit_softcapping", "vocab_size",
    "embedding_length_per_layer_input", "nextn_predict_layers", "ssm.conv_kernel", "full_attention_interval",
]  # fmt: skip


@dataclass
class Parts:
    """A file in pieces: entries as key, type and payload; tensors as name, dims (innermost first), type, offset."""

    kvs: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, list[int], int, int]]
    data: bytes
    alignment: int = field(default=32)

    def file(self) -> bytes:
        """The bytes of the file."""
        return build(
            [kv(*entry) for entry in self.kvs], [tensor(*t) for t in self.tensors], self.data, alignment=self.alignment
        )


def take_apart(raw: bytes) -> Parts:
    """The pieces of a file that is not damaged."""
    _, n_tensors, n_kv = struct.unpack_from("<IQQ", raw, 4)
    at = 24

    def number(code: str) -> int:
        nonlocal at
        (value,) = struct.unpack_from("<" + code, raw, at)
        at += struct.calcsize("<" + code)
        return value

    def text() -> bytes:
        nonlocal at
        length = number("Q")
        at += length
        return raw[at - length : at]

    def skip(kind: int) -> None:
        nonlocal at
        if kind == STRING:
            text()
        elif kind == ARRAY:
            item, count = number("I"), number("Q")
            for _ in range(count):
                skip(item)
        else:
            at += SIZES[kind]

    kvs = []
    for _ in range(n_kv):
        key, kind = text(), number("I")
        start = at
        skip(kind)
        kvs.append((key, kind, raw[start:at]))
    tensors = []
    for _ in range(n_tensors):
        name, dims = text(), [number("Q") for _ in range(number("I"))]
        tensors.append((name, dims, number("I"), number("Q")))
    return Parts(kvs, tensors, raw[at + -at % 32 :])


def random_value(rng: random.Random) -> tuple[int, bytes]:
    """Type and payload of some value."""
    count = rng.choice([0, 1, 2, 3, 4, 6])
    match rng.randrange(8):
        case 0:
            return U32, struct.pack("<I", rng.choice(WORDS) & 0xFFFFFFFF)
        case 1:
            return I32, struct.pack("<i", rng.choice([-1, -(2**31), rng.randrange(512)]))
        case 2:
            return U64, struct.pack("<Q", rng.choice(WORDS))
        case 3:
            return F32, struct.pack("<f", rng.choice(FLOATS))
        case 4:
            return BOOL, bytes([rng.randrange(2)])
        case 5:
            return STRING, string(rng.choice(TEXTS))
        case 6:
            return ARRAY, array(I32, count, b"".join(struct.pack("<i", rng.randrange(-1, 64)) for _ in range(count)))
        case _:
            return ARRAY, array(BOOL, count, bytes(rng.randrange(2) for _ in range(count)))


def mutate_key(parts: Parts, rng: random.Random) -> None:
    """Change, add, remove or repeat an entry."""
    place = rng.randrange(len(parts.kvs))
    key, kind, payload = parts.kvs[place]
    match rng.randrange(8):
        case 0:
            del parts.kvs[place]
        case 1:
            parts.kvs.append(parts.kvs[place])
        case 2:
            architecture = next((k.split(b".")[0] for k, _, _ in parts.kvs if k.endswith(b".block_count")), b"llama")
            parts.kvs.append((architecture + b"." + rng.choice(KEYS).encode(), *random_value(rng)))
        case 3:
            other = rng.randrange(len(parts.kvs))
            parts.kvs[place] = (key, *parts.kvs[other][1:])
        case 4 if kind in (U32, I32):
            value = struct.unpack("<I", payload)[0] + rng.choice([-2, -1, 1, 2])
            parts.kvs[place] = (key, kind, struct.pack("<I", value & 0xFFFFFFFF))
        case 5 if kind == ARRAY and len(payload) > 12:
            item, count = struct.unpack_from("<IQ", payload)
            if item == STRING:  # a byte of a token, or of its length
                at = rng.randrange(12, len(payload))
                parts.kvs[place] = (key, kind, payload[:at] + bytes([rng.randrange(256)]) + payload[at + 1 :])
            else:
                fewer = rng.randrange(count)
                parts.kvs[place] = (key, kind, array(item, fewer, payload[12 : 12 + fewer * SIZES[item]]))
        case _:
            parts.kvs[place] = (key, *random_value(rng))


def mutate_tensor(parts: Parts, rng: random.Random) -> None:
    """Change, add, remove or repeat a tensor, or trade two of them."""
    place = rng.randrange(len(parts.tensors))
    name, dims, kind, offset = parts.tensors[place]
    other = rng.choice(parts.tensors)
    match rng.randrange(9):
        case 0:
            del parts.tensors[place]
        case 1:
            parts.tensors.append((name, dims, kind, offset))
        case 2:
            parts.tensors[place] = (rng.choice([name + b"x", other[0], b"rope_freqs.weight"]), dims, kind, offset)
        case 3:
            parts.tensors[place] = (name, rng.sample(dims, len(dims)), kind, offset)
        case 4:
            wrong = list(dims)
            wrong[rng.randrange(len(dims))] = rng.choice([*WORDS, dims[0] * 2, dims[0] - 1])
            parts.tensors[place] = (name, wrong, kind, offset)
        case 5:
            parts.tensors[place] = (name, [*dims, *[1] * rng.randrange(4)] if rng.randrange(2) else [], kind, offset)
        case 6:
            parts.tensors[place] = (name, dims, rng.choice([*range(45), 2**31, 2**32 - 1]), offset)
        case 7:
            parts.tensors[place] = (name, dims, kind, rng.choice([other[3], offset + 32, offset + 1, *WORDS]))
        case _:
            i = parts.tensors.index(other)
            parts.tensors[place], parts.tensors[i] = (name, *other[1:]), (other[0], dims, kind, offset)


def mutate_bytes(raw: bytes, header: int, rng: random.Random) -> bytes:
    """Change a few bytes of the header, which is `header` bytes long, or cut the file."""
    changed = bytearray(raw)
    at = rng.randrange(header)
    match rng.randrange(7):
        case 0:
            changed[at] = rng.randrange(256)
        case 1:
            changed[at] ^= 1 << rng.randrange(8)
        case 2:
            changed[at : at + 4] = struct.pack("<I", rng.choice(WORDS) & 0xFFFFFFFF)
        case 3:
            changed[at : at + 8] = struct.pack("<Q", rng.choice(WORDS))
        case 4:
            del changed[rng.choice([at, rng.randrange(len(raw))]) :]
        case 5:
            del changed[at : at + rng.randrange(1, 40)]
        case _:
            changed[at:at] = changed[at : at + rng.randrange(1, 100)]
    return bytes(changed)


def mutated(parts: Parts, rng: random.Random) -> bytes:
    """A file with one to three things changed."""
    parts = replace(parts, kvs=list(parts.kvs), tensors=list(parts.tensors))
    bytewise = rng.random() < 0.3
    for _ in range(0 if bytewise else rng.choice([1, 1, 2, 3])):
        if parts.kvs and (rng.random() < 0.6 or not parts.tensors):
            mutate_key(parts, rng)
        elif parts.tensors:
            mutate_tensor(parts, rng)
    raw = parts.file()
    return mutate_bytes(raw, max(1, len(raw) - len(parts.data)), rng) if bytewise else raw


def split_in_two(parts: Parts) -> tuple[Parts, Parts]:
    """The same model in two files; the keys are those of llama.cpp's gguf-split."""
    half = len(parts.tensors) // 2

    def keys(number: int) -> list[tuple[bytes, int, bytes]]:
        return [
            (b"split.no", 2, struct.pack("<H", number)),
            (b"split.count", 2, struct.pack("<H", 2)),
            (b"split.tensors.count", I32, struct.pack("<i", len(parts.tensors))),
        ]

    first = Parts(parts.kvs + keys(0), parts.tensors[:half], parts.data)
    return first, Parts(keys(1), parts.tensors[half:], parts.data)


def write_parts(folder: Path, first: bytes, second: bytes) -> Path:
    """Write both files; the path of the first."""
    path = folder / "m-00001-of-00002.gguf"
    path.write_bytes(first)
    (folder / "m-00002-of-00002.gguf").write_bytes(second)
    return path
