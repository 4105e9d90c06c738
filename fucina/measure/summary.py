"""Numbers that follow from a record of speed: rates, costs, shares of the bandwidth, and ratios pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .results import Spread, costs, pair_ratios, rates


def question(key: str) -> str:
    """What a key asks for: "decode/8" and "decode/8/busy" are "decode"."""
    return key.split("/", maxsplit=1)[0]


def number(key: str) -> int:
    """Its number: context, prompt length or streams."""
    return int(key.split("/")[1])


def title(key: str) -> str:
    """A key in words."""
    n = number(key)
    text = {
        "decode": f"decode at {n} tokens of context",
        "prefill": f"prefill of {n} tokens",
        "streams": f"{n} stream{'s' if n > 1 else ''} in lockstep",
        "verify": f"pass of k rows at {n} tokens of context",
    }[question(key)]
    return text + (", beside a busy process" if key.endswith("/busy") else "")


def turn_rates(key: str, turns: Sequence[Any]) -> list[float]:
    """Tokens per second of each turn of a question."""
    tokens = number(key) if question(key) in ("prefill", "streams") else 1
    return rates(turns, tokens)


def bytes_read(key: str, side: dict[str, Any]) -> int | None:
    """Bytes that one pass cannot avoid reading: weights once, and each stream's cache as far as its window sees.

    None where the record does not hold the size of the weights.
    """
    if "weight_bytes" not in side:
        return None
    weights, context, streams = side["weight_bytes"], number(key), 1
    if question(key) == "prefill":
        return weights
    if question(key) == "streams":
        context, streams = 64, number(key)
    return weights + streams * sum(
        layers * size * min(context, window or context) for layers, size, window in side["kv_reads"]
    )


def shares(key: str, turns: Sequence[Any], side: dict[str, Any], bandwidth: Sequence[float]) -> list[float] | None:
    """Bytes read per second over the machine's bandwidth in the same turn."""
    size = bytes_read(key, side)
    if size is None:
        return None
    return [size * len(t) / sum(t) / b for t, b in zip(turns, bandwidth, strict=True)]


def pairs(record: dict[str, Any]) -> list[tuple[str, str]]:
    """(ours, theirs) whose ratio is worth a number: the first side against every peer, and equals in file."""
    sides = record["sides"]
    ours = [label for label, s in sides.items() if s["engine"] == "fucina"]
    theirs = [label for label, s in sides.items() if s["engine"] != "fucina"]
    return [(o, t) for o in ours for t in theirs if o == ours[0] or sides[o]["file"] == sides[t]["file"]]


@dataclass(frozen=True, slots=True)
class Line:
    """One question: tokens per second and share of the bandwidth by side, ratios by pair."""

    key: str
    rates: dict[str, Spread]
    shares: dict[str, Spread]
    ratios: dict[tuple[str, str], Spread]


def lines(record: dict[str, Any]) -> list[Line]:
    """Every question that is answered in tokens per second, in the order in which it was asked."""
    samples, sides = record["samples"], record["sides"]
    keys = dict.fromkeys(k for s in samples.values() for k in s if question(k) != "verify")
    out = []
    for key in keys:
        by_turn = {label: turn_rates(key, s[key]) for label, s in samples.items() if key in s}
        share = {label: shares(key, samples[label][key], sides[label], record["bandwidth"]) for label in by_turn}
        out.append(
            Line(
                key,
                {label: Spread.of(v) for label, v in by_turn.items()},
                {label: Spread.of(v) for label, v in share.items() if v},
                {
                    (o, t): Spread.of(pair_ratios(by_turn[o], by_turn[t]))
                    for o, t in pairs(record)
                    if {o, t} <= set(by_turn)
                },
            )
        )
    return out


@dataclass(frozen=True, slots=True)
class CostLine:
    """The cost of passes of k rows at one context: C(k) and milliseconds by side, speed ratios by pair."""

    key: str
    cost: dict[str, dict[int, Spread]]
    milliseconds: dict[str, dict[int, Spread]]
    ratios: dict[tuple[str, str], dict[int, Spread]]


def cost_lines(record: dict[str, Any]) -> list[CostLine]:
    """One entry per context at which passes of several rows were measured."""
    samples = record["samples"]
    out = []
    for key in dict.fromkeys(k for s in samples.values() for k in s if question(k) == "verify"):
        turns = {label: s[key] for label, s in samples.items() if key in s}
        rows = sorted(int(k) for k in next(iter(turns.values()))[0])
        times = {label: {k: [t[str(k)] for t in v] for k in rows} for label, v in turns.items()}
        out.append(
            CostLine(
                key,
                {label: costs(v) for label, v in turns.items()},
                {label: {k: Spread.of([1e3 * s for s in v]) for k, v in t.items()} for label, t in times.items()},
                {
                    (o, t): {k: Spread.of(pair_ratios(times[t][k], times[o][k])) for k in rows}
                    for o, t in pairs(record)
                    if {o, t} <= set(times)
                },
            )
        )
    return out
