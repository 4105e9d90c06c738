"""The five lines of ch07.read_the_log are reports of real runs: they are made again here."""

from __future__ import annotations

import math

import pytest

import fucina
from course.catalogue import Course
from course.grading.core import ChapterChecks
from fucina.chat import Conversation
from fucina.speculative import DraftSource, Options, SourceDrafter, SpeculationIndex
from tests.models import need_smollm2

pytestmark = pytest.mark.slow

MILL = (
    "A letter from the mill. The wheel is mended and turns again. We need two sacks of flour, a new rope and a lamp. "
    "Send them with the boat on Monday. The boat leaves at six."
)
SKY = "Explain why the sky is blue."
RIVER = "Write a short story about a river that forgets its name."


class Silent:
    """Never proposes anything."""

    def observe(self, committed: list[int]) -> None:
        """Takes no notes."""

    def suggest(self, context: list[int], limit: int) -> list[int]:
        """Nothing."""
        return []


class OneToken(Silent):
    """Proposes what followed the newest token, the last time it occurred."""

    def suggest(self, context: list[int], limit: int) -> list[int]:
        """Searches the text backwards."""
        text = list(context)
        places = (place for place in reversed(range(1, len(text))) if text[place - 1] == text[-1])
        return next((text[place : place + limit] for place in places), [])


class Liar(Silent):
    """Proposes the beginning of the text, whatever has been said, and is always sure."""

    def suggest(self, context: list[int], limit: int) -> list[int]:
        """The first tokens."""
        return list(context[:limit])

    def odds(self, n: int) -> list[float]:
        """Certain of each."""
        return [1.0] * n


@pytest.fixture(scope="module")
def model():
    model = fucina.load(need_smollm2())
    yield model
    model.close()


@pytest.fixture(scope="module")
def lines() -> dict[str, str]:
    chapter = Course().exercise("ch07.read_the_log")[0]
    checks = ChapterChecks(chapter).exercises["ch07.read_the_log"].checks
    return checks[0].run.__globals__["LINES"]


def index(model: fucina.Model) -> DraftSource:
    return SpeculationIndex(model.n_tokens)


@pytest.mark.parametrize(
    ("letter", "asked", "source", "tokens", "options", "sampling"),
    [
        ("a", SKY, Liar, 120, Options(min_speedup=0), {}),
        ("b", f"Write the following text twice, word for word.\n\n{MILL}", index, 160, None,
         {"temperature": 0.8, "seed": 3}),
        ("c", RIVER, OneToken, 160, Options(max_loss=math.inf), {}),
        ("d", SKY, index, 160, None, {}),
        ("e", SKY, Silent, 120, None, {}),
    ],
)  # fmt: skip
def test_line_is_what_the_model_gives(model, lines, letter, asked, source, tokens, options, sampling):
    made = source(model) if source is index else source()
    drafter = SourceDrafter(model, made, options, timed=False)  # prices from the table: the same on every machine
    reply = Conversation(model, max_tokens=tokens, speculation=drafter, **sampling).send(asked)
    assert reply.speculation.summary() == f"spec: {lines[letter]}"
