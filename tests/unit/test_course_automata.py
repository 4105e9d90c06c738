"""Byte automata of small regular expressions: the texts that Python's `re` matches, and no dead states."""

from __future__ import annotations

import random
import re

import pytest

from course.automata import Automaton

PATTERNS = [
    "(19|20)[0-9]{2}-(0[1-9]|1[0-2])",
    "a*b",
    "(ab|a)*c?",
    "[a-c]+(,[a-c]+)*",
    "x{2,4}y{0,1}",
    "(a|ab)(c|bcd)",
    "The Hague|Rome",
    "é|è+",
    r"\d\.\d",
    "(a|b)*abb",
    "a.c",
    "(a*b*)*c",
    "",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_reads_what_re_matches(pattern: str) -> None:
    automaton = Automaton.of(pattern)
    rng = random.Random(pattern)
    letters = sorted({c for c in pattern if c.isalnum() or c in ", .-é"} | set("ab1"))
    texts = ["".join(rng.choice(letters) for _ in range(rng.randint(0, 8))) for _ in range(800)]
    for start in range(6):  # and some that the automaton itself says are right
        state, data = 0, bytearray()
        while automaton.edges[state] and (state not in automaton.accepting or rng.random() < 0.6) and len(data) < 40:
            byte = rng.choice(sorted(automaton.edges[state]))
            data.append(byte)
            state = automaton.edges[state][byte]
        if state in automaton.accepting:
            texts.append(data.decode())
            assert re.fullmatch(pattern, texts[-1]), (start, texts[-1])
    for text in texts:
        assert (automaton.read(text.encode()) in automaton.accepting) == bool(re.fullmatch(pattern, text)), text


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_state_leads_to_an_end(pattern: str) -> None:
    automaton = Automaton.of(pattern)
    alive = set(automaton.accepting)
    for _ in automaton.edges:
        alive |= {state for state, edges in enumerate(automaton.edges) if alive & set(edges.values())}
    assert alive == set(range(len(automaton.edges)))


def test_reads_on_from_a_state() -> None:
    automaton = Automaton.of("abc")
    assert automaton.read(b"bc", automaton.read(b"a")) in automaton.accepting
    assert automaton.read(b"x") is None and automaton.step(0, ord("b")) is None


@pytest.mark.parametrize(
    "pattern", ["(a", "a)", "[^a]", "a{", "a{2", "a{3,1}", "*a", "[a", "[é]", r"\w", "a|*", "a\\", "(a|b)*a(a|b){12}"]
)
def test_says_what_it_does_not_know(pattern: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Automaton.of(pattern)
