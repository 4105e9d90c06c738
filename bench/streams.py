"""python -m bench.streams: N conversations together against the same N one after another, and what surrounds a pass.

Three things are measured, in turn, on one loaded model:

- **replies**: decoding N greedy replies of equal length, one conversation after another and all in one batch.  The
  tokens must be the same, or the measurement is refused.
- **rows**: C(N), the time of a bare pass with one row of each of N streams over that of a pass with one row.  The gain
  that can be had is N / C(N).
- **overhead**: the time that a decode step of a conversation spends outside of the model's pass (sampler, decoder,
  text), as a share of the pass.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import fucina
from fucina.chat import Conversation, Reply, TurnBatch
from fucina.engine import Scheduler
from fucina.engine.text import TextStream
from fucina.errors import ResultsError
from fucina.measure import results
from fucina.measure.results import Spread
from fucina.measure.tables import Table, spread, text
from fucina.ops.native.cores import default_threads

from .records import own_file

COUNTS = (1, 2, 4, 8, 16)
SAMPLING: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy, stop texts": {"stop": ["\n\nUser:", "<|end|>"]},
    "top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "top_k 40, penalties": {"temperature": 0.8, "top_k": 40, "repeat_penalty": 1.1, "presence_penalty": 0.2},
}
SUBJECTS = (
    "rivers", "bread", "maps", "glass", "bees", "bridges", "ink", "salt", "clocks", "wool", "trains", "lenses", "paper",
    "harbours", "violins", "moss",
)  # fmt: skip


def conversation(model: fucina.Model, tokens: int, **options: Any) -> Conversation:
    """One that answers with exactly `tokens` tokens."""
    c = Conversation(model, template="chatml", capacity=min(model.context, 64 + tokens), max_tokens=tokens, **options)
    c.stop_ids = frozenset()
    return c


def prompt(i: int) -> str:
    """What the i-th stream is asked."""
    return f"Tell me what you know about {SUBJECTS[i % len(SUBJECTS)]}, in a few sentences."


def reply(c: Conversation, i: int) -> Reply:
    """The whole reply of the i-th stream."""
    out = c.send(prompt(i))
    assert isinstance(out, Reply)
    return out


def one_after_another(cs: Sequence[Conversation]) -> tuple[float, list[list[int]]]:
    """Seconds of decoding, and the tokens."""
    replies = [reply(c, i) for i, c in enumerate(cs)]
    return sum(r.decode_seconds for r in replies), [r.tokens for r in replies]


def together(model: fucina.Model, cs: Sequence[Conversation]) -> tuple[float, list[list[int]]]:
    """Seconds of decoding at the rate that the batch has once all prompts are computed, and the tokens."""
    batch = TurnBatch(model)
    batch.scheduler = Scheduler(model, stretch=inf)  # prompts first
    turns = [batch.send(c, prompt(i)) for i, c in enumerate(cs)]
    while not all(turn.begun for turn in turns):
        batch.step()
    before = sum(turn.stream.committed for turn in turns)
    start = perf_counter()
    while batch.busy:
        batch.step()
    seconds = perf_counter() - start
    tokens = [turn.settle().tokens for turn in turns]
    seconds /= sum(turn.stream.committed for turn in turns) - before
    return seconds * sum(len(t) - 1 for t in tokens), tokens


def bare_passes(model: fucina.Model, cs: Sequence[Conversation], repeats: int) -> list[float]:
    """[seconds of a pass with one row of one stream, of a pass with one row of each], taken in turn.

    In the middle of the replies, without anything around the passes.
    """
    caches = [c.cache for c in cs]
    lengths = [c.cache.len - c.max_tokens // 2 for c in cs]
    tokens = [c.history[n] for c, n in zip(cs, lengths, strict=True)]
    total = [0.0, 0.0]
    for repeat in range(repeats + 1):
        for side, width in enumerate((1, len(cs))):
            for cache, n in zip(caches, lengths, strict=True):
                cache.truncate(n)
            start = perf_counter()
            model.forward_rows([(cache, [token], "all") for cache, token in zip(caches[:width], tokens, strict=False)])
            total[side] += perf_counter() - start if repeat else 0.0  # the first one warms up
    return [t / repeats for t in total]


@contextmanager
def clocked(model: fucina.Model) -> Iterator[list[float]]:
    """Seconds of each pass that is run inside the `with`."""
    forward, passes = model.forward_rows, []

    def timed(requests: Any) -> Any:
        start = perf_counter()
        out = forward(requests)
        passes.append(perf_counter() - start)
        return out

    model.forward_rows = timed  # type: ignore[method-assign]
    try:
        yield passes
    finally:
        del model.forward_rows


def overhead(model: fucina.Model, tokens: int, options: dict[str, Any]) -> list[float]:
    """[seconds outside, seconds inside] of the passes of one reply's decode steps."""
    c = conversation(model, tokens, **options)
    with clocked(model) as passes:
        stream = c.send(prompt(0), stream=True)
        assert isinstance(stream, TextStream)
        next(stream)  # prefill is done, and perhaps some steps
        done = len(passes)
        start = perf_counter()
        for _ in stream:
            pass
        whole = perf_counter() - start
    inside = sum(passes[done:])
    return [whole - inside, inside]


def measure(model: fucina.Model, counts: Sequence[int], tokens: int, rounds: int, repeats: int) -> dict[str, Any]:
    """Samples, one entry a round; in every second round the sides change places."""
    samples: dict[str, dict[str, list[Any]]] = {k: {} for k in ("after another", "together", "rows", "overhead")}
    for turn in range(rounds):
        print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
        for n in counts:
            cs = [conversation(model, tokens) for _ in range(n)]
            others = [conversation(model, tokens) for _ in range(n)]
            if turn % 2:
                batch, alone = together(model, others), one_after_another(cs)
            else:
                alone, batch = one_after_another(cs), together(model, others)
            if alone[1] != batch[1]:
                raise ResultsError(f"{n} streams together gave different tokens than one after another")
            samples["after another"].setdefault(str(n), []).append(alone[0])
            samples["together"].setdefault(str(n), []).append(batch[0])
            samples["rows"].setdefault(str(n), []).append(bare_passes(model, cs, repeats))
        for label, options in SAMPLING.items():
            samples["overhead"].setdefault(label, []).append(overhead(model, tokens, options))
    return samples


def tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record: medians, lowest and highest of the rounds."""
    samples, tokens = record["samples"], record["settings"]["tokens"]
    body = []
    for n, batch in samples["together"].items():
        gain = Spread.of(results.pair_ratios(samples["after another"][n], batch))
        cost = Spread.of([many / one for one, many in samples["rows"][n]])
        rate = Spread.of([int(n) * (tokens - 1) / s for s in batch])
        possible = int(n) / cost.median
        body.append(
            [n, spread(rate), spread(gain, 2), spread(cost, 2), f"{possible:.2f}", f"{gain.median / possible:.2f}"]
        )
    header = ["streams", "tokens per second together", "gain over one after another", "C(N)", "N / C(N)", "gain / that"]
    out = [("N conversations together, and the same N one after another", (header, body))]
    body = []
    for label, turns in samples["overhead"].items():
        share = Spread.of([outside / inside for outside, inside in turns])
        each = Spread.of([1e6 * outside / (tokens - 1) for outside, _ in turns])
        body.append([label, spread(each), f"{share.median:.1%}"])
    header = ["sampling", "microseconds per step", "of the pass"]
    return [*out, ("what a conversation takes beside the passes of its decode steps", (header, body))]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 if the model cannot be had or the tokens differ."""
    p = argparse.ArgumentParser(prog="python -m bench.streams", description=__doc__.splitlines()[0].split(": ", 1)[1])
    p.add_argument("--model", default="smollm2", help="name or path (smollm2)")
    p.add_argument("--rounds", type=int, default=7, help="turns of both sides (7)")
    p.add_argument("--tokens", type=int, default=64, help="tokens of each reply (64)")
    p.add_argument("--threads", type=int, help="the physical cores by default")
    p.add_argument("--quick", action="store_true", help="two short rounds; not stored unless --output is given")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    a = p.parse_args(argv)
    rounds, tokens, repeats = (2, 12, 3) if a.quick else (a.rounds, a.tokens, 10)
    threads = a.threads or default_threads()
    try:
        model = fucina.load(a.model, threads=threads)
        try:
            samples = measure(model, COUNTS, tokens, rounds, repeats)
        finally:
            model.close()
    except fucina.FucinaError as error:
        print(error, file=sys.stderr)
        return 1
    name = Path(a.model).stem
    command = f"python -m bench.streams --model {name} --threads {threads} " + (
        "--quick" if a.quick else f"--rounds {rounds} --tokens {tokens}"
    )
    settings = {"threads": threads, "rounds": rounds, "tokens": tokens, "repeats": repeats}
    record = results.rounded({"stamp": results.stamp(command), "settings": settings, "samples": samples})
    output = a.output or (None if a.quick else own_file())
    if output:
        results.store(output, f"conversations/{name}", record)
    for title, table in tables(record):
        print(f"{title}\n{text(table)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
