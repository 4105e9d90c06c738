"""States and the arrows between them: an automaton, a state machine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from course.figures.svg import BLUE, ORANGE, RED, Drawing, Figure, columns, printable

HALF, GAP, ROW = 19.0, 54.0, 96.0  # half the height of a state; least room between states; from row to row
SMALL, LETTER = 6.9, 7.8  # width of a character on an arrow and in a state
STEPS = 48  # pieces of a drawn curve
PLACES = (0.5, 0.4, 0.6, 0.32, 0.68, 0.25, 0.75)  # of a label along its arrow, best first
Point = tuple[float, float]
Box = tuple[float, float, float, float]


def state_graph(
    states: Mapping[str, tuple[float, float]],
    edges: Sequence[tuple[str, str, str]],
    *,
    current: str | None = None,
    dashed: Sequence[tuple[str, str]] = (),
    double: Collection[str] = (),
    title: str = "States",
) -> Figure:
    """States as rounded boxes, with labelled arrows between them.

    An arrow bows to the left of its way where it would run over another state or over its own way back.  So an
    automaton that is laid out from left to right has its edges above and its suffix links below.

    Parameters
    ----------
    states : mapping of str to (column, row)
        Names, and where they stand on a grid; fractions are fine, rows go downwards.
    edges : sequence of (from, to, label)
        Solid arrows.  Several between the same two states are drawn as one, with all their labels.
    current : str, optional
        The state that is drawn filled, with a heavy border.
    dashed : sequence of (from, to)
        Dashed arrows, the suffix links of an automaton.
    double : collection of str
        States with a double ring.
    title : str

    Raises
    ------
    ValueError
        There is no state, two states stand at one place, or a name is not that of a state.
    """
    _check(states, edges, current, dashed, double)
    texts = {name: _text(name) for name in states}
    halves = {name: max(HALF, 9 + LETTER * columns(text) / 2) for name, text in texts.items()}
    labels: dict[tuple[str, str], str] = {}
    for start, end, label in edges:
        shown = _text(label) if label else ""
        labels[start, end] = f"{labels[start, end]}, {shown}" if (start, end) in labels else shown
    pitch = _pitch(states, halves, labels)
    centres = {name: (column * pitch, row * ROW) for name, (column, row) in states.items()}

    ways = {
        pair: _way(pair, centres, halves, pair[::-1] in labels or pair[::-1] in set(dashed), False) for pair in labels
    }
    links = {pair: _way(pair, centres, halves, True, True) for pair in dict.fromkeys(dashed)}
    taken: list[Box] = [(x - halves[n], y - HALF, x + halves[n], y + HALF) for n, (x, y) in centres.items()]
    placed = {}
    for pair, way in ways.items():
        if labels[pair]:
            others = [other for other in (*ways.values(), *links.values()) if other is not way]
            placed[pair] = _place(way, labels[pair], taken, others)

    corners = [*taken, *((x, y, x, y) for way in (*ways.values(), *links.values()) for x, y in way)]
    left, top = min(c[0] for c in corners) - 14, min(c[1] for c in corners) - 40
    width, height = max(c[2] for c in corners) - left + 14, max(c[3] for c in corners) - top + 14
    legend = [words for words, shown in (("current", current is not None), ("suffix link", bool(links))) if shown]
    drawing = Drawing(max(width, 24 + 8 * columns(title), 220), height + (24 if legend else 0))
    drawing.text(10, 21, title, 14, "start", bold=True)

    for way in links.values():
        _arrow(drawing, [(x - left, y - top) for x, y in way], ORANGE, "5 4")
    for way in ways.values():
        _arrow(drawing, [(x - left, y - top) for x, y in way], "var(--ink)", "")
    for pair, (x0, y0, x1, y1) in placed.items():
        drawing.rect(x0 - left, y0 - top, x1 - x0, y1 - y0, "var(--paper)", "none")
        drawing.text((x0 + x1) / 2 - left, y1 - 4 - top, labels[pair], 12, mono=len(labels[pair]) < 3)
    for name, (x, y) in centres.items():
        here, half = name == current, halves[name]
        _box(drawing, x - left, y - top, half, HALF, RED if here else BLUE, 0.4 if here else 0.14)
        if here:
            _box(drawing, x - left, y - top, half + 1.5, HALF + 1.5, RED, 0)
        if name in double:
            _box(drawing, x - left, y - top, half - 4, HALF - 4, RED if here else BLUE, 0)
        drawing.text(x - left, y - top + 4.5, texts[name], 13, bold=here)
    x = 14.0
    for words in legend:
        if words == "current":
            _box(drawing, x + 8, height + 6, 8, 6, RED, 0.4)
        else:
            drawing.line(x, height + 6, x + 24, height + 6, ORANGE, 2, "5 4")
        drawing.text(x + 32, height + 10, words, 11, "start")
        x += 60 + 6.5 * len(words)
    return Figure(drawing, title, _words(title, states, edges, current, dashed, double))


def _check(
    states: Mapping[str, tuple[float, float]],
    edges: Iterable[tuple[str, str, str]],
    current: str | None,
    dashed: Iterable[tuple[str, str]],
    double: Collection[str],
) -> None:
    if not states:
        raise ValueError("nothing to draw: no states")
    seen: dict[tuple[float, float], str] = {}
    for name, place in states.items():
        if place in seen:
            raise ValueError(f"states {seen[place]!r} and {name!r} both stand at {place}")
        seen[place] = name
    named = [(f"edge {edge!r}", name) for edge in edges for name in edge[:2]]
    named += [(f"dashed {link!r}", name) for link in dashed for name in link]
    named += [("double", name) for name in double]
    named += [("current", current)] if current is not None else []
    for what, name in named:
        if name not in states:
            raise ValueError(f"{what}: there is no state {name!r}, expected one of {list(states)}")


def _pitch(
    states: Mapping[str, tuple[float, float]], halves: Mapping[str, float], labels: Mapping[tuple[str, str], str]
) -> float:
    """From column to column: room for the widest states side by side, and for labels between them."""
    pitch = 2 * max(halves.values()) + GAP
    for (start, end), label in labels.items():
        apart = abs(states[end][0] - states[start][0])
        if apart > 0:
            pitch = max(pitch, min((SMALL * columns(label) + 34 + halves[start] + halves[end]) / apart, 300))
    return pitch


def _inside(point: Point, centre: Point, half: float, margin: float) -> bool:
    """Whether a point is in the rounded box of a state."""
    x, y = point[0] - centre[0], point[1] - centre[1]
    x -= min(max(x, HALF - half), half - HALF)
    return x * x + y * y < (HALF + margin) ** 2


def _way(
    pair: tuple[str, str], centres: Mapping[str, Point], halves: Mapping[str, float], apart: bool, link: bool
) -> list[Point]:
    """The points of an arrow, from border to border; `apart`: something else runs between the same two states."""
    start, end = pair
    (x1, y1), (x2, y2) = centres[start], centres[end]
    if start == end:
        dip = [i / STEPS for i in range(STEPS + 1)]
        side = 1 if link else -1  # a link below, an edge above
        return [
            (x1 + 15 * (2 * t - 1) * (1 + 2.2 * t * (1 - t)), y1 + side * (HALF * 0.82 + 132 * t * (1 - t)))
            for t in dip
        ]
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    bow = 0.0
    others = [(c, halves[name]) for name, c in centres.items() if name not in pair]
    line = [(x1 + (x2 - x1) * i / STEPS, y1 + (y2 - y1) * i / STEPS) for i in range(STEPS + 1)]
    if any(_inside(point, c, half, 5) for point in line for c, half in others):
        bow = max(2 * HALF + 34, 0.42 * length)
    elif apart:
        bow = max(34.0, 0.22 * length)
    for _ in range(12):  # higher, until it runs over nobody
        cx, cy = (x1 + x2) / 2 + bow * (y2 - y1) / length, (y1 + y2) / 2 - bow * (x2 - x1) / length
        curve = []
        for i in range(STEPS + 1):
            t = i / STEPS
            a, b, c = (1 - t) ** 2, 2 * t * (1 - t), t * t
            curve.append((a * x1 + b * cx + c * x2, a * y1 + b * cy + c * y2))
        if not bow or not any(_inside(point, c, half, 5) for point in curve for c, half in others):
            break
        bow += 16
    outside = [
        p
        for p in curve
        if not _inside(p, centres[start], halves[start], 1) and not _inside(p, centres[end], halves[end], 2)
    ]
    return outside if len(outside) > 1 else [(x1, y1), (x2, y2)]


def _place(way: list[Point], label: str, taken: list[Box], others: Iterable[list[Point]]) -> Box:
    """A box for an arrow's label, beside the arrow and where least is drawn already; it is entered into `taken`."""
    half = SMALL * columns(label) / 2 + 3
    best, least = None, 0.0
    for n, place in enumerate(PLACES):
        i = min(max(round(place * (len(way) - 1)), 1), len(way) - 2) if len(way) > 2 else 0
        (ax, ay), (bx, by) = way[max(i - 1, 0)], way[min(i + 1, len(way) - 1)]
        length = max(((bx - ax) ** 2 + (by - ay) ** 2) ** 0.5, 1e-9)
        for side in (1, -1):  # to the left of the way, to its right
            nx, ny = side * (by - ay) / length, side * (ax - bx) / length
            x, y = way[i][0] + nx * (half + 3), way[i][1] + ny * 11
            box = (x - half, y - 8, x + half, y + 8)
            price = 10 * sum(_overlap(box, other) for other in taken) + 0.1 * n + (0.25 if side < 0 else 0)
            price += sum(any(_overlap(box, (px, py, px, py)) for px, py in other) for other in others)
            if best is None or price < least:
                best, least = box, price
    assert best is not None
    taken.append(best)
    return best


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _arrow(drawing: Drawing, way: list[Point], colour: str, dash: str) -> None:
    """A curve with a head at its end."""
    tip = way[-1]
    k = len(way) - 2
    while k > 0 and (way[k][0] - tip[0]) ** 2 + (way[k][1] - tip[1]) ** 2 < 81:
        k -= 1
    if k > 0:
        drawing.path(way[: k + 1], colour, 1.5, dash)
    drawing.arrow(*way[k], *tip, stroke=colour)


def _box(drawing: Drawing, x: float, y: float, half: float, tall: float, colour: str, opacity: float) -> None:
    drawing.rect(x - half, y - tall, 2 * half, 2 * tall, colour if opacity else "none", colour, opacity, radius=tall)


def _text(name: str) -> str:
    """A name in one visible line; spaces are marked where they are part of a token, not between words."""
    return " ".join(map(printable, name.split(" "))) if name == name.strip() and name else printable(name)


def _words(
    title: str,
    states: Iterable[str],
    edges: Iterable[tuple[str, str, str]],
    current: str | None,
    dashed: Iterable[tuple[str, str]],
    double: Collection[str],
) -> str:
    """The figure in words."""
    names = [
        _text(name) + (" (current)" if name == current else "") + (" (double ring)" if name in double else "")
        for name in states
    ]
    told = f"{title}. States: {', '.join(names)}"
    arrows = [f"{_text(a)} to {_text(b)}" + (f" on {_text(label)}" if label else "") for a, b, label in edges]
    links = [f"{_text(a)} to {_text(b)}" for a, b in dashed]
    return (
        told
        + (f". Arrows: {'; '.join(arrows)}" if arrows else "")
        + (f". Suffix links: {'; '.join(links)}" if links else "")
    )
