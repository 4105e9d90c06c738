"""Rules by which a simulated router chooses a replica."""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping

from .affinity import Router
from .trace import Request

Loads = Mapping[Hashable, float]


class Policy(ABC):
    """A rule; `sent` tells it what became of a choice."""

    @abstractmethod
    def choose(self, request: Request, loads: Loads) -> Hashable:
        """One of the replicas in `loads`, which has the requests under way at each."""

    def sent(self, request: Request, replica: Hashable) -> None:
        """The request is at that replica now."""
        return None


class RoundRobin(Policy):
    """One after the other."""

    def __init__(self, seed: int) -> None:
        self._turn = seed - 1

    def choose(self, request: Request, loads: Loads) -> Hashable:
        self._turn += 1
        return list(loads)[self._turn % len(loads)]


class TwoChoices(Policy):
    """Of two by chance, the one with less to do: what Ray Serve does unless told otherwise."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, request: Request, loads: Loads) -> Hashable:
        two = self._random.sample(list(loads), min(2, len(loads)))
        return min(two, key=loads.__getitem__)


class Affinity(Policy):
    """The beginning of the prompt decides, within a bound on load: `affinity.Router`."""

    def __init__(self, seed: int) -> None:
        self._router = Router()

    def choose(self, request: Request, loads: Loads) -> Hashable:
        return self._router.choose(request.blocks, loads)

    def sent(self, request: Request, replica: Hashable) -> None:
        self._router.sent(request.blocks, replica)


class RayPrefix(Policy):
    """Ray Serve's PrefixCacheAffinityRouter (2.60), with its defaults.

    The replica that knows most of the prompt, if that is a tenth of it or more, otherwise the one that has been given the least
    text; of several that are alike, the one with the least to do.  Where loads differ by more than `imbalanced` requests, two
    choices; by default they never do.  Its tree is one of characters, of which nothing is dropped; this one is one of blocks.
    """

    MATCHED = 0.1
    imbalanced = math.inf

    def __init__(self, seed: int) -> None:
        self._two = TwoChoices(seed)
        self._known: dict[int, set[Hashable]] = {}
        self._size: dict[Hashable, int] = {}

    def choose(self, request: Request, loads: Loads) -> Hashable:
        if max(loads.values()) - min(loads.values()) > self.imbalanced:
            return self._two.choose(request, loads)
        best: set[Hashable] = set()
        matched = 0
        for block, end in zip(request.blocks, request.ends, strict=True):
            found = self._known.get(block, set()) & loads.keys()
            if not found:
                break
            best, matched = found, end
        if matched >= self.MATCHED * request.prompt_tokens:
            among = best
        else:
            least = min(self._size.get(r, 0) for r in loads)
            among = {r for r in loads if self._size.get(r, 0) == least}
        return min((r for r in loads if r in among), key=loads.__getitem__)

    def sent(self, request: Request, replica: Hashable) -> None:
        before = 0
        for block, end in zip(request.blocks, request.ends, strict=True):
            holders = self._known.setdefault(block, set())
            if replica not in holders:
                holders.add(replica)
                self._size[replica] = self._size.get(replica, 0) + end - before
            before = end


class BoundedRayPrefix(RayPrefix):
    """The same, told to look away from prefixes where loads differ by more than 10 requests."""

    imbalanced = 10


POLICIES: dict[str, Callable[[int], Policy]] = {
    "affinity": Affinity,
    "round robin": RoundRobin,
    "two choices": TwoChoices,
    "Ray's prefixes": RayPrefix,
    "Ray's prefixes, 10": BoundedRayPrefix,
}
