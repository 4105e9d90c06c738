"""Predict, then see: what is kept, what is told, the figure of the guesses, and notebooks that hide their answers."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from course import predictions
from course.build import notebook_paths
from course.catalogue import Course
from course.figures.guesses import Said, factor, guesses_figure
from course.notebook import guesses, predict, truth
from course.progress import PREDICTIONS, Progress
from course.quantities import with_unit
from course.questions import ANSWER, announce, faults, fold, folded, names
from fucina.errors import InvalidOption

LOOP = ["an error", "other tokens", "nothing"]


@pytest.fixture(autouse=True)
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    course = Course(tmp_path)
    monkeypatch.setattr(predictions, "_course", course)
    monkeypatch.setattr(predictions, "_asked", {})
    monkeypatch.setattr(predictions, "_said_here", {})
    return course


def told(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("guess", "value", "line"),
    [
        (700, 5450, "You said 700 tokens, it is 5450 tokens: 7.8 times as much."),
        (5450, 700, "You said 5450 tokens, it is 700 tokens: you said 7.8 times as much."),
        (5450, np.float32(5450), "You said 5450 tokens: exactly right."),
        (np.int64(100), 108.0, "You said 100 tokens, it is 108 tokens: close, 8 tokens more."),
        (100, 75, "You said 100 tokens, it is 75 tokens: 25 tokens less."),
        (1, 0, "You said 1 token, it is 0 tokens: 1 token less."),
        (-2, 3, "You said -2 tokens, it is 3 tokens: 5 tokens more."),
    ],
)
def test_numbers_are_compared_in_plain_words(guess, value, line, capsys) -> None:
    predict("05.read", guess, number="tokens")
    assert told(capsys).startswith("You say ") and predictions._entry("05.read")["guess"] == guess
    truth("05.read", value)
    assert told(capsys) == line


@pytest.mark.parametrize(
    ("unit", "one"),
    [
        ("tokens", "1 token"),
        ("passes", "1 pass"),
        ("verifies", "1 verify"),
        ("%", "1%"),
        ("", "1"),
        ("passes per token", "1 pass per token"),
        ("GB/s", "1 GB/s"),
        ("ms", "1 ms"),
    ],
)
def test_one_is_no_plural(unit: str, one: str) -> None:
    assert with_unit(1, unit) == one


@pytest.mark.parametrize(
    ("value", "text"), [(12345.67, "12346"), (0.123456, "0.1235"), (2e20, "2e+20"), (-5450.0, "-5450"), (1.5, "1.5")]
)
def test_numbers_are_written_short(value: float, text: str) -> None:
    assert with_unit(value, "") == text


@pytest.mark.parametrize("answer", ["other tokens", "Other  tokens.", 2, "2", " OTHER TOKENS "])
def test_a_choice_is_said_by_its_words_or_its_number(answer, capsys) -> None:
    predict("05.stops", answer, choices=LOOP)
    assert told(capsys) == 'You say "other tokens". Now run the next cell.'
    truth("05.stops", "nothing")
    assert told(capsys) == 'You said "other tokens", it is "nothing".'


def test_a_text_is_shown_beside_the_truth_and_not_judged(capsys) -> None:
    predict("05.why", "it forgets", text=True)
    truth("05.why", "nobody moved the end")
    assert told(capsys).splitlines()[1:] == ["You said: it forgets", "It is: nobody moved the end"]


@pytest.mark.parametrize(
    ("answer", "question", "words"),
    [
        (..., {"number": "tokens"}, "write a number (tokens) in place of the three dots"),
        (..., {"choices": LOOP}, "2. other tokens"),
        (..., {"text": True}, "write a sentence"),
        ("700", {"number": "tokens"}, "A number (tokens) is expected, without quotes, got '700'"),
        (True, {"number": ""}, "A number is expected"),
        (float("nan"), {"number": ""}, "A number is expected"),
        (10**400, {"number": ""}, "A number is expected"),
        pytest.param(10**5000, {"number": ""}, "a very large int", id="5000 digits"),
        ("something", {"choices": LOOP}, "One of these is expected, got 'something'"),
        (0, {"choices": LOOP}, "One of these is expected, got 0"),
        (True, {"choices": LOOP}, "1. an error"),
        (4, {"choices": LOOP}, "One of these is expected"),
        (7, {"text": True}, "A sentence in quotes is expected"),
        ("  ", {"text": True}, "A sentence in quotes is expected"),
    ],
)
def test_nothing_said_and_wrong_kinds_say_what_to_do_and_keep_nothing(answer, question, words, course, capsys) -> None:
    predict("05.word", answer, **question)
    assert words in told(capsys)
    assert Progress(course).read(PREDICTIONS) == {}
    truth("05.word", "nothing" if "choices" in question else "why" if "text" in question else 3)
    out = told(capsys)
    assert "still waits for a guess" in out and "It is" in out


ASKED = "it says what is asked, and in what unit.)"


def test_truth_alone_still_shows_itself(capsys) -> None:
    truth("05.word", 12)
    assert told(capsys).splitlines() == ["It is 12.", "(Run the `predict` cell above, 05.word, first: " + ASKED]
    truth("05.word", "nothing")
    assert "It is nothing." in told(capsys)


@pytest.mark.parametrize(
    ("guess", "line"),
    [
        (60, "You said 60%, it is 74.1%: 14.1 percentage points more."),
        (75.1, "You said 75.1%, it is 74.1%: close, 1 percentage point less."),
        (100, "You said 100%, it is 74.1%: 25.9 percentage points less."),
        (20, "You said 20%, it is 74.1%: 3.7 times as much."),
    ],
)
def test_shares_differ_by_percentage_points(guess, line, capsys) -> None:
    predict("05.share", guess, number="%")
    told(capsys)
    truth("05.share", 74.1)
    assert told(capsys) == line


@pytest.mark.parametrize(
    ("guess", "line"),
    [
        (3, "You said 3 times as long, it is 4.2 times as long: 1.4 times as much."),
        (5, "You said 5 times as long, it is 4.2 times as long: you said 1.2 times as much."),
        (4, "You said 4 times as long, it is 4.2 times as long: close, 0.2 more."),
    ],
)
def test_factors_are_compared_by_factors(guess, line, capsys) -> None:
    predict("05.longer", guess, number="times as long")
    told(capsys)
    truth("05.longer", 4.2)
    assert told(capsys) == line


@pytest.mark.parametrize("guess", [150, 100.5, -1])
def test_no_share_is_above_all_or_below_nothing(guess, course, capsys) -> None:
    predict("05.share", guess, number="%")
    assert f"from 0 to 100 (%) is expected, got {guess}. Nothing was kept." in told(capsys)
    assert Progress(course).read(PREDICTIONS) == {}
    predict("05.share", 100, number="%")
    truth("05.share", 104)  # what is measured may be more than what was taken for all
    assert "it is 104%" in told(capsys)


def test_the_guess_that_counts_was_made_before_the_truth_was_shown(course, capsys) -> None:
    for guess in (700, 800):
        predict("05.read", guess, number="tokens")
    truth("05.read", 5450)
    predict("05.read", 5450, number="tokens")
    assert "stays what it was before you saw the answer: 800 tokens" in told(capsys)
    entry = Progress(course).read(PREDICTIONS)["05.read"]
    assert (entry["guess"], entry["truth"]) == (800, 5450)
    predict("05.read", 2, choices=LOOP)  # the chapter now asks something else: the old guess is no answer to it
    assert "other tokens" in told(capsys)


def test_guesses_are_kept_across_kernels_and_beside_the_exercises(course, capsys) -> None:
    Progress(course).note("ch05.truncate", hints=2)
    predict("05.stops", 2, choices=LOOP)
    predictions._asked.clear()  # another kernel
    truth("05.stops", "other tokens")
    assert "right" in told(capsys)
    Progress(course).note("ch05.truncate", hints=3)
    assert Progress(course).read(PREDICTIONS)["05.stops"]["truth"] == "other tokens"
    assert Progress(course).entry("ch05.truncate") == {"hints": 3}


def test_a_chapter_begun_anew_forgets_its_guesses(course) -> None:
    for name in ("05.read", "06.read"):
        predict(name, 3, number="tokens")
    Progress(course).forget(["ch05.truncate"], ["05"])
    assert list(Progress(course).read(PREDICTIONS)) == ["06.read"]


def test_a_read_only_folder_says_so_and_goes_on(course, monkeypatch, capsys) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("course.files.tempfile.mkstemp", refuse)
    predict("05.read", 700, number="tokens")
    assert "kept only until this notebook is closed" in told(capsys)
    truth("05.read", 5450)
    assert "7.8 times as much" in told(capsys)
    guesses()
    assert "05.read said 700, is 5450" in told(capsys)


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("tokens_read", {"number": ""}),
        ("5.read", {"number": ""}),
        ("05.read", {}),
        ("05.read", {"number": "", "text": True}),
        ("05.read", {"choices": ["one"]}),
        ("05.read", {"choices": ["one", "One."]}),
        ("05.read", {"choices": [1, 2]}),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(name, question) -> None:
    with pytest.raises(InvalidOption):
        predict(name, ..., **question)


@pytest.mark.parametrize(
    ("question", "value"),
    [({"number": ""}, "many"), ({"choices": LOOP}, "a crash"), ({"choices": LOOP}, 2), ({"text": True}, 3)],
)
def test_a_truth_that_is_no_answer_is_refused(question, value) -> None:
    predict("05.read", ..., **question)
    with pytest.raises(InvalidOption, match=r"05\.read"):
        truth("05.read", value)


def test_the_figure_of_guesses(capsys) -> None:
    guesses()
    assert "No guesses yet" in told(capsys)
    for i, (guess, value) in enumerate([(1, 10), (10, 10), (15, 10), (0, 10)]):
        predict(f"05.n{i}", guess, number="steps")
        truth(f"05.n{i}", value)
    predict("05.unseen", 3, number="steps")
    for chapter, guess in (("05", 1), ("06", 3)):
        predict(f"{chapter}.stops", guess, choices=LOOP)
        truth(f"{chapter}.stops", "nothing")
    told(capsys)
    guesses()
    words = told(capsys)
    assert "2 of 4 numbers within a factor of 2" in words
    assert "chapter 05 0 of 1, chapter 06 1 of 1" in words and "unseen" not in words
    assert words.index("05.n0") < words.index("05.n1") < words.index("05.n3")
    figure = guesses_figure([Said("06.stops", "choice", "nothing", "nothing")])
    assert figure.svg.startswith("<svg") and "1 of 1" in figure.svg


@pytest.mark.parametrize(
    ("guess", "value", "expected"),
    [(2, 8, 0.25), (-8, -2, 4.0), (0, 0, 1.0), (0, 3, 0.0), (3, 0, float("inf")), (-1, 2, 0.0)],
)
def test_factors(guess, value, expected) -> None:
    said = Said("05.n", "number", guess, value)
    assert factor(said) == expected
    assert "nan" not in guesses_figure([said]).svg


@pytest.mark.parametrize(("cell", "line"), [('x = 2\ntruth("05.read", x)', f"{ANSWER}\n"), ("truth", ""), (None, "")])
def test_a_cell_that_answers_begins_with_a_line_that_tells_nothing(cell, line, capsys) -> None:
    announce(SimpleNamespace(raw_cell=cell))
    assert capsys.readouterr().out == line


def test_a_build_folds_the_answers_and_nothing_else() -> None:
    answer = {"cell_type": "code", "source": 'x = 2\ntruth("05.read", x)', "metadata": {}}
    plain = {
        "cell_type": "code",
        "source": "# truth(1)\n%time f()\ntruth_table(2)",
        "metadata": {"collapsed": True, "jupyter": {"outputs_hidden": True, "source_hidden": True}},
    }
    prose = {"cell_type": "markdown", "source": 'truth("05.read", x)', "metadata": {}}
    for cell in (answer, plain, prose):
        fold(cell)
    assert folded(answer) and not folded(plain) and prose["metadata"] == {}
    assert plain["metadata"] == {"jupyter": {"source_hidden": True}}
    assert not folded({**answer, "metadata": {"collapsed": True}})


# --- the stored notebooks ------------------------------------------------------------------------------------------


def cells_of(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


@pytest.mark.parametrize("path", notebook_paths(), ids=lambda p: p.stem)
def test_no_stored_notebook_shows_what_it_asks_to_predict(path: Path) -> None:
    assert faults(cells_of(path), path.name[:2]) == []


def test_names_of_predictions_are_unique() -> None:
    every = [name for path in notebook_paths() for cell in cells_of(path) for name in names(cell, "predict")]
    assert sorted(every) == sorted(set(every))


def md(text: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": text, "metadata": {}}


def code(text: str, out: str = "", fold_it: bool = True, announced: bool = True) -> dict[str, Any]:
    outputs: list[dict[str, Any]] = [{"output_type": "stream", "name": "stdout", "text": [f"{ANSWER}\n"]}]
    if not announced or "truth(" not in text:
        outputs = []
    if out:
        outputs.append({"output_type": "display_data", "data": {"text/plain": [out]}})
    cell = {"cell_type": "code", "source": text, "metadata": {}, "outputs": outputs}
    if fold_it:
        fold(cell)
    return cell


QUESTION = md("How many?\n\n**Predict.** How many tokens does it read?")
PREDICT = code('predict("05.read", ..., number="tokens")')
TRUTH = code('read = 5450\ntruth("05.read", read)', "It is 5450 tokens.\n(The cell above waits.)")


EXPLAINED = md("<details><summary>What it shows</summary>\n\n5450, as you see.\n\n</details>\n\nNow something else.")
DRAWN = {**code("draw(read)", "5450"), "metadata": {"tags": ["folded"]}}
DRAWN["outputs"].insert(0, {"output_type": "stream", "name": "stdout", "text": ["The answer, drawn:\n"]})


@pytest.mark.parametrize("after", [EXPLAINED, md("## 2. Something else"), md("**Predict.** And now?")])
def test_a_prediction_with_its_answer_folded_is_in_order(after) -> None:
    drawn = json.loads(json.dumps(DRAWN))
    fold(drawn)
    cells = [QUESTION, PREDICT, md("Now look."), code("x = 1", "8"), TRUTH, drawn, after]
    assert faults(cells[: 7 if "Predict" not in after["source"] else 6], "05") == []
    assert not any("after the answer" in fault for fault in faults(cells, "05"))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([QUESTION, TRUTH], "no unanswered predict cell"),
        ([QUESTION], "no unanswered predict cell"),
        ([QUESTION, code('predict("05.read", 700, number="tokens")'), TRUTH], "no unanswered predict cell"),
        ([QUESTION, code('%time\npredict("05.read", ..., number="")'), TRUTH], "no unanswered predict cell"),
        ([QUESTION, code('x = 2\npredict("05.read", ..., number="tokens")'), TRUTH], "no unanswered predict cell"),
        ([QUESTION, PREDICT, code('truth("05.read", 2)', fold_it=False)], "is not folded"),
        ([QUESTION, PREDICT, QUESTION, PREDICT, TRUTH], "no truth of 05.read before the next"),
        ([QUESTION, PREDICT, code('truth("05.other", 2)')], "no truth of 05.read"),
        ([PREDICT, TRUTH], "predict without a question"),
        ([QUESTION, PREDICT, code("count()", "read 5450 tokens"), TRUTH], "5450, stands above"),
        ([QUESTION, PREDICT, md("It will be 5450."), TRUTH], "5450, stands above"),
        ([QUESTION, code('predict("06.read", ..., number="")'), code('truth("06.read", 2)')], "not named after"),
        ([TRUTH], "which no cell above asks for"),
        ([QUESTION, PREDICT, code('truth("05.read", 2)', "It is 2.", announced=False)], "does not begin with"),
        ([QUESTION, PREDICT, TRUTH, md("5450, as you see.")], "the text after the answer of cell 2 is not folded"),
        ([QUESTION, PREDICT, TRUTH, code("draw(read)", "5450"), EXPLAINED], "cell 3: outputs right after the answer"),
        ([QUESTION, PREDICT, TRUTH, md(EXPLAINED["source"].replace("\n\n</", "\n</"))], "a fold does not end"),
        (
            [QUESTION, PREDICT, TRUTH, {**DRAWN, "outputs": DRAWN["outputs"][1:]}, EXPLAINED],
            "the first line of a folded",
        ),
        ([QUESTION, PREDICT, code('truth("05.read", "all " "of them")')], "answer of '05.read' is written out"),
    ],
)
def test_each_fault_of_a_prediction_is_found(cells, words) -> None:
    assert any(words in fault for fault in faults(cells, "05"))


@pytest.mark.parametrize("furthest", [2, 3, 11, 42, 99, 1e6])
def test_names_beside_the_guesses_do_not_touch(furthest: float) -> None:
    drawn = guesses_figure([Said("05.read", "number", furthest, 1), Said("05.rows", "number", 1, 1)]).svg
    heights = [float(y) for y in re.findall(r'y="([\d.]+)" font-size="11" text-anchor="end"', drawn)]
    assert len(heights) >= 3
    assert min(b - a for a, b in itertools.pairwise(sorted(heights))) >= 14
