"""Runs of a learner's engine, inside the process that holds it: each returns its tokens, and what it took."""

from __future__ import annotations

import copy
import json
from time import perf_counter
from types import ModuleType
from typing import Any


class EmitFailed(Exception):
    """Raised on purpose, by the reader of one of several streams."""


def run(engine: ModuleType, model: Any, prompts: dict[Any, Any], ask: dict[str, Any]) -> dict[str, Any]:
    """One run.

    Parameters
    ----------
    engine : the executed my_engine.py.
    model : its `NumPyModel` or `CompiledModel`.
    prompts : keeps caches of prompts that were read, between runs.
    ask : "how", and what that way needs: "ids", "n", "stop", "sampling", "banned", "document", "prompts".

    Returns
    -------
    {"tokens", "seconds", "steps", "drafted", "accepted"}; of several streams, their tokens one after the other.
    """
    how = ask["how"]
    if how in ("three streams", "isolated"):
        return _streams(engine, model, ask, how == "isolated")
    if how == "one by one":
        return _one_by_one(engine, model, ask)
    if how == "served":
        return _served(engine, model, ask)
    if how == "in words":
        return _in_words(engine)
    ids, n = list(ask["ids"]), ask["n"]
    ways = {"sampled": "cache", "until a stop": "cascade", "streaming": "cascade", "from a document": "gate"}
    way = ways.get(how, how)
    cache = None if way == "reread" else _prompt(engine, model, prompts, ids, n)
    sampler, emit, stop = None, None, None
    emitted: list[int] = []
    if how == "sampled":
        sampler = engine.Sampler(**ask["sampling"], banned=ask["banned"])
    if how == "streaming":
        emit = emitted.append
    if how == "until a stop":
        stop = ask["stop"]
    references = [ask["document"]] if how == "from a document" else []
    if way not in ("reread", "cache"):
        model.costs()  # measured once, not as part of anybody's time
    history = list(ids)
    began = perf_counter()
    log = engine.go_on(model, cache, history, n, way, sampler, emit, stop, references)
    seconds = perf_counter() - began
    tokens = history[len(ids) :]
    if how == "streaming" and emitted != tokens:
        raise ValueError(f"the tokens that were emitted are {emitted}, those of the history {tokens}")
    drafted = sum(step.drafted for step in log)
    return {
        "tokens": [int(token) for token in tokens],
        "seconds": seconds,
        "steps": len(log),
        "drafted": drafted,
        "accepted": sum(step.accepted for step in log),
    }


def _prompt(engine: ModuleType, model: Any, prompts: dict[Any, Any], ids: list[int], n: int) -> Any:
    """A cache with the prompt's rows.  In NumPy, reading it takes longer than decoding: it is read once and copied."""
    if not isinstance(model, engine.NumPyModel):
        return engine.read_prompt(model, ids, len(ids) + n)
    key = tuple(ids), n
    if key not in prompts:
        prompts[key] = engine.read_prompt(model, ids, len(ids) + n)
    return copy.deepcopy(prompts[key])


def _streams(engine: ModuleType, model: Any, ask: dict[str, Any], isolated: bool) -> dict[str, Any]:
    """Several prompts in one batch; `isolated`: the reader of the first one fails at its second token."""
    n, streams = ask["n"], []
    for ids in ask["prompts"]:
        streams.append(engine.Stream(model.new_cache(len(ids) + n), list(ids), n))
    if isolated:
        first = streams[0]

        def emit(token: int) -> None:
            if first.added == 2:
                raise EmitFailed("on purpose")

        first.emit = emit
    began = perf_counter()
    engine.batch(model, streams, isolate=isolated)
    seconds = perf_counter() - began
    wrong = [s.error for s in streams[1:] if s.error is not None]
    if wrong:
        raise wrong[0]
    if isolated and not isinstance(streams[0].error, EmitFailed):
        raise ValueError(f"the stream whose reader failed has the error {streams[0].error!r}, not its reader's")
    tokens = [int(t) for s in streams for t in s.history[s.prompt :]]
    return {"tokens": tokens, "seconds": seconds, "steps": len(tokens), "drafted": 0, "accepted": 0}


def _one_by_one(engine: ModuleType, model: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Several prompts one after the other, and the first one again, with a pool of two slots."""
    n, tokens, cached = ask["n"], [], []
    server = engine.Server(model, 2, max(map(len, ask["prompts"])) + n)
    began = perf_counter()
    for ids in [*ask["prompts"], ask["prompts"][0]]:
        said, there = server.answer(list(ids), n)
        tokens += [int(token) for token in said]
        cached.append(there)
    seconds = perf_counter() - began
    run = {"tokens": tokens, "seconds": seconds, "steps": len(tokens), "drafted": 0, "accepted": 0}
    return {**run, "cached": cached}


def _served(engine: ModuleType, model: Any, ask: dict[str, Any]) -> dict[str, Any]:
    """Several requests in two places, each of which comes two passes after the one before; read off their events."""
    n, waiting = ask["n"], list(ask["prompts"])
    asked: list[Any] = []
    service = engine.Service(model, streams=2, rows=8)
    began = perf_counter()
    steps = 0
    while waiting or any(not request.ended for request in asked):
        if waiting and steps % 2 == 0:
            asked.append(engine.Request(list(waiting.pop(0)), n))
            service.submit(asked[-1], f"client {len(asked)}")
        service.step()
        steps += 1
        if steps > 100 * (n + sum(map(len, ask["prompts"]))):
            raise ValueError(f"after {steps} steps somebody still waits")
    tokens: list[int] = []
    for request in asked:
        sent = b"".join(service.events(request, lambda token: b"%d " % token))
        bodies = [block.partition(b"data: ")[2] for block in sent.split(b"\n\n")[:-2]]  # without [DONE]
        tokens += [int(word) for body in bodies for word in json.loads(body).get("text", "").split()]
    run = {"tokens": tokens, "seconds": perf_counter() - began, "steps": steps}
    return {**run, "drafted": 0, "accepted": 0}


def _in_words(engine: ModuleType) -> dict[str, Any]:
    """A message to a tokenizer with a few merges, and its text back; no pass of the model is run."""
    merges = ["h e", "l l", "he ll", "hell o", "\u0120 hello"]
    letters = engine.byte_alphabet()
    tokens = [*letters, *(pair.replace(" ", "") for pair in merges), "<|im_start|>", "<|im_end|>"]
    words = engine.Words(tokens, merges, {"<|im_start|>": len(tokens) - 2, "<|im_end|>": len(tokens) - 1})
    began = perf_counter()
    said = "hello <|im_end|> hello \u00e9"
    ids = engine.encode_chat(words, [("user", said)])
    whole = f"<|im_start|>user\n{said}<|im_end|>\n<|im_start|>assistant\n"
    if words.decode(ids) != whole:
        raise ValueError(f"the text that came back is {words.decode(ids)!r}, expected {whole!r}")
    run = {"tokens": ids, "seconds": perf_counter() - began, "steps": len(ids)}
    return {**run, "drafted": 0, "accepted": 0}
