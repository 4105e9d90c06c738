"""The words of notebooks, exercises, pages, docstrings and messages: plain English, short sentences, no house dialect.

What fails is named with its file, its place and its sentence.  A right use of a word that is otherwise wrong is entered,
as its whole sentence, in tests/data/right_words.txt.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import pytest

from course.build import digest, read_manifest
from course.source import ROOT
from tests.prose import Passage, in_markdown, in_notebook, in_python, passages
from tests.words import WORD, faults, grade, syllables

LONGEST = {"page": 35, "docstring": 40, "message": 35}  # words in a sentence
# Years of school, by Flesch and Kincaid.  The pages of docs/ that read well lie between 4 and 6, the chapters near 4.
HARDEST = {"notebooks": 5.5, "solutions": 5.5, "docs": 6.5}
ELSEWHERE = 7.5
ENOUGH = 20  # sentences, below which the measure says little


@cache
def right() -> frozenset[str]:
    """Sentences in which a word is right that is otherwise wrong."""
    lines = (ROOT / "tests" / "data" / "right_words.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


@cache
def found() -> tuple[Passage, ...]:
    """All prose of this checkout, without the notebooks that somebody has worked in since they were stored."""
    stored = read_manifest()
    changed = {f"notebooks/{p.name}" for p in (ROOT / "notebooks").glob("*.ipynb") if stored.get(p.name) != digest(p)}
    return tuple(passage for passage in passages(ROOT) if passage.file not in changed)


def test_all_kinds_of_text_are_read():
    seen = {(p.file.split("/")[0], p.kind) for p in found()}
    assert {("README.md", "page"), ("docs", "page"), ("notebooks", "page"), ("notebooks", "comment")} <= seen
    for folder in ("course", "fucina", "bench", "solutions"):
        assert {(folder, kind) for kind in ("docstring", "comment", "message")} <= seen
    assert len(found()) > 5000


def test_words_are_plain():
    wrong = [str(fault) for fault in faults(found(), right())]
    if wrong:
        pytest.fail(f"{len(wrong)} sentences:\n" + "\n".join(wrong), pytrace=False)


def test_sentences_that_are_excused_are_still_there():
    said = {sentence for passage in found() for sentence in passage.sentences()}
    assert sorted(right() - said) == []


def test_sentences_are_short():
    long = [
        f"{p.file}, {p.place}: {count} words, at most {LONGEST[p.kind]}\n    {sentence}"
        for p in found()
        if p.kind in LONGEST
        for sentence in p.sentences()
        if (count := len(WORD.findall(sentence))) > LONGEST[p.kind]
    ]
    if long:
        pytest.fail("\n".join(long), pytrace=False)


def test_texts_are_easy_to_read():
    texts = defaultdict(list)
    for passage in found():
        if passage.kind != "comment":
            texts[passage.file] += [(sentence, passage.place) for sentence in passage.sentences()]
    hard = []
    for file, sentences in texts.items():
        years, most = grade(s for s, _ in sentences), HARDEST.get(file.split("/")[0], ELSEWHERE)
        if len(sentences) >= ENOUGH and years > most:
            worst = sorted(sentences, key=lambda pair: grade([pair[0]]), reverse=True)[:3]
            hard.append(f"{file}: {years:.1f} years of school, at most {most}. The hardest sentences:")
            hard += [f"    {place}: {sentence}" for sentence, place in worst]
    if hard:
        pytest.fail("\n".join(hard), pytrace=False)


# --- the checks themselves --------------------------------------------------------------------------------------------


def wrong_in(text: str) -> list[str]:
    return [fault.why for fault in faults([Passage("x", "line 1", "page", text)])]


@pytest.mark.parametrize(
    "text",
    [
        "The rows behind the last one are scratch.",
        "It makes 100 tokens a second.",
        "Writes a row a token into the cache.",
        "It stores 4.5 bits a weight.",
        "There is one a stream.",
        "One number a vocabulary entry.",
        "It takes n passes, k a step.",
        "Once a pass it looks at the clock.",
        "The engine gives other bits.",
        "Each step needs one token more.",
        "Perfect gains from every token more.",
        "A price does not tremble as a clock does.",
    ],
)
def test_a_wrong_word_is_found(text):
    assert len(wrong_in(text)) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "Tokens per second, bits per weight, one per stream.",
        "The idea behind it is simple, and it leaves nothing of the kind behind.",
        "It has a row, takes a step, reads a line, passes a token on.",
        "It looks five times a second.",
        "The part of a file a line belongs to.",
        "Other tokens have other rows.",
        "One more token; two or more.",
        "One token more than before.",
    ],
)
def test_a_right_word_is_not(text):
    assert wrong_in(text) == []


def test_a_right_sentence_is_excused_and_no_other():
    passage = Passage("x", "line 1", "page", "He stands behind her. He stands behind him.")
    (fault,) = faults([passage], frozenset({"He stands behind her."}))
    assert fault.sentence == "He stands behind him." and str(fault).startswith("x, line 1: 'behind'")


def test_prose_is_told_from_code():
    page = "# A title here\n\nText with `code a second` and\na [link](x.md).\n\n```\nrow a token\n```\n\n| one cell here | x |\n"
    assert [p.text for p in in_markdown(page, "x")] == ["A title here", "Text with CODE and a link.", "one cell here"]
    source = (
        '"""First line.\n\nParameters\n----------\nx : int\n    How many there are.\n\nExamples\n--------\n>>> row(a)\n'
        'a row a token\n"""\n# A comment,\n# in two lines.\ny = f"this is {1} message"\nz = "word"\n'
    )
    texts = [(p.kind, p.text) for p in in_python(source, "x")]
    assert texts == [
        ("docstring", "How many there are."),
        ("message", "this is X message"),
        ("comment", "A comment, in two lines."),
    ]


def test_exercise_cells_of_a_notebook_are_not_read_twice():
    cells = [
        {"cell_type": "code", "source": "%%exercise ch05.x\n# a comment of the starter"},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "# a comment of ours"]},
        {"cell_type": "markdown", "source": "Words of the chapter."},
    ]
    assert [p.text for p in in_notebook({"cells": cells}, "x")] == ["a comment of ours", "Words of the chapter."]


@pytest.mark.parametrize(
    ("word", "count"), [("token", 2), ("make", 1), ("passes", 2), ("used", 1), ("little", 2), ("a", 1)]
)
def test_syllables(word, count):
    assert syllables(word) == count


def test_the_grade_follows_the_length_of_sentences_and_words():
    short = ["The cat sat on the mat.", "The dog ran to the door."]
    long = [
        "Consequently, considerable organisational complications accumulate notwithstanding institutional deliberation."
    ]
    assert grade(short) < 3 < 15 < grade(long)
    assert grade([]) == 0.0
