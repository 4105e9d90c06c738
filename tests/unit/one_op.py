"""Single ops on arrays: recorded as a forward records them, then run kernel by kernel on this thread."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fucina.cache import State
from fucina.cache.parts import CHUNK, Kv, Layout, Part
from fucina.kernels import invoke as direct
from fucina.kernels import record as R
from fucina.kernels.formats import activation_bytes
from fucina.kernels.memory import aligned
from fucina.kernels.packing import PackedWeight
from fucina.ops.native.buffers import place
from fucina.ops.native.planner import WINDOW
from fucina.ops.native.program import Program, build
from fucina.ops.native.recorder import Recorder
from fucina.ops.native.recording import Packed
from fucina.ops.native.schedule import Value
from fucina.ops.rope import RopeSpec
from fucina.ops.vocabulary import AttentionSpec


class Array:
    """A packed weight, a vector, or a table of RoPE, as the recorder asks for them."""

    def __init__(self, data: PackedWeight | np.ndarray) -> None:
        self.data, self.name = data, "w"
        if isinstance(data, PackedWeight):
            self.shape = (data.rows, data.cols) if data.count == 1 else (data.count, data.rows, data.cols)
        else:
            self.shape = data.shape


class Stack(Array):
    """A packed weight of three dimensions, of one matrix or more."""

    def __init__(self, data: PackedWeight) -> None:
        super().__init__(data)
        self.shape = (data.count, data.rows, data.cols)


class _Sources:
    def __init__(self, table: np.ndarray | None = None) -> None:
        self.table = table
        self._kept: list[np.ndarray] = []

    def matrix(self, w: Array) -> Packed:
        return Packed(w.data.addr, w.data.format, w.data.step)

    def vector(self, w: Array) -> int:
        self._kept.append(np.ascontiguousarray(w.data.T))
        return self._kept[-1].ctypes.data

    def constant(self, x: float, n: int) -> int:
        self._kept.append(np.full(n, x, np.float32))
        return self._kept[-1].ctypes.data

    def rope(self, spec: RopeSpec) -> int:
        return self.table.ctypes.data


class Pass:
    """Rows of some streams: their states, where each stands, and how many rows each has."""

    def __init__(self, states: Sequence[State] = (), starts: Sequence[int] = (), counts: Sequence[int] = ()) -> None:
        self.states, self.counts = list(states), list(counts)
        self.positions = [s + i for s, n in zip(starts, counts, strict=True) for i in range(n)]


def run(
    op: Callable[..., Value | tuple[Value, ...]],
    *inputs: np.ndarray,
    parts: Sequence[Part] = (Kv(1, 8, 8),),
    dtype: str = "f32",
    over: Pass | None = None,
    tokens: Sequence[int] | None = None,
    positions: Sequence[int] | None = None,
    out_rows: Sequence[int] = (),
    table: np.ndarray | None = None,
    isa: str | None = None,
    split: bool = False,
    cut: int = 1,
) -> Any:
    """What op(recorder, *values of the inputs) computes.

    tokens, positions, out_rows : of the rows.  table : of RoPE.  split : attention chunk by chunk.
    cut : into how many calls the units of each chain are cut.
    """
    recorder = Recorder(_Sources(table), Layout(parts), dtype)
    never = lambda arrays, context: None  # these host stages are done by `_Memory`
    given = [recorder.host(never, [], x.shape[1], f"input {i}") for i, x in enumerate(inputs)]
    result = op(recorder, *given)
    results = [recorder.joined(r) for r in (result if isinstance(result, tuple) else (result,))]
    for value in results:
        recorder.host(never, [value], value.cols, "result")
    kernels = direct.function  # tests may replace it
    program = build(recorder.schedule, recorder.values, lambda name: NAMES.setdefault(name, len(NAMES) + 1))
    m = len(inputs[0]) if inputs else len(tokens)
    rows, streams = _tables(over, m, tokens, positions)
    positions = rows[:, R.POS]
    chosen = np.asarray(out_rows, np.int64)
    job = np.zeros(R.JOB_WORDS, np.int64)
    words = {R.M: m, R.ROW_TABLE: rows.ctypes.data, R.N_OUT: len(chosen), R.OUT_ROWS: chosen.ctypes.data}
    words |= {R.N_STREAMS: len(streams), R.STREAM_TABLE: streams.ctypes.data, R.SPLIT: int(split)}
    scratch = aligned(recorder.scratch)
    words[R.NPART] = int(positions.max()) // CHUNK + 1
    partial = aligned(m * 64 * words[R.NPART] * recorder.part)
    words |= {R.SCRATCH: scratch.ctypes.data, R.SCRATCH_STEP: scratch.size, R.PART: partial.ctypes.data}
    for word, value in words.items():
        job[word] = value
    memory = _Memory(recorder, program, job)
    stages: list[Callable[[], Any]] = [lambda v=v, x=x: memory.put(v, x) for v, x in zip(given, inputs, strict=True)]
    stages += [lambda v=v: memory.take(v) for v in results]
    out = _walk(program, job, rows, stages, lambda number: kernels(list(NAMES)[number - 1], isa), cut)[len(inputs) :]
    return tuple(out) if isinstance(result, tuple) else out[0]


class _Memory:
    """The values of a program, as arrays."""

    def __init__(self, recorder: Recorder, program: Program, job: np.ndarray) -> None:
        self.offsets, self.job = place(recorder.values)[0], job
        self.bytes = program.keep[0]

    def _view(self, value: Value) -> np.ndarray:
        start, rows = self.offsets[id(value)], value.space.count(self.job)
        return self.bytes[start : start + rows * value.cols * 4].view(np.float32).reshape(rows, value.cols)

    def put(self, value: Value, x: np.ndarray) -> None:
        self._view(value)[...] = x

    def take(self, value: Value) -> np.ndarray:
        return self._view(value).copy()


NAMES: dict[str, int] = {}  # kernels by a number that stands for their address in a record


def _tables(over: Pass | None, m: int, tokens, positions) -> tuple[np.ndarray, np.ndarray]:
    rows = np.zeros((m, R.ROW_WORDS), np.int64)
    over = over or Pass()
    counts = over.counts or [m]
    streams = np.zeros((len(counts), R.STREAM_WORDS), np.int64)
    streams[:, R.STREAM_ROWS] = counts
    streams[:, R.STREAM_FIRST] = np.cumsum(counts) - counts
    for entry, state in zip(streams, over.states, strict=False):
        words = state.words()
        entry[R.STREAM_STATE : R.STREAM_STATE + len(words)] = words
    rows[:, R.STREAM] = np.repeat(np.arange(len(counts)), counts)
    rows[:, R.POS] = over.positions if over.counts else positions if positions is not None else 0
    rows[:, R.TOK] = 0 if tokens is None else tokens
    return rows, streams


def _walk(program: Program, job: np.ndarray, rows: np.ndarray, stages: list, kernel, cut: int) -> list[Any]:
    """Every step's chains, one after the other; what the host stages return."""
    hosts, results, stages = {step for step, _ in program.hosts}, [], iter(stages)
    for step, (first, last) in enumerate(program.steps):
        if step in hosts:
            results.append(next(stages)())
            continue
        for start, stop in program.chains[first:last]:
            units = _units(program.records[start], job, rows)
            for u0, u1 in itertools.pairwise(units * i // cut for i in range(cut + 1)):
                for record in program.records[start:stop]:
                    kernel(int(record[R.FN]))(record.ctypes.data, job.ctypes.data, u0, u1, 0)
    return results


def _units(record: np.ndarray, job: np.ndarray, rows: np.ndarray) -> int:
    units, count = int(record[R.UNITS]), int(job[record[R.ROWS_WORD]] * record[R.ROWS_TIMES])
    if record[R.RULE] == R.COLS:
        return units if count else 0
    if record[R.RULE] == R.ATTENTION and job[R.SPLIT]:
        position, window = rows[:, R.POS], record[WINDOW]
        first = np.maximum(position - window + 1, 0) // CHUNK if window else 0 * position
        return int(np.sum(position // CHUNK + 1 - first)) * units
    return units * count


# --- ops on arrays ----------------------------------------------------------------------------------------------------


def linear(x: np.ndarray, w: PackedWeight, isa: str | None = None, cut: int = 1) -> np.ndarray:
    return run(lambda r, x: r.linear(x, Array(w)), x, isa=isa, cut=cut)


def embed(tokens: Sequence[int], w: PackedWeight, scale: float = 1.0, isa: str | None = None) -> np.ndarray:
    return run(lambda r: r.embed(Array(w), scale), tokens=tokens, isa=isa)


def rms_norm(x: np.ndarray, w: np.ndarray, eps: float, heads: int = 1, isa: str | None = None) -> np.ndarray:
    return run(lambda r, x: r.rms_norm(x, Array(w), eps, heads), x, isa=isa)


def elementwise(name: str, *arrays: np.ndarray, isa: str | None = None, cut: int = 1) -> np.ndarray:
    """`add`, `mul`, `sigmoid`, `swiglu` or `geglu`."""
    return run(lambda r, *values: getattr(r, name)(*values), *arrays, isa=isa, cut=cut)


def rope(
    x: np.ndarray, heads: int, dims: int, table: np.ndarray, positions: Any, pairing: str, isa: str | None = None
) -> np.ndarray:
    spec = RopeSpec(dims, 1e4, pairing)
    return run(lambda r, x: r.rope(x, heads, spec), x, table=table, positions=positions, isa=isa)


def gather_rows(x: np.ndarray, rows: Sequence[int], isa: str | None = None) -> np.ndarray:
    return run(lambda r, x: r.output_rows(x), x, out_rows=rows, isa=isa)


def quantise(
    x: np.ndarray, kind: str, isa: str | None = None, rule: str = "rows", parts: int = 1
) -> dict[str, np.ndarray]:
    """float32 [m, cols] to the arrays of `formats.activation_bytes`, each [m, …], by the kernel alone."""
    m, cols = x.shape
    block = {"q8": 32, "q8k": 256}[kind]
    raw = {n: aligned(size) for n, size in activation_bytes(kind, m, cols).items()}
    params = {"x": x.ctypes.data, "x_step": cols, "cols": cols, **{n: a.ctypes.data for n, a in raw.items()}}
    units, unit, per_row = ((0, m * parts), 1, parts) if rule == "rows" else ((0, cols // block), block, 1)
    name = f"quantise.{kind}.{rule}"
    direct.invoke(name, params, units=units, unit=unit, per_row=per_row, job={R.M: m}, isa=isa)
    sums = (np.float32, np.int32) if kind == "q8" else (np.int16, np.int16)
    types = {"q": np.int8, "d": np.float32, "s": sums[0], "s16": sums[1]}
    return {n: a.view(types[n]).reshape(m, -1) for n, a in raw.items()}


def attention(
    state: State,
    q: np.ndarray,
    heads: int,
    scale: float,
    positions: Sequence[int],
    window: int = 0,
    split: bool = False,
    isa: str | None = None,
    key: np.ndarray | None = None,
    value: np.ndarray | None = None,
    cut: int = 1,
) -> np.ndarray:
    """Attention of rows at `positions` of one stream to its slot 0, after storing `key` and `value` if they are given."""
    spec = AttentionSpec(heads, scale, window)
    given = [x for x in (key, value) if x is not None]
    over = Pass([state], [0], [len(q)])
    over.positions = list(positions)
    op = lambda r, q, k=None, v=None: r.attention(0, q, k, v, spec)
    return run(op, q, *given, parts=state.parts, dtype=state.dtype, over=over, split=split, isa=isa, cut=cut)


def append(
    state: State, key: np.ndarray, value: np.ndarray | None, positions: Sequence[int], isa: str | None = None
) -> None:
    """Stores rows at `positions` of slot 0 of a state, by the kernel alone."""
    slot, rows = state.layout.slots[0], np.zeros((len(key), R.ROW_WORDS), np.int64)
    rows[:, R.POS] = positions
    streams = np.zeros((1, R.STREAM_WORDS), np.int64)
    streams[0, R.STREAM_STATE : R.STREAM_STATE + len(state.words())] = state.words()
    heads = getattr(slot.part, "kv_heads", 1)
    params = {"key": key.ctypes.data, "key_step": key.shape[1], "heads": heads, "k_dim": slot.part.k_dim, "v_dim": 0}
    params |= {"value": 0, "value_step": 0, "k_offset": slot.k_offset, "v_offset": slot.v_offset}
    if value is not None:
        params |= {"value": value.ctypes.data, "value_step": value.shape[1], "v_dim": slot.part.v_dim}
    params["area"] = R.area_word(slot.area)
    job = {R.M: len(key), R.ROW_TABLE: rows.ctypes.data, R.STREAM_TABLE: streams.ctypes.data}
    direct.invoke(f"kv_append.{state.dtype}", params, units=(0, len(key)), job=job, isa=isa)
