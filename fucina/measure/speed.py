"""The speed questions, asked of several sides in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import InvalidOption
from ..gguf import GgufFile
from .bandwidth import Bandwidth
from .duel import CAN_STOP, Neighbour, Side, Worker, wait_policy, workers

ROWS = tuple(range(1, 17))
STREAMS = (1, 2, 4, 8, 16)
LONG = 1024
_TRIAL = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask.

    rounds : turns of every side.  steps : decoded tokens per turn.  contexts : positions before decode.
    prefills : prompt lengths.  verify : contexts for the cost of k rows; () for none.  streams : numbers of
    streams in lockstep.  capacity : of a stream.  bandwidth_bytes : read to measure bandwidth.
    busy : also beside one busy process.
    """

    rounds: int = 7
    steps: int = 48
    contexts: tuple[int, ...] = (8, LONG)
    prefills: tuple[int, ...] = (128, 512)
    verify: tuple[int, ...] = (64, LONG)
    rows: tuple[int, ...] = ROWS
    streams: tuple[int, ...] = STREAMS
    capacity: int = 1280  # the longest context, decoded tokens, rows to verify
    bandwidth_bytes: int = 512 << 20
    busy: bool = False

    def asks(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(key in the results, question, arguments) in the order in which they are asked."""
        out: list[tuple[str, str, dict[str, Any]]] = []
        for c in self.contexts:
            out.append((f"decode/{c}", "decode", {"context": c, "steps": self.steps, "capacity": self.capacity}))
        for n in self.prefills:
            repeats = 2 if n <= 128 else 1
            out.append((f"prefill/{n}", "prefill", {"tokens": n, "repeats": repeats, "capacity": self.capacity}))
        for c in self.verify:
            ask = {"context": c, "rows": list(self.rows), "repeats": 3, "capacity": self.capacity}
            out.append((f"verify/{c}", "verify", ask))
        for n in self.streams:
            out.append(
                (
                    f"streams/{n}",
                    "streams",
                    {"count": n, "context": 64, "steps": 16, "capacity": min(256, self.capacity)},
                )
            )
        return out


def plan_for(path: str, quick: bool, rounds: int, verify: bool, streams: bool) -> tuple[Plan, bool]:
    """What `fucina bench` asks of a model, as far as its context goes, and whether the model has sliding windows.

    verify, streams : ask only these instead of decode and prefill.
    """
    file = GgufFile(path)
    arch = file.metadata.str("general.architecture")
    context = file.metadata.int(f"{arch}.context_length")
    windowed = f"{arch}.attention.sliding_window" in file.metadata
    file.close()
    plan = Plan(2 if quick else rounds, 16 if quick else 48, verify=(), streams=())
    if context < plan.capacity:
        plan = replace(plan, contexts=(8,), prefills=tuple(n for n in plan.prefills if n <= context), capacity=context)
    if verify:
        fits = tuple(c for c in Plan().verify[: 1 if quick else None] if c + max(ROWS) <= plan.capacity)
        plan = replace(plan, contexts=(), prefills=(), verify=fits)
    if streams:
        plan = replace(plan, contexts=(), prefills=(), streams=STREAMS[:4] if quick else STREAMS)
    return plan, windowed


def choose_settings(worker: Worker, plan: Plan, windowed: bool) -> dict[str, Any]:
    """Try llama.cpp's attention settings for decode and for prefill, keep the faster, and return all times."""
    tried: dict[str, Any] = {}
    asks = {
        "decode": (
            "decode",
            {"context": max(plan.contexts or plan.verify or (64,)), "steps": 16, "capacity": plan.capacity},
        ),
        "prefill": ("prefill", {"tokens": min(256, plan.capacity), "repeats": 1, "capacity": plan.capacity}),
    }
    caches = (True, False) if windowed else (True,)
    candidates = [{"flash_attention": f, "full_window_cache": c} for f in (True, False) for c in caches]
    for use, (question, arguments) in asks.items():
        times: list[list[float]] = [[] for _ in candidates]
        for _ in range(_TRIAL):
            for settings, seconds in zip(candidates, times, strict=True):
                worker.ask("configure", use=use, settings=settings)
                passes = worker.ask(question, **arguments)
                seconds.append(sum(passes) / len(passes))
        best = min(range(len(candidates)), key=lambda i: min(times[i]))
        worker.ask("configure", use=use, settings=candidates[best])
        worker.ask("forget")
        tried[use] = [{**c, "seconds": t} for c, t in zip(candidates, times, strict=True)]
    return tried


def describe(running: Sequence[Worker]) -> dict[str, Any]:
    """What each side is; peers get the sizes of the file that they share with a side of ours."""
    out = {}
    for worker in running:
        path = Path(worker.side.path)
        out[worker.side.label] = {**worker.ask("describe"), "file": path.name, "file_bytes": path.stat().st_size}
    sizes = {s["file"]: {k: s[k] for k in ("weight_bytes", "kv_reads")} for s in out.values() if "weight_bytes" in s}
    return {label: {**sizes.get(s["file"], {}), **s} for label, s in out.items()}


def run(
    sides: Sequence[Side],
    plan: Plan,
    threads: int,
    windowed: bool = False,
    only: Callable[[str, str], bool] = lambda label, key: True,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Ask every side everything in turn: A B, then B A, and so on.

    Parameters
    ----------
    sides : the contestants; ratios are later taken against the first.
    plan : what to ask.
    threads : that all sides use; for the measured bandwidth.
    windowed : the model has sliding windows, for which llama.cpp has a setting of its own.
    only : (label, key) -> whether this side is asked that.
    say : called with lines about the progress.

    Returns
    -------
    {"settings", "sides", "bandwidth", "samples"}: samples[label][key][turn] is what the worker answered.
    """
    if plan.busy and not CAN_STOP:
        raise InvalidOption("a busy neighbour needs a system that can stop processes (SIGSTOP); this one cannot")
    bandwidth = Bandwidth(threads, plan.bandwidth_bytes)
    samples: dict[str, dict[str, list[Any]]] = {s.label: {} for s in sides}
    read: list[float] = []
    with workers(sides) as running, contextlib.ExitStack() as stack:
        tried = {}
        for label, worker in running.items():
            if worker.side.kind == "llama.cpp":
                say(f"trying settings of {label}")
                tried[label] = choose_settings(worker, plan, windowed)
        described = describe(list(running.values()))
        neighbour = Neighbour() if plan.busy else None
        if neighbour:
            stack.callback(neighbour.close)
        for turn in range(plan.rounds):
            say(f"turn {turn + 1} of {plan.rounds}")
            read.append(bandwidth.measure())
            order = list(running) if turn % 2 == 0 else list(running)[::-1]
            for key, question, arguments in plan.asks():
                for label in order:
                    if only(label, key):
                        samples[label].setdefault(key, []).append(running[label].ask(question, **arguments))
                if neighbour:
                    for label in order:
                        with neighbour.busy():
                            answer = running[label].ask(question, **arguments)
                        samples[label].setdefault(f"{key}/busy", []).append(answer)
    settings = {
        "threads": threads,
        "rounds": plan.rounds,
        "others_stopped": CAN_STOP,
        "omp_wait_policy": wait_policy(),
        "kv": "f16",
        "tried": tried,
    }
    return {"settings": settings, "sides": described, "bandwidth": read, "samples": samples}
