"""python -m bench.serve: `fucina serve` and llama-server under load, in turn.

Both serve the same file with the same threads, slots and context, and answer the same client program on the same machine.  In a
closed loop so many clients ask one request after another; in an open loop requests arrive by chance, at a rate that does not
care about answers.  Of both are told: tokens per second, the time to the first token, the time between two pieces of text, how
much of the prompts was cached, and memory.  A piece of text is one token, several where drafts were accepted.

llama-server is named by --peer or the variable FUCINA_LLAMA_SERVER; `--alone` measures without it.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

from fucina import hub
from fucina.errors import FucinaError
from fucina.measure import results
from fucina.measure.tables import text
from fucina.ops.native.cores import default_threads

from ..records import own_file
from .client import Answer
from .loads import LONG, closed, opened, sessions
from .servers import ServerProcess, find_peer, ours, theirs
from .summary import LOADS, quantile, summary, tables

SLOTS, CONTEXT = 16, 4096
ALL: dict[str, list[Any]] = {
    "loads": list(LOADS),
    "clients": [1, 4, 8, 16],
    "open": ["chat"],
    "rates": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0],
}


class Turns:
    """The servers, of which one runs at a time; every turn begins with another one."""

    def __init__(self, servers: Sequence[ServerProcess]) -> None:
        self.servers, self._turn = list(servers), 0

    async def each(self, work: Callable[[ServerProcess], Awaitable[Any]]) -> dict[str, Any]:
        """What the work gives, for each server."""
        at = self._turn = (self._turn + 1) % len(self.servers)
        found = {}
        for server in [*self.servers[at:], *self.servers[:at]]:
            server.go()
            found[server.label] = await work(server)
            server.stop()
        return {server.label: found[server.label] for server in self.servers}


async def closed_loops(turns: Turns, a: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Summaries by load, clients and server, one per round."""
    found: dict[str, Any] = {}
    skip = 0
    for load in a.loads:
        for clients in a.clients:
            count = max(2 * clients, 6)
            sides: dict[str, list[dict[str, Any]]] = {}
            for _ in range(a.rounds):
                skip += count  # every round asks what no server has heard
                run = await turns.each(lambda s, c=clients, n=count, k=skip, x=load: closed(s.ask, x, c, n, k))  # type: ignore[misc]
                for label, answers in run.items():
                    sides.setdefault(label, []).append(told(answers, f"{load} {clients} {label}", say))
            found.setdefault(load, {})[str(clients)] = sides
    return found


async def open_loops(turns: Turns, a: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """Summaries by load, rate and server."""
    found: dict[str, Any] = {}
    skip = 10_000
    for load in a.open:
        for rate in a.rates:
            skip += 1000
            run = await turns.each(
                lambda s, r=rate, k=skip, x=load: opened(s.ask, x, r, a.seconds, int(100 * r), k)  # type: ignore[misc]
            )
            told_of = {label: told(answers, f"{load} {rate:g}/s {label}", say) for label, answers in run.items()}
            found.setdefault(load, {})[f"{rate:g}"] = told_of
    return found


async def join(turns: Turns, a: argparse.Namespace, say: Callable[[str], None]) -> tuple[dict[str, Any], int]:
    """What four replies notice of a long prompt; and how many tokens it has."""
    found: dict[str, Any] = {}
    length = 0
    for i in range(a.rounds):
        run = await turns.each(lambda server, i=i: _joined(server, i))  # type: ignore[misc]
        for label, (times, tokens) in run.items():
            length = tokens
            if any(map(math.isnan, times.values())):
                say(f"join {label}: the replies ended before the prompt came; this round is left out")
                continue
            found.setdefault(label, []).append(times)
            say(f"join {label}: {1000 * times['before']:.1f} ms, then {1000 * times['during']:.1f} ms")
    return found, length


async def _joined(server: ServerProcess, round_: int) -> tuple[dict[str, float], int]:
    source = sessions("chat")
    texts = [next(source).turns[0] for _ in range(20 + 4 * round_)][-4:]
    long = {"messages": [{"role": "user", "content": f"{round_}. {LONG}"}], "temperature": 0, "max_tokens": 2}
    running = [
        asyncio.create_task(
            server.ask(
                {"messages": [{"role": "user", "content": f"{t} At length."}], "temperature": 0, "max_tokens": 400}
            )
        )
        for t in texts
    ]
    await asyncio.sleep(1.5)
    new = await server.ask(long)
    answers = await asyncio.gather(*running)
    bad = [x for x in (new, *answers) if not x.ok]
    if bad:
        raise FucinaError(f"{server.label}: {bad[0].status} {bad[0].error}")
    start = max(x.arrived[0] for x in answers)
    gaps = [(b, b - g) for x in answers for b, g in zip(x.arrived[1:], x.arrived, strict=False)]
    before = [gap for at, gap in gaps if start < at <= new.begun]
    during = [gap for at, gap in gaps if new.begun < at <= new.arrived[0] + gap]
    middle = quantile(during, 50)
    return {
        "before": quantile(before, 50),
        "during": middle,
        "during95": quantile(during, 95),
        "first": new.first,
    }, new.prompt


def told(answers: Sequence[Answer], what: str, say: Callable[[str], None]) -> dict[str, Any]:
    """The summary of a run, said as well; a failed request is named."""
    found = summary(answers)
    say(
        f"{what}: {found['rate']:.0f} tokens/s, first p95 {1000 * found['first']['95']:.0f} ms, gap p95 {1000 * found['gap']['95']:.1f} ms"
    )
    for answer in [x for x in answers if not x.ok][:1]:
        say(f"{what}: {found['failed']} failed; {answer.status} {answer.error}")
    return found


async def measure(turns: Turns, a: argparse.Namespace, say: Callable[[str], None]) -> dict[str, Any]:
    """The whole record, without its stamp."""
    for load in {*a.loads, *a.open}:  # compiles, and fills what is filled once
        await turns.each(lambda s, x=load: closed(s.ask, x, 2, 2, 90_000))  # type: ignore[misc]
    found: dict[str, Any] = {"closed": await closed_loops(turns, a, say), "open": await open_loops(turns, a, say)}
    joined, length = await join(turns, a, say) if a.join else ({}, 0)
    settings = {"threads": a.threads, "slots": SLOTS, "context": CONTEXT, "seconds": a.seconds, "long": length}
    peak = {server.label: server.peak_bytes for server in turns.servers}
    return {"settings": settings, **found, "join": joined, "peak": peak}


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m bench.serve", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default="smollm2", help="name or path (smollm2)")
    p.add_argument("--peer", help="path of llama-server (FUCINA_LLAMA_SERVER)")
    p.add_argument("--alone", action="store_true", help="without llama-server")
    p.add_argument("--spec", action="store_true", help="fucina with --spec too")
    p.add_argument(
        "--loads", nargs="*", choices=list(LOADS), default=ALL["loads"], help="of the closed loop; all by default"
    )
    p.add_argument("--clients", nargs="+", type=int, default=ALL["clients"], help="of the closed loop (1 4 8 16)")
    p.add_argument("--open", nargs="*", choices=list(LOADS), default=ALL["open"], help="loads of the open loop (chat)")
    p.add_argument("--rates", nargs="+", type=float, default=ALL["rates"], help="sessions per second (1 2 3 4 6 8)")
    p.add_argument("--seconds", type=float, default=15.0, help="of arrivals in an open loop (15)")
    p.add_argument("--no-join", dest="join", action="store_false", help="not what a long prompt does to others")
    p.add_argument("--rounds", type=int, default=3, help="turns of every server (3)")
    p.add_argument("--threads", type=int, default=default_threads(), help="the physical cores by default")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--dry", action="store_true", help="do not store")
    return p.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, or 1 where a server does not answer."""
    a = arguments(argv)
    began = perf_counter()

    def say(line: str) -> None:
        print(f"[{perf_counter() - began:6.0f} s] {line}", file=sys.stderr, flush=True)

    file = hub.find(a.model)
    try:
        with ExitStack() as stack:
            servers = [stack.enter_context(ours(a.model, a.threads, SLOTS, CONTEXT))]
            if a.spec:
                servers.append(
                    stack.enter_context(ours(a.model, a.threads, SLOTS, CONTEXT, "--spec", label="fucina, drafts"))
                )
            if not a.alone:
                servers.append(stack.enter_context(theirs(find_peer(a.peer), file, a.threads, SLOTS, CONTEXT)))
            for server in servers:
                server.wait()
                server.stop()
            record = asyncio.run(measure(Turns(servers), a, say))
    except FucinaError as error:
        say(f"failed: {error}")
        return 1
    name = Path(a.model).stem
    parts = [f"python -m bench.serve --model {name} --threads {a.threads} --rounds {a.rounds} --seconds {a.seconds:g}"]
    for option in ("loads", "clients", "open", "rates"):
        if getattr(a, option) != ALL[option]:
            parts.append(
                f"--{option} " + " ".join(f"{x:g}" if isinstance(x, float) else str(x) for x in getattr(a, option))
            )
    parts += ["--spec"] if a.spec else []
    parts += ["--alone"] if a.alone else []
    record = results.rounded({"stamp": results.stamp(" ".join(parts)), **record})
    for title, table in tables(record):
        print(f"{title}\n{text(table)}\n")
    if not a.dry:
        results.store(a.output or own_file(), f"serve/{name}", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
