"""Figures of chapters 08 and 09: bands of several runs, the suffix automaton of a short text."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from course.figures.automaton import suffix_automaton
from course.figures.bands import bands
from fucina.speculative import SamIndex


def test_bands_tell_averages_and_spreads() -> None:
    figure = bands([0, 10], {"a": [[0, 1], [0, 3]], "b": [[0, -2]]}, x_label="tokens", title="T", shade=(2, 8, "here"))
    assert "a ends at 2, give or take 1" in figure.alt
    assert "b ends at -2, give or take 0" in figure.alt
    assert "(shaded from 2 to 8: here)" in figure.alt
    root = ET.fromstring(figure.svg)
    assert len(root.findall("{http://www.w3.org/2000/svg}polygon")) == 2


@pytest.mark.parametrize("series", [{}, {"a": [[1, 2, 3]]}, {"a": [1, 2]}, {"a": []}])
def test_bands_need_runs_of_one_length(series: dict) -> None:
    with pytest.raises(ValueError, match="runs"):
        bands([0, 1], series)


@pytest.mark.parametrize("text", ["a", "abc", "abcb", "abcbc", "aaaa", "abab", "abcabcx"])
def test_the_drawn_automaton_is_the_engines(text: str) -> None:
    """As many states and edges as the compiled index has, and the same match."""
    sam = SamIndex(min_match=1)
    sam.append([ord(letter) for letter in text])
    alt = suffix_automaton(text).alt
    states, rest = alt.split("States: ")[1].split(". Arrows: ")
    arrows = rest.split(". Suffix links: ")[0].split("; ")
    edges = sum(arrow.split(" on ")[1].count(",") + 1 for arrow in arrows)
    current = next(state for state in states.split(", ") if "(current)" in state).removesuffix(" (current)")
    assert len(states.split(", ")) == sam.state_count
    assert edges == sam.transition_count
    assert (0 if current == "root" else len(current)) == sam.match_len()


def test_the_automaton_of_nothing_is_refused() -> None:
    for text in ("", ["ab", "c"]):
        with pytest.raises(ValueError, match="one character each"):
            suffix_automaton(text)
