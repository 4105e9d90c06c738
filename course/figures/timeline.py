"""Who waits and who is served, on a common clock: a line for each request, a tick for each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from course.figures.svg import BLUE, ORANGE, RED, Drawing, Figure, columns

TALL, LOW, TOP, WIDTH = 22, 14, 46, 600
MANY = 20  # requests; with more of them the lines are low

Span = tuple[float, Sequence[float], float]


def timeline(spans: Mapping[str, Span], title: str, seconds: float | None = None) -> Figure:
    """Draw requests over time.

    Parameters
    ----------
    spans : mapping of name to (came, tokens, done)
        Seconds: when the request came, when each token came, when all was done.  Without tokens it was refused.
    title : str
    seconds : float, optional
        Where the axis ends; by default, when the last one was done.
    """
    if not spans:
        raise ValueError("nothing to draw: a timeline needs a request")
    end = seconds or max(max(came, done) for came, _, done in spans.values()) or 1.0
    row = TALL if len(spans) <= MANY else LOW
    bar, words, sign = (14, 12, 16) if row == TALL else (8, 10, 12)  # heights of bars and letters
    left = 26 + 7.6 * max(columns(name) for name in spans)
    drawing = Drawing(left + WIDTH + 24, TOP + row * len(spans) + 50)
    drawing.text(10, 21, title, 14, "start", bold=True)

    def x(at: float) -> float:
        return left + WIDTH * min(at, end) / end

    floor = TOP + row * len(spans)
    for mark in range(6):
        at = left + WIDTH * mark / 5
        drawing.line(at, TOP - 6, at, floor + 4, dash="2 4")
        drawing.text(at, floor + 18, f"{end * mark / 5:.2g} s", 11, fill="var(--soft)")
    told, refused = [], False
    for i, (name, (came, tokens, done)) in enumerate(spans.items()):
        y = TOP + row * i
        drawing.text(left - 8, y + 2 + bar / 2 + 0.35 * words, name, words, "end")
        if not tokens:
            refused = True
            drawing.text(x(came), y + 2 + bar / 2 + 0.32 * sign, "\u00d7", sign, fill=RED, bold=True)
            told.append(f"{name} is refused")
            continue
        drawing.rect(
            x(came), y + 2 + bar / 4, max(1.0, x(tokens[0]) - x(came)), bar / 2, ORANGE, "none", 0.55, radius=2
        )
        drawing.rect(x(tokens[0]), y + 2, max(2.0, x(done) - x(tokens[0])), bar, BLUE, "none", 0.25, radius=2)
        for token in tokens:
            drawing.line(x(token), y + 2, x(token), y + 2 + bar, BLUE, 1.5)
        told.append(f"{name} comes at {came:.2f} s, has its first token at {tokens[0]:.2f} s, ends at {done:.2f} s")
    at = 10.0
    for colour, meaning in [(ORANGE, "waits for its first token"), (BLUE, "one line for each token")]:
        drawing.rect(at, floor + 30, 12, 12, colour, "none", 0.55)
        drawing.text(at + 18, floor + 40, meaning, 11, "start")
        at += 40 + 6.2 * len(meaning)
    if refused:
        drawing.text(at + 6, floor + 41, "\u00d7", 16, fill=RED, bold=True)
        drawing.text(at + 18, floor + 40, "refused", 11, "start")
    return Figure(drawing, title, f"{title}. {'; '.join(told)}.")
