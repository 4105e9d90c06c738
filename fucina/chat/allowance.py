"""What a chat template may make while it renders: characters and items, counted one by one.

Everything that a rendering makes is charged, whether it is kept or not, so that it never holds more than that.  Sizes are
taken before a thing is made wherever it could be much larger than what it is made of.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Sequence, Set, ValuesView
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_MADE = 1 << 26  # units that one rendering may make, beside what the messages bring:
PER_CHARACTER = 64  # for each of their characters, and, for texts that grow and lists that are searched
MAX_GROWING = 1 << 28  # message by message, up to these
ITEM = 16  # units of a list's item; a unit is a character, at most 6 bytes of anything

_CONTAINERS = (Sequence, Set, KeysView, ItemsView, ValuesView)


class Allowance:
    """The units that are left to one rendering.

    Parameters
    ----------
    size, messages : int
        Characters that the messages bring, and how many these are.
    """

    def __init__(self, size: int, messages: int) -> None:
        growing = messages * (size + 8 * ITEM * messages)
        self.most = self.left = MAX_MADE + PER_CHARACTER * size + min(growing, MAX_GROWING)

    def need(self, units: int) -> None:
        """Raise SecurityError unless so many units are left."""
        if units > self.left:
            raise SecurityError(f"the template makes too much: more than {self.most} characters and items")

    def spend(self, units: int) -> None:
        """Take units away; raises SecurityError if there are not so many."""
        self.need(units)
        self.left -= units

    def weigh(self, value: Any) -> int:
        """Return about how many characters `str(value)` has; raises SecurityError for more than are left.

        A list that stands in several places of `value` counts at each of them, as it does in its text.
        """
        weight, rest = 0, [value]
        while rest:
            item = rest.pop()
            weight += ITEM + shallow(item)
            self.need(weight + ITEM * len(rest))
            if isinstance(item, Namespace):
                item = getattr(item, "_Namespace__attrs", {})
            if isinstance(item, Mapping):
                rest += item.keys()
                rest += item.values()
            elif isinstance(item, _CONTAINERS) and not isinstance(item, (str, bytes, range)):
                rest += item
        return weight

    def walk(self, items: Iterable[Any], each: int = ITEM) -> Iterator[Any]:
        """Give the items of a loop; each takes its units."""
        for item in items:
            self.spend(each + (shallow(item) if isinstance(item, list) else 0))
            yield item


def shallow(value: Any) -> int:
    """Return the units of a value itself, without what it refers to."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3
    return ITEM * len(value) if isinstance(value, (list, tuple, dict, set, frozenset)) else 0


_CURRENT: ContextVar[Allowance] = ContextVar("allowance of the rendering")


def current() -> Allowance:
    """Return the allowance of the rendering that is under way; LookupError outside, as at compile time."""
    return _CURRENT.get()


class Rendering:
    """Context in which a template renders, with an allowance of its own."""

    def __init__(self, size: int, messages: int) -> None:
        self._allowance = Allowance(size, messages)

    def __enter__(self) -> Allowance:
        self._token = _CURRENT.set(self._allowance)
        return self._allowance

    def __exit__(self, *error: object) -> None:
        _CURRENT.reset(self._token)
