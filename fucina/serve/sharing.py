"""Prompts that begin alike and are there at the same time: what they share is computed once."""

from __future__ import annotations

from collections.abc import Sequence

from ..engine.drafts import common_prefix
from .jobs import Job
from .memory import Memory
from .running import Running

SHARED = 32
"""So many rows must be saved: fewer are computed in the pass that their request takes anyway."""


def leader_of(job: Job, running: Sequence[Running], memory: Memory) -> tuple[Running | None, int]:
    """Who of those that run has most of a prompt in common with a job, and how many rows: None where it saves too few.

    Only within a tenant; and only where the rows can be stored, now or when they are computed.  The last token of a
    prompt is always computed, since it gives the first logits.
    """
    ids, leader, common = job.request.ids, None, 0
    for other in running:
        if other.job.request.tenant == job.request.tenant:
            rows = min(common_prefix(ids, other.job.request.ids), len(ids) - 1)
            saved = rows - other.stream.reused  # the pool has the others
            if rows > common and saved >= SHARED and other.can_share(rows) and memory.can_store(rows):
                leader, common = other, rows
    return leader, common
