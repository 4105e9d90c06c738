"""What a pool has done so far, and what it holds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolStats:
    """Counts of a `SlotPool`, of all tenants together.

    Attributes
    ----------
    requests, hits : calls of `acquire`; those that found rows.
    rows_asked, rows_reused : tokens of all requests; those whose rows were found.
    rows_stored : rows that `release` and `store` had to copy: those of a shared prefix are there already.
    evictions : entries dropped for the budget of memory.
    too_large : texts that were not stored, since they alone would be above it.
    visits : nodes of the prefix tree that look-ups have compared with.
    entries, bytes, budget : texts in memory; what they take; what they may take.
    in_use : slots that are neither released nor discarded.
    spills, restores : entries written to disk; requests served from there.
    files, disk_bytes, disk_budget : of this model, in the folder.
    disk_errors, lost : texts that were not written: because of an error; because too many waited for a thread that writes.
    writing : bytes of rows that wait for it.
    """

    requests: int
    hits: int
    rows_asked: int
    rows_reused: int
    rows_stored: int
    evictions: int
    too_large: int
    visits: int
    entries: int
    bytes: int
    budget: int
    in_use: int
    spills: int = 0
    restores: int = 0
    files: int = 0
    disk_bytes: int = 0
    disk_budget: int = 0
    disk_errors: int = 0
    lost: int = 0
    writing: int = 0
