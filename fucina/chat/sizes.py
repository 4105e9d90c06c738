"""How large a thing a chat template is about to make, so that it can be refused before it is there."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from typing import Any

from jinja2.exceptions import SecurityError

from .allowance import ITEM, current

MAX_NUMBER = 1 << 16  # given to a filter: a width, a count, an indent
_LISTING = frozenset(["batch", "dictsort", "groupby", "list", "reverse", "slice", "sort", "unique"])
_CHOOSING = frozenset(
    "attr count d default first int items last length map max min reject rejectattr select selectattr".split()
)  # filters that make no text of their value
_ANY_NUMBER = frozenset(["_walk", "d", "default", "int", "replace", "sum", "truncate"])


def check_widths(form: str | bytes) -> int:
    """Return the sum of the numbers in a format; SecurityError for one above 9999."""
    form = str(form)
    if re.search(r"\d{5}|\*", form):
        raise SecurityError("a format has a field wider than 9999 characters")
    return sum(map(int, re.findall(r"\d+", form)))


def formatted(form: str | bytes, values: Any) -> int:
    """Return what `form % values` makes at most, roughly."""
    times = str(form).count("%") if isinstance(values, Mapping) else 1
    return len(form) + check_widths(form) + times * current().weigh(values)


def method_size(owner: Any, name: str, args: tuple[Any, ...]) -> int:
    """Return what a method of a text makes at most, roughly."""
    if name == "replace" and len(args) >= 2 and isinstance(args[0], type(owner)) and isinstance(args[1], type(owner)):
        return len(owner) + owner.count(args[0]) * len(args[1])
    if name in ("center", "ljust", "rjust", "zfill"):
        return max(len(owner), *(a for a in args if isinstance(a, int)), 0)
    if name == "join" and args:
        return len(owner) * len(args[0]) + current().weigh(args[0])
    if name in ("split", "rsplit", "splitlines"):
        known = name != "splitlines" and args and isinstance(args[0], type(owner)) and args[0]
        return len(owner) + ITEM * (owner.count(args[0]) + 1 if known else len(owner) + 1)
    return 4 * len(owner)


def filter_size(name: str, value: Any, args: tuple[Any, ...], names: dict[str, Any]) -> int:
    """Return what a filter makes at most, roughly."""
    allowance = current()
    numbers = [abs(a) for a in (*args, *names.values()) if isinstance(a, int)]
    if numbers and max(numbers) > MAX_NUMBER and name not in _ANY_NUMBER:
        raise SecurityError(f"{max(numbers)} was given to the filter {name}: above {MAX_NUMBER}")
    if name == "format":
        allowance.weigh(value)
        return formatted(str(value), args or names)
    if name in ("replace", "join", "indent", "center", "escape", "e", "forceescape", "urlencode", "tojson", "string"):
        size = allowance.weigh(value)
        for a in (*args, *names.values()):
            allowance.weigh(a)
        if name == "replace":
            given = {**names, **dict(zip(("old", "new"), args, strict=False))}
            return size + str(value).count(str(given.get("old", ""))) * len(str(given.get("new", "")))
        if name == "join" and isinstance(value, Sized):
            return size + len(value) * len(str(args[0] if args else names.get("d", "")))
        if name == "indent" and isinstance(value, str):
            width = args[0] if args else names.get("width", 4)
            lines = value.count("\n") + sum(value.count(c) for c in "\r\v\f\x1c\x1d\x1e\x85\u2028\u2029") + 1
            return size + lines * (len(width) if isinstance(width, str) else abs(int(width)))
        return 6 * size if name in ("escape", "e", "forceescape", "urlencode") else max(size, *numbers, 0)
    if name in _LISTING and isinstance(value, Sized):
        return ITEM * len(value)
    return 0 if isinstance(value, str) or name.startswith("_") or name in _CHOOSING else allowance.weigh(value)
