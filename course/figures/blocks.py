"""The bytes of a quantised block."""

from __future__ import annotations

from collections.abc import Sequence

from course.figures.svg import BLUE, GREEN, ORANGE, PURPLE, SKY, Drawing, Figure

COLOURS = (ORANGE, PURPLE, BLUE, GREEN, SKY)
PER_ROW = 20


def block_bytes(
    fields: Sequence[tuple[str, int]], values: int | None, data: bytes | None = None, title: str = "One block"
) -> Figure:
    """A block byte by byte: which bytes are scale, minimum and quants, and what a weight costs in bits.

    Parameters
    ----------
    fields : sequence of (name, number of bytes)
        In file order, such as `[("d: f16 scale", 2), ("m: f16 minimum", 2), ("32 x 4-bit quants", 16)]`.
    values : int or None
        How many weights the block holds; None for bytes that are no weights, such as a header.
    data : bytes, optional
        The block itself: the bytes are then shown in hexadecimal.
    title : str
    """
    total = sum(size for _, size in fields)
    if data is not None and len(data) != total:
        raise ValueError(f"the fields take {total} bytes, the data has {len(data)}")
    owner = [f for f, (_, size) in enumerate(fields) for _ in range(size)]
    cell, left = 36, 20
    rows = -(-total // PER_ROW)
    drawing = Drawing(left + min(total, PER_ROW) * cell + 20, 62 + rows * 50 + 22 * len(fields))
    if drawing.width < 460:
        drawing.width = 460
    drawing.text(10, 21, title, 14, "start", bold=True)
    for i in range(total):
        x, y = left + (i % PER_ROW) * cell, 36 + (i // PER_ROW) * 50
        colour = COLOURS[owner[i] % len(COLOURS)]
        drawing.rect(x + 1, y, cell - 2, 26, colour, colour, 0.25)
        shown = f"{data[i]:02x}" if data is not None else chr(97 + owner[i] % 26)
        drawing.text(x + cell / 2, y + 18, shown, 12, mono=True)
        if i == 0 or owner[i] != owner[i - 1] or i % PER_ROW == 0:
            drawing.text(x + cell / 2, y + 41, str(i), 10, fill="var(--soft)")
    y = 36 + rows * 50 + 8
    told, at = [], 0
    for f, (name, size) in enumerate(fields):
        colour = COLOURS[f % len(COLOURS)]
        drawing.rect(left, y, 14, 14, colour, colour, 0.4)
        drawing.text(left + 7, y + 11, chr(97 + f % 26), 10, mono=True)
        span = f"byte {at}" if size == 1 else f"bytes {at} to {at + size - 1}"
        drawing.text(left + 22, y + 12, f"{name}  ({span})", 12, "start")
        told.append(f"{name}, {span}")
        at += size
        y += 22
    if values is None:
        return Figure(drawing, title, f"{title}: " + "; ".join(told) + f". {total} bytes.")
    bits = 8 * total / values
    drawing.text(left, y + 12, f"{total} bytes for {values} weights: {bits:g} bits per weight", 12, "start", bold=True)
    return Figure(
        drawing,
        title,
        f"{title}: " + "; ".join(told) + f". {total} bytes for {values} weights, {bits:g} bits per weight.",
    )
