"""Reads the fields of a request's JSON; whatever is wrong becomes a `Problem` that names the field."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from .. import checks
from ..errors import InvalidOption
from .problems import Problem


def bad(param: str, message: str) -> Problem:
    """The problem of a field with a wrong value."""
    return Problem(400, message, param=param, code="invalid_value")


def unsupported(param: str, why: str = "is not supported by this server") -> Problem:
    """The problem of a field that cannot be honoured."""
    return Problem(400, f"{param} {why}", param=param, code="unsupported_parameter")


def parse_json(raw: bytes) -> dict[str, Any]:
    """The JSON object of a body.

    Raises
    ------
    Problem : no UTF-8, no JSON, no object, a key twice, NaN, half a surrogate pair, or nested too deeply.
    """
    try:
        body = json.loads(raw.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
        json.dumps(body, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise Problem(400, f"the body is not UTF-8: byte 0x{raw[error.start]:02X} at {error.start}") from None
    except UnicodeEncodeError:
        raise Problem(400, "a text of the body holds half a surrogate pair, which is no text") from None
    except RecursionError:
        raise Problem(400, "the body is nested too deeply") from None
    except ValueError as error:
        raise Problem(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Problem(400, f"the body must be a JSON object, got {_kind(body)}")
    return body


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


class Fields:
    """The fields of one object; null is the same as absent.

    Parameters
    ----------
    body : the object.
    where : put in front of names, such as "stream_options.".
    """

    def __init__(self, body: Any, where: str = "") -> None:
        if not isinstance(body, dict):
            raise bad(where.rstrip("."), f"{where.rstrip('.')} must be an object, got {_kind(body)}")
        self._body = {name: value for name, value in body.items() if value is not None}
        self._known: set[str] = set()
        self.where = where

    def __contains__(self, name: str) -> bool:
        return name in self._body

    def take(self, name: str, default: Any = None) -> Any:
        """A field as it is."""
        self._known.add(name)
        return self._body.get(name, default)

    def need(self, name: str) -> Any:
        """A field that must be there."""
        if name not in self._body:
            raise Problem(
                400, f"{self.where}{name} is required", param=self.where + name, code="missing_required_parameter"
            )
        return self.take(name)

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number in [low, high]."""
        value = self.take(name)
        if value is None:
            return None
        try:
            return checks.real(self.where + name, value, low, high)
        except InvalidOption as error:
            raise bad(self.where + name, str(error)) from None

    def integer(self, name: str, low: int, high: int | None = None) -> int | None:
        """An integer in [low, high]; 3.0 is one."""
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            return checks.integer(self.where + name, value, low, high)
        except InvalidOption as error:
            raise bad(self.where + name, str(error)) from None

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self.take(name, default)
        if not isinstance(value, bool):
            raise bad(self.where + name, f"{self.where}{name} must be true or false, got {_kind(value)}")
        return value

    def text(self, name: str, default: str | None = None) -> str | None:
        """A string."""
        value = self.take(name, default)
        if value is not None and not isinstance(value, str):
            raise bad(self.where + name, f"{self.where}{name} must be a string, got {_kind(value)}")
        return value

    def choice(self, name: str, among: Collection[str], default: str | None = None) -> str | None:
        """One of some strings."""
        value = self.text(name, default)
        if value is not None and value not in among:
            raise bad(
                self.where + name, f"{self.where}{name} must be one of {', '.join(among)}, got {checks.shown(value)}"
            )
        return value

    def items(self, name: str) -> list[Any] | None:
        """An array."""
        value = self.take(name)
        if value is not None and not isinstance(value, list):
            raise bad(self.where + name, f"{self.where}{name} must be an array, got {_kind(value)}")
        return value

    def inner(self, name: str) -> Fields | None:
        """An object."""
        value = self.take(name)
        return None if value is None else Fields(value, f"{self.where}{name}.")

    def refuse(self, names: Iterable[str]) -> None:
        """Refuse fields that are part of the API but cannot be honoured."""
        for name in names:
            if name in self._body:
                raise unsupported(self.where + name)

    def ignore(self, names: Iterable[str]) -> None:
        """Accept fields that change nothing of a reply."""
        self._known.update(names)

    def end(self) -> None:
        """Refuse what was not asked for: a misspelt field should not be ignored in silence."""
        for name in self._body:
            if name not in self._known:
                raise unsupported(self.where + name[:100], "is not a field that this server knows")
