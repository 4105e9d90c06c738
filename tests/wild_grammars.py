"""Grammars that nobody would write, and random sentences of a grammar without a model: byte by byte."""

from __future__ import annotations

import random

import numpy as np

from fucina.errors import MatcherFailed
from fucina.sampling.grammar import llg

# --- sentences --------------------------------------------------------------------------------------------------------


def sentence(grammar, r: random.Random, most=200, end=0.3) -> bytes | None:
    """A random sentence; None if it is longer than `most` bytes.  Raises MatcherFailed in a dead end."""
    matcher = llg.byte_vocabulary().matcher(grammar.program)
    text = bytearray()
    while len(text) < most:
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if (reason := llg.failure(matcher)) is not None:
            raise MatcherFailed(reason)
        may = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:256]).tolist()
        if matcher.is_accepting() and (not may or r.random() < end):
            return bytes(text)
        plain = [byte for byte in may if 32 <= byte < 127]
        byte = r.choice(plain if plain and r.random() < 0.9 else may)
        for closing in b'"]}':  # what is open shall be closed
            if closing in may and r.random() < 0.25:
                byte = closing
        assert matcher.consume_token(byte), (bytes(text), byte)
        text.append(byte)
    return None


# --- schemas ----------------------------------------------------------------------------------------------------------

_NAMES = ["a", "b", "ab", "é", "x y", "", "$ref", "z1"]
_FORMATS = ["date", "date-time", "email", "ipv4", "ipv6", "uuid", "hostname", "uri", "duration"]
_PATTERNS = ["^a", "b$", "^[a-c]+$", "[0-9]", "^(x|yz)*$", "a.c", "^.{2,4}$", "^\\S\\s\\S$", "^[^a]$", ".", "^\\D$"]
_CONSTANTS = [1, "a", None, True, "é", [1, 2], {"k": "v"}, 2.5, -3, "", {}, [], 0, 1.0, -0.5, 1e15, 1e-7, "\u2028\x00", [{}]]  # fmt: skip
_NUMBERS = [0, -3, 2.5, -10, 7, 0.25, 100, 10, 3.5, 1000, 7.125, 8, -2]


def wild_schema(r: random.Random) -> dict:
    """A schema in which keywords stand beside each other as they come; many of them no text satisfies."""
    schema = _wild(r, 3)
    schema.setdefault("$defs", {"p": _wild(r, 1), "q": _wild(r, 0)})
    return schema


def _wild(r, depth):
    schema = {}
    kind = r.random()
    some = lambda n: [_wild(r, depth - 1) for _ in range(r.randrange(1, n))]
    if kind < 0.12:
        schema["enum"] = r.sample(_CONSTANTS, r.randrange(1, 5))
    elif kind < 0.16:
        schema["const"] = r.choice(_CONSTANTS)
    elif kind < 0.33 and depth:
        schema[r.choice(["anyOf", "allOf", "oneOf"])] = some(3)
    elif kind < 0.36:
        schema["$ref"] = r.choice(["#", "#/$defs/p", "#/$defs/q"])
    if r.random() < 0.75 or not schema:
        types = ["string", "integer", "number", "object", "array", "boolean", "null"]
        schema["type"] = r.choice([*types, ["string", "null"], ["integer", "object"], ["array", "string"]])
    given = schema.get("type", ["string", "integer", "object", "array"])
    if r.random() < 0.6:
        _limit(r, schema, depth, r.choice([given] if isinstance(given, str) else given), some)
    return schema


def _limit(r, schema, depth, kind, some):
    """Keywords that belong to one type."""
    put = lambda chance, name, make: schema.__setitem__(name, make()) if r.random() < chance else None
    if kind == "string":
        put(0.4, "minLength", lambda: r.randrange(4))
        put(0.6, "maxLength", lambda: r.randrange(7))
        put(0.3, "pattern", lambda: r.choice(_PATTERNS))
        put(0.15, "format", lambda: r.choice(_FORMATS))
    if kind in ("integer", "number"):
        put(0.5, r.choice(["minimum", "exclusiveMinimum"]), lambda: r.choice(_NUMBERS))
        put(0.5, r.choice(["maximum", "exclusiveMaximum"]), lambda: r.choice(_NUMBERS))
        put(0.3, "multipleOf", lambda: r.choice([2, 3, 0.5, 10, 1, 0.25]))
    if kind == "array":
        put(0.3, "minItems", lambda: r.randrange(3))
        put(0.5, "maxItems", lambda: r.randrange(4))
        put(0.5 * bool(depth), "items", lambda: r.choice([*some(2), *some(2), False, True]))
        put(0.3 * bool(depth), "prefixItems", lambda: some(3))
    if kind == "object":
        names = r.sample(_NAMES, r.randrange(4))
        put(0.8 * bool(depth), "properties", lambda: {n: r.choice([*some(2), *some(2), True, False]) for n in names})
        put(0.5, "required", lambda: r.sample(_NAMES[:4], r.randrange(3)))
        put(0.5, "additionalProperties", lambda: _wild(r, depth - 1) if depth and r.random() < 0.4 else False)
        put(0.2 * bool(depth), "patternProperties", lambda: {r.choice(_PATTERNS): _wild(r, depth - 1)})
        put(0.1, "minProperties", lambda: r.randrange(2))
        put(0.2, "maxProperties", lambda: r.randrange(4))


# --- grammars in Lark's notation --------------------------------------------------------------------------------------

_TERMINALS = ["/[a-c]{1,3}/", "/[0-9]+/", "/x*y/", '/[^a-z"\\n]/', "/(ab|a)c?/", "/é+/", '/"[a-z]*"/', "/ab/i", '""', "/x*/"]  # fmt: skip
_NAMED = ["/[a-z]+/", "/[0-9]{2}/", '"if"', '"aa" | "ab"', '("x" "y")+']


def wild_lark(r: random.Random) -> str:
    """Rules that call each other as they come, to the left as well; empty ones; terminals that overlap."""
    rules = ["start", *(f"r{i}" for i in range(r.randrange(1, 5)))]
    terminals = [f"T{i}" for i in range(r.randrange(3))]
    called = [*rules[r.randrange(2) :], *terminals]
    lines = [f"{r.choice(['', '', '?']) if name != 'start' else ''}{name}: {_choice(r, 2, called)}" for name in rules]
    lines += [f"{name}: {r.choice(_NAMED)}" for name in terminals]
    lines += ["%ignore /[ \\t]+/"] if r.random() < 0.15 else []
    r.shuffle(lines)
    return "\n".join(lines) + "\n"


def _choice(r, depth, called):
    lengths = [0, 1, 1, 2, 2, 3]
    return " | ".join(
        " ".join(_part(r, depth, called) for _ in range(r.choice(lengths))) for _ in range(r.randrange(1, 4))
    )


def _part(r, depth, called):
    kind = r.random()
    if kind < 0.45:
        part = r.choice(called)
    elif kind < 0.6 and depth:
        part = f"({_choice(r, depth - 1, called)})"
    elif kind < 0.65 and depth:
        return f"[{_choice(r, depth - 1, called)}]"
    elif kind < 0.8:
        part = r.choice(_TERMINALS)
    else:
        part = '"' + "".join(r.choice("abcxy,;() é") for _ in range(r.randrange(1, 4))) + '"'
    return part + r.choice(["", "", "", "", "?", "*", "+", "~2"])
