"""Which replica a request goes to: the one that has computed the beginning of its prompt, unless that one has too much to do.

A prompt is cut into blocks, and each cut gets a hash of everything before it and of the tenant.  Two prompts share as many leading
hashes as they share blocks.  A `Router` remembers which replicas each hash was sent to.  What no replica has seen is placed on a
hash ring, so that routers which know nothing of each other agree, and a replica that comes or goes moves few prompts.

Sources: consistent hashing, Karger et al. 1997; with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2016.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Any

from .. import checks
from ..errors import InvalidOption

BLOCK = 256  # bytes of text, some 64 tokens
POINTS = 64  # of each replica on the ring
ANCHOR = 32  # blocks that place a prompt which no replica has seen
KNOWN = 1 << 18  # hashes that a router remembers, 64 bytes each with their place in the table
HOLDERS = 8  # replicas that are remembered for each hash
WORTH = 0.25  # of its blocks must a prompt share for its beginning to matter more than load
BOUND = 1.25  # times the mean load may one replica have
SPARE = 4  # requests that a replica may always have, whatever the others do


def block_hashes(tenant: str, texts: Iterable[str | bytes], block: int = BLOCK) -> list[int]:
    """A hash at each cut of a prompt: after every full block of a text, and at the end of each text.

    Parameters
    ----------
    tenant : who asks; prompts of two tenants share no hash.
    texts : the parts of the prompt in order, of which later requests keep whole ones (messages of a conversation).
    block : bytes.

    Returns
    -------
    list of int, 64 bits each; one that two prompts have in common means that all before it is the same.
    """
    checks.integer("block", block, 1)
    state = blake2b(digest_size=8, key=blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=32).digest())
    found = []
    for text in texts:
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        for at in range(0, len(raw), block):
            state.update(raw[at : at + block])
            if at + block < len(raw):
                found.append(int.from_bytes(state.copy().digest(), "big"))
        state.update(b"\xff" + len(raw).to_bytes(8, "big"))  # no byte of UTF-8: a text does not go on in the next one
        found.append(int.from_bytes(state.copy().digest(), "big"))
    return found


# What a body says, in the order in which templates put it into the prompt: a shared beginning stays one.
_BEFORE = ("model", "tools", "system", "instructions")
_TEXTS = ("messages", "input", "prompt", "content")


def body_texts(body: Mapping[str, Any]) -> Iterator[bytes]:
    """The parts of the prompt that the body of a request brings, in any dialect of the server."""
    for name in _BEFORE:
        if body.get(name) is not None:
            yield _plain({name: body[name]})
    for name in _TEXTS:
        value = body.get(name)
        if isinstance(value, list):
            yield from map(_plain, value)
        elif value is not None:
            yield _plain(value)


def _plain(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":")).encode()


def prompt_hashes(tenant: str, body: bytes) -> list[int]:
    """The hashes of the prompt in the body of a request; none of a body that the server will refuse."""
    with suppress(ValueError, RecursionError):
        data = json.loads(body)
        if isinstance(data, dict):
            return block_hashes(tenant, body_texts(data))
    return []


class Ring:
    """Consistent hashing: each member has points on a circle, and a key belongs to the next point.

    A member that comes takes its share from all others, and what it takes comes back when it goes; nothing else moves.
    """

    def __init__(self, members: Iterable[Hashable] = (), points: int = POINTS) -> None:
        checks.integer("points", points, 1)
        self._points, self._circle, self._of = points, list[int](), dict[int, Hashable]()
        self.members: set[Hashable] = set()
        self.update(members)

    def update(self, members: Iterable[Hashable]) -> None:
        """Let these be the members."""
        wanted = set(members)
        for member in self.members - wanted:
            for point in self._points_of(member):
                if self._of.get(point) == member:
                    del self._of[point]
        for member in sorted(wanted - self.members, key=str):
            for point in self._points_of(member):
                self._of[point] = member  # 64 bits: two members do not meet in practice
                insort(self._circle, point)
        self._circle = [point for point in self._circle if point in self._of]
        self.members = wanted

    def _points_of(self, member: Hashable) -> Iterator[int]:
        for i in range(self._points):
            yield int.from_bytes(blake2b(f"{member}#{i}".encode(), digest_size=8).digest(), "big")

    def order(self, key: int) -> Iterator[Hashable]:
        """All members, each once: the key's own first, then those that follow on the circle."""
        seen: set[Hashable] = set()
        at = bisect_right(self._circle, key % (1 << 64))
        for i in range(len(self._circle)):
            member = self._of[self._circle[(at + i) % len(self._circle)]]
            if member not in seen:
                seen.add(member)
                yield member
                if len(seen) == len(self.members):
                    return


class Router:
    """Chooses replicas by the beginnings of prompts.

    Parameters
    ----------
    bound : how many times the mean load a replica may have, above 1.
    spare : requests that a replica may always have: below that, beginnings alone decide.
    worth : share of a prompt's blocks, 0 to 1, that must be known somewhere for that to matter.
    known : hashes that are remembered; the oldest go first.
    """

    def __init__(self, bound: float = BOUND, spare: int = SPARE, worth: float = WORTH, known: int = KNOWN) -> None:
        checks.real("bound", bound, 1.01, 1000)
        checks.integer("spare", spare, 0)
        checks.real("worth", worth, 0, 1)
        checks.integer("known", known, 1)
        self._bound, self._spare, self._worth, self._most = bound, spare, worth, known
        self._ring = Ring()
        self._holders: OrderedDict[int, tuple[Hashable, ...]] = OrderedDict()
        self._turn = 0  # of requests without a prompt

    def limit(self, loads: Mapping[Hashable, float]) -> int:
        """Requests that one replica may have, the new one counted."""
        return max(self._spare, math.ceil(self._bound * (sum(loads.values()) + 1) / len(loads)))

    def choose(self, hashes: Sequence[int], loads: Mapping[Hashable, float]) -> Hashable:
        """The replica for a prompt.  Nothing is remembered before `sent`.

        Parameters
        ----------
        hashes : of `block_hashes`; none: the replica with the least to do, of several each in turn.
        loads : requests under way at each replica that takes new ones.

        Raises
        ------
        InvalidOption : there is no replica.
        """
        return next(iter(self.ranked(hashes, loads)))

    def ranked(self, hashes: Sequence[int], loads: Mapping[Hashable, float]) -> list[Hashable]:
        """All replicas, the best first: those that know most of the prompt, then by the ring, those with too much to do last."""
        if not loads:
            raise InvalidOption("no replica takes requests: expected at least one")
        if self._ring.members != loads.keys():
            self._ring.update(loads)
        if hashes:
            ring = list(self._ring.order(hashes[min(len(hashes), ANCHOR) - 1]))
        else:
            self._turn += 1
            ring = [*list(loads)[self._turn % len(loads) :], *list(loads)[: self._turn % len(loads)]]
        place = {member: i for i, member in enumerate(ring)}
        depth = self._depths(hashes, loads)
        limit = self.limit(loads)

        def rank(member: Hashable) -> tuple[bool, int, float, int]:
            known, at = depth.get(member, 0), place.get(member, 0)
            full = loads[member] >= limit
            # Among those that know as much, or that are all full, load decides; the ring where nobody knows anything.
            return full, -known, loads[member] if known or full or not hashes else 0.0, at

        return sorted(loads, key=rank)

    def _depths(self, hashes: Sequence[int], loads: Mapping[Hashable, float]) -> dict[Hashable, int]:
        """How many leading blocks each replica knows, where those are enough of them."""
        found: dict[Hashable, int] = {}
        least = max(1, math.ceil(self._worth * len(hashes)))
        for depth in range(len(hashes), least - 1, -1):
            for member in self._holders.get(hashes[depth - 1], ()):
                if member in loads:
                    found.setdefault(member, depth)
        return found

    def sent(self, hashes: Sequence[int], replica: Hashable) -> None:
        """Remember that a replica gets this prompt."""
        for key in reversed(hashes):  # the beginning is the newest: it is needed for whatever comes after it
            before = self._holders.pop(key, ())
            self._holders[key] = (replica, *(m for m in before if m != replica))[:HOLDERS]
        while len(self._holders) > self._most:
            self._holders.popitem(last=False)

    def __len__(self) -> int:
        return len(self._holders)
