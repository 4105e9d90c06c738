"""The speed questions, asked of several sides in turn."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidOption
from .bandwidth import Bandwidth
from .duel import CAN_STOP, Neighbour, Side, Worker, wait_policy, workers

ROWS = tuple(range(1, 17))
STREAMS = (1, 2, 4, 8, 16)
LONG = 1024
_CAPACITY = 1280  # of a stream: the long context, decoded tokens, rows to verify
_TRIAL = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask.

    rounds : turns of every side.  steps : decoded tokens a turn.  contexts : positions before decode.
    prefills : prompt lengths.  verify : contexts for the cost of k rows; () for none.  streams : numbers of
    streams in lockstep.  busy : also beside one busy process.
    """

    rounds: int = 7
    steps: int = 48
    contexts: tuple[int, ...] = (8, LONG)
    prefills: tuple[int, ...] = (128, 512)
    verify: tuple[int, ...] = (64, LONG)
    rows: tuple[int, ...] = ROWS
    streams: tuple[int, ...] = STREAMS
    busy: bool = False

    def asks(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(key in the results, question, arguments) in the order in which they are asked."""
        out: list[tuple[str, str, dict[str, Any]]] = []
        for c in self.contexts:
            out.append((f"decode/{c}", "decode", {"context": c, "steps": self.steps, "capacity": _CAPACITY}))
        for n in self.prefills:
            repeats = 2 if n <= 128 else 1
            out.append((f"prefill/{n}", "prefill", {"tokens": n, "repeats": repeats, "capacity": _CAPACITY}))
        for c in self.verify:
            ask = {"context": c, "rows": list(self.rows), "repeats": 3, "capacity": _CAPACITY}
            out.append((f"verify/{c}", "verify", ask))
        for n in self.streams:
            out.append((f"streams/{n}", "streams", {"count": n, "context": 64, "steps": 16, "capacity": 256}))
        return out


def choose_settings(worker: Worker, windowed: bool) -> dict[str, Any]:
    """Try llama.cpp's attention settings for decode and for prefill, keep the faster, and return all times."""
    tried: dict[str, Any] = {}
    asks = {
        "decode": ("decode", {"context": LONG, "steps": 16, "capacity": _CAPACITY}),
        "prefill": ("prefill", {"tokens": 256, "repeats": 1, "capacity": _CAPACITY}),
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


def describe(running: dict[str, Worker]) -> dict[str, Any]:
    """What each side is; peers get the sizes of the file that they share with a side of ours."""
    out = {}
    for label, worker in running.items():
        path = Path(worker.side.path)
        out[label] = {**worker.ask("describe"), "file": path.name, "file_bytes": path.stat().st_size}
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
    say : told about progress.

    Returns
    -------
    {"settings", "sides", "bandwidth", "samples"}: samples[label][key][turn] is what the worker answered.
    """
    if plan.busy and not CAN_STOP:
        raise InvalidOption("a busy neighbour needs a system that can stop processes (SIGSTOP); this one cannot")
    bandwidth = Bandwidth(threads)
    samples: dict[str, dict[str, list[Any]]] = {s.label: {} for s in sides}
    read: list[float] = []
    with workers(sides) as running, contextlib.ExitStack() as stack:
        tried = {}
        for label, worker in running.items():
            if worker.side.kind == "llama.cpp":
                say(f"trying settings of {label}")
                tried[label] = choose_settings(worker, windowed)
        described = describe(running)
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
