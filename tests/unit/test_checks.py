"""Checks of arguments: values come back in one form, errors name argument, value and range."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fucina import checks
from fucina.errors import InvalidOption, KvCacheOverflow, TokenOutOfRange

HUGE = 10**5000  # more digits than Python prints
INF, NAN = math.inf, math.nan


def named(value):
    """Name of a case: pytest cannot print huge integers."""
    return type(value).__name__


@pytest.mark.parametrize("value", [3, np.int8(3), np.uint64(3)])
def test_integers(value):
    found = checks.integer("n", value, 1, 3)
    assert found == 3 and type(found) is int


@pytest.mark.parametrize("value", [0, 4, -HUGE, HUGE, True, np.True_, 2.0, "2", None, [2], Fraction(2)], ids=named)
def test_what_is_no_integer_of_the_range(value):
    with pytest.raises(InvalidOption, match=r"^n must be an integer in \[1, 3\], got "):
        checks.integer("n", value, 1, 3)
    if value != 4 and value is not HUGE:
        with pytest.raises(KvCacheOverflow, match="^n must be an integer of at least 1, got "):
            checks.integer("n", value, 1, error=KvCacheOverflow)


@pytest.mark.parametrize("value", [0, 0.5, np.float32(0.5), np.int64(1), Fraction(1, 2)])
def test_numbers(value):
    found = checks.real("x", value, 0, 1)
    assert found == float(value) and type(found) is float


@pytest.mark.parametrize(
    "value", [-0.1, 1.5, NAN, INF, -INF, HUGE, -HUGE, True, "0.5", None, 1j, np.complex64(0)], ids=named
)
def test_what_is_no_number_of_the_range(value):
    with pytest.raises(InvalidOption, match=r"^x must be a number in \[0, 1\], got "):
        checks.real("x", value, 0, 1)


def test_limits_of_numbers():
    assert checks.real("x", INF, 0, infinite=True) == INF and checks.real("x", -1e30) == -1e30
    for value, options, expected in (
        (0.0, {"low": 0, "above": True}, "a finite number greater than 0"),
        (0.0, {"low": 0, "high": 1, "above": True}, r"a number in \(0, 1\]"),
        (INF, {"low": 0}, "a finite number of at least 0"),
        (-HUGE, {"low": 0, "infinite": True}, "a number of at least 0, or infinity"),
        (INF, {}, "a finite number"),
        (NAN, {"infinite": True}, "a number"),
    ):
        with pytest.raises(InvalidOption, match=f"^x must be {expected}, got "):
            checks.real("x", value, **options)


def test_words():
    assert checks.one_of("w", "b", ("a", "b")) == "b"
    for value in ("c", 1, None, ["a"], HUGE):
        with pytest.raises(InvalidOption, match="^w must be one of 'a', 'b', got "):
            checks.one_of("w", value, ("a", "b"))


def test_sequences():
    assert checks.listed("s", (i for i in range(2)), "things") == [0, 1]
    for value in ("ab", b"ab", memoryview(b"ab"), 3, None):
        with pytest.raises(InvalidOption, match=f"^s must be a sequence of things, got {type(value).__name__}$"):
            checks.listed("s", value, "things")


def test_token_ids():
    for ids in ([0, 9], (0, np.int64(9)), np.array([0, 9], np.uint8), iter([0, 9])):
        found = checks.token_ids("ids", ids, 10)
        assert found == [0, 9] and all(type(i) is int for i in found)
    assert checks.token_ids("ids", [], 10) == checks.token_ids("ids", np.empty(0), 10) == []
    for bad in ([10], [-1], [True], [1.0], ["1"], [None], [HUGE], np.array([10]), np.array([0.5])):
        with pytest.raises(TokenOutOfRange):
            checks.token_ids("ids", bad, 10)
    for bad in ("12", b"12", np.zeros((1, 2), int), 5, None):
        with pytest.raises(InvalidOption, match="^ids must be a "):
            checks.token_ids("ids", bad, 10)


@pytest.mark.parametrize("value", [HUGE, -HUGE, [HUGE], {"a": HUGE}, "x" * 1000, b"x" * 1000, object()], ids=named)
def test_any_value_can_be_shown(value):
    assert 0 < len(checks.shown(value)) <= 200
