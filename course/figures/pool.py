"""A pool of KV slots: who holds which prefix, what a request reuses, and what it has to prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course.figures.svg import BLUE, GREEN, ORANGE, Drawing, Figure, columns, printable

GAP, ROW = 4, 40
Tokens = Sequence[str | bytes | int]


def prefix_pool(slots: Mapping[str, Tokens], request: Tokens | None = None, title: str = "Pool of KV slots") -> Figure:
    """Slots with the tokens whose rows they hold, and above them a request that looks for the longest common prefix.

    Parameters
    ----------
    slots : mapping of name to tokens
        One slot per row, in the order of the pool; a slot without tokens is free.  Texts, or ids.
    request : sequence of tokens, optional
        The tokens of a new request.  It takes the slot that shares its longest prefix (the first of equals).  Its last
        token is always run again, even if a slot holds its row: logits are not kept.
    title : str

    Raises
    ------
    ValueError
        There is no slot, or the request has no token.
    """
    if not slots:
        raise ValueError("nothing to draw: a pool needs a slot")
    if request is not None and not len(request):
        raise ValueError("a request needs at least one token")
    rows = {name: [_shown(token) for token in tokens] for name, tokens in slots.items()}
    wanted = [_shown(token) for token in request] if request is not None else []
    shared = {name: _common(tokens, request or ()) for name, tokens in slots.items()}
    best = max(shared, key=lambda name: shared[name])  # max keeps the first of equals
    reused = max(0, min(shared[best], len(wanted) - 1))
    chosen = best if reused else ""

    texts = [text for row in [wanted, *rows.values()] for text in row]
    longest = max([1, *(len(row) for row in [wanted, *rows.values()])])
    width = max([26.0, *(12 + 8.2 * columns(text) for text in texts)])
    left = 24 + 7.6 * max(columns(name) for name in [*rows, "request"])
    full = max(left + longest * (width + GAP) + 165, left + 400)
    top = 40.0
    drawing = Drawing(full, top + ROW * (len(rows) + bool(wanted)) + 40)
    drawing.text(10, 21, title, 14, "start", bold=True)

    if wanted:
        _label(drawing, "request", top, bold=True)
        for i, text in enumerate(wanted):
            kind = (GREEN, 0.25, "") if i < reused else (ORANGE, 0.12, "4 3")
            _cell(drawing, left + i * (width + GAP), top, width, text, *kind)
        told = f"{reused} reused, {len(wanted) - reused} prefilled"
        drawing.text(left + len(wanted) * (width + GAP) + 8, top + 18, told, 12, "start", bold=True)
        top += ROW + 6
        if reused:  # the border between what is there and what has to be computed
            x = left + reused * (width + GAP) - GAP / 2
            drawing.line(x, 34, x, top + ROW * len(rows) - 8, "var(--soft)", 1.2, "2 3")
    for name, tokens in rows.items():
        _label(drawing, name, top, bold=name == chosen)
        for i, text in enumerate(tokens):
            mine = name == chosen and i < reused
            same = bool(wanted) and i < shared[name]
            _cell(
                drawing,
                left + i * (width + GAP),
                top,
                width,
                text,
                GREEN if mine else BLUE,
                0.25 if mine else 0.3 if same else 0.1,
            )
        note = "free" if not tokens else f"shares {shared[name]}" if wanted else f"{len(tokens)} rows"
        note += ", chosen" if name == chosen else ""
        if not tokens:
            drawing.rect(left, top, width, 26, stroke="var(--line)", dash="1 3")
        drawing.text(
            left + max(len(tokens), 1) * (width + GAP) + 8,
            top + 18,
            note,
            12,
            "start",
            "var(--ink)" if name == chosen else "var(--soft)",
            bold=name == chosen,
        )
        top += ROW
    _legend(drawing, left, top + 14, bool(wanted))
    return Figure(drawing, title, _words(title, rows, wanted, shared, chosen, reused))


def _shown(token: str | bytes | int) -> str:
    return printable(token) if isinstance(token, (str, bytes)) else str(token)


def _common(a: Tokens, b: Tokens) -> int:
    """Length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _label(drawing: Drawing, name: str, top: float, bold: bool) -> None:
    drawing.text(10, top + 18, name, 12, "start", "var(--ink)" if bold else "var(--soft)", bold=bold)


def _cell(
    drawing: Drawing, x: float, top: float, width: float, text: str, colour: str, opacity: float, dash: str = ""
) -> None:
    drawing.rect(x, top, width, 26, colour, colour, opacity, dash)
    drawing.text(x + width / 2, top + 18, text, 12, mono=True)


def _legend(drawing: Drawing, x: float, y: float, asked: bool) -> None:
    entries = [
        (GREEN, 0.3, "", "reused"),
        (ORANGE, 0.2, "4 3", "prefilled"),
        (BLUE, 0.3, "", "shared, not needed"),
        (BLUE, 0.1, "", "held by a slot"),
    ]
    for colour, opacity, dash, words in entries if asked else entries[3:]:
        drawing.rect(x, y - 10, 12, 12, colour, colour, opacity, dash)
        drawing.text(x + 18, y, words, 11, "start")
        x += 36 + 6.5 * len(words)


def _words(
    title: str, rows: Mapping[str, list[str]], wanted: list[str], shared: Mapping[str, int], chosen: str, reused: int
) -> str:
    held = []
    for name, tokens in rows.items():
        text = f"{name} holds {' '.join(tokens)}" if tokens else f"{name} is free"
        held.append(text + (f", {shared[name]} of them shared with the request" if wanted and tokens else ""))
    told = f"{title}: " + "; ".join(held)
    if wanted:
        source = f"reuses {reused} rows of {chosen} and prefills" if chosen else "finds nothing to reuse and prefills"
        told += f". A request of {len(wanted)} tokens, {' '.join(wanted)}, {source} {len(wanted) - reused}"
    return told + "."
