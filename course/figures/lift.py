"""A byte automaton, its walk along a trie of tokens, and masks over a whole vocabulary."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Collection, Mapping, Sequence

from course.automata import Automaton
from course.figures.graph import state_graph
from course.figures.svg import BLUE, GREEN, RED, Drawing, Figure, printable

STEP, LEVEL, BOX = 74, 34, 24  # of the trie: from byte to byte, from branch to branch, height of a node
WIDE, TALL, SIDE, PAUSE = 244, 183, 256, 22  # of a mask: size, tokens in a row, room between two
DOTS = 400  # so few allowed tokens are drawn as dots that can be seen


def byte_automaton(automaton: Automaton, title: str = "An automaton of bytes", current: int | None = None) -> Figure:
    """States from left to right, arrows with the bytes that lead on, a double ring where a text may end.

    Parameters
    ----------
    automaton : of few states.
    title : str
    current : a state to be marked, optional.
    """
    depth = {0: 0}
    waiting = [0]
    for state in waiting:
        for after in automaton.edges[state].values():
            if after not in depth:
                depth[after] = depth[state] + 1
                waiting.append(after)
    below: dict[int, int] = {}
    places = {}
    for state in waiting:
        places[str(state)] = (float(depth[state]), float(below.setdefault(depth[state], 0)))
        below[depth[state]] += 1
    edges = []
    for state in waiting:
        together: dict[int, list[int]] = {}
        for byte, after in automaton.edges[state].items():
            together.setdefault(after, []).append(byte)
        edges += [(str(state), str(after), _ranges(several)) for after, several in together.items()]
    double = [str(state) for state in waiting if state in automaton.accepting]
    return state_graph(places, edges, double=double, current=None if current is None else str(current), title=title)


def trie_walk(pieces: Sequence[bytes], automaton: Automaton, state: int, title: str = "A walk along a trie") -> Figure:
    """The trie of some tokens; green where the automaton can follow, red where it refuses, grey where nobody looks.

    Parameters
    ----------
    pieces : the bytes of each token, a few.
    automaton, state : what walks, and from where.
    title : str
    """
    beginnings = sorted({piece[:n] for piece in pieces for n in range(1, len(piece) + 1)})
    if not beginnings:
        raise ValueError("nothing to draw: no token has a byte")
    leaves = [b for b in beginnings if not any(other != b and other.startswith(b) for other in beginnings)]
    height = {b: float(i) for i, b in enumerate(leaves)}
    for b in sorted(beginnings, key=len, reverse=True):
        under = [height[other] for other in beginnings if len(other) == len(b) + 1 and other.startswith(b)]
        height.setdefault(b, sum(under) / len(under) if under else 0.0)
    first = [height[b] for b in beginnings if len(b) == 1]
    height[b""] = sum(first) / len(first)
    drawing = Drawing(130 + STEP * max(map(len, beginnings)) + 40, 92 + LEVEL * len(leaves))
    drawing.text(10, 21, title, 14, "start", bold=True)

    def at(b: bytes) -> tuple[float, float]:
        return 50 + STEP * len(b), 56 + LEVEL * height[b]

    refused = {b for b in beginnings if automaton.read(b, state) is None}
    for b in beginnings:
        (x1, y1), (x2, y2) = at(b[:-1]), at(b)
        drawing.line(x1 + 17, y1, x2 - 17, y2, "var(--line)" if b[:-1] in refused else "var(--ink)", 1.2)
    x, y = at(b"")
    drawing.rect(x - 17, y - BOX / 2, 34, BOX, GREEN, GREEN, 0.15, radius=12)
    drawing.text(x, y + 4, f"{state}", 11, fill="var(--soft)")
    told = []
    for b in beginnings:
        x, y = at(b)
        alive, looked = b not in refused, b[:-1] not in refused
        colour = GREEN if alive else RED if looked else "var(--line)"
        drawing.rect(x - 17, y - BOX / 2, 34, BOX, colour, colour, 0.22 if looked else 0.05, "" if looked else "3 3", 5)
        if b in pieces:
            drawing.rect(x - 20, y - BOX / 2 - 3, 40, BOX + 6, stroke=colour, radius=8)
            told.append(f"{printable(b)} {'allowed' if alive else 'refused'}")
        drawing.text(
            x - (5 if alive else 0),
            y + 5,
            printable(b[-1:]),
            13,
            mono=True,
            fill="var(--ink)" if looked else "var(--soft)",
        )
        if alive:
            drawing.text(x + 9, y + 5, str(automaton.read(b, state)), 10, fill="var(--soft)")
    x, y = 20.0, 56 + LEVEL * len(leaves) + 16
    for colour, words in (
        (GREEN, "may follow, with the state after it"),
        (RED, "refused"),
        ("var(--line)", "not looked at"),
    ):
        drawing.rect(x, y - 10, 12, 12, colour, colour, 0.4)
        drawing.text(x + 18, y, words, 11, "start")
        x += 34 + 6.1 * len(words)
    drawing.rect(x, y - 11, 16, 14, radius=5, stroke="var(--ink)")
    drawing.text(x + 22, y, "a token ends here", 11, "start")
    drawing.width = max(drawing.width, x + 140)
    return Figure(drawing, title, f"{title}, from state {state}. Tokens: {', '.join(told)}")


def vocabulary_mask(
    masks: Mapping[str, Collection[int]], size: int, title: str = "Which tokens may come next"
) -> Figure:
    """One picture per mask: a place for each token, row by row in the order of ids, filled where it is allowed.

    Parameters
    ----------
    masks : for each name, the allowed ids.
    size : tokens in the vocabulary.
    title : str
    """
    if not masks or size < 1:
        raise ValueError("nothing to draw: no masks, or no tokens")
    drawing = Drawing(10 + (WIDE + PAUSE) * min(len(masks), 3), 36 + (TALL + 64) * ((len(masks) + 2) // 3))
    drawing.text(10, 21, title, 14, "start", bold=True)
    rows = -(-size // SIDE)
    for i, (name, allowed) in enumerate(masks.items()):
        x, y = 10 + (WIDE + PAUSE) * (i % 3), 36.0 + (TALL + 64) * (i // 3)
        drawing.text(x, y + 14, name, 12, "start", mono=True)
        drawing.text(x, y + 30, f"{len(allowed):,} of {size:,} tokens", 11, "start", "var(--soft)", mono=True)
        top = y + 36
        drawing.rect(x, top, WIDE, TALL, radius=0)
        if len(allowed) <= DOTS:
            for token in allowed:
                cx, cy = x + WIDE * (token % SIDE + 0.5) / SIDE, top + TALL * (token // SIDE + 0.5) / rows
                drawing.rect(cx - 2, cy - 2, 4, 4, BLUE, BLUE, radius=2)
        else:
            drawing.parts.append(
                f'<image x="{x}" y="{top}" width="{WIDE}" height="{TALL}" preserveAspectRatio="none" '
                f'style="image-rendering:pixelated" href="data:image/png;base64,{_bits(allowed, rows)}"/>'
            )
    told = [f"{name}: {len(allowed):,} of {size:,}" for name, allowed in masks.items()]
    return Figure(drawing, title, f"{title}. " + "; ".join(told))


def _bits(allowed: Collection[int], rows: int) -> str:
    """A picture of one bit per token: the colour where it is allowed, else nothing."""
    lines = [bytearray(1 + SIDE // 8) for _ in range(rows)]  # each begins with its filter, 0
    for token in allowed:
        row, column = divmod(token, SIDE)
        lines[row][1 + column // 8] |= 128 >> column % 8

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", SIDE, rows, 1, 3, 0, 0, 0)
    colours = bytes(3) + bytes.fromhex(BLUE[1:])
    picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"PLTE", colours) + chunk(b"tRNS", b"\x00\xff")
    picture += chunk(b"IDAT", zlib.compress(b"".join(bytes(line) for line in lines), 9)) + chunk(b"IEND", b"")
    return base64.b64encode(picture).decode("ascii")


def _ranges(several: Sequence[int]) -> str:
    """Bytes as a label: letters, and ranges of three or more."""
    runs: list[list[int]] = []
    for byte in sorted(several):
        if runs and runs[-1][1] == byte - 1:
            runs[-1][1] = byte
        else:
            runs.append([byte, byte])
    words = []
    for low, high in runs:
        ends = [chr(b) if 32 < b < 127 else "space" if b == 32 else f"{b:02X}" for b in (low, high)]
        words += [ends[0]] if low == high else [f"{ends[0]}-{ends[1]}"] if high - low > 1 else ends
    return " ".join(words)
