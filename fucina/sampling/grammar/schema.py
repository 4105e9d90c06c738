"""JSON schemas before they are compiled: what llguidance would leave out in silence is refused here, by name.

Only what the root can reach is looked at: an unused definition constrains nothing.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from ...checks import integer
from ...errors import GrammarTooLarge, InvalidGrammar, InvalidOption, UnsatisfiableGrammar, UnsupportedKeyword

Node = dict[str, Any]

CHARACTERS = 1 << 20  # of a schema or grammar
REFERENCES = 5_000  # distinct ones: their chain is followed by recursion
LARGEST = 10**15  # of an integer without limits, with `max_field`

BLANKS = r"[\x20\x0A\x0D\x09]"
SPACED = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
COMPACT = {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}

_ONE = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames",
    "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("dependentSchemas", "patternProperties", "properties")
_ENFORCED = frozenset(
    (*_ONE, *_LISTS, *_MAPS, *"$ref const dependencies dependentRequired enum exclusiveMaximum exclusiveMinimum format "
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
        else:
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
    nodes = list(_reachable(schema))
    _check(nodes)
    if not _finite(schema, nodes):
        raise UnsatisfiableGrammar(
            "no text satisfies the schema: what it requires refers back to itself without an end"
        )
    for node in nodes:
        if node.get("uniqueItems") is False:
            del node["uniqueItems"]
        if max_field is not None:
            _bound(node, max_field)
    text = json.dumps({**schema, "x-guidance": layout}, ensure_ascii=False)
    _check_size(len(text))
    return text


def _layout(whitespace: str | int) -> Mapping[str, Any]:
    if whitespace == "spaced":
        return SPACED
    if whitespace == "compact":
        return COMPACT
    if isinstance(whitespace, int) and not isinstance(whitespace, bool) and 0 < whitespace <= 1000:
        return {"whitespace_flexible": False, "whitespace_pattern": BLANKS + f"{{1,{whitespace}}}"}
    raise InvalidOption(f'whitespace must be "spaced", "compact" or a number from 1 to 1000, got {whitespace!r}')


def _check_size(characters: int) -> None:
    if characters > CHARACTERS:
        raise GrammarTooLarge(f"the schema has {characters} characters, the limit is {CHARACTERS}")


def _reachable(root: Node) -> Iterator[Node]:
    """Every schema that the root uses, itself first; each once."""
    seen: set[int] = set()
    followed: set[str] = set()
    waiting: list[Any] = [root]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, dict) or id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        waiting.extend(part for _, part in parts(node))
        reference = node.get("$ref")
        if isinstance(reference, str) and reference not in followed:
            followed.add(reference)
            if len(followed) > REFERENCES:
                raise GrammarTooLarge(f"the schema has more than {REFERENCES} different references")
            waiting.append(target(root, reference))


def parts(node: Node) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a schema, with the keyword that holds each."""
    for name in _ONE:
        if isinstance(node.get(name), dict):
            yield name, node[name]
    for name in _LISTS:
        if isinstance(node.get(name), list):
            for part in node[name]:
                yield name, part
    for name in _MAPS:
        if isinstance(node.get(name), dict):
            for part in node[name].values():
                yield name, part


def target(root: Node, reference: str) -> Any:
    """The schema that `#/...` points to; None for other references, which the compiler resolves or refuses."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for step in filter(None, unquote(reference[1:]).split("/")):
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            return None
    return found


def _check(nodes: list[Node]) -> None:
    ignored: set[str] = set()
    for node in nodes:
        if "x-guidance" in node:
            raise UnsupportedKeyword("x-guidance would change what is enforced; whitespace= sets the layout")
        for name in _DROPPED:
            if name in node:
                raise UnsupportedKeyword(f"the keyword {name} is not supported")
        least, named = node.get("minProperties"), set(node.get("properties") or ()) | set(_names(node.get("required")))
        if isinstance(least, int) and least > len(named) + 1:
            raise UnsupportedKeyword(
                f"minProperties {least} with {len(named)} named properties is not supported: that the other names differ "
                "from each other cannot be enforced"
            )
        ignored.update(name for name in node.keys() - _ENFORCED - _NOTES if not name.startswith("x-"))
    if ignored:
        names = ", ".join(sorted(ignored)[:8])
        warnings.warn(
            f"not known to JSON Schema, so that nothing follows from them: {names}", IgnoredKeyword, stacklevel=5
        )


def _names(value: Any) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []


def _finite(root: Node, nodes: list[Node]) -> bool:
    """Whether some text satisfies the root, as far as references that lead back to themselves are concerned."""
    known: set[int] = set()  # of schemas that a finite text satisfies

    def ends(part: Any) -> bool:
        return not isinstance(part, dict) or id(part) in known

    def satisfied(node: Node) -> bool:
        if "const" in node or "enum" in node:
            return True
        if isinstance(node.get("$ref"), str) and not ends(target(root, node["$ref"])):
            return False
        for name, among in (("allOf", all), ("anyOf", any), ("oneOf", any)):
            if isinstance(node.get(name), list) and node[name] and not among(map(ends, node[name])):
                return False
        if node.get("type") in ("object", ["object"]):
            given = node.get("properties")
            inside = given if isinstance(given, dict) else {}
            other = node.get("additionalProperties", True)
            return all(ends(inside.get(name, other)) for name in _names(node.get("required")))
        if node.get("type") in ("array", ["array"]) and isinstance(node.get("minItems"), int):
            first = node.get("prefixItems", node["items"] if isinstance(node.get("items"), list) else [])
            rest = node.get("items", True)
            needed = first[: node["minItems"]] if isinstance(first, list) else []
            return all(map(ends, needed)) and (node["minItems"] <= len(needed) or ends(rest))
        return True

    waiting = nodes[::-1]
    while waiting:
        left = []
        for node in waiting:
            if satisfied(node):
                known.add(id(node))
            else:
                left.append(node)
        if len(left) == len(waiting):
            break
        waiting = left
    return id(root) in known


def _bound(node: Node, most: int) -> None:
    """Give every field of one schema that may be endless a limit."""
    if "enum" in node or "const" in node:
        return
    given = node.get("type")
    types = given if isinstance(given, list) else [given]
    if "string" in types and "maxLength" not in node and "format" not in node:
        node["maxLength"] = max(most, _number(node.get("minLength")))
    if "array" in types and "maxItems" not in node:
        node["maxItems"] = max(most, _number(node.get("minItems")))
    if "object" in types and node.get("properties"):
        node.setdefault("additionalProperties", False)
    if "integer" in types or "number" in types:
        if "minimum" not in node and "exclusiveMinimum" not in node:
            node["minimum"] = min(-LARGEST, _number(node.get("maximum", node.get("exclusiveMaximum")), LARGEST) - 1)
        if "maximum" not in node and "exclusiveMaximum" not in node:
            node["maximum"] = max(LARGEST, _number(node.get("minimum", node.get("exclusiveMinimum")), -LARGEST) + 1)


def _number(value: Any, otherwise: int = 0) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


__all__ = ["IgnoredKeyword", "parts", "prepared", "target"]
