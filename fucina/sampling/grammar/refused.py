"""What llguidance would leave out or round in silence: refused here, by name.

Only what the root can reach is looked at: an unused definition constrains nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from ...errors import UnsatisfiableGrammar, UnsupportedKeyword
from .escapes import escapes
from .finite import finite
from .numeric import check_numbers
from .walk import LISTS, MAPS, ONE, Node, names, reachable, together

_LAYOUT = {"whitespace_flexible", "whitespace_pattern", "item_separator", "key_separator"}
_ENFORCED = frozenset(
    (*ONE, *LISTS, *MAPS, *"$ref const dependencies dependentRequired enum exclusiveMaximum exclusiveMinimum format "
     "maxContains maxItems maxLength maxProperties maximum minContains minItems minLength minProperties minimum multipleOf "
     "pattern required type uniqueItems".split())
)  # fmt: skip
_NOTES = frozenset(
    "$anchor $comment $defs $id $schema $vocabulary contentEncoding contentMediaType default definitions deprecated "
    "description discriminator example examples externalDocs id nullable readOnly title writeOnly xml".split()
)
_DROPPED = ("extends", "disallow", "divisibleBy")  # constraints of older drafts, which llguidance does not look at


class IgnoredKeyword(UserWarning):
    """A schema has keywords that JSON Schema does not know: they constrain nothing, as the standard wants it."""


def checked(schema: Node) -> list[Node]:
    """Return every schema that a schema uses.

    Raises
    ------
    UnsupportedKeyword : something would not be enforced.  UnsatisfiableGrammar : it must contain itself.
    GrammarTooLarge : it has too many references.
    """
    nodes = list(reachable(schema))
    ignored: set[str] = set()
    for node in nodes:
        _check(schema, node)
        ignored.update(name for name in node.keys() - _ENFORCED - _NOTES if not name.startswith("x-"))
    check_numbers(schema, nodes)
    if ignored:
        told = ", ".join(sorted(ignored)[:8])
        warnings.warn(
            f"not known to JSON Schema, so that nothing follows from them: {told}", IgnoredKeyword, stacklevel=4
        )
    if not finite(schema, nodes):
        raise UnsatisfiableGrammar(
            "no text satisfies the schema: what it requires is forbidden, or refers back to itself without an end"
        )
    return nodes


def embedded(schema: Any) -> Any:
    """Check a schema inside another kind of grammar, and return it as it is compiled.

    Its layout may be its own, what is enforced may not.
    """
    if schema is False:
        raise UnsatisfiableGrammar("no text satisfies the schema false")
    if not isinstance(schema, dict):
        return schema
    own = schema.get("x-guidance", {})
    nodes = checked({k: v for k, v in schema.items() if k != "x-guidance"} if _only_layout(own) else schema)
    return {**schema, "x-guidance": {**own, "json_allowed_escapes": escapes(nodes)}}


def _only_layout(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() <= _LAYOUT


def _check(root: Node, node: Node) -> None:
    """Refuse what one schema asks for in vain."""
    if "x-guidance" in node:
        raise UnsupportedKeyword("x-guidance would change what is enforced; whitespace= sets the layout")
    for name in _DROPPED:
        if name in node:
            raise UnsupportedKeyword(f"the keyword {name} is not supported")
    least = node.get("minProperties")
    if isinstance(least, (int, float)) and least > 1:
        required = {name for one in together(root, node) for name in names(one.get("required"))}
        if least > len(required) + 1:
            raise UnsupportedKeyword(
                f"minProperties {least} with {len(required)} required properties is not supported: that the other names "
                "differ from each other cannot be enforced"
            )
    if node.get("format") == "unknown":
        raise UnsupportedKeyword("Unknown format: unknown")
    for pattern in _patterns(node):
        if (operator := _set_operator(pattern)) is not None:
            raise UnsupportedKeyword(
                f"pattern {pattern[:80]!r}: {operator} inside [ ] is not supported, it would be read as an operation on "
                "sets of characters; write a backslash before it"
            )


def _patterns(node: Node) -> Iterator[str]:
    if isinstance(node.get("pattern"), str):
        yield node["pattern"]
    if isinstance(node.get("patternProperties"), dict):
        yield from node["patternProperties"]


def _set_operator(pattern: str) -> str | None:
    """What in a character class means something else to llguidance than to JSON Schema."""
    at, first = 0, -1  # first: where the characters of the class begin; -1 outside
    while at < len(pattern):
        here = pattern[at]
        if here == "\\":
            at += 2
            continue
        if first < 0:
            if here == "[":
                first = at + 2 if pattern[at + 1 : at + 2] == "^" else at + 1
                at = first - 1
        elif here == "[" or (here == "]" and at == first):
            return here
        elif pattern[at : at + 2] in ("&&", "--", "~~"):
            return pattern[at : at + 2]
        elif here == "]":
            first = -1
        at += 1
    return None
