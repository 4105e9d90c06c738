"""The compiled draw against the sorted definition, on rows made to mislead it, and the loops that it is made of."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.kernels import draw, masses
from fucina.kernels.softmax_weights import SHIFT, weights
from fucina.sampling import Sampler, SamplerOptions, reference

INF = math.inf
LARGEST = float(np.finfo(np.float32).max)


def _random(seed, n, spread):
    return (np.random.default_rng(seed).normal(size=n) * spread).astype(np.float32)


def _with(row, **places):
    for at, value in places.items():
        row[int(at[1:])] = value
    return row


ROWS = {
    "one token": np.array([3.0], np.float32),
    "all equal": np.full(5000, 1.5, np.float32),
    "all equal, negative": np.full(700, -2e30, np.float32),
    "one token allowed": _with(np.full(5000, -INF, np.float32), _777=-3.0),
    "the lowest number and nothing else": _with(np.full(300, -INF, np.float32), _7=-LARGEST, _200=-LARGEST),
    "two values": np.where(np.arange(3001) % 3 == 0, np.float32(1.0), np.float32(1.0 + 2.0**-23)).astype(np.float32),
    "zeros of both signs": np.where(np.arange(999) % 2 == 0, np.float32(-0.0), np.float32(0.0)).astype(np.float32),
    "extremes": np.array([LARGEST, -LARGEST, 0.0, -INF, 1e-45, LARGEST] * 40, np.float32),
    "neighbours far from zero": (np.float32(1e6) - np.arange(4000, dtype=np.float32) * np.float32(0.0625)),
    "steps": -np.arange(3000, dtype=np.float32) / 100,
    "flat": _random(1, 9000, 1e-4),
    "ordinary": _random(2, 49152, 3.0),
    "ordinary, odd length": _random(3, 5001, 3.0),
    "peaked": _with(_random(4, 9001, 3.0), _8000=40.0),
    "many ties": np.round(_random(5, 8000, 3.0)).astype(np.float32),
    "half forbidden": np.where(np.arange(8192) % 2 == 0, -INF, _random(6, 8192, 2.0)).astype(np.float32),
}
SETTINGS = {
    "nothing": {},
    "top_p": {"top_p": 0.9},
    "top_p near 1": {"top_p": 1 - 2.0**-53},
    "top_p 0": {"top_p": 0.0},
    "top_p tiny": {"top_p": 1e-12},
    "min_p": {"min_p": 0.05},
    "min_p tiny": {"min_p": 1e-300},
    "min_p 1": {"min_p": 1.0},
    "top_k": {"top_k": 40},
    "top_k 1": {"top_k": 1},
    "most": {"top_k": 2999},
    "beyond the vocabulary": {"top_k": 1 << 40},
    "together": {"top_k": 500, "top_p": 0.95, "min_p": 1e-4},
    "nucleus and least": {"top_p": 0.99, "min_p": 1e-3},
}
TEMPERATURES = (1.0, 0.6, 3.0, 1e-320, 1e-4, 1e4, 1e300)


def draws(row, options, marks):
    """(what the kernel draws, what the definition draws) for each of the marks."""
    n, best = len(row), float(row.max())
    sampler = Sampler(options)
    sampler.next(row)  # makes its scratch
    o, ids, weight = options, *reference.candidates(row, options)
    running = np.cumsum(weight)
    for u in marks(running):
        got = draw.drawer()(row, best, o.temperature, o.top_k, o.top_p, o.min_p, u, *sampler._scratch)
        mark = min(int(u * float(running[-1])), int(running[-1]) - 1)
        assert 0 <= got < n
        yield got, int(ids[np.searchsorted(running, mark, side="right")])


def at_edges(running):
    """Uniform numbers at, just under and just above the place where one token follows another, and anywhere."""
    generator = np.random.default_rng(len(running))
    total = float(running[-1])
    for j in {0, len(running) - 1, *generator.integers(0, len(running), 3).tolist()}:
        u = min(float(running[j]) / total, 1 - 2.0**-53)
        yield from (u, float(np.nextafter(u, 0)), min(float(np.nextafter(u, 1)), 1 - 2.0**-53))
    yield from (0.0, 1 - 2.0**-53, *generator.random(4).tolist())


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_equals_the_definition_on_misleading_rows(row, temperature):
    for name, setting in SETTINGS.items():
        options = SamplerOptions(temperature=temperature, **setting)
        for got, expected in draws(row, options, at_edges):
            assert got == expected, name


@given(
    values=st.lists(st.one_of(st.floats(-60, 30, width=32), st.just(-INF)), min_size=1, max_size=70),
    repeats=st.integers(1, 40),
    temperature=st.one_of(st.floats(*masses.TAIL_TEMPERATURES), st.floats(0.3, 3)),
    distance=st.floats(0.1, 12),
)
def test_the_mass_of_a_tail_lies_in_its_bounds(values, repeats, temperature, distance):
    row = np.array(values * repeats, np.float32)
    highest = max(float(row.max()), -50.0)
    low = np.float32(draw._below(highest, distance * temperature))
    least, most = masses.tail_bounds(row, low, highest, temperature)
    scaled = np.maximum((row[row <= low].astype(np.float64) - highest) / temperature, -40.0)
    exact = int(np.rint(np.exp(scaled) * 2.0**SHIFT).sum())
    assert least <= exact <= most
    slack = 3 * len(row) * (1 + math.exp((float(low) - highest) / temperature) * 2.0 ** (SHIFT - masses.TAIL_SHIFT))
    assert most - least <= 3 * masses.TAIL_ERROR * exact + slack + 2


@given(
    values=st.lists(st.sampled_from([-INF, -3.0, -0.0, 0.0, 1.0, 2.5, 7.0]), min_size=1, max_size=300),
    low=st.sampled_from([-INF, -3.0, 0.0, 2.0]),
    high=st.sampled_from([0.0, 2.5, 7.0]),
)
def test_loops_over_a_row(values, low, high):
    row = np.array(values, np.float32)
    low, high = np.float32(low), np.float32(high)
    inside = np.flatnonzero((row > low) & (row <= high))
    ids, near = np.empty(len(row), np.int32), np.empty(len(row), np.float32)
    n = masses.gather(row, low, high, ids, near)
    assert ids[:n].tolist() == inside.tolist() and near[:n].tolist() == row[inside].tolist()
    assert masses.count_above(row, low) == (row > low).sum()
    weight = np.arange(1, len(row) + 1) * (1 << 40)
    assert masses.between(row, weight, low, high) == (len(inside), weight[inside].sum())
    assert masses.mass_above(weight, weight[len(row) // 2]) == weight[len(row) // 2 :].sum()
    order = np.lexsort((np.arange(len(row)), -row))
    running = np.cumsum(weight[order])
    for place in (0, len(row) // 3, len(row) - 1):
        assert masses.mass_through(row, weight, order[place]) == running[place]


@given(values=st.lists(st.floats(-80, 40, width=32), min_size=1, max_size=80), temperature=st.floats(0.01, 100))
def test_weights_have_the_bits_of_their_definition(values, temperature):
    row = np.array(values, np.float32)
    weight = np.empty(len(row), np.int64)
    assert masses.weigh(row, float(row.max()), temperature, weight) == weight.sum()
    assert weight.tolist() == weights(row, temperature).tolist()
