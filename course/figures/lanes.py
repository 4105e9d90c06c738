"""A pool over time: slots as lanes, requests from left to right, and what each of them did to the slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from course.figures.svg import BLUE, GREEN, ORANGE, PURPLE, RED, Drawing, Figure

NEW, CONTINUED, COPIED, RESTORED = "new", "continued", "copied", "restored"
COLOURS = {NEW: ORANGE, CONTINUED: GREEN, COPIED: BLUE, RESTORED: PURPLE}
WIDTH, LANE, BOX = 96, 62, 34


@dataclass(frozen=True, slots=True)
class Step:
    """One request.

    Attributes
    ----------
    request, conversation : str
        Its short name, and the name of what it belongs to: that stands in the lane.
    lane : int
        The slot in which it ends up.
    how : str
        NEW, CONTINUED, COPIED (from the lane `source`) or RESTORED (from disk).
    cached, prompt, rows : int
        Tokens of the prompt that were there, all of them, and rows that rest in the slot afterwards.
    dropped : str
        The conversation that had to leave the lane, if one had to.
    spilled : bool
        Whether what was dropped went to disk.
    """

    request: str
    conversation: str
    lane: int
    how: str
    cached: int
    prompt: int
    rows: int
    source: int | None = None
    dropped: str = ""
    spilled: bool = False


def pool_lanes(steps: Sequence[Step], lanes: int, title: str = "A pool over time", disk: bool = False) -> Figure:
    """Draw steps: a column for each request, a lane for each slot, and one for the disk.

    Parameters
    ----------
    steps : sequence of Step
    lanes : int
        How many slots there are.
    title : str
    disk : bool
        Draw the lane of the disk also if nothing goes there.

    Raises
    ------
    ValueError
        There is no step, or a step is in a lane that is not there.
    """
    if not steps:
        raise ValueError("nothing to draw: a pool needs a request")
    if any(not 0 <= n < lanes for step in steps for n in (step.lane, step.source or 0)):
        raise ValueError(f"the lanes of steps are 0 to {lanes - 1}")
    disk = disk or any(step.spilled or step.how == RESTORED for step in steps)
    left, top = 74.0, 84.0
    floor = top + lanes * LANE
    drawing = Drawing(max(left + WIDTH * len(steps) + 16, 640), floor + (50 if disk else 0) + 36)
    drawing.text(10, 21, title, 14, "start", bold=True)
    for lane in range(lanes):
        y = top + lane * LANE
        drawing.text(10, y + 22, f"slot {lane}", 12, "start", "var(--soft)")
        drawing.line(left, y + BOX / 2, drawing.width - 10, y + BOX / 2, dash="2 4")
    if disk:
        drawing.text(10, floor + 26, "disk", 12, "start", "var(--soft)")
        drawing.rect(left, floor + 8, drawing.width - left - 10, 28, dash="4 3")
    held: dict[int, Step] = {}
    stored: list[str] = []
    for i, step in enumerate(steps):
        _column(drawing, left + WIDTH * i, top, floor, step, held, stored)
        held[step.lane] = step
    _legend(drawing, drawing.height - 16, disk)
    return Figure(drawing, title, f"{title}. " + " ".join(_told(step) for step in steps))


def _column(
    drawing: Drawing, x: float, top: float, floor: float, step: Step, held: dict[int, Step], stored: list[str]
) -> None:
    middle = x + WIDTH / 2
    drawing.text(middle, 44, step.request, 13, bold=True)
    drawing.text(middle, 62, f"{step.cached} of {step.prompt}", 11, fill="var(--soft)")
    for lane, before in held.items():
        if lane != step.lane:
            _box(drawing, x, top + lane * LANE, before.conversation, before.rows, "var(--line)", 0.15)
    y = top + step.lane * LANE
    _box(drawing, x, y, step.conversation, step.rows, COLOURS[step.how], 0.3, bold=True)
    if step.how == CONTINUED:
        drawing.arrow(x - 6, y + BOX / 2, x + 8, y + BOX / 2, GREEN)
    if step.how == COPIED and step.source is not None:
        other = top + step.source * LANE
        down = other < y
        if step.source == step.lane:  # it copied from what it then replaced
            drawing.arrow(x - 8, y + BOX / 2, x + 8, y + BOX / 2, BLUE)
        else:
            drawing.arrow(
                middle - 26, other + (BOX + 1 if down else -1), middle - 26, y + (-1 if down else BOX + 1), BLUE
            )
    if step.dropped:
        drawing.line(x - 1, y + 2, x + 7, y + 10, RED, 2.5)
        drawing.line(x + 7, y + 2, x - 1, y + 10, RED, 2.5)
    if step.how == RESTORED:
        stored[:] = [name for name in stored if name != step.conversation]
        drawing.arrow(middle + 26, floor + 8, middle + 26, y + BOX + 2, PURPLE)
    if step.spilled:
        stored.append(step.dropped)
        drawing.arrow(x + 3, y + 14, x + 3, floor + 7, RED)
    if stored:
        drawing.text(middle + 4, floor + 27, ", ".join(stored), 11)


def _box(
    drawing: Drawing, x: float, y: float, name: str, rows: int, colour: str, opacity: float, bold: bool = False
) -> None:
    drawing.rect(x + 9, y, WIDTH - 14, BOX, "var(--paper)", "none", radius=6)  # over the line of the lane
    drawing.rect(x + 9, y, WIDTH - 14, BOX, colour, colour, opacity, radius=6)
    drawing.text(x + WIDTH / 2 + 2, y + 15, name, 12, bold=bold, fill="var(--ink)" if bold else "var(--soft)")
    drawing.text(x + WIDTH / 2 + 2, y + 29, f"{rows} rows", 10, fill="var(--ink)" if bold else "var(--soft)")


def _legend(drawing: Drawing, y: float, disk: bool) -> None:
    entries = [
        (ORANGE, "from the start"),
        (GREEN, "goes on in its slot"),
        (BLUE, "begins with copied rows"),
        (RED, "dropped before"),
    ]
    if disk:
        entries.insert(3, (PURPLE, "read from disk"))
    x = 10.0
    for colour, words in entries:
        drawing.rect(x, y - 10, 12, 12, colour, colour, 0.4)
        drawing.text(x + 18, y, words, 11, "start")
        x += 34 + 6.2 * len(words)
    drawing.width = max(drawing.width, x)


def _told(step: Step) -> str:
    ways = {
        NEW: f"begins in slot {step.lane}",
        CONTINUED: f"goes on in slot {step.lane}",
        COPIED: f"begins in slot {step.lane} with rows copied from slot {step.source}",
        RESTORED: f"is read from disk into slot {step.lane}",
    }
    dropped = f", where {step.dropped} {'goes to disk' if step.spilled else 'is dropped'}" if step.dropped else ""
    return (
        f"{step.request} {ways[step.how]}{dropped}: {step.cached} of {step.prompt} tokens are there, "
        f"{step.rows} rows rest."
    )
