"""A process that holds one engine and answers questions: JSON lines in, JSON lines out.

Started by `duel.Worker`, in fucina's Python or in the one that holds llama.cpp.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, TextIO


def make_engine(kind: str, path: str, options: dict[str, Any]) -> Any:
    """The engine named "fucina" or "llama.cpp"; options are those of its class."""
    if kind == "fucina":
        from .ours import FucinaEngine

        return FucinaEngine(path, **options)
    from .llama_cpp import LlamaEngine

    return LlamaEngine(path, **options)


def answer(engine: Any, questions: Any, request: dict[str, Any]) -> Any:
    """Answer one request {"ask": name, …arguments}."""
    arguments = dict(request)
    name = arguments.pop("ask")
    if name in ("describe", "load", "configure", "tokenize", "quantize"):
        return getattr(engine, name)(**arguments)
    return getattr(questions, name)(**arguments)


def serve(kind: str, path: str, options: dict[str, Any], lines: TextIO, out: TextIO) -> None:
    """Load, report that, and answer until the input ends."""

    def say(message: dict[str, Any]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    from .questions import Questions

    try:
        engine = make_engine(kind, path, options)
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"answer": engine.load_seconds})
    questions = Questions(engine)
    for line in lines:
        try:
            say({"answer": answer(engine, questions, json.loads(line))})
        except Exception as error:
            traceback.print_exc()
            say({"error": f"{type(error).__name__}: {error}"})


def first_token(kind: str, path: str, options: dict[str, Any], prompt: str) -> None:
    """Load, read a prompt, print the text of the likeliest next token: the least work for an answer."""
    engine = make_engine(kind, path, options)
    ids = engine.tokenize(prompt)
    logits = engine.session("memory", 1024, 1).rows([(0, ids, "last")])
    print(engine.piece(int(logits[0].argmax())), flush=True)
    os._exit(0)


def main() -> None:
    """argv: kind, path, options as JSON, and for `first_token` a prompt."""
    kind, path, options, *prompt = sys.argv[1:]
    if prompt:
        first_token(kind, path, json.loads(options), prompt[0])
    private = os.fdopen(os.dup(1), "w", encoding="utf-8")  # whatever a library prints must not enter the protocol
    os.dup2(2, 1)
    serve(kind, path, json.loads(options), sys.stdin, private)
