"""Numbers in a schema that llguidance would change: refused by name."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

from ...errors import UnsupportedKeyword
from .walk import Node, beside

EXACT = 2**53  # up to here a 64-bit float holds every integer
PLACES = 22  # up to here it holds the power of ten that a decimal fraction is divided by
CONSTANT = 2**63  # from here on, a constant may become another number, or end the process
LOW, HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def check_numbers(root: Node, nodes: list[Node]) -> None:
    """Raise UnsupportedKeyword where a number would not be enforced as it is written."""
    for node in nodes:
        for name in (*LOW, *HIGH, "multipleOf"):
            value = _number(node.get(name))
            if value is not None and abs(value) > EXACT:
                raise UnsupportedKeyword(
                    f"{name} {str(value)[:40]} is not supported: it cannot be enforced to the last digit "
                    "(up to 2**53 it can)"
                )
            if value is not None:
                _check_digits(name, value)
        for name in ("const", "enum"):
            for value in _numbers_in(node.get(name)):
                if abs(value) >= CONSTANT or not _written_whole(value):
                    raise UnsupportedKeyword(
                        f"{name} {str(value)[:40]} is not supported: it would become another number (integers up to 2**53 "
                        "do not)"
                    )
                _check_digits(name, value)
    _check_open_ends(root, nodes)


def _written_whole(value: float) -> bool:
    """Whether a large number is written with its own digits; an integer also has to be held by a 64-bit float."""
    if isinstance(value, int):
        return int(float(value)) == value
    return abs(value) <= EXACT or Decimal(repr(value)) == Decimal(value)


def _check_digits(name: str, value: float) -> None:
    """Refuse a fraction that is read as its neighbour: it is computed from its digits in one step, or not exactly."""
    if isinstance(value, int):
        return
    _, digits, places = Decimal(repr(value)).as_tuple()
    if int("".join(map(str, digits))) > EXACT or not -PLACES <= int(places) <= PLACES:
        raise UnsupportedKeyword(
            f"{name} {value!r} is not supported: it would be rounded (up to 15 digits and {PLACES} places are not)"
        )


def _check_open_ends(root: Node, nodes: list[Node]) -> None:
    """Refuse intervals such as 0 < x < 0.5: the end 0 would be allowed, if it is written without a fraction."""
    if not _open_ended(nodes):
        return
    for node in nodes:
        if (found := _open_ended(beside(root, node))) is not None:
            name, end, other = found
            raise UnsupportedKeyword(
                f"{name} {end} is not supported where the other bound is less than 1 away ({other}): {end} itself could "
                "not be excluded"
            )


def _open_ended(nodes: list[Node]) -> tuple[str, float, float] | None:
    """An exclusive bound that is whole, and a bound on its other side less than 1 away: name, value, other value."""
    for name, others, sign in (("exclusiveMinimum", HIGH, 1), ("exclusiveMaximum", LOW, -1)):
        after = sorted(sign * other for other in _bounds(nodes, others))
        for end in _bounds(nodes, [name]):
            at = bisect_right(after, sign * end)  # the nearest bound on the other side
            if end == int(end) and sign * end >= 0 and at < len(after) and after[at] - sign * end < 1:
                return name, end, sign * after[at]
    return None


def _bounds(nodes: list[Node], keys: Iterable[str]) -> list[float]:
    found = []
    for node in nodes:
        for name in keys:
            value = _number(node.get(name))
            if node.get(name) is True:  # of draft 4: the bound beside it is exclusive
                value = _number(node.get({"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}[name]))
            if value is not None:
                found.append(value)
    return found


def _numbers_in(value: Any) -> list[float]:
    """The numbers in a constant."""
    found, waiting = [], [value]
    while waiting:
        value = waiting.pop()
        if (number := _number(value)) is not None:
            found.append(number)
        waiting.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())
    return found


def _number(value: Any) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
