"""Results as JSON: samples with the machine and versions beside them, and the numbers that follow from samples.

A *record* is what one section of the benchmarks measured.  Samples are lists with one entry per turn; entry i of every
side belongs to the same turn, so that ratios are taken pair by pair.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..checks import shown
from ..errors import ResultsError
from ..replacing import replacing
from .machine import describe_machine, describe_versions

SCHEMA = 1
_STAMP = {"date": str, "command": str, "machine": dict, "versions": dict}


@dataclass(frozen=True, slots=True)
class Spread:
    """Median of some turns, with their extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        if not values:
            raise ResultsError("a spread needs at least one value, got none")
        return cls(statistics.median(values), min(values), max(values))


def rates(turns: Sequence[Sequence[float]], tokens: int) -> list[float]:
    """Tokens per second of each turn: all its tokens over all its time, so that a slow pass counts.

    turns : seconds of each pass of each turn.  tokens : that every pass handled.
    """
    return [tokens * len(t) / sum(t) for t in turns]


def pair_ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """ours / theirs, turn by turn."""
    if len(ours) != len(theirs):
        raise ResultsError(f"pairs need as many turns on both sides, got {len(ours)} and {len(theirs)}")
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def costs(turns: Sequence[dict[str, float]]) -> dict[int, Spread]:
    """C(k): seconds of a pass of k rows over those of a pass of one row, in the same turn."""
    rows = sorted(int(k) for k in turns[0])
    return {k: Spread.of([t[str(k)] / t["1"] for t in turns]) for k in rows}


def rounded(value: Any) -> Any:
    """Seconds to the tenth of a microsecond, everywhere in a structure: more digits are noise and make files large."""
    if isinstance(value, float):
        return round(value, 7)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, (list, tuple)) else value


def stamp(command: str) -> dict[str, Any]:
    """When, how, on what and with which versions: stored with every record."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%MZ"),
        "command": command,
        "machine": describe_machine(),
        "versions": describe_versions(),
    }


def check(results: Any) -> dict[str, Any]:
    """The results, if they have the shape that this version writes.

    Raises
    ------
    ResultsError : naming what is missing.
    """
    if not isinstance(results, dict) or results.get("schema") != SCHEMA:
        raise ResultsError(f"expected results of schema {SCHEMA}")
    records = results.get("records")
    if not isinstance(records, dict):
        raise ResultsError('expected an object "records"')
    for name, record in records.items():
        head = record.get("stamp") if isinstance(record, dict) else None
        if not isinstance(head, dict):
            raise ResultsError(f'record {name!r} has no "stamp"')
        for key, kind in _STAMP.items():
            if not isinstance(head.get(key), kind):
                found = shown(head.get(key))
                raise ResultsError(f"record {name!r}: stamp.{key} must be a {kind.__name__}, got {found}")
    return results


def read(path: Path) -> dict[str, Any]:
    """Results of a file, checked; raises ResultsError if it holds something else."""
    try:
        return check(json.loads(path.read_text(encoding="utf-8")))
    except (json.JSONDecodeError, ResultsError) as error:
        raise ResultsError(f"{path.name}: {error}") from error


def store(path: Path, name: str, record: dict[str, Any]) -> None:
    """Put a record into a file of results, in the place of an older one of the same name."""
    results: dict[str, Any] = read(path) if path.exists() else {"schema": SCHEMA, "records": {}}
    results["records"][name] = rounded(record)
    results["records"] = dict(sorted(results["records"].items()))
    check(results)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        part.write_text(_compact(results), encoding="utf-8")


def _compact(results: dict[str, Any]) -> str:
    """Indented JSON with lists of numbers on one line."""

    def write(value: Any, indent: str) -> str:
        if isinstance(value, dict) and value:
            inner = indent + " "
            body = ",\n".join(f"{inner}{json.dumps(k)}: {write(v, inner)}" for k, v in value.items())
            return "{\n" + body + f"\n{indent}}}"
        if isinstance(value, list) and any(isinstance(v, (list, dict)) for v in value):
            inner = indent + " "
            return "[\n" + ",\n".join(inner + json.dumps(v) for v in value) + f"\n{indent}]"
        return json.dumps(value)

    return write(results, "") + "\n"
