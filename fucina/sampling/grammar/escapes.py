"""Which escapes a JSON string may have: no code (`\\u0061`), unless a constant needs one.

With codes, the name of an undeclared property could spell a declared one: `"\\u0061"` is `"a"` to whoever reads the
reply, and to llguidance it is another name, with another schema.
"""

from __future__ import annotations

from typing import Any

from ...errors import UnsupportedKeyword
from .walk import Node

SHORT = 'nrbtf\\"'
WITH_CODES = SHORT + "u"


def escapes(nodes: list[Node]) -> str:
    """Return the letters of the escapes that strings under these schemas may have.

    Raises
    ------
    UnsupportedKeyword : a constant needs codes, and an object has declared names and undeclared ones.
    """
    constants = [node[name] for node in nodes for name in ("const", "enum") if name in node]
    if not any(map(_needs_code, _texts_in(constants))):
        return SHORT
    if any(map(_open, nodes)):
        raise UnsupportedKeyword(
            "control characters in const or enum are not supported beside objects with declared and undeclared names "
            "(without additionalProperties: false)"
        )
    return WITH_CODES


def _needs_code(text: str) -> bool:
    return any((character < " " and character not in "\n\r\b\t\f") or character == "\x7f" for character in text)


def _open(node: Node) -> bool:
    types = node.get("type", "object")
    named = node.get("properties") or node.get("patternProperties")
    return bool(named) and node.get("additionalProperties") is not False and "object" in types


def _texts_in(value: Any) -> list[str]:
    found, waiting = [], [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
        waiting.extend(
            [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
        )
    return found
