"""Checks of arguments: one function per kind of value, one wording for every message.

Each returns the value in the form that the engine works with, or raises an error that names the argument, the value
and what was expected.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterable, Mapping, Set
from numbers import Real
from typing import Any

import numpy as np

from .errors import FucinaError, InvalidOption, TokenOutOfRange

Error = type[FucinaError]


def shown(value: Any) -> str:
    """Return the value as a message shows it: its `repr`, shortened where it is long."""
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python prints, or something that holds one
        if isinstance(value, int):
            return f"an integer of {value.bit_length()} bits"
        text = f"a value of type {type(value).__name__} that is too long to show"
    return text if len(text) <= 200 else text[:197] + "..."


def integer(name: str, value: Any, low: int, high: int | None = None, error: Error = InvalidOption) -> int:
    """Return an integer in [low, high] (no upper limit if `high` is None); booleans are no integers here."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
        if number >= low and (high is None or number <= high):
            return number
    except TypeError:
        pass
    expected = f"of at least {low}" if high is None else f"in [{low}, {high}]"
    raise error(f"{name} must be an integer {expected}, got {shown(value)}")


def real(
    name: str,
    value: Any,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    above: bool = False,
    infinite: bool = False,
    error: Error = InvalidOption,
) -> float:
    """Return a number in [low, high].

    Parameters
    ----------
    above : the number must be greater than `low`.
    infinite : infinity itself is allowed.
    """
    is_number = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    if is_number:
        try:
            number = float(value)
        except OverflowError:  # an integer or a fraction beyond every float
            number = math.inf if value > 0 else -math.inf
        inside = low < number <= high if above else low <= number <= high
        if inside and (infinite or math.isfinite(number)):
            return number
    if high < math.inf:
        expected = f"a number in {'(' if above else '['}{low:g}, {high:g}]"
    elif low > -math.inf:
        expected = f"a {'' if infinite else 'finite '}number {'greater than' if above else 'of at least'} {low:g}"
        expected += ", or infinity" if infinite else ""
    else:
        expected = "a number" if infinite else "a finite number"
    raise error(f"{name} must be {expected}, got {shown(value)}")


_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def byte_count(name: str, value: Any, error: Error = InvalidOption) -> int:
    """Return a number of bytes, at least 0, given as an integer or as a text like "512MiB" or "1.5GiB"."""
    if isinstance(value, str):
        match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *([A-Za-z]*)", value.strip(), re.ASCII)
        if match is None or match[2] not in _UNITS or len(match[1]) > 30:
            raise error(f'{name} must be a number of bytes or a text like "512MiB" or "1.5GiB", got {shown(value)}')
        return int(float(match[1]) * _UNITS[match[2]])
    return integer(name, value, 0, error=error)


def one_of(name: str, value: Any, choices: Collection[str], error: Error = InvalidOption) -> str:
    """Return one of some words."""
    if isinstance(value, str) and value in choices:
        return value
    raise error(f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}")


def listed(name: str, values: Any, of: str) -> list[Any]:
    """Return the items of a sequence (or of any iterable that is no text) as a list."""
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Iterable):
        raise InvalidOption(f"{name} must be a sequence of {of}, got {type(values).__name__}")
    return list(values)


def token_ids(name: str, ids: Any, vocab: int) -> list[int]:
    """Return token ids as a list of Python integers, each in [0, vocab).

    Parameters
    ----------
    ids : a flat sequence or array of integers.  Texts, bytes and other buffers are refused: their items are characters
        or bytes, which only look like ids.  So are sets and mappings, which have no order.

    Raises
    ------
    InvalidOption : it is no such sequence.
    TokenOutOfRange : an item is no integer, or not an id of the vocabulary.
    """
    if isinstance(ids, np.ndarray):
        if ids.ndim != 1:
            raise InvalidOption(f"{name} must be a flat sequence of token ids, got an array of shape {list(ids.shape)}")
        if ids.size and ids.dtype.kind not in "iu":
            raise TokenOutOfRange(f"{name} must hold integers, got an array of {ids.dtype}")
        if ids.size and (ids.min() < 0 or ids.max() >= vocab):
            bad = int(ids[(ids < 0) | (ids >= vocab)][0])
            raise TokenOutOfRange(f"token id {bad} is outside the vocabulary of {vocab}")
        return [int(i) for i in ids.tolist()]
    if isinstance(ids, (Set, Mapping)):
        raise InvalidOption(f"{name} must be a sequence of token ids, got {type(ids).__name__}, which has no order")
    checked = listed(name, ids, "token ids")
    for i, token in enumerate(checked):
        if type(token) is int and 0 <= token < vocab:
            continue
        try:
            number = -1 if isinstance(token, (bool, np.bool_)) else operator.index(token)
        except TypeError:
            number = -1
        if not 0 <= number < vocab:
            raise TokenOutOfRange(f"token id {shown(token)} is outside the vocabulary of {vocab}")
        checked[i] = number
    return checked
