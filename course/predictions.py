"""Predict, then see: the learner says what a cell will give before it is run, and both are shown side by side.

A cell asks, the next one answers::

    predict("05.tokens_read", ..., number="tokens")
    truth("05.tokens_read", read)

The learner writes a guess in place of the three dots.  Guesses are kept beside the progress; `guesses()` draws how they
have developed.  The guess that counts is the last one made before the truth was shown.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from course.cards import message, show_card
from course.catalogue import Course
from course.figures.guesses import Said, guesses_figure
from course.figures.svg import SKY
from course.files import FilesError
from course.grading import feedback
from course.progress import PREDICTIONS, Progress
from course.quantities import distance, with_unit
from fucina.errors import InvalidOption

NUMBER, CHOICE, TEXT = "number", "choice", "text"
_NAME = re.compile(r"\d\d\.[a-z][a-z0-9_]*")

_course = Course()
_asked: dict[str, Question] = {}  # by this process, so that `truth` knows what was asked although nothing was said
_said_here: dict[str, dict[str, Any]] = {}  # guesses that could not be kept


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: a number in a unit, one of several choices, or a text."""

    kind: str
    unit: str = ""
    choices: tuple[str, ...] = ()

    def read(self, answer: Any) -> Any:
        """The answer as it is kept; ValueError, which says what is expected, for one of the wrong kind."""
        if self.kind == NUMBER:
            return _as_number(answer, self.unit)
        if self.kind == TEXT:
            if not isinstance(answer, str) or not answer.strip():
                raise ValueError(f'A sentence in quotes is expected, like "because ...", got {_shown(answer)}.')
            return answer.strip()
        said = str(answer).strip() if isinstance(answer, (str, int)) and not isinstance(answer, bool) else ""
        for choice in self.choices:
            if _key(choice) == _key(said):
                return choice
        if said.isdecimal() and said.isascii() and 1 <= int(said) <= len(self.choices):
            return self.choices[int(said) - 1]
        raise ValueError(f"One of these is expected, got {_shown(answer)}.")

    def guess(self, answer: Any) -> Any:
        """The learner's answer as it is kept: as `read`, and a percentage is one of a whole."""
        said = self.read(answer)
        if self.kind == NUMBER and self.unit == "%" and not 0 <= said <= 100:
            raise ValueError(f"A number from 0 to 100 (%) is expected, got {_shown(answer)}.")
        return said

    def how(self) -> list[str]:
        """What to do, for a learner who has not said anything yet."""
        if self.kind == NUMBER:
            unit = f" ({self.unit})" if self.unit else ""
            return [f"Your guess first: write a number{unit} in place of the three dots and run this cell."]
        if self.kind == TEXT:
            return ["Your guess first: write a sentence, in quotes, in place of the three dots and run this cell."]
        return ["Your guess first: write one of these, or its number, in place of the three dots and run this cell."]

    def options(self) -> list[str]:
        """The choices with their numbers; nothing for other questions."""
        return [f"{i}. {choice}" for i, choice in enumerate(self.choices, 1)]

    def told(self, value: Any) -> str:
        """A value in words."""
        if self.kind == NUMBER:
            return with_unit(value, self.unit)
        return f'"{value}"'

    def found(self, value: Any) -> str:
        """What came out, as a sentence."""
        return f"It is: {value}" if self.kind == TEXT else f"It is {self.told(value)}."


def predict(
    name: str, answer: Any, *, number: str | None = None, choices: Sequence[str] | None = None, text: bool = False
) -> None:
    """Keep what the learner expects, before the next cell shows it.

    Parameters
    ----------
    name : str
        The chapter and a word, like "05.tokens_read"; `truth` takes the same name.
    answer : number, str or ...
        The learner's; the three dots mean that nothing has been said yet.
    number : str, optional
        A number is asked for; this is its unit ("" for a plain number).
    choices : sequence of str, optional
        One of these is asked for; the answer is one of them or its number, from 1.
    text : bool
        A free text is asked for; it is shown beside the truth and not judged.

    Raises
    ------
    InvalidOption
        The question itself makes no sense.  An answer of the wrong kind raises nothing: a line says what is expected.
    """
    question = _question(name, number, choices, text)
    _asked[name] = question
    if answer is ...:
        return _show(*question.how(), *question.options())
    try:
        guess = question.guess(answer)
    except ValueError as error:
        return _show(f"{error} Nothing was kept.", *question.options())
    entry = _entry(name)
    if entry.get("asked") == _plain(question) and "truth" in entry:
        lines = [f"Your guess stays what it was before you saw the answer: {question.told(entry['guess'])}."]
        if guess == entry["guess"]:
            lines = [f"You said {question.told(guess)}; the cell that shows the answer has been run already."]
        return _show(*lines)
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    note = _keep(name, {"asked": _plain(question), "guess": guess, "said_at": now})
    return _show(f"You say {question.told(guess)}. Now run the next cell.", *note)


def truth(name: str, value: Any) -> None:
    """Show what came out beside what the learner had said, and keep both.

    Parameters
    ----------
    name : str
        As in `predict`.
    value : number or str
        What came out; for a choice, one of the choices.

    Raises
    ------
    InvalidOption
        The value does not fit the question.
    """
    entry = _entry(name)
    question = _asked.get(name) or (Question(**_asked_as(entry)) if entry else None)
    if question is None:
        return _show(f"It is {with_unit(value, '') if _is_number(value) else value}.", _unasked(name))
    try:
        if question.kind == CHOICE and value not in question.choices:
            raise ValueError(f"one of {', '.join(question.choices)} is expected, got {_shown(value)}")
        value = question.read(value)
    except ValueError as error:
        raise InvalidOption(f"truth({name!r}, ...): {error}") from None
    if "guess" not in entry or entry["asked"] != _plain(question):
        return _show(question.found(value), _waiting(name))
    note = _keep(name, {**entry, "truth": value})
    return _show(*compare(question, entry["guess"], value), *note)


def guesses() -> None:
    """How the learner's guesses have developed: a figure, for the end of a notebook."""
    try:
        entries = Progress(_course).read(PREDICTIONS)
    except FilesError as error:
        return show_card(message(str(error)))
    entries = {**entries, **_said_here}
    seen = [
        Said(name, Question(**_asked_as(entry)).kind, entry["guess"], entry["truth"])
        for name, entry in sorted(entries.items(), key=lambda item: item[1].get("said_at", ""))
        if "truth" in entry
    ]
    if not seen:
        words = "No guesses yet: they appear here once you have answered a `predict` cell and run the next one."
        return show_card(message(words))
    return show_card(guesses_figure(seen))


def _show(*lines: str) -> None:
    show_card(message(*lines, edge=SKY))


def compare(question: Question, guess: Any, value: Any) -> list[str]:
    """Guess and truth in plain words, a line each."""
    if question.kind == TEXT:
        return [f"You said: {guess}", question.found(value)]
    if question.kind == CHOICE:
        if guess == value:
            return [f'You said "{guess}": right.']
        return [f'You said "{guess}", it is "{value}".']
    said, found = with_unit(guess, question.unit), with_unit(value, question.unit)
    if said == found:
        return [f"You said {said}: exactly right."]
    return [f"You said {said}, it is {found}: {distance(guess, value, question.unit)}."]


def _question(name: str, number: str | None, choices: Sequence[str] | None, text: bool) -> Question:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidOption(f"the name of a prediction is a chapter and a word, like '05.tokens_read', got {name!r}")
    if (number is not None) + (choices is not None) + bool(text) != 1:
        raise InvalidOption(f"predict({name!r}, ...) needs exactly one of number=, choices= and text=True")
    if number is not None:
        return Question(NUMBER, unit=str(number))
    if choices is None:
        return Question(TEXT)
    texts = tuple(choices)
    if len({_key(c) for c in texts if isinstance(c, str) and c.strip()}) != len(texts) or len(texts) < 2:
        raise InvalidOption(f"predict({name!r}, ...): choices are two or more different texts, got {texts!r}")
    return Question(CHOICE, choices=texts)


def _as_number(answer: Any, unit: str) -> float:
    item = getattr(answer, "item", None)
    if item is not None and getattr(answer, "shape", None) == ():
        answer = item()  # a number of NumPy
    if not _is_number(answer):
        raise ValueError(f"A number{f' ({unit})' if unit else ''} is expected, without quotes, got {_shown(answer)}.")
    return int(answer) if isinstance(answer, numbers.Integral) else float(answer)


def _is_number(value: Any) -> bool:
    """Whether it is a number that a figure can show."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _key(choice: str) -> str:
    return " ".join(choice.split()).casefold().rstrip(".")


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(question: Question) -> dict[str, Any]:
    return {**asdict(question), "choices": list(question.choices)}


def _asked_as(entry: dict[str, Any]) -> dict[str, Any]:
    asked = entry["asked"]
    return {"kind": asked["kind"], "unit": asked["unit"], "choices": tuple(asked["choices"])}


def _entry(name: str) -> dict[str, Any]:
    """What is kept of a prediction; empty where there is nothing, or nothing that can be read."""
    try:
        kept = Progress(_course).read(PREDICTIONS)
    except FilesError:
        kept = {}
    return _said_here.get(name) or kept.get(name, {})


def _keep(name: str, entry: dict[str, Any]) -> list[str]:
    """Keep a prediction with the progress; where that cannot be written, until the notebook ends, and say so."""
    try:
        Progress(_course).change(lambda entries: entries.update({name: entry}), PREDICTIONS)
        _said_here.pop(name, None)
    except FilesError as error:
        _said_here[name] = entry
        return [f"It is kept only until this notebook is closed: {error}"]
    return []


def _waiting(name: str) -> str:
    return f"(The `predict` cell above, {feedback.ascii_only(name)}, still waits for a guess of yours.)"


def _unasked(name: str) -> str:
    return (
        f"(Run the `predict` cell above, {feedback.ascii_only(name)}, first: it says what is asked, and in what unit.)"
    )
