"""What the fields of a request may be: one description reads requests, and tells others as JSON schema.

Null is the same as absent wherever a field may be absent.  `read` returns a value as it is used further on: without nulls
and ignored fields, whole numbers as `int`.  What it refuses is a `Mismatch`, and nothing else is: so a body fits the
schema if and only if it is read.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from .. import checks
from .kinds import (
    Anything,
    Choice,
    Flag,
    Integer,
    JsonSchema,
    Kind,
    Mismatch,
    Number,
    Object,
    Only,
    Schema,
    Text,
    bad,
    kind_of,
    unsupported,
)

__all__ = [
    "Anything",
    "Choice",
    "Flag",
    "Ids",
    "Integer",
    "Items",
    "JsonSchema",
    "Kind",
    "Mismatch",
    "Number",
    "Object",
    "OneOf",
    "Only",
    "Pairs",
    "Schema",
    "Table",
    "Text",
    "kind_of",
]


@dataclass(frozen=True)
class Items(Kind):
    """An array of one kind, with `least` to `most` items."""

    of: Kind
    least: int = 0
    most: int | None = None
    what = "an array"
    types = (list,)

    def read(self, value: Any, where: str) -> Any:
        self._typed(value, where)
        if len(value) < self.least:
            raise bad(where, f"{where} must be an array with at least {self.least} items, got {len(value)}")
        if self.most is not None and len(value) > self.most:
            raise bad(where, f"{where} has {len(value)} items, at most {self.most} are possible")
        read, what = self.of.read, self.of.what
        for i, item in enumerate(value):
            if item is None:
                raise bad(f"{where}[{i}]", f"{where}[{i}] must be {what}, got null")
        return [read(item, f"{where}[{i}]") for i, item in enumerate(value)]

    def schema(self) -> Schema:
        found: Schema = {"type": "array", "items": self.of.schema()}
        if self.least:
            found["minItems"] = self.least
        return found if self.most is None else {**found, "maxItems": self.most}


@dataclass(frozen=True)
class Ids(Kind):
    """An array of token ids: as `Items(Integer(0))`, and quick where there are very many."""

    least: int = 0
    what = "an array of token ids"
    types = (list,)

    def read(self, value: Any, where: str) -> Any:
        items = Items(Integer(0), self.least)
        quick = type(value) is list and len(value) >= self.least and all(type(token) is int for token in value)
        return value if quick and min(value, default=0) >= 0 else items.read(value, where)

    def schema(self) -> Schema:
        return Items(Integer(0), self.least).schema()


@dataclass(frozen=True)
class Pairs(Kind):
    """An object from keys of a pattern to values of one kind, at most `most` of them."""

    pattern: str
    says: str
    of: Kind
    most: int
    what = "an object"
    types = (dict,)

    def read(self, value: Any, where: str) -> Any:
        if len(self._typed(value, where)) > self.most:
            raise bad(where, f"{where} has {len(value)} keys, at most {self.most} are possible")
        for key, one in value.items():
            if not re.fullmatch(self.pattern, key):
                raise bad(where, f"{where}: {checks.shown(key)} is not {self.says}")
            if one is None:
                raise bad(where, f"{where}: {checks.shown(key)} must be {self.of.what}, got null")
        return {key: self.of.read(one, f"{where}.{key}") for key, one in value.items()}

    def schema(self) -> Schema:
        names = {"pattern": f"^{self.pattern}$"}
        return {
            "type": "object",
            "propertyNames": names,
            "additionalProperties": self.of.schema(),
            "maxProperties": self.most,
        }


@dataclass(frozen=True)
class OneOf(Kind):
    """Any of several kinds; tables among them are told apart by their field `by`."""

    kinds: tuple[Kind, ...]
    by: str = "type"

    @property
    def what(self) -> str:  # type: ignore[override]
        return " or ".join(dict.fromkeys(kind.what for kind in self.kinds))

    @property
    def types(self) -> tuple[type, ...]:  # type: ignore[override]
        return tuple(dict.fromkeys(t for kind in self.kinds for t in kind.types))

    def read(self, value: Any, where: str) -> Any:
        fitting = [kind for kind in self.kinds if type(value) in kind.types]
        if len(fitting) > 1 and isinstance(value, dict):
            fitting = self._tables(value, fitting, where)
        if not fitting:
            raise bad(where, f"{where} must be {self.what}, got {kind_of(value)}")
        for kind in fitting[:-1]:
            try:
                return kind.read(value, where)
            except Mismatch:
                pass
        return fitting[-1].read(value, where)

    def _tables(self, value: dict[str, Any], kinds: list[Kind], where: str) -> list[Kind]:
        """The table whose field `by` may be what it is here; a table without that field required stands for its absence."""
        given = value.get(self.by)
        known: list[str] = []
        for kind in kinds:
            if isinstance(kind, Table):
                choice = kind.fields[self.by]
                if isinstance(choice, Choice):
                    known += choice.among
                    if given in choice.among or (given is None and self.by not in kind.required):
                        return [kind]
        place = f"{where}.{self.by}"
        if given is None:
            raise Mismatch(400, f"{place} is required", param=place, code="missing_required_parameter")
        raise bad(place, f"{where} has {self.by} {checks.shown(given)}; supported: {', '.join(dict.fromkeys(known))}")

    def schema(self) -> Schema:
        return {"anyOf": [kind.schema() for kind in self.kinds]}


@dataclass(frozen=True)
class Table(Kind):
    """An object with known fields.

    Attributes
    ----------
    fields : by name.
    required : of these, those that must be there.
    ignored : fields that change nothing of a reply; they may be anything.
    refused : fields of the API that cannot be honoured: they may be null.
    open : whether further fields are let through; else they are refused, as a misspelt field should not be ignored.
    """

    fields: Mapping[str, Kind]
    required: Collection[str] = ()
    ignored: Collection[str] = ()
    refused: Collection[str] = ()
    open: bool = field(default=False)
    what = "an object"
    types = (dict,)

    def read(self, value: Any, where: str = "") -> Any:
        if where or not isinstance(value, dict):
            self._typed(value, where or "the body")
        inside = f"{where}." if where else ""
        given = {name: one for name, one in value.items() if one is not None}
        for name in self.refused:
            if name in given:
                raise unsupported(inside + name)
        for name in self.required:
            if name not in given:
                place = inside + name
                raise Mismatch(400, f"{place} is required", param=place, code="missing_required_parameter")
        for name in given:
            if not (self.open or name in self.fields or name in self.ignored):
                raise unsupported(inside + name[:100], "is not a field that this server knows")
        return {name: kind.read(given[name], inside + name) for name, kind in self.fields.items() if name in given}

    def schema(self) -> Schema:
        properties: Schema = {}
        for name, kind in self.fields.items():
            found = kind.schema()
            properties[name] = found if name in self.required else {"anyOf": [found, {"type": "null"}]}
        properties |= {name: {"description": "Ignored: it changes nothing of a reply."} for name in self.ignored}
        properties |= {name: {"type": "null", "description": "Not supported."} for name in self.refused}
        found = {"type": "object", "properties": properties, "required": list(self.required)}
        return found if self.open else {**found, "additionalProperties": {"type": "null"}}
