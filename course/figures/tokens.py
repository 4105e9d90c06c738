"""Token strips with probabilities, and the timeline of a verify loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.figures.svg import BLUE, GREEN, ORANGE, RED, Drawing, Figure, columns, percent, printable

GAP, CHARACTER, MAX_WIDTH = 6, 8.2, 760


def token_strip(
    tokens: Sequence[str | bytes],
    probabilities: Sequence[float] | None = None,
    ids: Sequence[int] | None = None,
    title: str = "Tokens",
) -> Figure:
    """Tokens side by side, each with its id below and a bar of its probability.

    Parameters
    ----------
    tokens : sequence of str or bytes
        Texts of the tokens; spaces are shown as a middle dot.
    probabilities : sequence of float, optional
        One per token, 0 to 1; the bar's height and the number above it.
    ids : sequence of int, optional
        One per token.
    title : str
    """
    _same_length(tokens, probabilities, ids)
    shown = [printable(token) for token in tokens]
    least = 46 if probabilities is not None else 28
    widths = [max(least, 14 + CHARACTER * columns(text)) for text in shown]
    bar_room = 62 if probabilities is not None else 0
    row_height = 38 + bar_room + (16 if ids is not None else 0)
    rows: list[list[int]] = [[]]
    used = 0.0
    for i, width in enumerate(widths):
        if rows[-1] and used + width > MAX_WIDTH:
            rows.append([])
            used = 0.0
        rows[-1].append(i)
        used += width + GAP
    full = max((sum(widths[i] + GAP for i in row) for row in rows), default=0) + 16
    drawing = Drawing(max(full, 160), 34 + row_height * len(rows))
    drawing.text(10, 21, title, 14, "start", bold=True)
    for r, row in enumerate(rows):
        x, top = 10.0, 32 + r * row_height
        for i in row:
            if probabilities is not None:
                height = 40 * min(max(probabilities[i], 0.0), 1.0)
                drawing.rect(x, top + 16, widths[i], 40, stroke="var(--line)", dash="2 3")
                drawing.rect(x, top + 56 - height, widths[i], height, BLUE, BLUE, 0.85, radius=1)
                drawing.text(x + widths[i] / 2, top + 11, percent(probabilities[i]), 11)
            y = top + bar_room
            drawing.rect(x, y, widths[i], 26, BLUE if i % 2 else ORANGE, "var(--line)", 0.18)
            drawing.text(x + widths[i] / 2, y + 18, shown[i], 13, mono=True)
            if ids is not None:
                drawing.text(x + widths[i] / 2, y + 39, str(ids[i]), 10, fill="var(--soft)")
            x += widths[i] + GAP
    words = [
        f"{text} ({percent(probabilities[i])})" if probabilities is not None else text for i, text in enumerate(shown)
    ]
    return Figure(drawing, title, f"{title}: " + ", ".join(words))


@dataclass(frozen=True, slots=True)
class _Step:
    draft: list[str]
    accepted: int
    last: str


def accept_reject(
    steps: Sequence[tuple[Sequence[str | bytes], int, str | bytes]], title: str = "Draft and verify"
) -> Figure:
    """The timeline of a verify loop: one row per step, accepted drafts, rejected drafts, and the token from the model.

    Parameters
    ----------
    steps : sequence of (draft, accepted, token)
        `draft`: the proposed tokens; `accepted`: how many of them the model agreed with; `token`: what the model itself
        gave afterwards, the correction after a mismatch, the bonus when the whole draft was accepted.
    title : str
    """
    rows = []
    for draft, accepted, token in steps:
        if not 0 <= accepted <= len(draft):
            raise ValueError(f"accepted must be between 0 and {len(draft)}, got {accepted}")
        rows.append(_Step([printable(t) for t in draft], accepted, printable(token)))
    texts = [text for row in rows for text in [*row.draft, row.last]]
    width = max([46.0, *(22 + CHARACTER * columns(text) for text in texts)])
    most = max((len(row.draft) + 1 for row in rows), default=1)
    drawing = Drawing(max(70 + most * (width + GAP) + 96, 650), 62 + 34 * len(rows))
    drawing.text(10, 21, title, 14, "start", bold=True)
    total = 0
    for r, row in enumerate(rows):
        x, y = 64.0, 32 + 34 * r
        drawing.text(10, y + 18, f"step {r + 1}", 12, "start", fill="var(--soft)")
        for i, text in enumerate(row.draft):
            good = i < row.accepted
            colour = GREEN if good else RED
            drawing.rect(x, y, width, 26, colour, colour, 0.2 if good else 0.08, dash="" if good else "4 3")
            mark = "\u2713" if good else "\u2717" if i == row.accepted else "\u2013"
            drawing.text(x + 9, y + 18, mark, 12, fill=colour)
            drawing.text(x + width / 2 + 5, y + 18, text, 13, mono=True)
            if not good:
                drawing.line(x + 18, y + 13, x + width - 6, y + 13, RED, 1)
            x += width + GAP
        drawing.rect(x, y, width, 26, BLUE, BLUE, 0.28)
        drawing.text(x + 9, y + 18, "+" if row.accepted == len(row.draft) else "\u21bb", 12)
        drawing.text(x + width / 2 + 5, y + 18, row.last, 13, mono=True)
        total += row.accepted + 1
        drawing.text(x + width + 12, y + 18, f"{row.accepted + 1} token{'s' if row.accepted else ''}", 12, "start")
    bottom = 32 + 34 * len(rows) + 16
    legend = (
        (GREEN, "\u2713 accepted"),
        (RED, "\u2717 rejected, \u2013 not looked at"),
        (BLUE, "\u21bb correction, + bonus: from the model itself"),
    )
    x = 64.0
    for colour, words in legend:
        drawing.rect(x, bottom - 10, 12, 12, colour, colour, 0.4)
        drawing.text(x + 18, bottom, words, 11, "start")
        x += 30 + 6.3 * len(words)
    told = [
        f"step {i + 1}: {row.accepted} of {len(row.draft)} drafts accepted, then "
        f"{'bonus' if row.accepted == len(row.draft) else 'correction'} {row.last}"
        for i, row in enumerate(rows)
    ]
    return Figure(drawing, title, f"{title}, {total} tokens in {len(rows)} steps. " + "; ".join(told))


def _same_length(tokens: Sequence, *others: Sequence | None) -> None:
    for other in others:
        if other is not None and len(other) != len(tokens):
            raise ValueError(f"{len(tokens)} tokens, but {len(other)} values for them")
