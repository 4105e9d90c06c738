"""The thread team: every chunk exactly once, in order, whatever the operating system does to the threads."""

from __future__ import annotations

import faulthandler
import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.errors import EngineClosed
from fucina.kernels import record as R
from fucina.kernels.memory import aligned
from fucina.kernels.record import COLS, HOST, ROWS
from fucina.ops.native.clib import system_calls
from fucina.ops.native.loop import AT_CLAIMED, AT_ENTER, AT_ENTERED, AT_LEAVE, AT_SLOT_READ, AT_STEP, compiled
from fucina.ops.native.program import build
from fucina.ops.native.schedule import Address, Partition, Record, Schedule, Value
from fucina.ops.native.spaces import OUTPUT, PASS
from fucina.ops.native.team import Team, TeamOptions

from .native_kernels import HOOK_LINE, kernel, mix

ROOT = Path(__file__).parents[2]
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


# --- stress ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_stragglers_lose_no_chunk(threads):
    """Thousands of short passes with delays at every delicate point: each unit of each pass runs exactly once."""
    steps = [(1, 0, False), (8, 10**5, False), (5, 10**5, True), (1, 0, False), (2, 10**5, False), (16, 10**5, False)]
    passes = int(150 * LONG)
    for seed, mask in enumerate([-1, -1, 0b000000000111, 0b000001111000, 0b000110000000, 0b111000000000]):
        delays = Delays(threads, seed, mask, one_in=5, pauses=400)
        program, counters = counting_program(steps)
        # spin_seconds far below a pass: workers fall asleep in the middle of it all the time
        options = TeamOptions(hook=delays.hook, spin_seconds=2e-6 if seed % 2 else 2e-5)
        team, rows = Team(program, threads, options), Rows()
        for p in range(1, passes + 1):
            rows.run(team)
            assert (counters[:, 0] == p).all()
            if p % 8 == 0:
                time.sleep(0.0005)  # everybody asleep
        for i, (units, _, _) in enumerate(steps):
            assert (counters[i, :units] == passes).all()
        team.close()
        assert delays.calls > passes


class Restless(Team):
    """Plans every pass many times, which is only safe while nobody else is inside the bank."""

    fail = itertools.cycle([False, False, True, True, False, True, True, True, True])

    def _run(self, shared, words, context):
        job, bank = self._free_bank(shared)
        for word, value in words.items():
            job[word] = value
        make_plan, take_part = compiled()
        for _ in range(20):
            make_plan(shared.address, bank)
        self.published = not next(self.fail)
        if not self.published:
            return  # as a pass whose first host stage fails: planned, never published
        take_part(shared.address, 0, bank, 0, len(self.program.steps))


@pytest.mark.parametrize("banks", [2, 3, None])
def test_stragglers_of_earlier_passes(banks):
    """Workers that were held up on their way into a bank while its pass ended and another one began."""
    steps = [(8, 10**5, False), (5, 10**5, False), (1, 0, False), (16, 10**5, False)]
    passes = int(1500 * LONG)
    for seed, points in enumerate([(AT_SLOT_READ,), (AT_ENTER,), (AT_ENTERED,), (AT_STEP,), (AT_LEAVE, AT_CLAIMED)]):
        delays = Delays(4, seed, sum(1 << p for p in points), one_in=3, pauses=3000)
        program, counters = counting_program(steps)
        team, rows = Restless(program, 4, TeamOptions(hook=delays.hook, banks=banks)), Rows()
        done = 0
        for _ in range(passes):
            rows.run(team)
            done += team.published
            assert (counters[:, 0] == done).all()
        for i, (units, _, _) in enumerate(steps):
            assert (counters[i, :units] == done).all()
        team.close()


@pytest.mark.parametrize("threads", [2, 4])
def test_publishing_while_parking(threads):
    """Empty passes with pauses of the length after which workers fall asleep."""
    program, counters = counting_program([(4, 10**5, False), (4, 10**5, False)])
    spin = 5e-6
    team, rows = Team(program, threads, TeamOptions(spin_seconds=spin)), Rows()
    rng = np.random.default_rng(threads)
    passes = int(4000 * LONG)
    for wait in rng.uniform(0, 4 * spin, passes):
        rows.run(team)
        end = time.perf_counter() + wait
        while time.perf_counter() < end:
            pass
    assert (counters[:2, :4] == passes).all()
    team.close()


class Graph:
    """A random forward of dataflow kernels, and what it must compute."""

    def __init__(self, draw_int, choose) -> None:
        self.schedule, self.values, self.plan = Schedule(), [], []
        for i in range(draw_int(2, 14)):
            rule = choose((ROWS, COLS, COLS))
            cols = choose((8, 64))
            out = Value(f"v{i}", cols, PASS, MAX_ROWS * cols * 4)
            same = [j for j, (_, c, _, _) in enumerate(self.plan) if c == cols]
            local = sorted({choose(same) for _ in range(draw_int(0, 2))} if same else [])
            whole = sorted({choose(same) for _ in range(draw_int(0, 2))} - set(local) if same else [])
            seed = draw_int(0, 2**31)
            params = [seed, cols, Address(out), len(local), len(whole)]
            params += [Address(self.values[j]) for j in (*local, *whole)]
            record = Record(
                "dataflow", params, [self.values[j] for j in local], [self.values[j] for j in whole], [out], cost=10**6
            )
            if rule == ROWS:
                self.schedule.add(record, Partition(ROWS, choose((1, 4))))
            else:
                self.schedule.add(record, Partition(COLS, cols), choose((1, 4)))
            self.values.append(out)
            self.plan.append((seed, cols, local, whole))
        # the last value leaves as the pass's result
        self.result = self.values[-1]

    def expected(self, m: int) -> np.ndarray:
        outs: list[np.ndarray] = []
        for seed, cols, local, whole in self.plan:
            everything = seed
            for j in whole:
                for word in outs[j].reshape(-1).tolist():
                    everything = mix(everything, word)
            out = np.full((m, cols), everything, np.uint64)
            for j in local:
                out = ((out ^ (outs[j] + 0x9E3779B9)) * 0x85EBCA6B + (outs[j] >> np.uint64(7))) & 0xFFFFFFFF
            outs.append(out)
        return outs[-1]


@settings(max_examples=int(25 * LONG), deadline=None)
@given(st.data())
def test_random_programs_compute_the_right_thing(data):
    graph = Graph(lambda lo, hi: data.draw(st.integers(lo, hi)), lambda xs: data.draw(st.sampled_from(xs)))
    threads = data.draw(st.sampled_from((1, 2, 3, 6)))
    delays = Delays(threads, data.draw(st.integers(0, 1000)), -1, one_in=7, pauses=200)
    program = build(graph.schedule, graph.values, lambda name: kernel(name).address, graph.result)
    team, rows = Team(program, threads, TeamOptions(hook=delays.hook, spin_seconds=1e-5)), Rows()
    for m in (1, MAX_ROWS, 3, 1, 2):
        out = np.zeros((m, graph.result.cols), np.uint32)
        program.direct(out.ctypes.data)
        rows.run(team, m)
        np.testing.assert_array_equal(out, graph.expected(m))
    team.close()
