"""Noticing a reply that runs in a circle: the same tokens again and again, until the limit ends it.

Small models do this, above all with greedy decoding: once a passage has been repeated a few times, repeating it is the
likeliest continuation.  Ordinary text repeats itself too, a ruled line of a table or a list of zeros, so that a circle
must be long before it counts: at least `REPEATS` times the same passage, and `LENGTH` tokens in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

PERIODS = 256
"""Longest passage that is looked for, in tokens."""

REPEATS = 4
"""How many times a passage must at least occur at the end of the text, one after the other."""

LENGTH = 128
"""Least number of tokens that they must have together: short passages must come more often than long ones."""


class Circle(NamedTuple):
    """A passage of `period` tokens that occurs `repeats` times in a row at the end of a text."""

    period: int
    repeats: int


def find_circle(tokens: Sequence[int]) -> Circle | None:
    """Return the circle in which a text runs at its end, or None.

    Nothing is kept between calls, so it can be asked at any time; it takes some microseconds unless there is a circle.

    Parameters
    ----------
    tokens
        The reply so far, without the prompt.

    Returns
    -------
    Circle or None
        Of the shortest period that is repeated at the end; the last repetition may be begun and not complete.
    """
    tokens = list(tokens)
    n = len(tokens)
    for period in range(1, min(PERIODS, n // REPEATS) + 1):
        needed = max(REPEATS * period, LENGTH)
        if needed > n or tokens[-1] != tokens[-1 - period]:
            continue
        if tokens[n - needed + period :] == tokens[n - needed : n - period]:
            start = n - needed
            while start > 0 and tokens[start - 1] == tokens[start - 1 + period]:
                start -= 1
            return Circle(period, (n - start) // period)
    return None
