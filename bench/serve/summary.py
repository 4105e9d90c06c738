"""From answers to figures, and from figures to tables and a chart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fucina.measure.results import Spread, pair_ratios
from fucina.measure.tables import Table, spread

from .. import svg
from .client import Answer

LOADS = {
    "chat": "short chats",
    "shared": "questions under one long system message",
    "turns": "conversations of four turns",
    "json": "structured output, ten fields",
}
SHARES = (50, 95, 99)


def quantile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of all are not above; NaN of none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100), 1) - 1] if ordered else math.nan


def summary(answers: Sequence[Answer]) -> dict[str, Any]:
    """What a run gave: tokens per second from its first request to its last text, times in seconds."""
    good = [a for a in answers if a.ok]
    seconds = max((a.arrived[-1] for a in good), default=0.0) - min((a.begun for a in answers), default=0.0)
    tokens = sum(a.tokens for a in good)
    gaps = [gap for a in good for gap in a.gaps]
    return {
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "tokens": tokens,
        "rate": tokens / seconds if good else 0.0,
        "prompt": sum(a.prompt for a in good),
        "cached": sum(a.cached for a in good),
        "first": {str(p): quantile([a.first for a in good], p) for p in SHARES},
        "gap": {str(p): quantile(gaps, p) for p in SHARES},
    }


def tables(record: dict[str, Any]) -> list[tuple[str, Table]]:
    """(heading, table) of a record."""
    found = [(f"closed loop, {LOADS[load]}", _closed(by)) for load, by in record["closed"].items()]
    found += [(f"open loop, {LOADS[load]}", _opened(by)) for load, by in record["open"].items()]
    if record["join"]:
        found.append((f"a prompt of {record['settings']['long']} tokens joins four replies", _join(record["join"])))
    if record["peak"]:
        body = [[label, f"{peak / 2**20:.0f}"] for label, peak in record["peak"].items() if peak]
        found.append(("memory after all of it", (["", "MiB at most"], body)))
    return found


def _times(runs: Sequence[dict[str, Any]]) -> list[str]:
    cells = []
    for kind in ("first", "gap"):
        cells += [f"{1000 * Spread.of([run[kind][str(p)] for run in runs]).median:.0f}" for p in SHARES]
    return cells


_TIMES = [f"{name}, p{p}" for name in ("ms to the first token", "ms between tokens") for p in SHARES]


def _closed(by: dict[str, dict[str, list[dict[str, Any]]]]) -> Table:
    body = []
    for clients, sides in by.items():
        for label, runs in sides.items():
            rates = [run["rate"] for run in runs]
            first = next(iter(sides))
            ratio = (
                "" if label == first else spread(Spread.of(pair_ratios([r["rate"] for r in sides[first]], rates)), 2)
            )
            cached = sum(run["cached"] for run in runs) / max(sum(run["prompt"] for run in runs), 1)
            failed = sum(run["failed"] for run in runs)
            body.append([
                clients, label, spread(Spread.of(rates)), ratio, *_times(runs), f"{100 * cached:.0f} %", str(failed),
            ])  # fmt: skip
    return ["clients", "", "tokens per second", "the first one over it", *_TIMES, "prompt cached", "failed"], body


def _opened(by: dict[str, dict[str, dict[str, Any]]]) -> Table:
    body = []
    for rate, sides in by.items():
        for label, run in sides.items():
            body.append([rate, label, f"{run['rate']:.0f}", *_times([run]), str(run["failed"])])
    return ["requests per second", "", "tokens per second", *_TIMES, "failed"], body


def _join(sides: dict[str, list[dict[str, float]]]) -> Table:
    header = [
        "",
        "ms between tokens before",
        "while it is computed",
        "times as long",
        "p95 while",
        "s to its first token",
    ]
    body = []
    for label, runs in sides.items():
        cells = [Spread.of([1000 * run[key] for run in runs]) for key in ("before", "during")]
        stretch = Spread.of([run["during"] / run["before"] for run in runs])
        rest = [Spread.of([1000 * run["during95"] for run in runs]), Spread.of([run["first"] for run in runs])]
        body.append([label, *(spread(c, 1) for c in cells), spread(stretch, 2), spread(rest[0], 1), spread(rest[1], 2)])
    return header, body


def figure(record: dict[str, Any], title: str) -> str:
    """SVG: the 95th percentile of the time to the first token over the rate of requests."""
    by = next(iter(record["open"].values()))
    series: dict[str, list[tuple[float, float]]] = {}
    for rate, sides in by.items():
        for label, run in sides.items():
            series.setdefault(label, []).append((float(rate), 1000 * run["first"]["95"]))
    return svg.lines(title, series, "requests per second", "ms to the first token, 95th percentile")
