"""What a chat template may make while it renders, and how long it may take.

Everything that a rendering makes is charged, whether it is kept or not, so that it never holds more than its limit.
Where a result could be much larger than what it is made of, its size is charged before it is made.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized, ValuesView
from collections.abc import Set as AbstractSet
from contextvars import ContextVar
from typing import Any

from jinja2.exceptions import SecurityError
from jinja2.utils import Namespace

MAX_SECONDS = 10.0  # of processor time
MAX_MADE = 1 << 26  # units that one rendering may make, beside what the messages bring:
PER_CHARACTER = 64  # per character of theirs; and, for texts that grow and lists that are searched
MAX_GROWING = 1 << 28  # message by message, up to these
MAX_DEPTH = 64  # lists within lists
MAX_NUMBER = 1 << 16  # given to a filter or a method of a text: a width, a count, an indent
ITEM = 16  # units per item of a list; a unit is a character, or at most 6 bytes of anything
_TICK = 1 << 12  # units between two looks at the clock


class Budget:
    """The units and the time that are left to one rendering.

    Parameters
    ----------
    size, messages : int
        Characters that the messages bring, and how many these are.
    """

    def __init__(self, size: int, messages: int) -> None:
        growing = messages * (size + 8 * ITEM * messages)
        self.limit = self.left = MAX_MADE + PER_CHARACTER * size + min(growing, MAX_GROWING)
        self._deadline = time.thread_time() + MAX_SECONDS
        self._looked = self.left
        self._weights: dict[int, tuple[int, int, Any]] = {}  # by id: weight and depth

    def need(self, units: int) -> None:
        """Raise SecurityError unless `units` are left."""
        if units > self.left:
            raise SecurityError(f"the template makes too much: more than {self.limit} characters and items")

    def spend(self, units: int) -> None:
        """Take units away; raises SecurityError if fewer are left, or the time is over."""
        self.need(units)
        self.left -= units
        if self._looked - self.left > _TICK:
            self._looked = self.left
            if time.thread_time() > self._deadline:
                raise SecurityError(f"the template takes too long: more than {MAX_SECONDS:g} seconds")

    def weigh(self, value: Any) -> int:
        """Return about how many characters `str(value)` has; raises SecurityError for more than are left.

        A list that occurs in several places of `value` counts at each of them, as it does in its text.
        """
        return self._measure(value, 0)[0]

    def _measure(self, value: Any, level: int) -> tuple[int, int]:
        """Weight and depth of a value; each list, tuple and mapping is looked at once only."""
        if isinstance(value, (str, bytes, int)):
            return ITEM + shallow(value), 0
        weight, depth, _ = self._weights.get(id(value), (0, 0, None))
        if not weight:
            if level > MAX_DEPTH:
                raise SecurityError(f"lists are nested more than {MAX_DEPTH} deep")
            items = self._items(value, level)
            if items is None:
                return ITEM, 0
            weight = ITEM
            for item in items:
                inner, below = self._measure(item, level + 1)
                weight, depth = weight + inner, max(depth, below)
            depth += 1
            if not isinstance(value, Namespace):  # what cannot change
                self._weights[id(value)] = weight, depth, value  # holding it, so that its id stays its own
        self.need(weight)
        if level + depth > MAX_DEPTH:
            raise SecurityError(f"lists are nested more than {MAX_DEPTH} deep")
        return weight, depth

    @staticmethod
    def _items(value: Any, level: int) -> Iterable[Any] | None:
        if isinstance(value, Namespace):
            if level:
                raise SecurityError("a namespace is inside a list or another namespace")
            value = dict(getattr(value, "_Namespace__attrs", {}))
        if isinstance(value, Mapping):
            return [*value.keys(), *value.values()]
        return value if isinstance(value, _CONTAINERS) else None

    def made(self, value: Any) -> Any:
        """Charge for a new value, or for the items of a lazy one as they come; return it."""
        if isinstance(value, Iterator):
            return self.walk(value)
        self.spend(shallow(value))
        self.weigh(value)
        return value

    def text(self, value: Any) -> Any:
        """Charge for a value that is about to become text; return it."""
        self.spend(len(value) if isinstance(value, str) else self.weigh(value))
        return value

    def walk(self, items: Iterable[Any], each: int = ITEM) -> Iterator[Any]:
        """Give the items of a loop; `each` units are charged per item."""
        for item in items:
            self.spend(each + (shallow(item) if isinstance(item, list) else 0))
            yield item

    # --- sizes of what is about to be made ------------------------------------------------------------------------

    def need_format(self, form: str | bytes, values: Any) -> None:
        """For `form % values`."""
        times = str(form).count("%") if isinstance(values, Mapping) else 1
        self.need(len(form) + widths(form) + times * self.weigh(values))

    def need_replace(self, text: str | bytes, old: Any, new: Any) -> None:
        self.need(len(text) + (text.count(old) * len(new) if type(old) is type(new) or isinstance(old, str) else 0))

    def need_join(self, separator: Any, items: Any) -> None:
        self.need(self.weigh(items) + len(str(separator)) * (len(items) if isinstance(items, Sized) else 0))

    def need_method(self, text: str | bytes, name: str, args: tuple[Any, ...]) -> None:
        """For a method of a text; its result, if it is a list, is charged as well."""
        self.need_numbers(name, args)
        if name == "replace" and len(args) >= 2 and all(isinstance(a, (str, bytes)) for a in args[:2]):
            self.need_replace(text, *args[:2])
        elif name == "join" and args:
            self.need_join(text, args[0])
        elif name in ("split", "rsplit", "splitlines"):
            known = name != "splitlines" and args and isinstance(args[0], (str, bytes)) and args[0]
            self.need(len(text) + ITEM * ((text.count(args[0]) if known else len(text)) + 1))
        else:
            self.need(4 * len(text) + sum(a for a in args if isinstance(a, int)))

    def need_filter(self, name: str, value: Any, args: tuple[Any, ...], names: dict[str, Any]) -> None:
        """For a filter."""
        given = (*args, *names.values())
        self.need_numbers(name, given)
        if name in _CHOOSING or name.startswith("_"):
            return
        size = self.weigh(value) + sum(map(self.weigh, given))
        if name == "format":
            self.need_format(str(value), args or names)
        elif name == "replace" and len(args) >= 2:
            self.need_replace(str(value), str(args[0]), str(args[1]))
        elif name == "join":
            self.need_join(args[0] if args else names.get("d", ""), value)
        elif name == "indent" and isinstance(value, str):
            width = args[0] if args else names.get("width", 4)
            lines = len(str.splitlines(value)) + 1
            self.need(size + lines * (len(width) if isinstance(width, str) else abs(int(width))))
        else:
            self.need(6 * size + sum(abs(a) for a in given if isinstance(a, int)))

    def need_numbers(self, name: str, values: Iterable[Any]) -> None:
        largest = max((abs(v) for v in values if isinstance(v, int)), default=0)
        if largest > MAX_NUMBER and name not in _ANY_NUMBER:
            raise SecurityError(f"{name} was given a number above {MAX_NUMBER}")


_CONTAINERS = (Sequence, AbstractSet, ValuesView)
_CHOOSING = frozenset(
    "attr batch count d default dictsort first float groupby int items last length list map max min reject rejectattr"
    " reverse safe select selectattr slice sort string sum unique trim tojson".split()
)  # filters that make nothing that is larger than their value; tojson charges for itself
_ANY_NUMBER = frozenset(
    ["_walk", "d", "default", "int", "replace", "sum", "truncate", "split", "rsplit", "find", "index"]
)


def widths(form: str | bytes) -> int:
    """Return the sum of the numbers in a format; SecurityError for one above 9999."""
    form = str(form)
    if re.search(r"\d{5}|\*", form):
        raise SecurityError("a format has a field wider than 9999 characters")
    return sum(map(int, re.findall(r"\d+", form)))


def shallow(value: Any) -> int:
    """Return the units of a value itself, without what it refers to."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, int):
        return value.bit_length() // 3
    return ITEM * len(value) if isinstance(value, (list, tuple, dict, set, frozenset)) else 0


CURRENT: ContextVar[Budget] = ContextVar("budget of the rendering")


def current() -> Budget:
    """Return the budget of the rendering that is under way; LookupError outside, as at compile time."""
    return CURRENT.get()
