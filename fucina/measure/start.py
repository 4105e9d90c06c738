"""Start-up: time from nothing to the first token, of the first compile and of loading, and peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import WorkerFailed
from .duel import ROOT, Side, Worker
from .speed import describe

PROMPT = "The capital of France is"


def generate_command(path: str, threads: int) -> list[str]:
    """`fucina generate` of a single token."""
    options = ["--max-tokens", "1", "--temperature", "0", "--threads", str(threads)]
    return [sys.executable, "-m", "fucina", "generate", "--model", path, PROMPT, *options]


def first_token(command: Sequence[str], environment: dict[str, str]) -> dict[str, float | None]:
    """Run a command that prints text: seconds until its first byte, until its end, and of CPU time.

    "cpu" counts user and system time of all threads; None where the system does not give it for one child.
    """
    with tempfile.TemporaryFile() as errors:
        start = perf_counter()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=ROOT
        )
        assert process.stdout is not None
        got = os.read(process.stdout.fileno(), 1)
        first = perf_counter() - start
        process.stdout.read()
        cpu: float | None = None
        if hasattr(os, "wait4"):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            cpu = usage.ru_utime + usage.ru_stime
        else:
            process.wait()
        end = perf_counter() - start
        process.stdout.close()
        if process.returncode or not got:
            errors.seek(0)
            tail = errors.read()[-1500:].decode("utf-8", "replace").strip()
            raise WorkerFailed(f"{' '.join(command[1:4])} ended with code {process.returncode}: {tail}")
    return {"first": first, "end": end, "cpu": cpu}


def cold_environment(folder: Path) -> dict[str, str]:
    """An environment in which no compiled kernel is found."""
    return {**os.environ, "FUCINA_CACHE_DIR": str(folder), "NUMBA_CACHE_DIR": str(folder)}


def run(
    sides: Sequence[Side],
    threads: int,
    rounds: int = 5,
    cold_rounds: int = 2,
    context: int = 1024,
    new: int = 64,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Measure start-up of every side, in turn, each time in a new process.

    Returns
    -------
    {"sides", "settings", "samples"}, samples[label] being {"first_token/warm": [{"first", "end", "cpu"}, …],
    "first_token/cold": the same, "load": [seconds, …], "memory": [bytes, …]}
    """
    samples: dict[str, dict[str, list[Any]]] = {s.label: {} for s in sides}

    described: dict[str, Any] = {}

    def warm(side: Side) -> tuple[list[str], dict[str, str]]:
        if side.kind == "fucina":
            return generate_command(side.path, threads), dict(os.environ)
        return side.command(PROMPT), side.environment()

    for side in sides:
        first_token(*warm(side))  # compiles what is missing, brings files into memory
    for turn in range(rounds):
        say(f"first token, turn {turn + 1} of {rounds}")
        for side in sides if turn % 2 == 0 else sides[::-1]:
            samples[side.label].setdefault("first_token/warm", []).append(first_token(*warm(side)))
    for side in sides:
        if side.kind != "fucina":
            continue
        for _ in range(cold_rounds):
            say("first token with no compiled kernels")
            with tempfile.TemporaryDirectory() as folder:
                answer = first_token(generate_command(side.path, threads), cold_environment(Path(folder)))
            samples[side.label].setdefault("first_token/cold", []).append(answer)
    for turn in range(max(1, rounds // 2)):
        say(f"load and memory, turn {turn + 1}")
        for side in sides if turn % 2 == 0 else sides[::-1]:
            options = {**side.options, "context": context} if side.kind == "fucina" else side.options
            worker = Worker(Side(side.label, side.kind, side.path, options, side.python))
            try:
                described |= describe([worker])
                samples[side.label].setdefault("memory", []).append(worker.ask("memory", context=context, new=new))
                samples[side.label].setdefault("load", []).extend(worker.ask("load", repeats=3))
            finally:
                worker.close()
    settings = {"threads": threads, "prompt": PROMPT, "context": context, "new_tokens": new}
    return {"settings": settings, "sides": described, "samples": samples}
