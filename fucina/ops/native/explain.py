"""The recorded stages as text."""

from __future__ import annotations

from ...kernels.record import ATTENTION, COLS, HOST, ROWS
from .schedule import Chain, Record, Schedule
from .spaces import PASS


def summary(schedule: Schedule) -> dict[str, int]:
    """Counts: records, chains, steps, and the steps that threads share in a pass of one row."""
    chains = [c for step in schedule.steps for c in step]
    return {
        "records": sum(len(c.records) for c in chains),
        "chains": len(chains),
        "steps": len(schedule.steps),
        "shared": sum(any(_is_shared(c) for c in step) for step in schedule.steps),
    }


def _is_shared(chain: Chain) -> bool:
    """Whether threads divide a chain even when the pass has one row: it reads a matrix, or the cache."""
    if chain.partition.rule == ATTENTION:
        return True
    return chain.partition.rule == COLS and any(r.kernel.startswith("linear") for r in chain.records)


def explain(schedule: Schedule, threads: int) -> str:
    """One line per record, grouped in chains (|) and steps (numbered)."""
    count = summary(schedule)
    lines = [
        f"native interpreter: {count['records']} records in {count['chains']} chains in {count['steps']} steps",
        f"{count['shared']} steps are shared by {threads} threads in a pass of one row; the others are one chunk",
        "",
        "Chains of a step are independent.  Records of a chain run back to back on the units that a thread claims.",
        "",
        "step  units                    kernel                     cost/unit    reads -> writes",
    ]
    for index, step in enumerate(schedule.steps):
        for chain in step:
            for position, record in enumerate(chain.records):
                at = f"{index:4d}" if chain is step[0] and position == 0 else "    "
                units = _units(chain) if position == 0 else "  |"
                cost = "" if record.host else f"{record.cost * (chain.unit if chain.partition.rule == COLS else 1)}"
                lines.append(f"{at}  {units:<23}  {record.kernel:<25}  {cost:>11}  {_flow(record)}")
    return "\n".join(lines)


def _units(chain: Chain) -> str:
    space = chain.partition.space
    if chain.partition.rule == HOST:
        return "Python"
    if chain.partition.rule == COLS:
        return f"{chain.units} x {chain.unit} columns" + ("" if space == PASS else f" ({space.name}s)")
    if chain.partition.rule == ROWS:
        return f"{space.name}s" if chain.units == 1 else f"{space.name}s x {chain.units}"
    return f"{space.name}s x {chain.units} kv heads"


def _flow(record: Record) -> str:
    reads = [v.name for v in (*record.local, *record.whole)]
    if record.weight is not None:
        reads.append(f"{record.weight.name} [{' x '.join(map(str, record.weight.shape))}]")
    reads += record.uses
    return f"{', '.join(reads) or 'tokens'} -> {', '.join([*(v.name for v in record.writes), *record.changes])}"
