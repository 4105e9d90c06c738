"""Limits for fields that have none, so that a greedy reply cannot go on in one field for ever."""

from __future__ import annotations

from typing import Any

from .walk import Node

LARGEST = 10**15  # of an integer without limits


def bound(root: Node, nodes: list[Node], most: int) -> None:
    """Give every field that may be endless a limit."""
    for node in nodes:
        _bound(node, most)


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
