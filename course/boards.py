"""Boards: exercises with more than one right answer, beside our own attempts at them.

A board takes one definition of yours and gives it a number.  Points are earned by reaching our attempts, not by being
better than somebody else, and only by entries that keep the rules: what is said must not change.
"""

from __future__ import annotations

import ast
import html
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course import board_kernels, board_scores
from course.board_scores import NotCounted, total
from course.cards import Card
from course.catalogue import Course
from course.grading.learner import run_module
from course.ours import ours
from course.progress import BOARDS, Progress
from course.quantities import with_unit
from fucina.errors import InvalidOption
from fucina.speculative.sam_index import SamIndex

KEPT = 60  # entries of a board that are remembered
FILE = "board.py"
Scores = Callable[[Any, bool], dict[str, int]]


@dataclass(frozen=True, slots=True)
class Board:
    """One board.

    name, title : what it is called; entry : the name of the definition that takes part, and what it must be.
    scores : gives the parts of a score, of an entry and whether the held-out half is asked for; None: a speed.
    baselines : ours by name, each with the points of reaching it.
    """

    name: str
    title: str
    entry: str
    rules: str
    unit: str
    scores: Scores | None
    baselines: dict[str, tuple[Any, int]]


@dataclass(slots=True)
class Result:
    """Where everybody stands on a board; for counts with the held-out half as the second number."""

    board: Board
    ours: dict[str, tuple[float, ...]]
    yours: tuple[float, ...] | None = None
    parts: dict[str, int] = field(default_factory=dict)
    not_counted: str = ""
    before: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def reached(self) -> list[str]:
        """The baselines that the entry reaches, in both halves."""
        if self.yours is None:
            return []
        mine = self.yours
        return [name for name, score in self.ours.items() if all(a >= b for a, b in zip(mine, score, strict=True))]

    @property
    def points(self) -> int:
        """Points of the baselines reached."""
        return sum(self.board.baselines[name][1] for name in self.reached)


def _boards() -> dict[str, Board]:
    rules = "observe(tokens) takes note; suggest(context, limit) returns a list of at most limit ids, or none"
    steps = "steps saved"
    speeds = dict(zip(board_kernels.baselines(), (0, 1, 2, 3, 4), strict=True))
    return {
        board.name: board
        for board in (
            Board(
                "drafter",
                "The best drafter",
                "class Drafter",
                rules,
                steps,
                board_scores.drafter_scores,
                {
                    "no drafts": (board_scores.Silent, 0),
                    "prompt lookup, n = 4": (lambda: ours("ch07.drafter")(4), 0),
                    "suffix index": (SamIndex, 2),
                    "suffix index, as long as its match": (board_scores.Short, 8),
                },
            ),
            Board(
                "gate",
                "The best gate",
                "class Gate",
                "allows(), budget() and record(committed, accepted, drafted, cost) as in ch09.gate; the drafter is eager",
                steps,
                board_scores.gate_scores,
                {
                    "never": (board_scores.Silent, 0),
                    "the gate of chapter 09": (lambda: ours("ch09.gate")(), 2),
                    "always eight tokens": (board_scores.Always, 3),
                    "always two tokens": (lambda: board_scores.Always(2), 5),
                },
            ),
            Board(
                "lockstep",
                "The cheapest lockstep",
                "def lockstep",
                "lockstep(model, streams) as in ch06.lockstep; it may let streams wait. A pass costs by its rows",
                steps,
                board_scores.lockstep_scores,
                {
                    "one after another": (board_scores.one_after_another, 0),
                    "the lockstep of chapter 06": (lambda *a: ours("ch06.lockstep")(*a), 4),
                    "four at a time": (board_scores.four_at_a_time, 6),
                },
            ),
            Board(
                "linear",
                "The fastest linear",
                "class Linear, made without arguments, or your ch20.linear around your ch20.q8_linear",
                "linear(matrix, x) as in ch20.linear; the results within 2 per cent, the same bits in every call",
                "times the plain loop",
                None,
                {name: (make, speeds[name]) for name, make in board_kernels.baselines().items()},
            ),
        )
    }


def names() -> list[str]:
    """All boards."""
    return list(_boards())


def find(name: str) -> Board:
    """The board called `name`.

    Raises
    ------
    InvalidOption
        There is none.
    """
    boards = _boards()
    if name not in boards:
        raise InvalidOption(f"there is no board {name!r}; there are: {', '.join(boards)}")
    return boards[name]


def run(name: str, entry: Any = None, course: Course | None = None) -> Result:
    """Score our attempts and an entry, and keep its number with the progress.

    Parameters
    ----------
    name : str
    entry : optional
        The definition that takes part: a class, or a function where the board wants one.  Without it, nobody does.
    """
    board, course = find(name), course or Course()
    result = Result(board, {}, before=history(name, course))
    if board.scores is None:
        _run_speed(result, entry)
    else:
        for who, (make, _) in board.baselines.items():
            result.ours[who] = tuple(total(board.scores(make, half)) for half in (False, True))
        if entry is not None:
            try:
                result.parts = board.scores(entry, False)
                result.yours = total(result.parts), total(board.scores(entry, True))
            except NotCounted as reason:
                result.not_counted, result.parts = str(reason), {}
    if result.yours is not None:
        _keep(result, course)
    return result


def _run_speed(result: Result, entry: Any) -> None:
    made = None
    if entry is not None:
        try:
            made = board_scores.called("making it", entry) if isinstance(entry, type) else entry
            board_kernels.checked(made)
        except NotCounted as reason:
            result.not_counted, made = str(reason), None
    found = board_kernels.speeds(made)
    result.ours = {who: (round(found[who], 2),) for who in result.board.baselines}
    if made is not None:
        result.yours = (round(found["yours"], 2),)


def history(name: str, course: Course) -> list[float]:
    """The numbers of earlier entries, in order of time."""
    return [float(entry["score"]) for entry in Progress(course).read(BOARDS).get(name, {}).get("entries", [])]


def _keep(result: Result, course: Course) -> None:
    assert result.yours is not None
    now = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "score": result.yours[0], "points": result.points}

    def update(entries: dict[str, dict[str, Any]]) -> None:
        entry = entries.setdefault(result.board.name, {})
        entry["entries"] = [*entry.get("entries", []), now][-KEPT:]
        entry["points"] = max(entry.get("points", 0), result.points)

    Progress(course).change(update, BOARDS)


def entry_of(board: Board, course: Course) -> Any:
    """The definition in exercises/board.py that takes part in a board, or None.

    Raises
    ------
    Unusable
        The file cannot be read or run.
    """
    path = course.exercises / FILE
    word = board.entry.split()[1].strip(",")
    if not Path(path).exists():
        return None
    text = path.read_text(encoding="utf-8-sig")
    from course.grading.learner import Unusable

    try:
        module = run_module(ast.parse(text, str(path)), text, str(path), "_board_entries")
    except SyntaxError as error:
        raise Unusable(f"exercises/{FILE}, line {error.lineno}: {error.msg}") from None
    return getattr(module, word, None)


def lines(result: Result) -> list[str]:
    """A board as text: ours and yours, the best first."""
    board = result.board
    rows = list(result.ours.items()) + ([("yours", result.yours)] if result.yours is not None else [])
    rows.sort(key=lambda row: -row[1][0])
    width = max(len(name) for name, _ in rows)
    halves = board.scores is not None
    what = "groups" if board.name == "lockstep" else "texts"
    out = [f"{board.title}: {board.unit}" + (f", on {what} that you see | held out" if halves else "")]
    for name, score in rows:
        points = board.baselines[name][1] if name in board.baselines else 0
        mark = ">" if name == "yours" else " "
        worth = f"   {with_unit(points, 'points')}" if points else ""
        out.append(f"{mark} {name:<{width}}  {'  |  '.join(f'{value:8.2f}' for value in score)}{worth}")
    if result.not_counted:
        out.append(f"Yours does not count: {result.not_counted}.")
    elif result.yours is None:
        out.append(f"Yours: {board.entry}. {board.rules}.")
    else:
        out.append(f"Yours: {result.points} of {sum(p for _, p in board.baselines.values())} points.")
        if result.parts:
            out.append("In parts: " + ", ".join(f"{kind} {value / 100:.2f}" for kind, value in result.parts.items()))
    if result.before:
        out.append("Before: " + ", ".join(f"{score:.2f}" for score in result.before[-8:]))
    return out


def card(result: Result) -> Card:
    """A board for a notebook: bars, and the same in plain text."""
    text = lines(result)
    rows = list(result.ours.items()) + ([("yours", result.yours)] if result.yours is not None else [])
    rows.sort(key=lambda row: -row[1][0])
    top = max(1e-9, *(abs(score[0]) for _, score in rows))
    page = [f"<div><b>{html.escape(text[0])}</b></div><table>"]
    heads = [*(["you see", "held out"] if result.board.scores is not None else [result.board.unit]), "for reaching it"]
    page.append("<tr><th></th><th></th>" + "".join(f"<th>{html.escape(head)}</th>" for head in heads) + "</tr>")
    for name, score in rows:
        points = result.board.baselines[name][1] if name in result.board.baselines else 0
        size = 240 * max(0.0, score[0]) / top
        colour = "#d55e00" if name == "yours" else "#0072b2"
        shown = html.escape(name) if name != "yours" else "<b>yours</b>"
        page.append(
            f'<tr><td style="text-align:left">{shown}</td><td style="text-align:left"><div style="width:{size:.0f}px;'
            f'height:12px;background:{colour}"></div></td>'
            + "".join(f"<td>{value:.2f}</td>" for value in score)
            + f'<td style="white-space:nowrap">{with_unit(points, "points") if points else ""}</td></tr>'
        )
    page.append("</table>")
    page += [f"<div>{html.escape(line)}</div>" for line in text[1 + len(rows) :]]
    return Card("".join(page), text)
