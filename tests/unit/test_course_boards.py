"""Boards: exact numbers, rules that are kept, points by what is reached, entries over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course import board_kernels, board_scores, boards
from course.board_faces import as_lines, entry_for
from course.board_scores import NotCounted, cost, drafter_scores, follow, lockstep_scores, total
from course.board_texts import Text, texts
from course.catalogue import Course
from course.interleaved import best_times
from course.ours import ours
from course.platform import main
from course.progress import BOARDS, Progress
from course.source import ROOT
from fucina.errors import InvalidOption


class Knows(board_scores.Silent):
    """A drafter that knows one text."""

    def __init__(self, text: Text) -> None:
        self.ids = list(text.ids)

    def suggest(self, context: Any, limit: int) -> list[int]:
        return self.ids[len(context) : len(context) + limit]


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.setenv("FUCINA_COURSE_STATE", str(tmp_path / "state"))
    (tmp_path / "exercises").mkdir()
    (tmp_path / "solutions").symlink_to(ROOT / "solutions")
    return Course(tmp_path)


def test_texts_are_the_same_every_time_and_held_out_ones_differ() -> None:
    assert texts() == texts()
    for seen, hidden in zip(texts(), texts(held_out=True), strict=True):
        assert seen.kind == hidden.kind and seen.ids != hidden.ids
        assert 0 < seen.prompt < len(seen.ids)


def test_costs_are_exact_by_hand() -> None:
    assert [cost(rows) for rows in (1, 4, 8, 9, 17)] == [100, 158, 265, 297, 553]
    text = Text("x", (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12), 2)
    assert follow(text, board_scores.Silent()) == 0  # ten plain steps for ten tokens
    assert follow(text, Knows(text)) == 1000 - cost(11)  # the whole rest in one pass

    class Wrong(Knows):
        def suggest(self, context: Any, limit: int) -> list[int]:
            return [0, 0, 0]

    assert follow(text, Wrong(text)) == 1000 - 10 * cost(4)


def test_a_gate_is_asked_and_told() -> None:
    text = Text("x", tuple(range(20)), 4)
    told = []

    class Gate(board_scores.Always):
        def record(self, committed: int, accepted: int, drafted: int, cost: float) -> None:
            told.append((committed, accepted, drafted, cost))

    assert follow(text, Knows(text), Gate(3)) == 1600 - 4 * cost(4)
    assert told == [(4, 3, 3, 1.58)] * 4
    assert follow(text, Knows(text), board_scores.Silent()) == 0


@pytest.mark.parametrize(
    ("draft", "why"),
    [
        (lambda context, limit: [1] * (limit + 1), "at most"),
        (lambda context, limit: (1, 2), "list of ints"),
        (lambda context, limit: ["a"], "list of ints"),
        (lambda context, limit: context.append(3) or [], "changes the context"),
        (lambda context, limit: 1 // 0, "ZeroDivisionError"),
    ],
)
def test_who_breaks_the_rules_does_not_count(draft: Any, why: str) -> None:
    class Entry(board_scores.Silent):
        def suggest(self, context: Any, limit: int) -> list[int]:
            return draft(context, limit)

    with pytest.raises(NotCounted, match=why):
        drafter_scores(Entry, False)


def test_lockstep_counts_passes_and_refuses_other_words() -> None:
    alone = lockstep_scores(board_scores.one_after_another, False)
    assert set(alone.values()) == {0}
    together, four = (total(lockstep_scores(f, False)) for f in (ours("ch06.lockstep"), board_scores.four_at_a_time))
    assert 0 < together < four

    def lies(model: Any, streams: Any) -> None:
        ours("ch06.lockstep")(model, streams)
        streams[1].history[-1] += 1

    with pytest.raises(NotCounted, match="stream 1 says"):
        lockstep_scores(lies, False)
    with pytest.raises(NotCounted, match="stream 0"):
        lockstep_scores(lambda model, streams: None, False)


def test_points_are_earned_in_both_halves_and_kept(course: Course) -> None:
    result = boards.run("lockstep", board_scores.four_at_a_time, course)
    assert result.reached == ["one after another", "the lockstep of chapter 06", "four at a time"]
    assert result.points == 10
    again = boards.run("lockstep", board_scores.one_after_another, course)
    assert (again.points, again.before) == (0, [result.yours[0]])
    assert Progress(course).read(BOARDS)["lockstep"]["points"] == 10
    assert any("Before: 130.70" in line for line in boards.lines(again))
    half = boards.Result(result.board, {"no": (1.0, 5.0), "yes": (1.0, 1.0)}, (3.0, 2.0))
    assert half.reached == ["yes"]


def test_an_entry_that_does_not_count_is_told_why_and_not_kept(course: Course) -> None:
    result = boards.run("lockstep", lambda model, streams: None, course)
    assert result.yours is None and result.points == 0
    assert any("does not count: stream 0" in line for line in boards.lines(result))
    assert Progress(course).read(BOARDS) == {}
    assert "does not count" in repr(boards.card(result))


def test_entries_come_from_the_learners_file(course: Course, capsys: pytest.CaptureFixture[str]) -> None:
    assert entry_for("drafter", course) is None
    path = course.exercises / boards.FILE
    path.write_text("class Drafter:\n    pass\n\n\ndef lockstep(model, streams):\n    pass\n", encoding="utf-8")
    assert entry_for("drafter", course).__name__ == "Drafter"
    assert "does not count" in "\n".join(as_lines("lockstep", course))
    assert main(["board"], course) == 0
    assert "The best drafter: 0 of 10 points" in capsys.readouterr().out
    path.write_text("def broken(:\n", encoding="utf-8")
    assert main(["board", "lockstep"], course) == 2
    assert "line 1" in capsys.readouterr().err
    assert main(["board", "nonsense"], course) == 2
    assert "drafter, gate, lockstep, linear" in capsys.readouterr().err
    with pytest.raises(InvalidOption):
        boards.find("x")


@pytest.mark.parametrize(
    ("linear", "why"),
    [
        (lambda matrix, x: np.zeros(len(matrix), np.float32), "off by"),
        (lambda matrix, x: (matrix @ x)[:-1], "float32"),
        (lambda matrix, x: (matrix @ x).astype(np.float64), "float64"),
        (lambda matrix, x: (matrix @ x) * np.float32(1 + 1e-6 * np.random.default_rng().random()), "different bits"),
    ],
)
def test_a_linear_must_compute_the_product(linear: Any, why: str) -> None:
    with pytest.raises(NotCounted, match=why):
        board_kernels.checked(linear)


def test_one_buffer_for_all_results_does_not_count() -> None:
    matrix, _, _ = board_kernels.problem()
    buffer = np.zeros(len(matrix), np.float32)

    def linear(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        buffer[: len(matrix)] = matrix @ x
        return buffer[: len(matrix)]

    with pytest.raises(NotCounted, match="spoil the last result"):
        board_kernels.checked(linear)


def test_our_kernels_count() -> None:
    board_kernels.checked(board_kernels.Lanes())
    board_kernels.checked(board_kernels.eight_bits(2))
    names = set(board_kernels.baselines())
    assert set(board_kernels.speeds(np.matmul, rounds=1)) == {*names, "yours"}


def test_runs_take_turns() -> None:
    order: list[str] = []
    best = best_times({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=2)
    assert order == ["a", "b"] * 3
    assert set(best) == {"a", "b"}


def test_ours_is_the_solution() -> None:
    assert ours("ch05.truncate").__name__ == "truncate"
    assert ours("ch05.truncate") is ours("truncate")
    assert hasattr(ours("ch08.match"), "longest_match")
