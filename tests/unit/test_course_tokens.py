"""Chapter 02: the figure of a word that is merged, and the tokenizer of my_engine, whose ids are the engine's."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from course.figures.merging import merge_steps
from course.my_engine import assemble
from course.ours import ours
from fucina.gguf import GgufFile
from fucina.tokenizers import BYTE_ALPHABET, PRE_TOKENIZERS, load_tokenizer
from fucina.tokenizers.merging import merge
from tests.models import TINY, need_smollm2
from tests.unit.course_kit import make_course
from tests.unit.engine_kit import execute
from tests.unit.tokenizer_texts import Numbers, random_text


def random_texts(seed, count):
    numbers = Numbers(seed)
    return [random_text(numbers) for _ in range(count)]


MARKED = "<|im_start|>user\nHi <|im_end|><|endoftext|> <|im_start"


# --- the figure ---------------------------------------------------------------------------------------------------------


def test_a_word_is_drawn_row_by_row_and_told_in_words():
    rows = [("bytes", ["a", "<", "c", " "]), ("rank 3: a + <", ["a<", "c", " "])]
    figure = merge_steps(rows, "A <word>")
    root = ElementTree.fromstring(figure.svg)
    shown = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert shown.count("c") == 2 and "a<" in shown and "rank 3: a + <" in shown
    assert figure.alt == "A <word>. bytes: a < c \u00b7; rank 3: a + <: a< c \u00b7"


@pytest.mark.parametrize("rows", [[], [("one", ["ab"]), ("two", ["a", "c"])]])
def test_what_is_no_word_on_its_way_is_not_drawn(rows):
    with pytest.raises(ValueError, match=r"no row|different texts"):
        merge_steps(rows)


# --- the pieces of the exercises ----------------------------------------------------------------------------------------


def test_our_pieces_are_those_of_the_engine():
    assert [letter.encode() for letter in ours("ch02.alphabet")()] == list(BYTE_ALPHABET)
    split, cut = ours("ch02.split"), PRE_TOKENIZERS["smollm"].cut
    for text in random_texts(3, 400):
        assert split(text) == cut(text)


def test_our_merge_is_the_engines():
    rng, slow = random.Random(5), ours("ch02.merge")
    for _ in range(200):
        ranks, known = {}, ["a", "b", "c"]
        while len(ranks) < 8:
            pair = rng.choice(known), rng.choice(known)
            if pair not in ranks:
                ranks[pair] = len(ranks)
                known.append("".join(pair))
        word = rng.choices("abc", k=rng.randrange(1, 20))
        assert slow(word, ranks) == merge(word, lambda a, b, ranks=ranks: ranks.get((a, b)))


# --- my_engine ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    folder = tmp_path_factory.mktemp("tokens")
    return execute(assemble(make_course(folder / "course")), folder)


def test_the_engine_in_one_file_gives_the_engines_ids(engine):
    path = need_smollm2()
    mine = engine.open_text(str(path))
    with GgufFile(path) as file:
        theirs = load_tokenizer(file.metadata)
    assert type(mine).__name__ == "Words" and mine.eos == theirs.eos
    lost = {chr(byte) for byte in theirs.unencodable}
    for text in [MARKED, *random_texts(7, 300)]:
        if lost.isdisjoint(text):  # theirs warns of these
            assert mine.encode(text) == theirs.encode(text)
            assert mine.encode(text, special=False) == theirs.encode(text, special=False)
            assert mine.decode(mine.encode(text)) == text
    assert mine.encode_prompt(MARKED) == theirs.encode_prompt(MARKED)
    assert [mine.piece(i) for i in range(0, theirs.n_vocab, 7)] == [
        theirs.piece(i) for i in range(0, theirs.n_vocab, 7)
    ]
    assert [mine.token_id(m) for m in ("<|im_end|>", "<|none|>")] == [theirs.token_id("<|im_end|>"), None]


def test_other_rules_are_left_to_fucina(engine):
    path = Path(TINY / "gemma3.gguf")
    with GgufFile(path) as file:
        theirs = load_tokenizer(file.metadata)
    assert engine.open_text(str(path)).encode("a b") == theirs.encode("a b")
