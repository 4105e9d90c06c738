"""python -m bench.cluster: a trace of the loads of bench.serve, and what routing rules make of such traces with up to 64 replicas.

    python -m bench.cluster record TRACE --seconds 300 --rate 4
    python -m bench.cluster run --svg docs/images/cluster.svg
    fucina cluster --simulate TRACE --replicas 16

A recording holds conversations of four turns.  Most begin with one of some long system messages, of which a few are common and
many are rare; the others have none.  Conversations arrive by chance (Poisson); so do the pauses between turns.  `run` records for
each number of replicas, with the same load on each.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from fucina.cluster.policies import POLICIES
from fucina.cluster.simulate import Outcome, simulate, table
from fucina.cluster.trace import Request, from_conversation, write_trace
from fucina.errors import FucinaError
from fucina.measure.tables import text

from . import svg
from .serve.loads import sessions
from .speculation_tasks import PASSAGES

SHOWN = ("affinity", "two choices", "Ray's prefixes")  # in the figure
BYTES_PER_TOKEN = 4.2  # of English, by SmolLM2's tokenizer
PAUSE = 8.0  # seconds between two turns, on average
REPLY = 64  # tokens, on average
PROGRAMS = 48  # system messages; the k-th is asked for in proportion to 1 / k


def system_messages(count: int = PROGRAMS) -> list[str]:
    """So many long system messages, no two of which begin alike; about 700 tokens each."""
    found = []
    for i in range(count):
        turned = [*PASSAGES[i % len(PASSAGES) :], *PASSAGES[: i % len(PASSAGES)]]
        found.append(f"Program {i + 1}. You answer questions about these texts, briefly.\n\n" + "\n\n".join(turned * 2))
    return found


def record(rate: float, seconds: float, seed: int = 0, tenants: int = 1) -> Iterator[Request]:
    """Requests of conversations that begin within so many seconds, `rate` conversations per second."""
    draw = random.Random(seed)
    programs = system_messages()
    weights = [1 / (k + 1) for k in range(len(programs))]
    source, at, count = sessions("turns"), 0.0, 0
    while (at := at + draw.expovariate(rate)) < seconds:
        session, count = next(source), count + 1
        system = [draw.choices(programs, weights)[0]] if draw.random() < 0.75 else []
        times = [at]
        for _ in session.turns[1:]:
            times.append(times[-1] + draw.expovariate(1 / PAUSE))
        replies = [_words(draw, count) for _ in session.turns]
        texts = [[*system, session.turns[0]], *([t] for t in session.turns[1:])]
        yield from from_conversation(times, f"t{count % tenants}", texts, replies, BYTES_PER_TOKEN)


def _words(draw: random.Random, count: int) -> str:
    tokens = max(1, min(4 * REPLY, round(draw.expovariate(1 / REPLY))))
    return (f"{count} {draw.random()} " + "reply " * tokens)[: round(tokens * BYTES_PER_TOKEN)]


def sweep(replicas: Sequence[int], rate: float, seconds: float, seed: int = 0) -> dict[str, list[Outcome]]:
    """Outcomes by policy, one per number of replicas, each of which gets `rate` conversations per second."""
    found: dict[str, list[Outcome]] = {}
    for count in replicas:
        trace = sorted(record(rate * count, seconds, seed), key=lambda r: r.time)
        for policy in POLICIES:
            found.setdefault(policy, []).append(simulate(trace, count, policy, seed=seed))
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Record, or run."""
    p = argparse.ArgumentParser(prog="python -m bench.cluster", description=(__doc__ or "").split("\n")[0])
    p.add_argument("what", choices=("record", "run"))
    p.add_argument("trace", type=Path, nargs="?", help="record: the file")
    p.add_argument("--seconds", type=float, default=300.0, help="in which conversations begin (300)")
    p.add_argument("--rate", type=float, default=0.25, help="conversations per second; run: per replica (0.25)")
    p.add_argument("--tenants", type=int, default=1, help="record: that ask in turn (1)")
    p.add_argument("--seed", type=int, default=0, help="of what is drawn (0)")
    p.add_argument("--replicas", type=int, nargs="+", default=[4, 8, 16, 32, 64], help="run (4 8 16 32 64)")
    p.add_argument("--svg", type=Path, help="run: a figure of p95 over replicas")
    a = p.parse_args(argv)
    if a.what == "record":
        if a.trace is None:
            p.error("record needs the name of a file")
        write_trace(a.trace, record(a.rate, a.seconds, a.seed, a.tenants))
        return 0
    found = sweep(a.replicas, a.rate, a.seconds, a.seed)
    print(text(table(outcome for outcomes in found.values() for outcome in outcomes)))
    if a.svg is not None:
        a.svg.write_text(figure(found), encoding="utf-8", newline="\n")
    return 0


def figure(found: dict[str, list[Outcome]]) -> str:
    """The time to the first token over replicas, a line per policy."""
    shown = {name: [(float(o.replicas), 1000 * o.first[95]) for o in found[name]] for name in SHOWN}
    return svg.lines("Replicas: time to the first token", shown, "replicas, with the same load on each", "p95, ms")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FucinaError as error:
        sys.exit(f"python -m bench.cluster: {error}")
