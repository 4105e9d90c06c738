"""Figures of chapter 11: an automaton of bytes, its walk along a trie, masks over a vocabulary."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from xml.etree import ElementTree

import pytest

from course.automata import Automaton
from course.figures.lift import byte_automaton, trie_walk, vocabulary_mask
from course.figures.svg import Figure

SVG = "{http://www.w3.org/2000/svg}"
NINE = [b"a", b"ab", b"abc", b"abd", b"b", b"c", b"cd", b"cde", b" a"]


def every_figure() -> dict[str, Figure]:
    return {
        "automaton": byte_automaton(Automaton.of("(19|20)[0-9]{2}-(0[1-9]|1[0-2])"), "A <month>", current=4),
        "circle": byte_automaton(Automaton.of("[a-z]+( [a-z]+)*")),
        "bytes": byte_automaton(Automaton.of("\u00e9|\u4e2d")),
        "walk": trie_walk(NINE, Automaton.of("(ab)*c"), 0),
        "walk of bytes": trie_walk([b"\xc3\xa9", b"\xc3", b"<"], Automaton.of("\u00e9"), 0),
        "masks": vocabulary_mask({"few": [3, 700], "none": [], "many": range(0, 5000, 3), "all": range(5000)}, 5000),
    }


@pytest.mark.parametrize("name", every_figure())
def test_is_well_formed_and_described(name: str) -> None:
    figure = every_figure()[name]
    tree = ElementTree.fromstring(figure.svg)
    assert tree.get("aria-label") == figure.alt == tree.find(f"{SVG}desc").text
    width, height = float(tree.get("width")), float(tree.get("height"))
    for element in tree.iter(f"{SVG}text"):
        assert 0 <= float(element.get("x")) <= width and 0 <= float(element.get("y")) <= height
    for element in tree.iter(f"{SVG}rect"):
        if not element.get("width").endswith("%"):
            assert float(element.get("x")) >= 0
            assert float(element.get("x")) + float(element.get("width")) <= width + 0.1
            assert float(element.get("y")) + float(element.get("height")) <= height + 0.1
    assert figure.svg == every_figure()[name].svg


def test_words_say_what_the_picture_says() -> None:
    shown = every_figure()
    assert "3 to 4 on 0-9" in shown["automaton"].alt and "9 (double ring)" in shown["automaton"].alt
    assert "4 (current)" in shown["automaton"].alt
    assert "1 to 0 on space" in shown["circle"].alt
    assert "on C3" in shown["bytes"].alt
    assert "few: 2 of 5,000" in shown["masks"].alt and "many: 1,667 of 5,000" in shown["masks"].alt


def test_the_walk_tells_allowed_from_refused() -> None:
    automaton = Automaton.of("(ab)*c")
    for state in range(len(automaton.edges)):
        told = dict(re.findall(r"(\S+) (allowed|refused)", trie_walk(NINE, automaton, state).alt))
        want = {
            piece.decode().replace(" ", "\u00b7"): "refused" if automaton.read(piece, state) is None else "allowed"
            for piece in NINE
        }
        assert told == want


def test_a_mask_shows_each_token_at_its_place() -> None:
    allowed = {0, 7, 255, 256, 1000, *range(2000, 2600)}
    figure = vocabulary_mask({"some": allowed}, 5000)
    picture = base64.b64decode(re.search(r"base64,([^\"]+)", figure.svg)[1])
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (256, 20)
    at = picture.index(b"IDAT")
    (size,) = struct.unpack(">I", picture[at - 4 : at])
    lines = zlib.decompress(picture[at + 4 : at + 4 + size])
    found = {
        256 * row + column
        for row in range(20)
        for column in range(256)
        if lines[row * 33 + 1 + column // 8] >> (7 - column % 8) & 1
    }
    assert found == allowed


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to draw"):
        trie_walk([b""], Automaton.of("a"), 0)
    with pytest.raises(ValueError, match="nothing to draw"):
        vocabulary_mask({}, 10)
