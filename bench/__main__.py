"""python -m bench: measure everything, or a part of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

from fucina.errors import FucinaError, ModelNotFound, PeerNotFound
from fucina.measure import results, speed, start
from fucina.measure.duel import find_peer
from fucina.ops.native.cores import default_threads

from . import accuracy, report
from .models import MODELS, BenchModel, path_of, sides
from .records import own_file

SECTIONS = ("speed", "busy", "start", "accuracy")
_CORE = ("decode", "prefill")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="python -m bench", description="Measure fucina and llama.cpp in turn on this machine."
    )
    p.add_argument("sections", nargs="*", metavar="section", help=f"of {', '.join(SECTIONS)}; all by default")
    p.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS), help="all by default")
    p.add_argument("--quick", action="store_true", help="fewer turns; not stored unless --output is given")
    p.add_argument("--rounds", type=int, help="turns of every side (speed 7, busy 9)")
    p.add_argument("--threads", type=int, help="for all sides; the physical cores by default")
    p.add_argument("--backend", choices=("native", "naive"), default="native", help="of fucina")
    p.add_argument("--peer-python", help="a Python that has llama_cpp (default FUCINA_LLAMA_PYTHON, then this one)")
    p.add_argument("--alone", action="store_true", help="without llama.cpp")
    p.add_argument("--output", type=Path, help="file of results to update (default bench/results/MACHINE.json)")
    p.add_argument("--report", action="store_true", help="only write docs/performance.md and its figures again")
    a = p.parse_args(argv)
    if unknown := [s for s in a.sections if s not in SECTIONS]:
        p.error(f"no section {unknown[0]!r}; there are {', '.join(SECTIONS)}")
    return a


def command(a: argparse.Namespace, section: str, model: str) -> str:
    """The command that measures one record again, without paths of this machine."""
    parts = ["python -m bench", section, "--models", model, "--threads", str(a.threads)]
    parts += ["--quick"] if a.quick else []
    parts += ["--rounds", str(a.rounds)] if a.rounds else []
    parts += ["--backend", a.backend] if a.backend != "native" else []
    parts += ["--alone"] if a.alone else []
    return " ".join(parts)


def _only(label: str, key: str) -> bool:
    """The costs of k rows and of streams are not asked of our second format: they follow from the first."""
    return key.partition("/")[0] in _CORE or not label.startswith("fucina Q4_0")


def measure(section: str, model: BenchModel, a: argparse.Namespace, peer: str | None, say: Any) -> dict[str, Any]:
    """One record."""
    if section == "accuracy":
        if peer is None:
            raise PeerNotFound("accuracy is measured against llama.cpp as well")
        texts, tokens = (3, 48) if a.quick else (None, 168)
        return accuracy.run(model.name, path_of(model), a.threads, peer, texts, tokens, say=say)
    contestants = sides(model, a.threads, peer, a.backend)
    if section == "start":
        rounds, cold = (2, 1) if a.quick else (5, 2)
        first = [s for s in contestants if model.format in s.label]
        return start.run(first, a.threads, a.rounds or rounds, cold, say=say)
    if section == "busy":
        plan = speed.Plan(a.rounds or (3 if a.quick else 9), 48, (8,), (128,), (), (), (), busy=True)
        contestants = [s for s in contestants if model.format in s.label]
    elif a.quick:
        plan = speed.Plan(a.rounds or 3, 24, rows=(1, 2, 4, 8, 16), verify=(64,), streams=(1, 4, 8))
    else:
        plan = speed.Plan(a.rounds or 7)
    return speed.run(contestants, plan, a.threads, model.windowed, _only, say)


def main(argv: list[str] | None = None) -> int:
    """Exit code 0, 1 if something could not be measured."""
    a = arguments(argv)
    if a.report:
        report.write()
        return 0
    a.threads = a.threads or default_threads()
    began, failed = perf_counter(), 0

    def say(text: str) -> None:
        print(f"[{perf_counter() - began:6.0f} s] {text}", file=sys.stderr, flush=True)

    peer = None
    if not a.alone:
        try:
            peer = find_peer(a.peer_python)
        except PeerNotFound as error:
            say(f"measuring fucina alone: {error}")
            a.alone = True
    output = a.output or (None if a.quick else own_file())
    for name in a.models:
        model = MODELS[name]
        for section in a.sections or SECTIONS:
            say(f"{section} of {name}")
            try:
                record = measure(section, model, a, peer, lambda text, at=f"{name} {section}": say(f"{at}: {text}"))
            except (ModelNotFound, PeerNotFound) as error:
                say(f"skipped: {error}")
                continue
            except FucinaError as error:
                say(f"failed: {error}")
                failed = 1
                continue
            record = {"stamp": results.stamp(command(a, section, name)), **record}
            if output:
                results.store(output, f"{section}/{name}", record)
            print(report.plain(f"{section}/{name}", results.rounded(record)), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
