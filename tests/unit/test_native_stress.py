"""The thread team with threads that the operating system delays at every delicate point."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.kernels.record import COLS, ROWS
from fucina.ops.native.loop import AT_CLAIMED, AT_ENTER, AT_ENTERED, AT_LEAVE, AT_SLOT_READ, AT_STEP, compiled
from fucina.ops.native.program import build
from fucina.ops.native.schedule import Address, Partition, Record, Schedule, Value
from fucina.ops.native.spaces import PASS
from fucina.ops.native.team import Team, TeamOptions

from .native_kernels import kernel, mix
from .team_kit import LONG, MAX_ROWS, Delays, Rows, counting_program, watchdog  # noqa: F401  (the watchdog is a fixture)


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
