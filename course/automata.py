"""Byte automata: which bytes may follow, for texts that a small regular expression describes."""

from __future__ import annotations

from dataclasses import dataclass

MOST = 2000  # states
SPECIAL = "()[]{}|*+?.\\"

# An expression: ("byte", set of bytes), ("seq", parts), ("alt", parts), ("star", part).  Nothing: ("seq", ()); no text at
# all: ("alt", ()).
Expression = tuple
EMPTY, NOTHING = ("seq", ()), ("alt", ())


@dataclass(frozen=True, slots=True)
class Automaton:
    """A machine that reads bytes.  Every state leads to an end: there are no dead ones.

    Attributes
    ----------
    edges : list of dict, one per state: the byte that is read, and the state afterwards.  State 0 is the start.
    accepting : set of int, the states in which a text may end.
    """

    edges: list[dict[int, int]]
    accepting: frozenset[int]

    def step(self, state: int, byte: int) -> int | None:
        """Return the state after one more byte, or None where that byte may not follow."""
        return self.edges[state].get(byte)

    def read(self, data: bytes, state: int = 0) -> int | None:
        """Return the state after some bytes, or None."""
        for byte in data:
            after = self.step(state, byte)
            if after is None:
                return None
            state = after
        return state

    @classmethod
    def of(cls, pattern: str) -> Automaton:
        """Return the automaton of a regular expression that describes whole texts.

        Parameters
        ----------
        pattern : text of characters, `[a-z0-9]`, `.` (a printable ASCII character), `\\d`, groups, `|`, and after any of
            these `*`, `+`, `?`, `{3}`, `{1,3}`.

        Raises
        ------
        ValueError : it is none, or it has more than 2000 states.
        """
        start = _Parser(pattern).whole()
        numbers, edges = {start: 0}, []
        waiting = [start]
        for state in waiting:  # grows while it is read
            out: dict[int, int] = {}
            for byte in sorted(_first(state)):
                after = _after(state, byte)
                if after not in numbers:
                    numbers[after] = len(numbers)
                    waiting.append(after)
                if len(numbers) > MOST:
                    raise ValueError(f"the automaton of {pattern!r} has more than {MOST} states")
                out[byte] = numbers[after]
            edges.append(out)
        return cls(edges, frozenset(i for state, i in numbers.items() if _may_end(state)))


# --- what is left of an expression after a byte (its derivative; Brzozowski 1964, doi:10.1145/321239.321249) -------------


def _seq(*parts: Expression) -> Expression:
    flat = [p for part in parts for p in (part[1] if part[0] == "seq" else (part,))]
    if NOTHING in flat:
        return NOTHING
    return flat[0] if len(flat) == 1 else ("seq", tuple(flat))


def _alt(*parts: Expression) -> Expression:
    flat = dict.fromkeys(p for part in parts for p in (part[1] if part[0] == "alt" else (part,)))
    return next(iter(flat)) if len(flat) == 1 else ("alt", tuple(sorted(flat, key=repr)))


def _may_end(e: Expression) -> bool:
    kind, inside = e
    if kind in ("seq", "alt"):
        return all(map(_may_end, inside)) if kind == "seq" else any(map(_may_end, inside))
    return kind == "star"


def _first(e: Expression) -> frozenset[int]:
    """The bytes that a text may begin with."""
    kind, inside = e
    if kind == "byte":
        return inside
    if kind == "star":
        return _first(inside)
    found: frozenset[int] = frozenset()
    for part in inside:
        found |= _first(part)
        if kind == "seq" and not _may_end(part):
            break
    return found


def _after(e: Expression, byte: int) -> Expression:
    kind, inside = e
    if kind == "byte":
        return EMPTY if byte in inside else NOTHING
    if kind == "star":
        return _seq(_after(inside, byte), e)
    if kind == "alt":
        return _alt(*(_after(part, byte) for part in inside))
    found = []
    for i, part in enumerate(inside):
        found.append(_seq(_after(part, byte), *inside[i + 1 :]))
        if not _may_end(part):
            break
    return _alt(*found)


class _Parser:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def whole(self) -> Expression:
        found = self.choice()
        if self.at < len(self.pattern):
            raise self.wrong("nothing more")
        return found

    def choice(self) -> Expression:
        parts = [self.sequence()]
        while self.taken("|"):
            parts.append(self.sequence())
        return _alt(*parts)

    def sequence(self) -> Expression:
        parts = []
        while self.here not in ("", "|", ")"):
            parts.append(self.repeated())
        return _seq(*parts)

    def repeated(self) -> Expression:
        part = self.one()
        while self.here and self.here in "*+?{":
            sign = self.take()
            if sign == "{":
                least = self.number()
                most = self.number() if self.taken(",") else least
                self.expect("}")
                if most < least:
                    raise ValueError(f"{{{least},{most}}} describes nothing, in {self.pattern!r}")
                part = _seq(*[part] * least, *[_alt(part, EMPTY)] * (most - least))
            else:
                part = {"*": ("star", part), "+": _seq(part, ("star", part)), "?": _alt(part, EMPTY)}[sign]
        return part

    def one(self) -> Expression:
        if self.taken("("):
            inside = self.choice()
            self.expect(")")
            return inside
        if self.taken("["):
            return ("byte", self.characters())
        if self.taken("."):
            return ("byte", frozenset(range(32, 127)))
        if self.here in SPECIAL and self.here != "\\":
            raise self.wrong("a character")
        return self.escaped() if self.taken("\\") else _seq(*(("byte", frozenset([b])) for b in self.take().encode()))

    def escaped(self) -> Expression:
        sign = self.take()
        if sign.isalnum() and sign != "d":
            raise ValueError(f"\\{sign} is not known here, in {self.pattern!r}")
        return ("byte", frozenset(b"0123456789") if sign == "d" else frozenset(sign.encode()))

    def characters(self) -> frozenset[int]:
        found: set[int] = set()
        while not self.taken("]"):
            low = self.take()
            high = low
            if self.here == "-" and self.pattern[self.at + 1 : self.at + 2] != "]":
                self.take()
                high = self.take()
            if not low.isascii() or not high.isascii() or low > high or (low == "^" and not found):
                raise ValueError(f"in [...] only ASCII characters and ranges are known, in {self.pattern!r}")
            found.update(range(ord(low), ord(high) + 1))
        return frozenset(found)

    def number(self) -> int:
        digits = ""
        while self.here.isdigit():
            digits += self.take()
        if not digits:
            raise self.wrong("a number")
        return int(digits)

    @property
    def here(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def take(self) -> str:
        if not self.here:
            raise self.wrong("a character")
        self.at += 1
        return self.pattern[self.at - 1]

    def taken(self, sign: str) -> bool:
        found = self.here == sign
        self.at += found
        return found

    def expect(self, sign: str) -> None:
        if not self.taken(sign):
            raise self.wrong(sign)

    def wrong(self, expected: str) -> ValueError:
        return ValueError(f"expected {expected} at place {self.at} of {self.pattern!r}, got {self.here or 'the end'}")
