"""python -m bench.reuse: what is saved where nothing is computed twice.

A chat with a long history is asked one more question.  Measured is the time from the request to the first text, with
nothing known (cold), with a pool that has the history (warm), and after a restart: from the conversation's own file, and
from the folder of a pool.  They take turns within each round, and each round asks another question.  The replies must
be the same, or the measurement is refused.

Beside it: how long a turn takes to be appended to its file, as a share of its decoding; and the bytes that conversations over one
long system message take in a pool, as a multiple of that message's rows.

The model is loaded, and files are in the system's cache, as after any restart of the process alone.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import fucina
from fucina.cache.rows import row_bytes
from fucina.chat import Conversation
from fucina.errors import ResultsError
from fucina.measure import results
from fucina.measure.results import Spread
from fucina.measure.tables import Table, spread, text
from fucina.ops.native.cores import default_threads

from .records import own_file

SENTENCE = "The sea was calm, and the ship went on towards the island. "
SIDES = ("cold", "warm", "file", "folder")
CONVERSATIONS, REPLY = 8, 64


class History:
    """A chat of one long message and its reply, kept in a pool, a file and a folder.

    Attributes
    ----------
    messages : said so far.  tokens : that they are.
    """

    def __init__(self, model: fucina.Model, tokens: int, folder: Path, template: str | None) -> None:
        self.model, self.folder = model, folder
        self.options: dict[str, Any] = {"template": template, "max_tokens": REPLY}
        asked = [{"role": "user", "content": of_length(model, tokens - REPLY - 40)}]
        with Conversation(model, save=folder / "history.fuxkv", **self.options) as c:
            reply = c.send_messages_reuse(asked)
            self.messages, self.tokens = list(c.messages), len(c.history)
        self.pool = fucina.SlotPool(model)
        with fucina.SlotPool(model, disk=folder / "pool") as stored:
            for pool in (self.pool, stored):
                if pool.send(asked, **self.options).tokens != reply.tokens:
                    raise ResultsError("the history differs between conversation and pool")

    def ask(self, question: str) -> dict[str, Callable[[], tuple[float, list[int], int]]]:
        """One more question, to each side: seconds to the first text, tokens of the reply, tokens that were cached."""
        messages = [*self.messages, {"role": "user", "content": question}]
        file, folder = self.folder / "copy.fuxkv", self.folder / "copies"
        shutil.copyfile(self.folder / "history.fuxkv", file)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder / "pool", folder)

        def cold() -> tuple[float, list[int], int]:
            start = perf_counter()
            with Conversation(self.model, **self.options) as c:
                return timed(start, c.send_messages_reuse(messages, stream=True))

        def warm() -> tuple[float, list[int], int]:
            start = perf_counter()
            return timed(start, self.pool.send(messages, stream=True, **self.options))

        def from_file() -> tuple[float, list[int], int]:
            start = perf_counter()
            with Conversation(self.model, save=file, **self.options) as c:
                return timed(start, c.send(question, stream=True))

        def from_folder() -> tuple[float, list[int], int]:
            start = perf_counter()
            with fucina.SlotPool(self.model, disk=folder) as pool:
                return timed(start, pool.send(messages, stream=True, **self.options))

        return dict(zip(SIDES, (cold, warm, from_file, from_folder), strict=True))


def timed(start: float, stream: Any) -> tuple[float, list[int], int]:
    """Seconds from `start` to the first text; then the reply is read to its end."""
    next(stream)
    seconds = perf_counter() - start
    for _ in stream:
        pass
    reply = stream.result
    return seconds, reply.tokens, reply.cached_tokens


def of_length(model: fucina.Model, tokens: int) -> str:
    """A text of about so many tokens."""
    each = len(model.tokenizer.encode(SENTENCE * 8)) / 8
    return SENTENCE * max(1, round(tokens / each))


def first_text(history: History, round_: int) -> dict[str, list[float]]:
    """One round: seconds, and cached tokens, of each side."""
    sides = history.ask(f"{round_}: what did they see on that day, and who saw it first?")
    names = [*SIDES[round_ % 4 :], *SIDES[: round_ % 4]]
    found = {name: sides[name]() for name in names}
    if any(tokens != found["cold"][1] for _, tokens, _ in found.values()):
        raise ResultsError("the replies differ: " + ", ".join(f"{n} {t[:5]}" for n, (_, t, _) in found.items()))
    return {name: [found[name][0], found[name][2]] for name in SIDES}


def append(history: History, round_: int) -> float:
    """Seconds that a turn takes to be appended, over those of its decoding."""
    file = history.folder / "appended.fuxkv"
    shutil.copyfile(history.folder / "history.fuxkv", file)
    with Conversation(history.model, save=file, **history.options) as c:
        saving = c._saving
        assert saving is not None
        write, spent = saving.write, 0.0

        def watched(conversation: Any) -> None:
            nonlocal spent
            start = perf_counter()
            write(conversation)
            spent += perf_counter() - start

        saving.write = watched  # type: ignore[method-assign, assignment]
        c.stop_ids = frozenset()
        reply = c.send(f"Tell me about day {round_}, at length.")
        return spent / reply.decode_seconds


def shared_bytes(model: fucina.Model, tokens: int, template: str | None) -> dict[str, float]:
    """Bytes that a pool takes for conversations over one system message, in rows of that message."""
    system = {"role": "system", "content": of_length(model, tokens)}
    with fucina.SlotPool(model, memory="8GiB") as pool:
        for i in range(CONVERSATIONS):
            with pool.conversation([system], template=template, max_tokens=8) as c:
                reply = c.send(f"And {i}?")
        stats, length = pool.stats(), reply.prompt_tokens
    state = model.new_cache(1)
    return {"caches": stats.bytes / (length * row_bytes(state.layout, state.dtype)), "tokens": length}


def tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record."""
    rounds, tokens = record["rounds"], record["settings"]["history"]
    names = {
        "cold": "nothing is known",
        "warm": "a pool knows the history",
        "file": "after a restart, from the conversation's file",
        "folder": "after a restart, from the folder of a pool",
    }
    body = []
    for side, name in names.items():
        seconds = [r[side][0] for r in rounds]
        share = Spread.of(results.pair_ratios(seconds, [r["cold"][0] for r in rounds]))
        cached = Spread.of([r[side][1] for r in rounds])
        milliseconds = Spread.of([1000 * s for s in seconds])
        body.append([name, spread(milliseconds), spread(share, 3), spread(cached)])
    first = (
        f"one more question after {tokens} tokens",
        (["", "ms to the first text", "of cold", "tokens cached"], body),
    )
    shared = record["shared"]
    rest = [
        ["append of a turn, of its decoding", spread(Spread.of(record["append"]), 4)],
        [
            f"{CONVERSATIONS} conversations over {shared['tokens']:.0f} tokens, in caches of them",
            f"{shared['caches']:.3f}",
        ],
    ]
    return [first, ("files and bytes", (["", "share"], rest))]


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.reuse", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default="smollm2", help="name or path (smollm2)")
    p.add_argument("--template", help="a built-in chat format (the model's own template)")
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--history", type=int, default=1500, help="tokens of the history (1500)")
    p.add_argument("--system", type=int, default=1000, help="tokens of the shared system message (1000)")
    p.add_argument("--threads", type=int, help="the physical cores by default")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--dry", action="store_true", help="do not store")
    a = p.parse_args(argv)
    threads = a.threads or default_threads()
    model = fucina.load(a.model, threads=threads)
    with tempfile.TemporaryDirectory() as name:
        history = History(model, a.history, Path(name), a.template)
        first_text(history, 0)  # warms up
        rounds = [first_text(history, i) for i in range(1, a.rounds + 1)]
        appended = [append(history, i) for i in range(a.rounds)]
        tokens = history.tokens
        history.pool.close()
    shared = shared_bytes(model, a.system, a.template)
    model.close()
    command = f"python -m bench.reuse --model {Path(a.model).stem} --threads {threads} --rounds {a.rounds}"
    settings = {"threads": threads, "history": tokens, "reply": REPLY}
    record = results.rounded(
        {"stamp": results.stamp(command), "settings": settings, "rounds": rounds, "append": appended, "shared": shared}
    )
    for title, table in tables(record):
        print(f"{title}\n{text(table)}\n")
    if not a.dry:
        results.store(a.output or own_file(), f"reuse/{Path(a.model).stem}", record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
