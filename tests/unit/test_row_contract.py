"""The row contract: a row's logits and its K/V rows have the same bits whatever runs beside it.

Whatever else: how many rows share the pass, how many threads run it and into which chunks they cut it, where a prefill was
cut, which other streams' rows are there, and what was in the cache behind `len`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from fucina.ops.twin import Twin
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import KvCache
from fucina.ops.naive import Naive
from fucina.ops.native import Native

from .tiny_models import FAMILIES, native, new_cache, run

LENGTH = 200  # positions of a reference stream: three borders of 64
STREAMS = 3
families = pytest.mark.parametrize("family", list(FAMILIES))


@cache
def team(family: str, threads: int, eager: bool = True) -> Native:
    """Interpreters that all tests share, since their threads and weights do not depend on what ran before."""
    return native(family, threads) if eager else native(family, threads, tiny_ns=1500, target_ns=16000)


@cache
def config(family: str):
    return FAMILIES[family]()[1]


@cache
def tokens(family: str, stream: int) -> list[int]:
    return np.random.default_rng(stream).integers(0, config(family).vocab_size, LENGTH).tolist()


@cache
def reference(family: str, stream: int) -> tuple[np.ndarray, KvCache]:
    """Logits and cache of a stream that was run alone, one row at a time, by one thread."""
    kv, ids, one = new_cache(config(family)), tokens(family, stream), team(family, 1)
    logits = np.concatenate([run(one, [(kv, [t])]) for t in ids])
    assert np.isfinite(logits).all()
    return logits, kv


def same_rows(family: str, stream: int, start: int, got: np.ndarray) -> None:
    """Bits of logits against the reference."""
    want = reference(family, stream)[0][start : start + len(got)]
    assert got.tobytes() == want.tobytes(), f"stream {stream}: rows from {start} differ"


def same_cache(family: str, stream: int, kv: KvCache) -> None:
    """Bits of every K/V row that the cache holds against the reference."""
    want = reference(family, stream)[1]
    for layer in range(len(kv.geometry)):
        for mine, theirs in zip(kv.planes(layer), want.planes(layer), strict=True):
            assert mine[:, : kv.len].tobytes() == theirs[:, : kv.len].tobytes(), f"stream {stream}, layer {layer}"


@families
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_rows(family, threads):
    """Passes of m = 1 … 64 and 128 rows, from a position such that contexts cross chunk borders."""
    ids = tokens(family, 0)
    start = 50
    base = new_cache(config(family))
    run(team(family, threads), [(base, ids[:start])])
    same_cache(family, 0, base)
    for m in [*range(1, 65), 128]:
        base.truncate(start)
        same_rows(family, 0, start, run(team(family, threads), [(base, ids[start : start + m])]))
        same_cache(family, 0, base)


@families
def test_usual_chunks(family):
    """The same with the chunk sizes that are used outside of tests."""
    for threads in (1, 2, 3):
        kv, ids = new_cache(config(family)), tokens(family, 1)
        same_rows(family, 1, 0, run(team(family, threads, False), [(kv, ids[:128])]))
        for p in range(128, 140):
            same_rows(family, 1, p, run(team(family, threads, False), [(kv, ids[p : p + 1])]))


@families
def test_every_cut_of_a_prefill(family):
    """A prompt of 130 tokens in two passes, at every border that matters and some that do not."""
    ids = tokens(family, 2)[:130]
    for i, cut in enumerate((2, 31, 63, 64, 65, 70, 71, 100, 127, 128)):
        kv = new_cache(config(family))
        pair = team(family, 1 + i % 3)
        same_rows(family, 2, 0, run(pair, [(kv, ids[:cut])]))
        same_rows(family, 2, cut, run(pair, [(kv, ids[cut:])]))
        same_cache(family, 2, kv)


@families
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_company(family, data):
    """Several streams in any order of rows, passes of any size, rewound in between, logits for some rows only."""
    caches = [new_cache(config(family), data.draw(st.sampled_from((LENGTH, 300)))) for _ in range(STREAMS)]
    for _ in range(data.draw(st.integers(1, 6))):
        takes = []
        for kv in caches:
            kv.truncate(data.draw(st.integers(max(0, kv.len - 80), kv.len)))
            most = min(LENGTH - kv.len, 42)
            takes.append(data.draw(st.sampled_from((0, 1, 1, 2, 5, 17, 40))) if most else 0)
            takes[-1] = min(takes[-1], most)
        active = [s for s in range(STREAMS) if takes[s]]
        if not active:
            continue
        order = data.draw(st.permutations([i for i, s in enumerate(active) for _ in range(takes[s])]))
        wanted = np.array(data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order))))
        starts = {s: caches[s].len for s in active}
        entries = [(caches[s], tokens(family, s)[starts[s] : starts[s] + takes[s]]) for s in active]
        threads = data.draw(st.sampled_from((1, 2, 3)))
        got = run(team(family, threads, data.draw(st.booleans())), entries, np.array(order), wanted)
        seen = dict.fromkeys(active, 0)
        at = 0
        for row, i in enumerate(order):
            s = active[i]
            if wanted[row]:
                same_rows(family, s, starts[s] + seen[s], got[at : at + 1])
                at += 1
            seen[s] += 1
        assert at == len(got)
    for s, kv in enumerate(caches):
        same_cache(family, s, kv)


@families
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_bits_of_the_readable_twin(family, dtype):
    """Against NumPy with the same rounding and the same order of sums: every bit, past a border of 64."""
    forward, c, weights = FAMILIES[family]()
    twin, fast = Twin(forward, c, weights), native(family, 2, cache_dtype=dtype)
    a, b = new_cache(c, 256, dtype), new_cache(c, 256, dtype)
    ids = tokens(family, 0)[:72]
    got = np.concatenate([run(fast, [(a, ids[:60])]), run(fast, [(a, ids[60:])])])
    want = run(twin, [(b, ids)])
    assert got.tobytes() == want.tobytes()
    for layer in range(len(c.cache_geometry())):
        for mine, theirs in zip(a.planes(layer), b.planes(layer), strict=True):
            assert mine[:, : a.len].tobytes() == theirs[:, : a.len].tobytes()
    fast.close()


@families
def test_close_to_the_maths(family):
    """Against NumPy that does not round activations: what int8 blocks cost, and no more."""
    forward, c, weights = FAMILIES[family]()
    kv, ids = new_cache(c, 256), tokens(family, 0)[:90]
    want = run(Naive(forward, c, weights), [(kv, ids)])
    got = reference(family, 0)[0][:90]
    error = np.sqrt(((got - want) ** 2).mean(axis=1) / (want**2).mean(axis=1))  # of each row
    assert np.median(error) < 0.03 and error.max() < 0.1


@families
def test_no_logits_wanted(family):
    """A pass that only fills the cache."""
    kv, ids = new_cache(config(family)), tokens(family, 0)
    out = run(team(family, 2), [(kv, ids[:70])], wanted=np.zeros(70, bool))
    assert out.shape == (0, config(family).vocab_size)
    same_cache(family, 0, kv)
    same_rows(family, 0, 70, run(team(family, 2), [(kv, ids[70:75])]))


@families
def test_results_are_new_arrays(family):
    """A caller may keep logits: the next pass does not change them."""
    kv, ids = new_cache(config(family)), tokens(family, 0)
    first = run(team(family, 2), [(kv, ids[:3])])
    kept = first.copy()
    run(team(family, 2), [(kv, ids[3:9])])
    assert first.tobytes() == kept.tobytes()
