"""The thread team: every chunk exactly once, in order, whatever the operating system does to the threads."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from fucina.errors import EngineClosed
from fucina.kernels.record import COLS
from fucina.ops.native.program import build
from fucina.ops.native.schedule import Partition, Record, Schedule, Value
from fucina.ops.native.spaces import OUTPUT, PASS
from fucina.ops.native.team import Team

from .native_kernels import kernel
from .team_kit import Rows, counting_program, watchdog, zeros  # noqa: F401  (the watchdog is a fixture)

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_each_unit_runs_once(threads):
    steps = [
        (1, 0, False),
        (16, 10**5, False),
        (7, 10**5, False),
        (3, 10**5, True),
        (1, 10**5, False),
        (64, 10**6, False),
    ]
    program, counters = counting_program(steps)
    team, rows = Team(program, threads), Rows()
    for passes in range(1, 201):
        rows.run(team)
        for i, (units, _, _) in enumerate(steps):
            assert (counters[i, :units] == passes).all() and not counters[i, units:].any()
    team.close()


def test_rows_that_nobody_wants_cost_nothing():
    """A chain over output rows does not run when no row wants logits, and the pass still ends."""
    schedule = Schedule()
    counters = np.zeros((3, 256), np.int64)
    values = [Value(f"v{i}", 64, OUTPUT if i else PASS, 64) for i in range(3)]
    for i, v in enumerate(values):
        record = Record(
            "count", [counters[i].ctypes.data, 0], whole=values[i - 1 : i] if i else [], writes=[v], cost=10**6
        )
        schedule.add(record, Partition(COLS, 64, v.space), 8)
    program = build(schedule, values, lambda name: kernel(name).address)
    for threads in (1, 2):
        counters[:] = 0
        team, rows = Team(program, threads), Rows()
        rows.run(team, m=2, n_out=0)
        assert (counters[0, :8] == 1).all() and not counters[1:].any()
        rows.run(team, m=2, n_out=1)
        assert (counters[0, :8] == 2).all() and (counters[1:, :8] == 1).all()
        team.close()


# --- host stages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_host_stage_sees_a_resting_team(threads):
    steps = [(16, 10**5, False)] * 6
    seen = []
    program, counters = counting_program(steps, 0, {2: lambda c: (seen.append(counters[:, 0].copy()), zeros())[1]})
    team, rows = Team(program, threads), Rows()
    for passes in range(1, 51):
        rows.run(team)
        assert seen[-1].tolist() == [passes] * 3 + [passes - 1] * 3
    team.close()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_exception_in_a_host_stage_releases_the_team(threads, error):
    fail = [True]

    def host(context):
        if fail[0]:
            raise error("in the middle")
        return zeros()

    program, counters = counting_program([(16, 10**5, False)] * 4, 0, {1: host})
    team, rows = Team(program, threads), Rows()
    for attempt in range(20):
        fail[0] = True
        with pytest.raises(error, match="in the middle"):
            rows.run(team)
        fail[0] = False
        rows.run(team)
        assert (counters[:2, :16] == 2 * attempt + 2).all() and (counters[2:4, :16] == attempt + 1).all()
    team.close()


# --- life ----------------------------------------------------------------------------------------------------------


def _named_threads() -> int:
    return sum(t.name.startswith("fucina-") for t in threading.enumerate())


def _wait_until(condition, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return condition()


def test_close_ends_the_threads():
    before = _named_threads()
    program, _ = counting_program([(16, 10**5, False)])
    team, rows = Team(program, 3), Rows()
    assert _named_threads() == before  # none before the first pass
    rows.run(team)
    assert _named_threads() == before + 2
    time.sleep(0.05)  # asleep by now
    team.close()
    team.close()
    assert _named_threads() == before
    with pytest.raises(EngineClosed):
        rows.run(team)


def test_a_dropped_team_ends_its_threads():
    before = _named_threads()
    program, _ = counting_program([(16, 10**5, False)])
    for nap in (0.0, 0.05):
        team = Team(program, 3)
        Rows().run(team)
        time.sleep(nap)
        del team
        gc.collect()
        assert _wait_until(lambda: _named_threads() == before)


def test_idle_threads_do_not_burn_a_core():
    program, _ = counting_program([(16, 10**5, False)])
    team, rows = Team(program, 3), Rows()
    rows.run(team)
    time.sleep(0.2)
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.15  # two spinning threads would use up to 1.0
    rows.run(team)  # and they wake up
    team.close()


def test_closing_at_exit_waits_for_a_pass_of_another_thread():
    """`patience` is for the end of the process, when nobody else can stop that thread."""
    inside, go_on = threading.Event(), threading.Event()

    def host(context):
        inside.set()
        go_on.wait(10)
        return zeros()

    program, _ = counting_program([(4, 0, False)] * 2, 0, {0: host})
    team, rows = Team(program, 2), Rows()
    passing = threading.Thread(target=rows.run, args=(team,))
    passing.start()
    inside.wait(10)
    team.close(patience=0.05)  # not over: left alone
    closing = threading.Thread(target=team.close, args=(10,))
    closing.start()
    go_on.set()
    for t in (passing, closing):
        t.join(10)
        assert not t.is_alive()
    with pytest.raises(EngineClosed):
        rows.run(team)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_starts_a_team_of_its_own():
    program, counters = counting_program([(16, 10**5, False)] * 4)
    team, rows = Team(program, 3), Rows()
    rows.run(team)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # not faulthandler: its watchdog thread stayed with the parent
        try:
            for _ in range(20):
                rows.run(team)
            ok = (counters[:4, :16] == 21).all()
            team.close()
        except BaseException:
            ok = False
        os._exit(0 if ok else 1)
    rows.run(team)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert (counters[:4, :16] == 2).all()
    team.close()


def _run_python(code: str, timeout: float = 100) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code], check=False, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, timeout=timeout, capture_output=True,
        text=True,
    )  # fmt: skip


_IN_A_PROCESS = """
import threading, time
from tests.unit.test_native_team import Rows, Team, counting_program
program, counters = counting_program([(16, 10**5, False)] * 4, pauses=20)
team, rows = Team(program, 3), Rows()
rows.run(team)
"""


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "time.sleep(0.05)",
        "def go():\n    while True: rows.run(team)\nthreading.Thread(target=go, daemon=True).start(); time.sleep(0.05)",
        (
            "import _thread\nthreading.Timer(0.05, _thread.interrupt_main).start()\ntry:\n    while True: rows.run(team)\n"
            "except KeyboardInterrupt: pass\nn = counters[0, 0]; rows.run(team); assert counters[0, 0] in (n + 1, n + 2)"
        ),
    ],
    ids=["at once", "asleep", "daemon thread in a pass", "interrupted"],
)
def test_interpreter_exit(ending):
    done = _run_python(_IN_A_PROCESS + ending)
    assert done.returncode == 0, done.stderr
    # a daemon thread may find the team closed; nothing else may go wrong
    assert "Fatal" not in done.stderr and ("Error" not in done.stderr or "EngineClosed" in done.stderr), done.stderr
