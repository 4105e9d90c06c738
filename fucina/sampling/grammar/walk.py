"""Through a schema: which schemas it uses, where its references lead, and which schemas one value has to satisfy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from ...errors import GrammarTooLarge, UnsupportedKeyword

Node = dict[str, Any]

REFERENCES = 5_000  # distinct ones: their chain is followed by recursion
TOGETHER = 16  # schemas of one value that are looked at together; more of them are looked at one by one

ONE = (
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames",
    "then", "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip
LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
BESIDE = ("allOf", "anyOf", "oneOf")  # of these, the parts speak of the same value
MAPS = ("dependentSchemas", "patternProperties", "properties")


def reachable(root: Node) -> Iterator[Node]:
    """Every schema that the root uses, itself first; each once.

    Raises
    ------
    UnsupportedKeyword : a reference is no pointer into the document.  GrammarTooLarge : there are too many.
    """
    _check_bases(root)
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
            if _pointer(root, reference) is None:
                raise UnsupportedKeyword(
                    f"$ref {reference[:80]!r} is not supported, only # and #/... in the schema itself"
                )
            waiting.append(target(root, reference))


def parts(node: Node) -> Iterator[tuple[str, Any]]:
    """The schemas directly inside a schema, with the keyword that holds each."""
    for name in ONE:
        if isinstance(node.get(name), dict):
            yield name, node[name]
    for name in LISTS:
        if isinstance(node.get(name), list):
            for part in node[name]:
                yield name, part
    for name in MAPS:
        if isinstance(node.get(name), dict):
            for part in node[name].values():
                yield name, part


def target(root: Node, reference: str) -> Any:
    """The schema that a reference points to; None where there is none."""
    pointer = _pointer(root, reference)
    if pointer is None:
        return None
    found: Any = root
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list) and step.isascii() and step.isdigit() and int(step) < len(found):
            found = found[int(step)]
        elif isinstance(found, dict) and step in found:
            found = found[step]
        else:
            return None
    return found


def _pointer(root: Node, reference: str) -> str | None:
    """The steps of a reference, "" or "/..."; None if it names another document, or an anchor."""
    base, _, fragment = reference.partition("#")
    own = root.get("$id")
    if base and not (isinstance(own, str) and base == own.rstrip("#")):
        return None
    steps = unquote(fragment)
    return steps if not steps or steps.startswith("/") else None


def _check_bases(root: Node) -> None:
    """Refuse references below a schema that has a name of its own: they would be read from there."""
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        value, named = waiting.pop()
        if isinstance(value, dict):
            if value is not root and (isinstance(value.get("$id"), str) or isinstance(value.get("id"), str)):
                named = True
            if named and isinstance(value.get("$ref"), str):
                raise UnsupportedKeyword("a $ref below a schema with an $id of its own is not supported")
            waiting.extend((part, named) for part in value.values())
        elif isinstance(value, list):
            waiting.extend((part, named) for part in value)


def together(root: Node, node: Node) -> list[Node]:
    """Return schemas that a value of `node` has to satisfy: itself, what it refers to, the parts of its allOf."""
    found: dict[int, Node] = {}
    waiting: list[Any] = [node]
    while waiting and len(found) < TOGETHER:
        one = waiting.pop()
        if not isinstance(one, dict) or id(one) in found:
            continue
        found[id(one)] = one
        if isinstance(one.get("$ref"), str):
            waiting.append(target(root, one["$ref"]))
        if isinstance(one.get("allOf"), list):
            waiting.extend(one["allOf"])
    return list(found.values())


def beside(root: Node, node: Node) -> list[Node]:
    """Return a schema, and all below it that speak of the same value, in each of its choices."""
    found: dict[int, Node] = {}
    waiting: list[Any] = [node]
    while waiting:
        one = waiting.pop()
        if not isinstance(one, dict) or id(one) in found:
            continue
        found[id(one)] = one
        waiting.extend(part for name, part in parts(one) if name in BESIDE)
        if isinstance(one.get("$ref"), str):
            waiting.append(target(root, one["$ref"]))
    return list(found.values())


def names(value: Any) -> list[str]:
    """The names in a list, `required` for example."""
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
