"""States filled by a toy model whose rows are known: what a test compares with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from fucina.cache import Kv, Latent, Layout, Recurrent, State
from fucina.cache.dtypes import DTYPES

TOY_ROWS = 8
"""Rows of one pass of the toy model."""

PARTS = (
    Kv(2, 3, 2),
    Kv(1, 2, 4, window=20),  # a ring of 64 rows
    Recurrent((2, 3)),
    Latent(5, 3, 1),
    Kv(2, 2, 2, window=60),  # a ring of 128 rows
    Recurrent((4,)),
    Kv(1, 2, 2, window=20),
)
KINDS = {
    "full": PARTS[:1],
    "latent": PARTS[3:4],
    "ring": PARTS[1:2],
    "narrow": (Kv(1, 2, 2, window=1),),
    "rings": (PARTS[4], PARTS[1]),
    "recurrent": PARTS[2:3],
    "all": PARTS,
}


def wide(parts: Sequence) -> tuple:
    """The same parts with rows 32 times as wide, as q8_0 needs them."""
    more = lambda part, *names: replace(part, **{name: 32 * getattr(part, name) for name in names})
    return tuple(
        more(p, "k_dim", "v_dim")
        if isinstance(p, Kv)
        else more(p, "k_dim", "v_dim", "v_at")
        if isinstance(p, Latent)
        else p
        for p in parts
    )


CASES = [(parts, dtype) for dtype in ("f16", "f32") for parts in KINDS.values()]
CASES += [(wide(parts), "q8_0") for parts in KINDS.values()]
CASE_NAMES = [f"{name}-{dtype}" for dtype in ("f16", "f32", "q8_0") for name in KINDS]
"""Every kind of state in every number format."""


def toy_state(parts: Sequence = PARTS, capacity: int = 300, dtype: str = "f32", fingerprint: bytes = b"toy") -> State:
    """An empty state of the toy model."""
    return State(Layout(parts, TOY_ROWS), capacity, dtype, fingerprint)


def expected_rows(state: State, slot: int, tokens: Sequence[int], first: int, last: int) -> tuple:
    """Keys and values of positions [first, last): small integers that depend on slot, head, position and token."""
    part = state.layout.slots[slot].part
    heads = part.kv_heads if isinstance(part, Kv) else 1
    at = np.arange(first, last)[None, :, None]
    token = np.asarray(tokens[first:last], np.int64).reshape(1, -1, 1)
    head = np.arange(heads)[:, None, None]

    def numbers(dim: int, salt: int) -> np.ndarray:
        n = slot * 5 + head * 11 + at * 13 + token * 31 + np.arange(dim)[None, None, :] * 7 + salt
        return (n % 1999).astype(np.float32)

    k = numbers(part.k_dim, 0)
    return k, k[..., part.v_at : part.v_at + part.v_dim] if isinstance(part, Latent) else numbers(part.v_dim, 97)


def kept(state: State, rows: np.ndarray) -> np.ndarray:
    """Rows as they come back from the state's number format: the same but in q8_0."""
    form = DTYPES[state.dtype]
    return form.decode(form.encode(rows))


def expected_array(shape: tuple[int, ...], tokens: Sequence[int], start: np.ndarray | None = None) -> np.ndarray:
    """A recurrent part after these tokens: depends on all of them and on their order."""
    a = np.zeros(prod(shape)) if start is None else start.reshape(-1).astype(np.float64)
    for token in tokens:
        a = (3 * a + token + np.arange(a.size)) % 1009
    return a.reshape(shape).astype(np.float32)


def run_pass(state: State, tokens: Sequence[int], first: int, last: int, scratch: bool = False) -> None:
    """What one pass writes for positions [first, last); NaN everywhere if `scratch`."""
    for slot, where in enumerate(state.layout.slots):
        if where.kind == "recurrent":
            source, target = state.recurrent(slot)
            assert not np.shares_memory(source, target)
            target[:] = np.nan if scratch else expected_array(where.part.shape, tokens[first:last], source)
            continue
        k, v = expected_rows(state, slot, tokens, first, last)
        rows = np.arange(first, last) % state.planes(slot)[0].shape[1]
        for plane, new in zip(state.planes(slot), (k, v), strict=True):
            # bytes of 255 are a scale that is not a number
            nothing = 255 if plane.dtype == np.uint8 else np.nan
            plane[:, rows] = nothing if scratch else DTYPES[state.dtype].encode(new)


def extend(state: State, tokens: Sequence[int], rows: int = TOY_ROWS) -> None:
    """Compute all tokens that the state does not hold yet, in one transaction, in passes of at most `rows`."""
    start, end = state.len, len(tokens)
    state.begin(end - start)
    for first in range(start, end, rows):
        run_pass(state, tokens, first, min(first + rows, end))
        state.next_pass()
    state.commit(end - start)


def fail(state: State, count: int, passes: int, rows: int = TOY_ROWS) -> None:
    """Start a transaction of `count` positions, write NaN in some passes of it, and leave it open."""
    start, end = state.len, state.len + count
    state.begin(count)
    for i, first in enumerate(range(start, end, rows)):
        if i == passes:
            return
        run_pass(state, [0] * end, first, min(first + rows, end), scratch=True)
        if i + 1 < passes:
            state.next_pass()


def clone(state: State) -> State:
    """A state with the same memory and the same record, whatever is open."""
    other = State(state.layout, state.capacity, state.dtype, state.fingerprint)
    for _ in range(len(state._banks) - 3 if state._banks else 0):
        other._banks._add()
    for mine, theirs in zip(_memory(other), _memory(state), strict=True):
        mine[:] = theirs
    other._held = state._held
    return other


def image(state: State) -> tuple:
    """All that a state consists of, comparable and hashable: two states of one image behave alike."""
    held = state._held
    saved = held.open.saved if held.open else ()
    arrays = [*_memory(state), *(rows for _, _, copies in saved for rows in copies)]
    return (*held[:3], held.open and held.open[:4], tuple(s[:2] for s in saved), tuple(a.tobytes() for a in arrays))


def _memory(state: State) -> list[np.ndarray]:
    banks = state._banks
    return [*state._buffers, *(banks[i] for i in range(len(banks) if banks else 0))]


def check_claims(state: State, tokens: Sequence[int]) -> None:
    """Everything that the state says it holds is what the toy model computes for these tokens."""
    state.rollback()
    assert state.rewind_point(state.len) == state.len <= state.capacity
    held, areas = state._held, state.layout.areas
    for slot, where in enumerate(state.layout.slots):
        if where.kind == "recurrent":
            for mark in held.marks:
                right = expected_array(where.part.shape, tokens[: mark.position])
                assert np.array_equal(state._banks.view(mark.bank, slot), right), (slot, mark)
            continue
        first = held.low[where.area]
        assert min(first, state.len) <= areas[where.area].first_read(state.len)
        for found, right in zip(
            state.read(slot, first, state.len), expected_rows(state, slot, tokens, first, state.len), strict=True
        ):
            assert np.array_equal(found, kept(state, right)), (slot, first)
    if state._banks:
        assert len({m.bank for m in held.marks}) == len(held.marks)
        assert [m.position for m in held.marks] == sorted({m.position for m in held.marks})
        assert held.marks[-1].position == state.len
