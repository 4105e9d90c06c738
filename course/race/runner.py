"""The process of one contestant: the learner's engine, or ours.  Started by `course.race.sides`.

It answers questions, JSON lines in and out, as `fucina.measure.worker` does.  The learner's code has limits here: time
and memory are watched, what it prints goes nowhere, and whatever it raises is an answer.
"""

from __future__ import annotations

import io
import json
import linecache
import os
import sys
import threading
import traceback
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, TextIO

import fucina
from course.grading.learner import show_line
from course.grading.limits import Watchdog
from course.grading.tools import describe
from course.race import cases


class Yours:
    """Runs my_engine.py, and variants of it, under limits.

    Parameters
    ----------
    path : of the model.
    options : "cpu_seconds", "wall_seconds", "memory_mb": of one run.
    """

    def __init__(self, path: str, options: dict[str, Any], out: TextIO) -> None:
        self.path, self.options, self.out = path, options, out
        self.engines: dict[str, ModuleType] = {}
        self.models: dict[tuple[str, str], Any] = {}
        self.prompts: dict[str, dict[Any, Any]] = {}
        self.compiled: Any = None
        self.file = ""
        self.thread = threading.get_ident()
        self.watchdog = Watchdog(self.stopped)

    def stopped(self, kind: str) -> None:
        """Called by the watchdog's thread: answer where the engine is, and end the process."""
        frame = sys._current_frames().get(self.thread)
        while frame is not None and frame.f_code.co_filename != self.file:
            frame = frame.f_back
        line = frame.f_lineno if frame is not None else 0
        limit = {"time": f"{self.options['cpu_seconds']:g} seconds", "memory": f"{self.options['memory_mb']} MB"}[kind]
        text = show_line(linecache.getline(self.file, line))
        failed = {"message": f"needs more than {limit}, at `{text}`", "lines": [line], "stopped": True}
        self.out.write(json.dumps({"answer": {"failed": failed}}) + "\n")
        self.out.flush()
        os._exit(3)

    def run(self, engine: str, forward: str, fresh: bool = False, **ask: Any) -> dict[str, Any]:
        """One run of the engine in the file `engine`; `fresh`: its reading of the model's file is to run as well."""
        self.file = engine
        o = self.options
        self.watchdog.arm(o["cpu_seconds"], o["wall_seconds"], o["memory_mb"] << 20)
        try:
            module = self._engine(engine)
            model = self._model(module, engine, forward, fresh)
            return {} if ask["how"] == "load" else cases.run(module, model, self.prompts.setdefault(engine, {}), ask)
        except BaseException as error:
            trace = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in reversed(trace) if frame.filename == engine and frame.lineno]
            at = f", at `{show_line(linecache.getline(engine, lines[0]))}`" if lines else ""
            return {"failed": {"message": f"raises {describe(error)}{at}", "lines": lines, "stopped": False}}
        finally:
            self.watchdog.disarm()

    def _engine(self, path: str) -> ModuleType:
        if path not in self.engines:
            module = ModuleType(f"my_engine_{len(self.engines)}")
            module.__file__ = path
            sys.modules[module.__name__] = module
            text = Path(path).read_text("utf-8")
            exec(compile(text, path, "exec"), module.__dict__)
            self.engines[path] = module
        return self.engines[path]

    def _model(self, module: ModuleType, engine: str, forward: str, fresh: bool) -> Any:
        key = engine, forward
        if key in self.models:
            return self.models[key]
        if forward == "fucina":
            if self.compiled is None:
                self.compiled = fucina.load(self.path)
            model = module.CompiledModel(self.compiled)
        else:
            known = next((m for (_, f), m in self.models.items() if f == forward), None)
            if known is None or fresh:
                model = module.NumPyModel(self.path)
            else:  # the same weights under another engine's functions
                model = module.NumPyModel.__new__(module.NumPyModel)
                model.__dict__.update(known.__dict__)
        if not fresh:
            self.models[key] = model
        return model


class Ours:
    """Runs our engine: what the learner's tokens and times are compared with."""

    def __init__(self, path: str, options: dict[str, Any], out: TextIO) -> None:
        self.path = path
        self.model = fucina.load(path)

    def run(self, ids: list[int], n: int, how: str) -> dict[str, Any]:
        """Decode n tokens; `how` is "plain" or "drafts"."""
        out = self.model.generate(ids, max_tokens=n, ignore_eos=True, speculative=how == "drafts")
        stats = out.speculation
        return {
            "tokens": out.tokens,
            "seconds": n / out.decode_rate if out.decode_rate else out.decode_seconds,
            "steps": stats.steps + 1 if stats else n,  # the first token comes from the prompt's last row
            "drafted": stats.drafted if stats else 0,
            "accepted": stats.accepted if stats else 0,
        }

    def sampled(self, ids: list[int], n: int, sampling: dict[str, Any], banned: list[int]) -> list[int]:
        """Tokens of our sampler with the same settings."""
        words = {"repeat": "repeat_penalty", "frequency": "frequency_penalty", "presence": "presence_penalty"}
        options = {words.get(name, name): value for name, value in sampling.items()}
        return self.model.generate(ids, max_tokens=n, ignore_eos=True, processor=_Ban(banned), **options).tokens

    def exact(self, ids: list[int], n: int) -> dict[str, list[Any]]:
        """Greedy tokens of the float32 reference, each with its lead over the second best logit."""
        model = fucina.load(self.path, backend="naive", cache_dtype="f32")
        cache = model.new_cache(len(ids) + n)
        tokens: list[int] = []
        leads: list[float] = []
        fed = list(ids)
        for _ in range(n):
            row = model.forward_rows([(cache, fed, "last")])[0][-1, : model.n_tokens]
            best = row.argsort()[-2:]
            tokens.append(int(row.argmax()))
            leads.append(float(row[best[1]] - row[best[0]]))
            fed = tokens[-1:]
        model.close()
        return {"tokens": tokens, "leads": leads}


class _Ban:
    """A processor that forbids tokens."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    def process(self, logits: Any, history: Any) -> None:
        logits[self.tokens] = -float("inf")

    def commit(self, token: int) -> None:
        pass

    def reset(self) -> None:
        pass


def main() -> None:
    """argv: "yours" or "ours", path of the model, options as JSON."""
    kind, path, options = sys.argv[1:4]
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8")
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")  # whatever the code prints must not enter the protocol
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdin, sys.stdout = io.StringIO(""), io.StringIO()
    began = perf_counter()
    side = (Yours if kind == "yours" else Ours)(path, json.loads(options), out)
    out.write(json.dumps({"answer": perf_counter() - began}) + "\n")
    out.flush()
    for line in lines:
        ask = json.loads(line)
        try:
            message = {"answer": getattr(side, ask.pop("ask"))(**ask)}
        except Exception as error:
            message = {"error": f"{type(error).__name__}: {error}"}
        out.write(json.dumps(message) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
