"""JSON schemas before they are compiled: their text, their layout, and limits for fields that have none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...checks import integer
from ...errors import GrammarTooLarge, InvalidGrammar, InvalidOption, UnsatisfiableGrammar
from .escapes import escapes
from .limits import bound
from .refused import checked

CHARACTERS = 1 << 20  # of a schema or grammar

BLANKS = r"[\x20\x0A\x0D\x09]"
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}


def prepared(schema: Any, whitespace: str | int, max_field: int | None) -> str:
    """Return the schema as text for llguidance, with the whitespace that is wanted.

    Raises
    ------
    InvalidGrammar : it is no JSON, or no schema.  UnsupportedKeyword, UnsatisfiableGrammar, GrammarTooLarge
    InvalidOption : whitespace or max_field are none.
    """
    layout = _layout(whitespace)
    if max_field is not None:
        max_field = integer("max_field", max_field, 1)
    try:
        if isinstance(schema, (str, bytes)):
            _check_size(len(schema))
            schema = json.loads(schema)
        schema = json.loads(json.dumps(schema, allow_nan=False))
    except RecursionError:
        raise GrammarTooLarge("the schema is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidGrammar(f"the schema is no JSON: {error}") from None
    if schema is True:
        schema = {}
    if schema is False:
        raise UnsatisfiableGrammar("no text satisfies the schema false")
    if not isinstance(schema, dict):
        raise InvalidGrammar(f"a schema is an object, true or false, got {type(schema).__name__}")
    nodes = checked(schema)
    for node in nodes:
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
    if max_field is not None:
        bound(schema, nodes, max_field)
    options = {**layout, "json_allowed_escapes": escapes(nodes)}
    text = json.dumps({**schema, "x-guidance": options}, ensure_ascii=False)
    _check_size(len(text))
    check_unicode("the schema", text)
    return text


def _layout(whitespace: str | int) -> Mapping[str, Any]:
    if whitespace == "spaced":
        return SPACED
    if whitespace == "compact":
        return COMPACT
    if isinstance(whitespace, int) and not isinstance(whitespace, bool) and 0 < whitespace <= 1000:
        return {"whitespace_flexible": False, "whitespace_pattern": BLANKS + f"{{1,{whitespace}}}"}
    raise InvalidOption(f'whitespace must be "spaced", "compact" or a number from 1 to 1000, got {whitespace!r}')


def check_unicode(what: str, text: str) -> None:
    """Raise InvalidGrammar where a text has no UTF-8 bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = text[max(error.start - 20, 0) : error.start]
        raise InvalidGrammar(f"{what} must be Unicode text: there is an unpaired surrogate after {found!r}") from None


def _check_size(characters: int) -> None:
    if characters > CHARACTERS:
        raise GrammarTooLarge(f"the schema has {characters} characters, the limit is {CHARACTERS}")
