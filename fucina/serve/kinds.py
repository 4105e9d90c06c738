"""Kinds of values that hold no others: what each may be, read and told as JSON schema; see `schema.py`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from .. import checks
from ..errors import InvalidOption
from .problems import Problem

Schema = dict[str, Any]


class Mismatch(Problem):
    """A field is not what its description says."""


def bad(where: str, message: str) -> Mismatch:
    """The mismatch of a wrong value."""
    return Mismatch(400, message, param=where, code="invalid_value")


def unsupported(where: str, why: str = "is not supported by this server") -> Mismatch:
    """The mismatch of a field that cannot be honoured."""
    return Mismatch(400, f"{where} {why}", param=where, code="unsupported_parameter")


def kind_of(value: Any) -> str:
    """What a value is, in words."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


class Kind(ABC):
    """A kind of values.  `what` says in words what is expected."""

    what: str
    types: tuple[type, ...] = ()

    @abstractmethod
    def read(self, value: Any, where: str) -> Any:
        """The value, checked; never called with null.  Raises Mismatch."""

    @abstractmethod
    def schema(self) -> Schema:
        """The same as JSON schema (2020-12)."""

    def _typed(self, value: Any, where: str) -> Any:
        if type(value) not in self.types:
            raise bad(where, f"{where} must be {self.what}, got {kind_of(value)}")
        return value


@dataclass(frozen=True)
class Anything(Kind):
    """Whatever JSON there is."""

    what = "anything"
    types = (dict, list, str, bool, int, float)

    def read(self, value: Any, where: str) -> Any:
        return value

    def schema(self) -> Schema:
        return {"type": ["object", "array", "string", "boolean", "number"]}


@dataclass(frozen=True)
class Object(Kind):
    """An object of any fields."""

    what = "an object"
    types = (dict,)

    def read(self, value: Any, where: str) -> Any:
        return self._typed(value, where)

    def schema(self) -> Schema:
        return {"type": "object"}


@dataclass(frozen=True)
class JsonSchema(Kind):
    """A JSON schema."""

    what = "a JSON schema: an object, true or false"
    types = (dict, bool)

    def read(self, value: Any, where: str) -> Any:
        return self._typed(value, where)

    def schema(self) -> Schema:
        return {"type": ["object", "boolean"]}


@dataclass(frozen=True)
class Flag(Kind):
    """True or false."""

    what = "true or false"
    types = (bool,)

    def read(self, value: Any, where: str) -> Any:
        return self._typed(value, where)

    def schema(self) -> Schema:
        return {"type": "boolean"}


@dataclass(frozen=True)
class Text(Kind):
    """A string; `least` characters at least, of a `pattern` as a whole (with `says` what that means)."""

    least: int = 0
    pattern: str = ""
    says: str = ""
    what = "a string"
    types = (str,)

    def read(self, value: Any, where: str) -> Any:
        self._typed(value, where)
        if len(value) < self.least:
            raise bad(where, f"{where} must not be empty")
        if self.pattern and not re.fullmatch(self.pattern, value):
            raise bad(where, f"{where} must be {self.says}")
        return value

    def schema(self) -> Schema:
        found: Schema = {"type": "string"}
        if self.least:
            found["minLength"] = self.least
        if self.pattern:
            found["pattern"] = f"^{self.pattern}$"
        return found


@dataclass(frozen=True)
class Choice(Kind):
    """One of some strings."""

    among: tuple[str, ...]
    what = "a string"
    types = (str,)

    def read(self, value: Any, where: str) -> Any:
        if self._typed(value, where) not in self.among:
            raise bad(where, f"{where} must be one of {', '.join(self.among)}, got {checks.shown(value)}")
        return value

    def schema(self) -> Schema:
        return {"type": "string", "enum": list(self.among)}


@dataclass(frozen=True)
class Only(Kind):
    """One value, which asks for nothing."""

    value: bool | str
    types = (bool, str)

    def read(self, value: Any, where: str) -> Any:
        if type(value) is not type(self.value) or value != self.value:
            raise unsupported(where, f"can only be {self.value!r} here: nothing else is supported by this server")
        return value

    def schema(self) -> Schema:
        return {"const": self.value}


@dataclass(frozen=True)
class Number(Kind):
    """A number in [low, high]."""

    low: float
    high: float
    what = "a number"
    types = (int, float)

    def read(self, value: Any, where: str) -> Any:
        try:
            return checks.real(where, value, self.low, self.high)
        except InvalidOption as error:
            raise bad(where, str(error)) from None

    def schema(self) -> Schema:
        return {"type": "number", "minimum": self.low, "maximum": self.high}


@dataclass(frozen=True)
class Integer(Kind):
    """An integer in [low, high]; 3.0 is one."""

    low: int
    high: int | None = None
    what = "an integer"
    types = (int, float)

    def read(self, value: Any, where: str) -> Any:
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        try:
            return checks.integer(where, value, self.low, self.high)
        except InvalidOption as error:
            raise bad(where, str(error)) from None

    def schema(self) -> Schema:
        found: Schema = {"type": "integer", "minimum": self.low}
        return found if self.high is None else {**found, "maximum": self.high}
