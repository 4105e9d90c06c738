"""The race: rows with equal tokens, pieces that fail by name, and nothing that one row does to another."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from course.catalogue import Course
from course.figures import Figure
from course.my_engine import assemble
from course.platform import main
from course.race import FULL, QUICK, Plan, Race, race, race_figure
from course.race.blame import Blame
from course.race.cells import race_figure as drawn
from course.race.plan import ENTRIES, NUMPY, PROOFS, TEXTS, Entry
from course.race.report import Row
from tests.models import need_smollm2
from tests.unit.course_kit import make_course
from tests.unit.engine_kit import PROMPT, broken, small_model, solve

SMALL = Plan(rounds=2, tokens=10, numpy_rounds=1, numpy_tokens=6, texts={"first": PROMPT, "second": [7, 7, 9, 7]})


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


class Peer:
    """In the place of llama.cpp: agrees on all next tokens but one."""

    def ask(self, name, **ask):
        if name == "describe":
            return {"version": "peer 1.2"}
        if name == "argmax":
            said = ask["ids"][ask["start"] + 1 :]
            return [said[0] ^ 1, *said[1:], -1]
        return [0.25] * ask["steps"]

    def close(self):
        pass


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Race:
    """A race with everything solved, all rows included."""
    course = make_course(tmp_path_factory.mktemp("course") / "c")
    solve(course)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("course.race.contest.find_peer", lambda: "python")
        patch.setattr("course.race.sides.llama", lambda model, threads, python: Peer())
        return race(SMALL, str(model_path), course)


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    monkeypatch.delenv("FUCINA_COURSE_STATE", raising=False)
    return make_course(tmp_path / "course")


def test_every_row_runs_and_its_tokens_are_equal(solved):
    assert [row.failure for row in solved.failed] == []
    assert len(solved.rows) == 2 * len(ENTRIES) + len(PROOFS)
    for row in solved.rows:
        if row.entry.side == "llama.cpp":
            continue
        n, m = row.equal.split(" equal ")[0].split(" of ")
        assert n == m == str(row.n), row
        assert len(row.seconds) == SMALL.rounds_of(row.entry) and min(row.seconds) > 0
        assert 0 < row.steps <= row.n and 0 <= row.accepted <= row.drafted
        if row.entry.side == "yours":
            assert row.yours == len(row.pieces) > 0
            reference = "float32" if row.entry.forward == NUMPY else "compiled"
            assert reference in row.equal


def test_llama_cpp_has_a_row_where_it_is(solved):
    row = solved.row("first", "llama.cpp")
    assert row.equal.startswith("8 of 10 next tokens") and row.rate.median == pytest.approx(4.0)
    assert solved.stamp["versions"]["llama.cpp"] == "peer 1.2" and "llama.cpp peer 1.2" in "\n".join(solved.lines())
    assert solved.notes == []


def test_what_was_measured_is_told_with_its_circumstances(solved):
    document = json.loads(solved.as_json())
    assert document["stamp"]["command"] == "python3 -m course race"
    assert {"date", "machine", "versions"} <= document["stamp"].keys()
    assert len(document["rows"]) == len(solved.rows)
    assert all(piece["who"] == "yours" for piece in document["pieces"])
    text = "\n".join(solved.lines())
    assert text.isascii()
    assert solved.stamp["machine"]["cpu"] in text and solved.stamp["date"] in text and "numba" in text
    for row in solved.rows:
        assert row.entry.who in text
    shown = solved._repr_mimebundle_()
    assert ET.fromstring(f"<div>{shown['text/html']}</div>") is not None
    assert shown["text/plain"] == repr(solved)


def test_what_each_piece_bought(solved):
    bought = solved.bought()
    assert [b["piece"] for b in bought[:6]] == [
        "the cache",
        "verify and lookup",
        "the index",
        "the cascade",
        "the best length",
        "the gate",
    ]
    for entry in bought:
        before, row = (
            next(r for r in solved.rows if r.text == entry["text"] and r.entry.bought == entry[key])
            for key in ("against", "piece")
        )
        assert entry["passes_saved"] == pytest.approx(100 * (before.steps / before.n - row.steps / row.n))
        assert entry["seconds_saved"] == pytest.approx(100 / before.rate.median - 100 / row.rate.median)


def test_the_figure_shows_every_row_and_says_it_in_words(solved):
    figure = race_figure(solved)
    assert isinstance(figure, Figure)
    root = ET.fromstring(figure.svg)
    words = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    timed = [row for row in solved.rows if row.entry.timed]
    assert {row.entry.who for row in timed} | {row.text for row in timed} <= set(words)
    assert sum(node.tag.endswith("rect") for node in root.iter()) == len(timed) + 1  # and the paper
    assert all(row.entry.who in figure.alt for row in timed)


def test_what_all_of_it_is_worth(solved):
    for text, times in solved.speedups().items():
        rates = [
            solved.row(text, who).rate.median for who in ("... and the gate: all of it", "your loop, with a cache")
        ]
        assert times == pytest.approx(rates[0] / rates[1]) and times > 0
    assert list(solved.speedups()) == ["first", "second"]


# --- pieces that fail ---------------------------------------------------------------------------------------------------


def test_each_failing_piece_is_named_and_the_others_run(course, model_path):
    """Wrong tokens, an error, an endless loop and a process that ends: four pieces, and the rows beside them."""
    _, drafter = course.exercise("ch07.drafter")
    _, decode = course.exercise("ch05.decode_loop")
    solve(course)
    texts = {
        "ch05.decode_loop": decode.solution.replace("history.append(token)", "history.append(token ^ 1)"),
        "ch07.drafter": drafter.solution.replace(
            "return [] if place", "raise LookupError('lost')\n        return [] if place"
        ),
        "ch08.recycle": broken(course, "ch08.recycle", "while True: pass"),
        "ch06.lockstep": broken(course, "ch06.lockstep", "import os; os._exit(7)"),
        "ch04.top_p": broken(course, "ch04.top_p", "input('and now?')"),
    }
    solve(course, (), texts)
    plan = Plan(rounds=1, tokens=8, numpy_rounds=1, numpy_tokens=4, texts={"only": PROMPT})
    result = race(plan, str(model_path), course, limits={"cpu_seconds": 3.0, "wall_seconds": 60.0})
    failures = {row.entry.who: row.failure for row in result.rows}
    for who in ("yours, all NumPy", "your loop, with a cache"):
        assert failures[who].startswith("ch05.decode_loop (yours) gives different tokens, from token 1 of"), failures
    assert failures["your verify, prompt lookup"].startswith("ch07.drafter (yours) raises LookupError: lost")
    through_the_cascade = (
        "... and recycled logits",
        "... as many as pay, by their odds",
        "... and the gate: all of it",
        "yours, all NumPy, with drafts",
        "streaming",
        "from a document",
    )
    for who in through_the_cascade:
        assert failures[who].startswith("ch08.recycle (yours) needs more than 3 seconds, at `while True: pass`"), (
            failures
        )
    assert failures["three streams"].startswith("ch06.lockstep (yours) ends its process")
    assert failures["sampled"].startswith("ch05.decode_loop (yours)")  # known already
    for who in ("your loop, no cache", "your verify, suffix automaton", "ours", "ours, with drafts", "isolated"):
        assert failures[who] == "", who
    words = "\n".join(result.lines())
    assert "did not run" in words and "ch07.drafter (yours) raises LookupError" in words
    assert "did not run" in race_figure(result).alt
    assert result.speedups() == {"only": 0.0}
    assert [b["piece"] for b in result.bought()] == ["the index"]  # against the plain loop: what is between did not run


class Runs:
    """In the place of a process: says what a run of an engine gives, by the text of the engine."""

    def __init__(self, judge):
        self.judge, self.asked = judge, []

    def ask(self, name, engine, **ask):
        self.asked.append((Path(engine).name, ask))
        return self.judge(Path(engine).read_text("utf-8"))


def test_blame_falls_on_the_piece_that_ours_mends_not_on_the_one_that_stumbles(course, tmp_path):
    """attention stumbles over what a wrong rotation hands it."""
    texts = {
        "ch03.rope": broken(course, "ch03.rope", "pass  # wrong"),
        "ch03.attention": broken(course, "ch03.attention", "pass  # stumbles"),
    }
    solve(course, ("ch03.swiglu",), texts)
    assembly = assemble(course)
    line = 1 + assembly.text[: assembly.text.index("# stumbles")].count("\n")
    failed = {"failed": {"message": "raises ValueError", "lines": [line], "stopped": False}}
    side = Runs(lambda text: failed if "# wrong" in text else {"tokens": [1]})
    blame = Blame(assembly, side, tmp_path)
    pieces = ("ch03.swiglu", "ch03.attention", "ch03.rope", "ch03.layer")
    told = blame.find(pieces, {"how": "cache"}, lambda got: "", failed, "raises ValueError")
    assert told == "ch03.rope (yours) raises ValueError"
    assert side.asked[0][0] == "without_ch03_attention.py"  # where it raised is looked at first
    assert blame.known(("ch03.layer", "ch03.rope")) == told and blame.known(("ch03.layer",)) == ""
    always = Runs(lambda text: failed)
    told = Blame(assembly, always, tmp_path).find(pieces, {}, lambda got: "", failed, "raises ValueError")
    assert told == "ch03.attention (yours) raises ValueError"
    other = Blame(assembly, Runs(lambda text: {"tokens": []}), tmp_path)
    told = other.find(pieces, {}, lambda got: "gives different tokens", {"tokens": []}, "gives different tokens")
    assert told == "gives different tokens; no single piece of yours explains it"


# --- plans, commands ----------------------------------------------------------------------------------------------------


def test_the_plans_race_the_same_texts():
    assert QUICK.texts == FULL.texts == TEXTS and list(TEXTS) == ["prose", "copying", "code"]
    for plan in (QUICK, FULL):
        assert all(plan.rounds_of(e) >= 1 and plan.tokens_of(e) >= 2 for e in (*ENTRIES, *PROOFS))
    assert len({e.who for e in (*ENTRIES, *PROOFS)}) == len(ENTRIES) + len(PROOFS)


def fake(course, failure=""):
    row = Row(
        Entry("ours", "ours", "fucina", "plain"), "prose", (), 0, 4, [0.5, 0.25], 4, equal="4 of 4", failure=failure
    )
    machine = {"cpu": "a processor", "cores": 2}
    versions = dict.fromkeys(("fucina", "python", "numpy", "numba"), "1")
    stamp = {"date": "today", "command": "race", "machine": machine, "versions": versions}
    return Race(stamp, assemble(course), QUICK, [row], ["a note"])


@pytest.mark.parametrize(("failure", "code"), [("", 0), ("ch07.verify (yours) raises", 1)])
def test_the_command_ends_with_what_it_found(course, capsys, tmp_path, monkeypatch, failure, code):
    asked = {}

    def run(plan, **options):
        asked.update(options, plan=plan)
        return fake(course, failure)

    monkeypatch.setattr("course.race.contest.race", run)
    path = tmp_path / "race.json"
    assert main(["race", "--quick", "--json", str(path)], course) == code
    assert asked["plan"] == QUICK and asked["command"] == "python3 -m course race --quick" and asked["course"] == course
    assert json.loads(path.read_text("utf-8"))["notes"] == ["a note"]
    out = capsys.readouterr().out
    assert "a processor" in out and (failure or "12.0") in out
    assert main(["race"], course) == code and asked["plan"] == FULL


def test_the_command_without_a_model_or_a_place(course, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("course.race.contest.find", lambda name: (_ for _ in ()).throw(missing))
    from fucina.errors import ModelNotFound

    missing = ModelNotFound("there is no model smollm2")
    assert main(["race", "--quick"], course) == 2
    assert "no model smollm2" in capsys.readouterr().err
    (tmp_path / "file").write_text("in the way")
    assert main(["race", "--json", str(tmp_path / "file" / "race.json")], course) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.slow
def test_the_real_model_speaks_through_a_learners_engine(course):
    need_smollm2()
    solve(course)
    result = race(Plan(rounds=1, tokens=16, numpy_rounds=1, numpy_tokens=4), course=course)
    assert result.failed == [] and len(result.assembly.yours) == len(result.assembly.pieces)
    assert set(result.speedups()) == set(TEXTS)


def test_a_figure_needs_a_race(course):
    with pytest.raises(ValueError, match="call race"):
        drawn()
    assert "ours 12.0" in drawn(fake(course)).alt
