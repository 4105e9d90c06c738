"""The row contract: a row's logits and its K/V rows have the same bits whatever runs beside it.

Whatever else: how many rows share the pass, how many threads run it and into which chunks they cut it, where a prefill
was cut, which other streams' rows are there, and what was in the state at and past `len`.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.cache import Recurrent, State
from fucina.models import LoadedFamily
from fucina.ops.naive import Naive
from fucina.ops.native import Native
from fucina.ops.native_bits import NATIVE_BITS
from tests.toy_families import KINDS, REAL, toy_family

from .tiny_models import EAGER, FAMILIES, new_cache, run

LENGTH = 200  # positions of a reference stream: three borders of 64, and the toy's rings of 192 rows wrap
STREAMS = 3
BLOCKS = [f"{n} in q8_0" for n in FAMILIES]  # keys and values in blocks
families = pytest.mark.parametrize("family", [*FAMILIES, *BLOCKS])
all_families = pytest.mark.parametrize(
    "family", [*FAMILIES, *KINDS, *(n for n in REAL if n not in FAMILIES), *BLOCKS, "qwen35 in q8_0", "qwen3 in q8_0"]
)


@cache
def loaded(family: str) -> LoadedFamily:
    """A tiny model or a toy."""
    name = family.removesuffix(" in q8_0")
    return FAMILIES[name]() if name in FAMILIES else toy_family(name, "quantised")


def dtype_of(family: str) -> str:
    """Number format of keys and values."""
    return "q8_0" if family.endswith(" in q8_0") else "f16"


def fresh(family: str, capacity: int = 512) -> State:
    """An empty state."""
    return new_cache(loaded(family), capacity, dtype_of(family))


@cache
def team(family: str, threads: int, eager: bool = True) -> Native:
    """Interpreters that all tests share, since their threads and weights do not depend on what ran before."""
    chunks = EAGER if eager else {"tiny_ns": 1500, "target_ns": 16000}
    return Native(loaded(family), threads=threads, context=512, cache_dtype=dtype_of(family), **chunks)


@cache
def tokens(family: str, stream: int) -> list[int]:
    return np.random.default_rng(stream).integers(0, loaded(family).config.vocab_size, LENGTH).tolist()


@cache
def reference(family: str, stream: int) -> tuple[np.ndarray, State]:
    """Logits and cache of a stream that was run alone, one row at a time, by one thread."""
    kv, ids, one = fresh(family), tokens(family, stream), team(family, 1)
    logits = np.concatenate([run(one, [(kv, [t])]) for t in ids])
    assert np.isfinite(logits).all()
    return logits, kv


def same_rows(family: str, stream: int, start: int, got: np.ndarray) -> None:
    """Bits of logits against the reference."""
    want = reference(family, stream)[0][start : start + len(got)]
    assert got.tobytes() == want.tobytes(), f"stream {stream}: rows from {start} differ"


def same_cache(family: str, stream: int, kv: State) -> None:
    """Bits of every K/V row that both states hold against the reference, which holds all but what rings have lost."""
    want = reference(family, stream)[1]
    for slot, part in enumerate(kv.parts):
        if isinstance(part, Recurrent):
            continue
        first = max(0, want.len - want.planes(slot)[0].shape[1])
        for mine, theirs in zip(kv.read(slot, first, kv.len), want.read(slot, first, kv.len), strict=True):
            assert mine.tobytes() == theirs.tobytes(), f"stream {stream}, slot {slot}"


@families
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_any_number_of_rows(family, threads):
    """Passes of m = 1 … 64 and 128 rows, from a position such that contexts cross chunk borders."""
    ids = tokens(family, 0)
    start = 50
    base = fresh(family)
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
        kv, ids = fresh(family), tokens(family, 1)
        same_rows(family, 1, 0, run(team(family, threads, False), [(kv, ids[:128])]))
        for p in range(128, 140):
            same_rows(family, 1, p, run(team(family, threads, False), [(kv, ids[p : p + 1])]))


@families
def test_every_cut_of_a_prefill(family):
    """A prompt of 130 tokens in two passes, at every border that matters and some that do not."""
    ids = tokens(family, 2)[:130]
    for i, cut in enumerate((2, 31, 63, 64, 65, 70, 71, 100, 127, 128)):
        kv = fresh(family)
        pair = team(family, 1 + i % 3)
        same_rows(family, 2, 0, run(pair, [(kv, ids[:cut])]))
        same_rows(family, 2, cut, run(pair, [(kv, ids[cut:])]))
        same_cache(family, 2, kv)


@all_families
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_company(family, data):
    """Streams in any order, passes of any size, rewound in between as far as they can be, logits for some rows only."""
    caches = [fresh(family, data.draw(st.sampled_from((LENGTH, 300)))) for _ in range(STREAMS)]
    for _ in range(data.draw(st.integers(1, 6))):
        takes = []
        for kv in caches:
            kv.truncate(kv.rewind_point(data.draw(st.integers(max(0, kv.len - 80), kv.len))))
            most = min(LENGTH - kv.len, 42)
            takes.append(data.draw(st.sampled_from((0, 1, 1, 2, 5, 17, 40))) if most else 0)
            takes[-1] = min(takes[-1], most)
        active = data.draw(st.permutations([s for s in range(STREAMS) if takes[s]]))
        if not active:
            continue
        total = sum(takes)
        wanted = np.array(data.draw(st.lists(st.booleans(), min_size=total, max_size=total)))
        starts = {s: caches[s].len for s in active}
        entries = [(caches[s], tokens(family, s)[starts[s] : starts[s] + takes[s]]) for s in active]
        threads = data.draw(st.sampled_from((1, 2, 3)))
        got = run(team(family, threads, data.draw(st.booleans())), entries, wanted)
        rows = [(s, starts[s] + i) for s in active for i in range(takes[s])]
        asked = [row for row, want in zip(rows, wanted, strict=True) if want]
        assert len(asked) == len(got)
        for i, (s, position) in enumerate(asked):
            same_rows(family, s, position, got[i : i + 1])
    for s, kv in enumerate(caches):
        same_cache(family, s, kv)


@pytest.mark.parametrize("family", list(FAMILIES))
@pytest.mark.parametrize("dtype", ["f16", "f32", "q8_0"])
def test_bits_of_the_readable_twin(family, dtype):
    """Against NumPy with the same rounding and the same order of sums: every bit, past a border of 64."""
    model = loaded(family)
    twin, fast = Naive(model, functions=NATIVE_BITS), Native(model, threads=2, context=512, cache_dtype=dtype, **EAGER)
    a, b = new_cache(model, 256, dtype), new_cache(model, 256, dtype)
    ids = tokens(family, 0)[:72]
    got = np.concatenate([run(fast, [(a, ids[:60])]), run(fast, [(a, ids[60:])])])
    want = run(twin, [(b, ids)])
    assert got.tobytes() == want.tobytes()
    for slot in range(len(model.parts)):
        for mine, theirs in zip(a.planes(slot), b.planes(slot), strict=True):
            assert mine[:, : a.len].tobytes() == theirs[:, : a.len].tobytes()
    fast.close()


@families
def test_close_to_the_maths(family):
    """Against NumPy that does not round activations: what int8 blocks cost, and no more."""
    kv, ids = fresh(family, 256), tokens(family, 0)[:90]
    want = run(Naive(loaded(family)), [(kv, ids)])
    got = reference(family, 0)[0][:90]
    error = np.sqrt(((got - want) ** 2).mean(axis=1) / (want**2).mean(axis=1))  # of each row
    assert np.median(error) < 0.03 and error.max() < 0.1


@families
def test_no_logits_wanted(family):
    """A pass that only fills the cache."""
    kv, ids = fresh(family), tokens(family, 0)
    out = run(team(family, 2), [(kv, ids[:70])], wanted=np.zeros(70, bool))
    assert out.shape == (0, loaded(family).config.vocab_size)
    same_cache(family, 0, kv)
    same_rows(family, 0, 70, run(team(family, 2), [(kv, ids[70:75])]))


@families
def test_results_are_new_arrays(family):
    """A caller may keep logits: the next pass does not change them."""
    kv, ids = fresh(family), tokens(family, 0)
    first = run(team(family, 2), [(kv, ids[:3])])
    kept = first.copy()
    run(team(family, 2), [(kv, ids[3:9])])
    assert first.tobytes() == kept.tobytes()
