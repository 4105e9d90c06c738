"""python -m bench.bits: record what the engine computes for a fixed, seeded set of work; compare it with a record.

Two versions of the engine whose records are equal compute the same bits: logits of mixed passes (and, through the passes
that follow, the cached rows), tokens and texts of generations and conversations, and how many draws each took.  Only the
public faces are called.  What depends on the clock, such as which drafts the gate of speculation allows, is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

import fucina
from fucina.chat import send_batch_tokens_reuse
from fucina.errors import ModelNotFound
from fucina.speculative import Options

TINY = Path(__file__).parents[1] / "tests" / "data" / "models"
MODELS = ("llama", "llama3rope", "gemma3", "smollm2", "gemma3-270m")
COUNTS = {"gemma3-270m": (50, 12, 6)}  # passes, generations, conversations; the others have (200, 60, 20)
REACH = 100  # positions that a cut may take back from the furthest that a stream has been

PROMPTS = (
    "The capital of France is",
    "one two three four one two three four one two three",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n    return a - b\n\ndef mul(a, b):\n",
    "Once upon a time, in a small village by the sea, there lived",
    "name: Ada, age: 36\nname: Alan, age: 41\nname: Grace, age:",
    "Q: What is 2 + 2?\nA: 4\nQ: What is 3 + 3?\nA: 6\nQ: What is 4 + 4?\nA:",
    "Dear Sir or Madam,\n\nI am writing to you because",
)
SAMPLING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 1.2, "min_p": 0.05},
    {"temperature": 0.0, "repeat_penalty": 1.3},
    {"temperature": 0.7, "top_k": 60, "top_p": 0.95, "min_p": 0.02, "repeat_penalty": 1.1, "repeat_last_n": 32},
    {"temperature": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.2},
    {"temperature": 0.5, "top_p": 0.5, "top_k": 5},
)
STOPS: tuple[Any, ...] = ((), "\n", (), (".", " the"), ())


class Watch:
    """A logit processor that changes nothing: it counts the rows that were sampled and hashes their bits."""

    def __init__(self) -> None:
        self.draws, self._hash = 0, blake2b(digest_size=5)

    def process(self, logits: np.ndarray, history: Sequence[int]) -> None:
        """Enter a row."""
        self.draws += 1
        self._hash.update(logits.tobytes())

    def commit(self, token: int) -> None:
        """Take note of a choice."""
        self._hash.update(token.to_bytes(4, "little"))

    def reset(self) -> None:
        """A turn begins; the counting goes on."""

    def __str__(self) -> str:
        return f"{self.draws}:{self._hash.hexdigest()}"


def digest(data: Any) -> str:
    """A short hash of an array, a text or a list of tokens."""
    if isinstance(data, str):
        raw = data.encode("utf-8", "surrogatepass")
    else:
        raw = np.ascontiguousarray(data, None if isinstance(data, np.ndarray) else np.int64).tobytes()
    return blake2b(raw, digest_size=5).hexdigest()


def outcome(result: Any, watch: Watch | None = None) -> str:
    """One line for a generation or a reply."""
    line = f"{len(result.tokens)} {result.finish_reason} {digest(result.tokens)} {digest(result.text)}"
    return line if watch is None else f"{line} {watch}"


# --- passes -----------------------------------------------------------------------------------------------------------


def passes(model: fucina.Model, count: int, seed: int) -> Iterator[tuple[str, str]]:
    """(name, hashes of the logits of each request) of passes that mix streams, lengths, wants and cuts."""
    draw = np.random.default_rng(seed)
    vocab, capacities = model.config.vocab_size, (40, 96, 160, 300, 440, 500)
    streams = [(model.new_cache(c), [0]) for c in capacities]  # each with the furthest position that it has reached
    for number in range(count):
        chosen = draw.choice(len(streams), size=draw.integers(1, 5), replace=False)
        requests = []
        for at in chosen:
            kv, furthest = streams[at]
            rows = int(draw.choice((1, 1, 1, 2, 3, 5, 8, 9, 17, 33, 64, 150), p=(0.3, 0.1, *[0.06] * 10)))
            if draw.random() < 0.3:
                kv.truncate(max(kv.len - int(draw.integers(0, 40)), furthest[0] - REACH, 0))
            if kv.len + rows > capacities[at]:
                streams[at] = kv, furthest = model.new_cache(capacities[at]), [0]
            rows = min(rows, capacities[at])
            furthest[0] = max(furthest[0], kv.len + rows)
            requests.append(
                (kv, draw.integers(0, vocab, rows), str(draw.choice(("all", "last", "none"), p=(0.5, 0.4, 0.1))))
            )
        yield f"{seed}/{number}", " ".join(digest(rows) for rows in model.forward_rows(requests))
    for at, (kv, _) in enumerate(streams):
        rows = max(min(16, capacities[at] - kv.len), 1)
        kv.truncate(capacities[at] - rows)
        yield f"{seed}/rows of stream {at}", digest(model.forward(draw.integers(0, vocab, rows), kv))


# --- generations ------------------------------------------------------------------------------------------------------


def generations(model: fucina.Model, count: int, counts: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(name, outcome) of generations: every second one speculative, seven of eight sampled or penalised."""
    for number in range(count):
        watch = Watch() if number % 3 == 0 else None
        # a gate that never closes and budgets that no clock changes: the steps themselves can be compared
        fixed = Options(min_speedup=0.0, adapt_budget=False) if number % 4 == 1 else None
        result: Any = model.generate(
            PROMPTS[number % len(PROMPTS)],
            max_tokens=(8, 24, 48)[number % 3],
            seed=number,
            stop=STOPS[number % len(STOPS)],
            ignore_eos=number % 6 == 5,
            processor=watch,
            speculative=fixed or number % 2 == 1,
            **SAMPLING[number // 2 % len(SAMPLING)],
        )
        yield str(number), f"{result.prompt_tokens} {outcome(result, watch)}"
        if fixed and result.speculation is not None:
            s = result.speculation
            counts[str(number)] = f"{s.steps} {s.spec_steps} {s.drafted} {s.accepted} {s.rejected_steps} {s.bonus}"


# --- conversations ----------------------------------------------------------------------------------------------------

SAID = (
    "What is 2 + 2?",
    "Name three rivers in Europe.",
    "Repeat after me: the cat sat on the mat, the cat sat on the mat.",
    "Write a function that adds two numbers.",
    "Say that again, please.",
    "Thank you! What is the opposite of cold?",
)


def conversations(model: fucina.Model, count: int) -> Iterator[tuple[str, str]]:
    """(name, outcome) of each reply: alone, with cancelled and repeated turns, then three at a time."""
    alone = count - 3 * (count // 6)
    for number in range(alone):
        watch, c = _conversation(model, number)
        for turn in range(3):
            name = f"{number}/{turn}"
            yield name, outcome(_say(c, number + turn, model), watch)
            if (number + turn) % 3 == 0:
                yield f"{name} again", outcome(c.regenerate(), watch)
            if number % 4 == 3:  # greedy and plain: wherever it is cut off, nothing of it stays
                stream = _say(c, number + turn + 1, model, stream=True)
                for _ in range(1 + number % 3):
                    next(stream, "")
                stream.close()
                c.undo()
                yield f"{name} after undo", outcome(_say(c, number + turn + 2, model), watch)
        c.reset()
        yield f"{number}/reset", outcome(_say(c, number, model), watch)
    for first in range(alone, count, 3):
        group = [_conversation(model, number) for number in range(first, min(first + 3, count))]
        members = [c for _, c in group]
        whole: list[list[int]] = [[] for _ in group]
        for turn in range(3):
            said = [SAID[(first + 2 * turn + i) % len(SAID)] for i in range(len(group))]
            if model.chat_template:
                replies = fucina.send_batch(members, said)
            else:
                whole = [ids + model.tokenizer.encode(text) for ids, text in zip(whole, said, strict=True)]
                replies = send_batch_tokens_reuse(members, whole)
                whole = [ids + list(reply.tokens) for ids, reply in zip(whole, replies, strict=True)]
            for i, (reply, (watch, _)) in enumerate(zip(replies, group, strict=True)):
                yield f"{first + i}/{turn} together", outcome(reply, watch)


def _conversation(model: fucina.Model, number: int) -> tuple[Watch | None, fucina.Conversation]:
    greedy, watch = number % 4 == 3 or number % 8 == 2, Watch() if number % 4 < 3 else None
    return watch, fucina.Conversation(
        model,
        "You are brief." if number % 3 == 0 and model.chat_template else None,
        capacity=400,
        max_tokens=(12, 20)[number % 2],
        stop=STOPS[number % len(STOPS)],
        processor=watch,
        speculation=number % 4 in (1, 2),
        seed=number,
        **({} if greedy else SAMPLING[number % len(SAMPLING)]),
    )


def _say(c: fucina.Conversation, number: int, model: fucina.Model, stream: bool = False) -> Any:
    text = SAID[number % len(SAID)]
    return c.send(text, stream=stream) if model.chat_template else c.send_rendered(text, stream=stream)


# --- records ----------------------------------------------------------------------------------------------------------


def record(names: Sequence[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Everything of the models that are installed: {model: {section: {name: line}}}."""
    out = {}
    for name in names:
        path = TINY / f"{name}.gguf"
        counts = COUNTS.get(name, (200, 60, 20))
        try:
            model = fucina.load(path if path.exists() else name, threads=1)
        except ModelNotFound:
            print(f"{name} is not installed: left out", file=sys.stderr)
            continue
        half = counts[0] // 2
        mixed = dict(passes(model, half, seed=1))
        model.close()
        model = fucina.load(path if path.exists() else name, threads=2)
        mixed |= passes(model, counts[0] - half, seed=2)
        steps: dict[str, str] = {}
        out[name] = {
            "passes": mixed,
            "generations": dict(generations(model, counts[1], steps)),
            "conversations": dict(conversations(model, counts[2])),
            "speculation": steps,
        }
        model.close()
    return out


def differences(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    """One line for each entry that is not in both records with the same value; models of one of them do not count."""
    for name in [name for name in before if name in after]:
        for section in dict.fromkeys([*before[name], *after[name]]):
            old, new = before[name].get(section, {}), after[name].get(section, {})
            for key in [*old, *(k for k in new if k not in old)]:
                if old.get(key) != new.get(key):
                    yield f"{name} {section} {key}: {old.get(key)} before, {new.get(key)} now"


def main(argv: list[str] | None = None) -> int:
    """Exit code 1 if something differs."""
    p = argparse.ArgumentParser(
        prog="python -m bench.bits", description=(__doc__ or "").split(": ", 1)[1].split("\n")[0]
    )
    p.add_argument("action", choices=("record", "compare"))
    p.add_argument("file", type=Path)
    p.add_argument("--models", nargs="+", choices=MODELS, default=MODELS, help="all that are installed by default")
    p.add_argument("--show", type=int, default=12, help="differences to print (12)")
    a = p.parse_args(argv)
    now = record(a.models)
    if a.action == "record":
        a.file.write_text(json.dumps(now, indent=0) + "\n", encoding="utf-8")
        print(f"{sum(len(s) for m in now.values() for s in m.values())} entries of {', '.join(now)}")
        return 0
    found = list(differences(json.loads(a.file.read_text(encoding="utf-8")), now))
    for line in found[: a.show]:
        print(line)
    print(f"{len(found)} differences" if found else f"all equal: {', '.join(now)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
