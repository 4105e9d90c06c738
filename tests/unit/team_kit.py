"""Programs that count what a thread team runs, and delays at the delicate points of its protocol."""

from __future__ import annotations

import faulthandler
import os

import numpy as np
import pytest

from fucina.kernels import record as R
from fucina.kernels.memory import aligned
from fucina.kernels.record import COLS, HOST
from fucina.ops.native.clib import system_calls
from fucina.ops.native.program import build
from fucina.ops.native.schedule import Address, Partition, Record, Schedule, Value
from fucina.ops.native.spaces import PASS
from fucina.ops.native.team import Team

from .native_kernels import HOOK_LINE, kernel

LONG = float(os.environ.get("FUCINA_STRESS", "1"))  # how many times as long the stress tests run
MAX_ROWS = 4


@pytest.fixture(autouse=True)
def watchdog():
    """A deadlock ends the run with every thread's traceback instead of hanging."""
    faulthandler.dump_traceback_later(120 + 60 * LONG, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


class Delays:
    """Random delays at the protocol's delicate points."""

    def __init__(self, threads: int, seed: int, mask: int, one_in: int, pauses: int) -> None:
        self.words = aligned(threads * HOOK_LINE).view(np.int64).reshape(threads, -1)
        self.words[:, 0] = np.arange(threads) * 7919 + seed * 104729 + 1
        self.words[:, 2:6] = mask, one_in, max(1, pauses), system_calls().yield_slice
        self.hook = kernel("delay").address, self.words.ctypes.data

    @property
    def calls(self) -> int:
        return int(self.words[:, 1].sum())


class Rows:
    """A row table of m rows, for kernels that look at none of it."""

    def __init__(self) -> None:
        self.table = np.zeros((MAX_ROWS, R.ROW_WORDS), np.int64)

    def run(self, team: Team, m: int = 1, n_out: int = 1, context=None) -> None:
        team.run({R.M: m, R.ROW_TABLE: self.table.ctypes.data, R.N_OUT: n_out}, context)


def counting_program(steps: list[tuple[int, int, bool]], pauses: int = 0, hosts: dict | None = None):
    """A program of (units, nanoseconds, side by side with the one before) steps that count how often each unit ran."""
    schedule, values = Schedule(), []
    counters = np.zeros((len(steps), 256), np.int64)
    before: list[Value] = []
    current: list[Value] = []
    for i, (units, time_ns, beside) in enumerate(steps):
        if not beside:
            before, current = current, []
        out = Value(f"v{i}", units * 8, PASS, 64)
        record = Record("count", [counters[i].ctypes.data, pauses], whole=before, writes=[out])
        # a column chain of `units` units; cost chosen so that the planner sees `time_ns`
        record.cost = max(1, time_ns * 100 // (4 * 8 * units)) if time_ns else 0
        schedule.add(record, Partition(COLS, units * 8), 8)
        values.append(out)
        current.append(out)
        if hosts and i in hosts:
            host = Value(f"h{i}", 8, PASS, 64)
            function = hosts[i]
            schedule.add(
                Record("host", [Address(host)], whole=current, writes=[host], host=lambda a, c, f=function: f(c)),
                Partition(HOST, 1),
            )
            values.append(host)
            before, current = [], [host]
    return build(schedule, values, lambda name: kernel(name).address), counters


def zeros(_context=None) -> np.ndarray:
    return np.zeros((1, 8), np.float32)
