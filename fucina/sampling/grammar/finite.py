"""Whether a schema has a finite text at all: references that lead back to themselves may leave none."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from .walk import Node, names, target, together

Ends = Callable[[Any], bool]


def finite(root: Node, nodes: list[Node]) -> bool:
    """Return whether some text satisfies the root, as far as references that lead back to themselves are concerned.

    Never False where there is one.  `nodes` are all schemas that the root uses.
    """
    known: set[int] = set()  # of schemas that a finite text satisfies

    def ends(part: Any) -> bool:
        return not isinstance(part, dict) or id(part) in known

    waiting = nodes[::-1]
    while waiting:
        left = []
        for node in waiting:
            if _satisfied(root, node, ends):
                known.add(id(node))
            else:
                left.append(node)
        if len(left) == len(waiting):
            break
        waiting = left
    return id(root) in known


def _satisfied(root: Node, node: Node, ends: Ends) -> bool:
    if "const" in node or "enum" in node:
        return True
    if isinstance(node.get("$ref"), str) and not ends(target(root, node["$ref"])):
        return False
    for name, among in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        if isinstance(node.get(name), list) and node[name] and not among(map(ends, node[name])):
            return False
    own = together(root, node)
    if not _fits(own, ends):
        return False
    for one in own:  # with each choice, beside all that holds anyway
        for name in ("anyOf", "oneOf"):
            branches = one.get(name)
            if isinstance(branches, list) and branches:
                also = [together(root, b) if isinstance(b, dict) else [] for b in branches]
                if not any(_fits([*own, *more], ends) for more in also):
                    return False
    return True


def _fits(schemas: list[Node], ends: Ends) -> bool:
    """Whether a value may satisfy all of several schemas."""
    if any("const" in one or "enum" in one for one in schemas):
        return True
    types = [one.get("type") for one in schemas]
    if any(t in ("object", ["object"]) for t in types):
        return _object_fits(schemas, ends)
    if any(t in ("array", ["array"]) for t in types):
        return _array_fits(schemas, ends)
    return True


def _object_fits(schemas: list[Node], ends: Ends) -> bool:
    required = {name for one in schemas for name in names(one.get("required"))}
    if not all(all(map(ends, _of_property(one, name))) for name in required for one in schemas):
        return False
    least = max((_count(one.get("minProperties")) for one in schemas), default=0)
    if least <= len(required):
        return True
    return all(any(map(ends, _of_any_property(one))) for one in schemas)


def _of_property(node: Node, name: str) -> list[Any]:
    """The schemas that one schema has for a property."""
    found = [_map(node, "properties")[name]] if name in _map(node, "properties") else []
    found += [part for pattern, part in _map(node, "patternProperties").items() if _matches(pattern, name)]
    if not found and not any(_matches(p, name) is None for p in _map(node, "patternProperties")):
        found.append(node.get("additionalProperties", True))
    return found


def _of_any_property(node: Node) -> list[Any]:
    """The schemas that one schema has for all properties."""
    other = node.get("additionalProperties", True)
    found = [*_map(node, "properties").values(), *_map(node, "patternProperties").values()]
    return [part for part in (*found, other) if part is not False]


def _matches(pattern: str, name: str) -> bool | None:
    """Whether a property's name has a pattern; None if that is not known."""
    try:
        return re.search(pattern, name) is not None
    except (re.error, RecursionError):
        return None


def _array_fits(schemas: list[Node], ends: Ends) -> bool:
    least = max((_count(one.get("minItems")) for one in schemas), default=0)
    for one in schemas:
        items = one.get("items", True)
        given = one.get("prefixItems", items if isinstance(items, list) else [])
        first = given[:least] if isinstance(given, list) else []
        if not all(map(ends, first)) or not (least <= len(first) or ends(items)):
            return False
    return True


def _map(node: Node, name: str) -> dict[str, Any]:
    found = node.get(name)
    return found if isinstance(found, dict) else {}


def _count(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
