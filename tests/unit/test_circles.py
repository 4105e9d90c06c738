"""Replies that run in a circle are found; ordinary text, code, lists and tables are not taken for one."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.chat.circles import LENGTH, PERIODS, REPEATS, Circle, find_circle
from fucina.gguf import GgufFile
from fucina.tokenizers import load_tokenizer
from tests.models import need_smollm2

ROOT = Path(__file__).resolve().parents[2]


@given(
    before=st.lists(st.integers(0, 50), max_size=60),
    passage=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    begun=st.integers(0, 60),
)
def test_a_passage_that_is_repeated_often_enough(before, passage, begun):
    repeats = max(REPEATS, -(-LENGTH // len(passage)))
    tail = passage * repeats + passage[: begun % len(passage)]
    circle = find_circle(before + tail)
    assert circle is not None and circle.period <= len(passage)
    assert circle.period * circle.repeats > len(tail) - circle.period  # all of it is counted
    text = before + tail
    assert (
        text[-circle.period * circle.repeats :][: circle.period] * circle.repeats
        == text[-circle.period * circle.repeats :]
    )


def test_the_least_that_counts():
    for period in (1, 2, 7, 31, 32, 33, 100, PERIODS):
        passage = list(range(period))
        least = max(REPEATS * period, LENGTH)
        text = (passage * (LENGTH + REPEATS))[:least]
        assert find_circle([999, *text]) == Circle(period, least // period)
        assert find_circle([999, *text[1:]]) is None
        assert find_circle([*text, 999]) is None  # it has left the circle
    assert find_circle(list(range(PERIODS + 1)) * REPEATS) is None
    assert find_circle([]) is None and find_circle([1]) is None


def test_random_text_has_none():
    source = random.Random(1)
    assert find_circle([source.randrange(3) for _ in range(2000)]) is None


@pytest.fixture(scope="module")
def smollm2():
    with GgufFile(need_smollm2()) as file:
        yield load_tokenizer(file.metadata)


ORDINARY = {
    "list": "\n".join(f"{i}. Buy a thing that costs {i * 7 % 13} coins, and carry it home." for i in range(1, 80)),
    "bullets": "\n".join(f"- **Name {chr(65 + i % 26)}{i}**: a short note" for i in range(80)),
    "table": "\n".join(["| n | square | cube |", "|---|---|---|", *(f"| {i} | {i * i} | {i**3} |" for i in range(90))]),
    "zeros": "grid = [\n" + "    [0, 0, 0, 0, 0, 0, 0, 0],\n" * 3 + "]\n",
    "rule": "Title\n" + "=" * 400 + "\n" + "-" * 400 + "\n",
    "csv": "\n".join(f"2024-01-{i % 31:02},{i},{i / 7:.3f},0,0,0" for i in range(120)),
    "numbers": " ".join(map(str, range(600))),
    "song": (
        "Row, row, row your boat,\nGently down the stream.\nMerrily, merrily, merrily, merrily,\nLife is but a dream.\n"
        * 3
    ),
    "if": "\n".join(f"    elif key == {i}:\n        return table[{i}]" for i in range(80)),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_texts(smollm2, name):
    no_circle(smollm2, ORDINARY[name])


def test_texts_of_this_project_and_of_python(smollm2):
    files = [
        *ROOT.glob("docs/*.md"),
        ROOT / "LICENSE",
        *ROOT.glob("fucina/**/*.py"),
        *ROOT.glob("tests/unit/test_k*.py"),
    ]
    files += sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py"))[:20]
    for path in files:
        no_circle(smollm2, path.read_text(encoding="utf-8", errors="replace")[:30_000])


@pytest.mark.filterwarnings("ignore::fucina.tokenizers.UnencodableBytes")
def no_circle(tokenizer, text):
    ids = tokenizer.encode(text, special=False)
    for end in range(0, len(ids) + 1, 16):
        assert find_circle(ids[max(0, end - 1200) : end]) is None, tokenizer.decode(ids[max(0, end - 60) : end])


def test_a_real_circle(smollm2):
    """What SmolLM2 answers, greedily, when asked for the capital of France."""
    text = "L'\u00c9toile, la Marseillaise, la femme" + ", la femme au martyre" * 20
    circle = find_circle(smollm2.encode(text))
    assert circle is not None and circle.period == 7
