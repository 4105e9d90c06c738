"""Limits for fields that have none, so that a greedy reply cannot go on in one field for ever."""

from __future__ import annotations

from typing import Any

from .walk import BESIDE, Node, beside, names, parts

LARGEST = 10**15  # of an integer without limits
NEAR = LARGEST // 10  # beyond it, a bound stays without another one
VISITS = 100_000  # of schemas; one that asks for more is left without limits

_LIMITING = frozenset(
    "additionalItems additionalProperties const enum exclusiveMaximum exclusiveMinimum format items maxItems maxLength "
    "maxProperties maximum minItems minLength minProperties minimum multipleOf pattern patternProperties prefixItems "
    "properties required type".split()
)


def bound(root: Node, nodes: list[Node], most: int) -> None:
    """Give every field that may be endless a limit.

    A schema whose values have to satisfy another one beside it is left as it is: a limit could contradict that one.
    """
    shared = _shared(root, nodes)
    for node in nodes:
        if id(node) not in shared:
            _bound(node, most)


def _shared(root: Node, nodes: list[Node]) -> set[int]:
    """The schemas that are not alone: what they allow is cut down by another one."""
    waiting: list[Any] = []
    for node in nodes:
        choices = sum(isinstance(node.get(name), list) for name in ("anyOf", "oneOf"))
        all_of = node["allOf"] if isinstance(node.get("allOf"), list) else []
        if (others := choices + len(all_of) + ("$ref" in node)) > 1 or (others and node.keys() & _LIMITING):
            waiting.append(node)
    waiting.reverse()
    found: set[int] = set()
    visits = 0
    while waiting:
        start = waiting.pop()
        if not isinstance(start, dict) or id(start) in found:
            continue
        group = beside(root, start)
        visits += len(group)
        if visits > VISITS:
            return set(map(id, nodes))
        found.update(map(id, group))
        inner = [[part for name, part in parts(node) if name not in BESIDE] for node in group]
        if sum(map(bool, inner)) > 1:  # two of them may speak of one property, or of one item
            waiting.extend(part for some in inner for part in some)
    return found


def _bound(node: Node, most: int) -> None:
    """Give every field of one schema that may be endless a limit."""
    if "enum" in node or "const" in node:
        return
    given = node.get("type")
    types = given if isinstance(given, list) else [given]
    if "string" in types and not node.keys() & {"maxLength", "format", "pattern"}:
        node["maxLength"] = max(most, _number(node.get("minLength")))
    if "array" in types and "maxItems" not in node:
        node["maxItems"] = max(most, _number(node.get("minItems")))
    if "object" in types and _may_be_closed(node):
        node.setdefault("additionalProperties", False)
    if "integer" in types or "number" in types:
        _bound_number(node)


def _may_be_closed(node: Node) -> bool:
    """Whether an object has all the properties it needs without undeclared ones."""
    own = node.get("properties")
    if not isinstance(own, dict) or not own:
        return False
    allowed = [name for name, schema in own.items() if schema is not False]
    return set(names(node.get("required"))) <= own.keys() and _number(node.get("minProperties")) <= len(allowed)


def _bound_number(node: Node) -> None:
    """Give an integer or a number the bounds that it lacks: far from those that it has."""
    low = node.get("minimum", node.get("exclusiveMinimum"))
    high = node.get("maximum", node.get("exclusiveMaximum"))
    if low is None and _number(high) >= -NEAR:
        node["minimum"] = -LARGEST
    if high is None and _number(low) <= NEAR:
        node["maximum"] = LARGEST


def _number(value: Any, otherwise: int = 0) -> Any:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise
