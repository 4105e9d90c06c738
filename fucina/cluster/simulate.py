"""A simulation of replicas that answer a trace: how much of the prompts is cached, and how long first tokens take.

Between two events of a replica all its streams go at one speed, so there are two events per request and no step per token.  A
replica runs up to `streams` requests; others wait.  One prompt is computed at a time, beside the streams that run: their passes
then take `stretch` times as long, and the prompt gets what that adds.  The same trace and seed give the same figures on any machine.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from .. import checks
from ..defaults import PREFILL_STRETCH
from ..errors import InvalidOption
from .policies import POLICIES, Policy
from .trace import Request

MOST_REPLICAS = 4096
DONE = 1e-3  # tokens: what is less than that is rounding, at the highest rates and the latest times that are allowed


@dataclass(frozen=True)
class Machine:
    """What one replica can do; by default as measured with SmolLM2 in Q4_1 on two cores (docs/performance.md).

    token_seconds : a pass of one row.  costs : C(k) by k, time of a pass of k rows in passes of one.
    prefill : prompt tokens per second.  streams : at once.  cache_tokens : whose rows are kept.  stretch : see `fucina serve`.
    """

    token_seconds: float = 0.00375
    costs: Mapping[int, float] = field(
        default_factory=lambda: {1: 1.0, 2: 1.09, 3: 1.36, 4: 1.29, 6: 1.95, 8: 2.02, 12: 2.94, 16: 3.69}
    )
    prefill: float = 1543.0
    streams: int = 8
    cache_tokens: int = 50_000
    stretch: float = PREFILL_STRETCH

    def __post_init__(self) -> None:
        checks.real("token_seconds", self.token_seconds, 1e-6, 1e6)
        checks.real("prefill", self.prefill, 1e-3, 1e6)
        checks.integer("streams", self.streams, 1)
        checks.integer("cache_tokens", self.cache_tokens, 0)
        checks.real("stretch", self.stretch, 1.01, 1000)
        if 1 not in self.costs:
            raise InvalidOption("costs must have the cost of one row")

    def cost(self, rows: int) -> float:
        """C(k), between measured k along a line, past the last in proportion."""
        known = sorted(self.costs)
        if rows >= known[-1]:
            return self.costs[known[-1]] * rows / known[-1]
        high = next(k for k in known if k >= rows)
        low = max((k for k in known if k <= rows), default=high)
        if low == high:
            return self.costs[high]
        share = (rows - low) / (high - low)
        return self.costs[low] + share * (self.costs[high] - self.costs[low])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy gave: `hit_rate` of prompt tokens were cached; `first` is seconds to the first token by percent.

    uneven : requests of the replica with the most, in those of the mean.  seconds : until the last reply was over.
    """

    policy: str
    replicas: int
    requests: int
    hit_rate: float
    first: Mapping[int, float]
    uneven: float
    seconds: float


class _Cache:
    """Blocks whose rows a replica has, the longest unused ones given up first."""

    def __init__(self, most: int) -> None:
        self._most, self._held, self._tokens = most, OrderedDict[int, int](), 0

    def known(self, blocks: Sequence[int], ends: Sequence[int]) -> int:
        """Tokens of the leading blocks that are there."""
        found = 0
        for block, end in zip(blocks, ends, strict=True):
            if block not in self._held:
                break
            found = end
        return found

    def keep(self, blocks: Sequence[int], ends: Sequence[int]) -> None:
        """Store a text; its beginning is the last to go."""
        for i in range(len(blocks) - 1, -1, -1):
            tokens = ends[i] - (ends[i - 1] if i else 0)
            self._tokens += tokens - self._held.pop(blocks[i], 0)
            self._held[blocks[i]] = tokens
        while self._tokens > self._most:
            self._tokens -= self._held.popitem(last=False)[1]


class _Replica:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.cache = machine, _Cache(machine.cache_tokens)
        self.waiting: deque[int] = deque()
        self.prompt: int | None = None  # the request whose prompt is computed
        self.prompt_left = 0.0
        self.running: dict[int, float] = {}  # tokens that are left of each reply
        self.now, self.version, self.count = 0.0, 0, 0

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running) + (self.prompt is not None)

    def rates(self) -> tuple[float, float]:
        """Tokens per second of the prompt, and of each reply."""
        m, k = self.machine, len(self.running)
        if not k:
            return m.prefill, 0.0
        token = 1 / (m.token_seconds * m.cost(k))
        return (m.prefill * (1 - 1 / m.stretch), token / m.stretch) if self.prompt is not None else (0.0, token)

    def advance(self, now: float) -> None:
        prompt, token = self.rates()
        seconds, self.now = now - self.now, now
        self.prompt_left -= prompt * seconds
        for i in self.running:
            self.running[i] -= token * seconds

    def next(self) -> float:
        """When something ends, if nothing comes in between."""
        prompt, token = self.rates()
        left = [max(0.0, self.prompt_left) / prompt] if self.prompt is not None else []
        if self.running:
            left.append(max(0.0, min(self.running.values())) / token)
        return self.now + min(left, default=math.inf)


def simulate(
    trace: Sequence[Request],
    replicas: int,
    policy: str | Policy = "affinity",
    machine: Machine | None = None,
    seed: int = 0,
) -> Outcome:
    """Answer a trace by replicas that are all alike.

    Parameters
    ----------
    trace : in the order of their times.  replicas : 1 to 4096.
    policy : a name of `POLICIES`, or a policy that has chosen nothing yet.
    machine : default `Machine()`.  seed : of policies that draw.

    Raises
    ------
    InvalidOption
    """
    checks.integer("replicas", replicas, 1, MOST_REPLICAS)
    if not trace:
        raise InvalidOption("the trace is empty: expected at least one request")
    name = policy if isinstance(policy, str) else type(policy).__name__
    rule = POLICIES[checks.one_of("policy", policy, POLICIES)](seed) if isinstance(policy, str) else policy
    machine = machine or Machine()
    all_of = [_Replica(machine) for _ in range(replicas)]
    events: list[tuple[float, int, int, int]] = [
        (r.time, i, -1, i) for i, r in enumerate(trace)
    ]  # time, order, replica
    heapq.heapify(events)
    order, hits, firsts, last = len(trace), 0, [0.0] * len(trace), 0.0

    def start(replica: _Replica) -> None:
        nonlocal hits
        if replica.prompt is None and replica.waiting and len(replica.running) < machine.streams:
            i = replica.prompt = replica.waiting.popleft()
            known = min(replica.cache.known(trace[i].blocks, trace[i].ends), trace[i].prompt_tokens - 1)
            hits += known
            replica.prompt_left = float(trace[i].prompt_tokens - known)

    def settle(replica: _Replica) -> None:
        """Enter what has just ended."""
        for i in [i for i, left in replica.running.items() if left <= DONE]:
            del replica.running[i]
            replica.cache.keep(trace[i].blocks + trace[i].kept, trace[i].ends + trace[i].kept_ends)
        done = replica.prompt
        if done is not None and replica.prompt_left <= DONE:
            replica.prompt = None
            firsts[done] = replica.now - trace[done].time
            replica.cache.keep(trace[done].blocks, trace[done].ends)
            if trace[done].reply_tokens > 1:
                replica.running[done] = trace[done].reply_tokens - 1.0

    while events:
        now, _, at, what = heapq.heappop(events)
        if at < 0:
            loads: dict[Hashable, float] = {i: float(r.load) for i, r in enumerate(all_of)}
            chosen = rule.choose(trace[what], loads)
            if not isinstance(chosen, int) or chosen not in loads:
                raise InvalidOption(f"the policy chose {chosen!r}, which is no replica")
            rule.sent(trace[what], chosen)
            at, replica = chosen, all_of[chosen]
            replica.advance(now)
            replica.waiting.append(what)
            replica.count += 1
        else:
            replica = all_of[at]
            if what != replica.version:
                continue  # something came in between, and this was planned anew
            replica.advance(now)
            last = now
        settle(replica)
        start(replica)
        replica.version += 1
        when = replica.next()
        if when < math.inf:
            order += 1
            heapq.heappush(events, (max(when, now), order, at, replica.version))
    uneven = max(r.count for r in all_of) * replicas / len(trace)
    tokens = sum(r.prompt_tokens for r in trace)
    return Outcome(name, replicas, len(trace), hits / tokens, quantiles(firsts), uneven, last)


def quantiles(values: Sequence[float], percents: Sequence[int] = (50, 95, 99)) -> dict[int, float]:
    """For each percent the smallest value that so many percent of all are not above."""
    ordered = sorted(values)
    return {p: ordered[max(math.ceil(len(ordered) * p / 100), 1) - 1] for p in percents}


def table(outcomes: Iterable[Outcome]) -> tuple[list[str], list[list[str]]]:
    """Header and rows, one per outcome."""
    header = ["policy", "replicas", "prompt tokens cached", "first token p50, s", "p95, s", "p99, s", "most / mean"]
    rows = [
        [o.policy, f"{o.replicas}", f"{o.hit_rate:.0%}", *(f"{v:.3g}" for v in o.first.values()), f"{o.uneven:.2f}"]
        for o in outcomes
    ]
    return header, rows
