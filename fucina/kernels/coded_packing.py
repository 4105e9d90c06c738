"""Coded formats to the layout that they share (see `formats`), in NumPy: reading is `fucina.gguf`'s, the rest is moving bytes."""

from __future__ import annotations

from functools import reduce

import numpy as np

from .formats import GROUP, Format


def pack_coded(raw: np.ndarray, f: Format) -> np.ndarray:
    """Rows of a file, uint8 [n, row bytes], as groups of eight, uint8 [groups, blocks, packed bytes].

    The last group is filled up by repeating the last row.
    """
    assert f.coded is not None
    b = f.coded.read(np.ascontiguousarray(raw).reshape(len(raw), -1, f.raw))
    fields = [raw.reshape(*b.d.shape, f.raw)[..., :1, None] if f.exponent else half_bytes(b.d)]
    if b.dmin is not None:
        fields.append(half_bytes(-b.dmin if f.floors == "one" else b.dmin))
    if b.scales is not None:
        s = b.scales.view(np.uint8)
        fields.append((s | b.floors << 4 if b.floors is not None and f.floors == "nibbles" else s)[..., None])
    if b.floors is not None and f.floors == "pairs":
        fields.append(b.floors.reshape(*b.floors.shape[:2], -1, 2))
    fields.append(planes(b.codes, f.coded.bits))
    return np.concatenate([interleaved(v) for v in fields], axis=-1)


def half_bytes(v: np.ndarray) -> np.ndarray:
    """[n, blocks] float32 -> their bytes as float16, [n, blocks, 1, 2]; they were float16 in the file."""
    return v.astype("<f2")[..., None].view(np.uint8).reshape(*v.shape, 1, 2)


def planes(codes: np.ndarray, bits: int) -> np.ndarray:
    """[n, blocks, cols] -> the planes of each 32 columns in fours of bytes, [n, blocks, fours, 4].

    Four codes are one number of 32 bits here, and all of the same place in their 32 columns lie together: NumPy's loops are
    long, and no bit leaves its byte.
    """
    n, blocks, cols = codes.shape
    c = np.ascontiguousarray(
        np.moveaxis(np.ascontiguousarray(codes).view("<u4").reshape(n, blocks, cols // 32, 8), -1, 0)
    )
    fours: list[np.ndarray] = []
    taken = 0
    for width in (4, 2, 1):
        if bits & width:
            part = c >> np.uint32(taken) & np.uint32(((1 << width) - 1) * 0x0101_0101)
            shifted = [part[i] << np.uint32((i // 4 if width == 4 else i % (8 // width)) * width) for i in range(8)]
            for four in range(width):
                members = shifted[four::4] if width == 4 else shifted[four * (8 // width) : (four + 1) * (8 // width)]
                fours.append(reduce(np.bitwise_or, members))
            taken += width
    return np.stack(fours, axis=-1).reshape(n, blocks, -1, 1).view(np.uint8)


def interleaved(v: np.ndarray) -> np.ndarray:
    """[n, blocks, fields, bytes of a field] -> [groups, blocks, fields x 8 rows x bytes]."""
    missing = -len(v) % GROUP
    if missing:
        v = np.concatenate([v, np.repeat(v[-1:], missing, axis=0)])
    blocks, width = v.shape[1], v.shape[3]
    dtype = f"u{width}"
    moved = np.ascontiguousarray(v).view(dtype)[..., 0].reshape(-1, GROUP, blocks, v.shape[2]).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(moved).view(np.uint8).reshape(len(v) // GROUP, blocks, -1)
