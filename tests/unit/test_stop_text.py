"""Stop texts: nothing of the stop is shown, nothing before it is lost, and nothing is held back without reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.engine.text import StopText


def run(stops, pieces):
    scanner = StopText(stops)
    shown = [scanner.push(p) for p in pieces]
    return "".join(shown) + scanner.flush(), scanner.fired


def oracle(stops, text):
    """Cut the text as it grows by one character at a time."""
    for end in range(1, len(text) + 1):
        fired = [s for s in stops if s and text[:end].endswith(s)]
        if fired:
            longest = max(fired, key=len)
            return text[: end - len(longest)], longest
    return text, None


def test_stop_split_over_pieces():
    assert run(["\nUser:"], ["hello", "\nUser", ":", " more"]) == ("hello", "\nUser:")


def test_stop_ending_inside_a_piece():
    assert run([".."], ["wait", "..."]) == ("wait", "..")


def test_of_overlapping_stops_the_earliest_end_wins_then_the_longest():
    assert run(["ab", "b"], ["x", "ab"]) == ("x", "ab")
    assert run(["abc", "b"], ["xabc"]) == ("xa", "b")


def test_empty_stops_never_match():
    assert run(["", ""], ["a", "b"]) == ("ab", None)


def test_only_a_possible_beginning_is_held_back():
    scanner = StopText(["a stop of thirty characters...."])
    assert scanner.push("some text") == "some text"
    assert scanner.push(" and a st") == " and "
    assert scanner.push("ump") == "a stump"


def test_nothing_is_shown_after_a_stop():
    scanner = StopText(["x"])
    assert scanner.push("ax") == "a"
    assert scanner.push("more") == "" and scanner.flush() == ""


@given(
    st.lists(st.text("ab", max_size=4), max_size=3),
    st.lists(st.text("abc", max_size=5), max_size=12),
)
def test_any_split_gives_what_reading_character_by_character_gives(stops, pieces):
    assert run(stops, pieces) == oracle(stops, "".join(pieces))


@pytest.mark.parametrize("text", ["", "abc"])
def test_no_stops_pass_everything_at_once(text):
    scanner = StopText([])
    assert scanner.push(text) == text
