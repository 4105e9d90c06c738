"""Blocks that several conversations share, and a file at the moments of a crash."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from course.figures.svg import BLUE, GREEN, ORANGE, RED, Drawing, Figure, columns

ROW, HEIGHT, GAP = 34, 26, 3

GOOD, FRESH, TORN, STALE, COUNTER, NOTHING = "good", "fresh", "torn", "stale", "counter", "nothing"
KINDS = {
    GOOD: (BLUE, 0.25, "", "counts"),
    FRESH: (GREEN, 0.3, "", "written just now"),
    TORN: (RED, 0.25, "3 2", "torn"),
    STALE: ("var(--line)", 0.15, "3 3", "left over, not counted"),
    COUNTER: (ORANGE, 0.25, "", "the counter"),
    NOTHING: ("none", 1.0, "1 3", "nothing yet"),
}


def shared_blocks(
    tables: Mapping[str, Sequence[Hashable]], full: int, title: str = "Blocks", words: str = "block"
) -> Figure:
    """Conversations as rows of blocks; a block that neighbours share is drawn once, over all of their rows.

    Parameters
    ----------
    tables : mapping of name to blocks
        What stands for a block is compared with `==`.  Conversations that share are best listed one after the other.
    full : int
        What all blocks would be, if each conversation had its own; for the words below.
    title, words : str
        `words` names one thing that is stored.

    Raises
    ------
    ValueError
        There is no conversation.
    """
    if not tables:
        raise ValueError("nothing to draw: no conversation")
    rows = list(tables.items())
    most = max((len(blocks) for _, blocks in rows), default=0)
    left = 24 + 7.4 * max(columns(name) for name, _ in rows)
    width = 44.0 if most <= 14 else 600 / most
    drawing = Drawing(max(left + most * (width + GAP) + 20, 420), 44 + ROW * len(rows) + 58)
    drawing.text(10, 21, title, 14, "start", bold=True)
    stored: dict[Hashable, int] = {}
    repeated = False  # whether rows that are no neighbours share a block
    for r, (name, blocks) in enumerate(rows):
        top = 40 + ROW * r
        drawing.text(10, top + 18, name, 12, "start")
        for c, block in enumerate(blocks):
            above = r and c < len(rows[r - 1][1]) and rows[r - 1][1][c] == block
            stored[block] = stored.get(block, 0) + 1
            if above:
                continue  # drawn with the row above
            span = 1
            while r + span < len(rows) and c < len(rows[r + span][1]) and rows[r + span][1][c] == block:
                span += 1
            again = stored[block] > 1
            colour = BLUE if span > 1 or again else GREEN
            tall = ROW * (span - 1) + HEIGHT
            opacity = 0.08 if again else 0.3 if span > 1 else 0.2
            drawing.rect(left + c * (width + GAP), top, width, tall, colour, colour, opacity, "4 3" if again else "")
            repeated = repeated or again
            if span > 1 and width > 20:
                drawing.text(left + c * (width + GAP) + width / 2, top + tall / 2 + 4, f"x {span}", 11)
    y = 40 + ROW * len(rows) + 18
    shared = sum(1 for n in stored.values() if n > 1)
    x = 10.0
    legend = [(BLUE, "stored once, used by several", ""), (GREEN, "one conversation's own", "")]
    for colour, text, dash in [*legend, *([(BLUE, "the same one again", "4 3")] if repeated else [])]:
        drawing.rect(x, y - 10, 12, 12, colour, colour, 0.08 if dash else 0.4, dash)
        drawing.text(x + 18, y, text, 11, "start")
        x += 40 + 6.2 * len(text)
    counted = f"{len(stored)} {words}s are stored, {shared} of them shared. Without sharing: {full}."
    drawing.text(10, y + 24, counted, 12, "start", bold=True)
    used = sum(stored.values())
    told = "; ".join(f"{name}: {len(blocks)}" for name, blocks in rows)
    return Figure(drawing, title, f"{title}. {words.capitalize()}s by conversation: {told}; {used} together. {counted}")


def file_states(
    moments: Sequence[tuple[str, Sequence[tuple[str, str]], str]], title: str = "A file, moment by moment"
) -> Figure:
    """A file as a row of fields, at several moments, and what is read of it at each.

    Parameters
    ----------
    moments : sequence of (when, fields, found)
        `fields` are (text, kind), with a kind of KINDS; `found` says what a reader gets.
    title : str

    Raises
    ------
    ValueError
        There is no moment, or a kind that is none.
    """
    if not moments:
        raise ValueError("nothing to draw: no moment")
    if unknown := {kind for _, fields, _ in moments for _, kind in fields} - set(KINDS):
        raise ValueError(f"a field is one of {', '.join(KINDS)}, got {', '.join(sorted(unknown))}")
    left = 24 + 7.2 * max(columns(when) for when, _, _ in moments)
    widths = [
        max([30.0, *(14 + 7.6 * columns(fields[c][0]) for _, fields, _ in moments if c < len(fields))])
        for c in range(max(len(fields) for _, fields, _ in moments))
    ]
    right = left + sum(widths) + GAP * len(widths) + 12
    drawing = Drawing(right + 7.2 * max(columns(found) for _, _, found in moments) + 16, 44 + ROW * len(moments) + 32)
    drawing.text(10, 21, title, 14, "start", bold=True)
    seen, told = [], []
    for r, (when, fields, found) in enumerate(moments):
        top, x = 40 + ROW * r, left
        drawing.text(10, top + 18, when, 12, "start")
        for (text, kind), width in zip(fields, widths, strict=False):
            colour, opacity, dash, _ = KINDS[kind]
            stroke = "var(--line)" if colour == "none" else colour
            drawing.rect(x, top, width, HEIGHT, colour, stroke, opacity, dash)
            faint = kind in (STALE, NOTHING)
            drawing.text(x + width / 2, top + 18, text, 12, fill="var(--soft)" if faint else "var(--ink)", mono=True)
            x += width + GAP
            seen += [kind] if kind not in seen else []
        drawing.text(right, top + 18, found, 12, "start", bold=True)
        held = ", ".join(f"{text or '-'} ({KINDS[kind][3]})" for text, kind in fields)
        told.append(f"{when}: {held}; {found}")
    x, y = 10.0, 40 + ROW * len(moments) + 16
    for kind in [kind for kind in KINDS if kind in seen]:
        colour, _, dash, words = KINDS[kind]
        drawing.rect(x, y - 10, 12, 12, colour, "var(--line)" if colour == "none" else colour, 0.4, dash)
        drawing.text(x + 18, y, words, 11, "start")
        x += 36 + 6.2 * len(words)
    drawing.width = max(drawing.width, x)
    return Figure(drawing, title, f"{title}. {'. '.join(told)}.")
