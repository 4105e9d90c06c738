"""Bodies: the JSON of a request, and its fields once a `Table` has read them."""

from __future__ import annotations

import json
from typing import Any, Self

from .problems import Problem
from .schema import Table, kind_of


def bad(param: str, message: str) -> Problem:
    """The problem of fields that do not fit together, or not this model."""
    return Problem(400, message, param=param, code="invalid_value")


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
        raise Problem(400, f"the body must be a JSON object, got {kind_of(body)}")
    return body


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


class Fields:
    """The fields of an object that a `Table` has read: each is None if it is absent.

    Parameters
    ----------
    values : what `Table.read` returned.
    where : put in front of names, such as "stream_options.".
    """

    def __init__(self, values: dict[str, Any], where: str = "") -> None:
        self._values, self.where = values, where

    @classmethod
    def read(cls, body: Any, table: Table) -> Self:
        """The fields of a body.  Raises Mismatch."""
        return cls(table.read(body))

    def take(self, name: str, default: Any = None) -> Any:
        """A field of any kind."""
        return self._values.get(name, default)

    def number(self, name: str) -> float | None:
        """A number."""
        value: float | None = self._values.get(name)
        return value

    def integer(self, name: str) -> int | None:
        """An integer."""
        value: int | None = self._values.get(name)
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """True or false."""
        return bool(self._values.get(name, default))

    def text(self, name: str) -> str | None:
        """A string."""
        value: str | None = self._values.get(name)
        return value

    def items(self, name: str) -> list[Any]:
        """An array, empty if it is absent."""
        return list(self._values.get(name, ()))

    def inner(self, name: str) -> Fields | None:
        """An object."""
        value = self._values.get(name)
        return None if value is None else Fields(value, f"{self.where}{name}.")
