"""Weights of a GGUF file in NumPy: the integers and scales of their blocks, and how `packing` rearranges them."""

from __future__ import annotations

import numpy as np

from .formats import FORMATS, groups

F = np.float32


def half(raw: np.ndarray, at: int) -> np.ndarray:
    """float16 number at byte `at` of every block: float32 [n, nb]."""
    return np.ascontiguousarray(raw[..., at : at + 2]).view(np.float16)[..., 0].astype(F)


def split_scales(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The eight 6-bit scales and minimums of q4_k, int32 [n, nb, 8] each, from their twelve bytes."""
    b = raw[..., 4:16].astype(np.int32)
    high = lambda v: (v >> 6) << 4
    scales = np.concatenate([b[..., :4] & 63, (b[..., 8:] & 15) | high(b[..., :4])], -1)
    mins = np.concatenate([b[..., 4:8] & 63, (b[..., 8:] >> 4) | high(b[..., 4:8])], -1)
    return scales, mins


def integers(fmt: str, raw: np.ndarray) -> np.ndarray:
    """The integer weights of plain blocks uint8 [n, nb, raw bytes], without offset: int32 [n, nb, cols of a block]."""
    if fmt == "q8_0":
        return raw[..., 2:].view(np.int8).astype(np.int32)
    body = raw[..., -16:].astype(np.int32)
    q = np.concatenate([body & 15, body >> 4], -1)
    if fmt == "q5_0":
        q |= np.unpackbits(raw[..., 2:6], axis=-1, bitorder="little").astype(np.int32) << 4
    return q


ZERO = {"q8_0": 0, "q4_0": 8, "q4_1": 0, "q5_0": 16}


def pack(raw: np.ndarray, fmt: str) -> np.ndarray:
    """Layout p8 of a matrix, uint8 [groups, nb, packed bytes]; see `formats`."""
    f = FORMATS[fmt]
    rows = np.minimum(np.arange(groups(len(raw)) * 8), len(raw) - 1)  # past the last one: repeat it
    g = raw[rows].reshape(-1, 8, raw.shape[1] // f.raw, f.raw).transpose(0, 2, 1, 3)  # [groups, nb, 8 rows, raw]

    def field(lo: int, hi: int, width: int, source: np.ndarray = g) -> np.ndarray:
        """Bytes lo … hi-1 of each row, `width` of them a row at a time."""
        part = source[..., lo:hi].reshape(*source.shape[:3], -1, width)
        return part.swapaxes(2, 3).reshape(*source.shape[:2], -1)

    if f.cols == 1:
        return field(0, f.raw, f.raw)
    if fmt in ("q4_0", "q4_1", "q8_0"):
        header = 4 if fmt == "q4_1" else 2
        return np.concatenate([field(0, header, 2), field(header, f.raw, 4)], -1)
    if fmt == "q5_0":
        bits = np.unpackbits(g[..., 2:6], axis=-1, bitorder="little")  # [groups, nb, 8, 32]
        bits = bits.reshape(*g.shape[:3], 8, 4).swapaxes(-1, -2)  # byte j, bit c = element 4c + j
        fifth = np.packbits(bits, axis=-1, bitorder="little")[..., 0]
        return np.concatenate([field(0, 2, 2), field(0, 4, 4, fifth), field(6, 22, 4)], -1)
    if fmt == "q4_k":
        scales, mins = (np.stack([split_scales(g[:, :, r])[i] for r in range(8)], 2).astype(np.uint8) for i in (0, 1))
        return np.concatenate([field(0, 4, 2), field(0, 8, 1, scales), field(0, 8, 2, mins), field(16, 144, 4)], -1)
    body = []
    for c in range(16):  # 2 halves x 8 quads
        for at in (64 * (c // 8), 64 * (c // 8) + 32, 128 + 32 * (c // 8)):
            body.append(field(at + 4 * (c % 8), at + 4 * (c % 8) + 4, 4))
    return np.concatenate([field(208, 210, 2), field(192, 208, 1), *body], -1)
