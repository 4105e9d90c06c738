"""The fast interpreter: a forward recorded once at load, run for every pass by a team of threads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...cache.parts import CHUNK, MAX_ROWS, Layout
from ...errors import EngineClosed, InvalidOption, KvCacheOverflow, ModelError
from ...kernels import record as R
from ...kernels.compile import address
from ...kernels.memory import aligned
from ..override import Overrides
from ..rows import NO_HEAD, RowBatch
from ..vocabulary import LoadedFamily
from .cores import default_threads
from .explain import explain, summary
from .layout import MAX_THREADS
from .loop import compiled
from .planner import MAX_SPLIT
from .program import build
from .recorder import Recorder
from .schedule import Schedule, Value
from .spaces import LOGITS, OUTPUT
from .team import Team, TeamOptions
from .weights import WeightStore


class Recorded(NamedTuple):
    """A forward, recorded."""

    team: Team
    schedule: Schedule
    logits: Value
    hidden: Value | None


class Native:
    """Interpreter of the op vocabulary in compiled kernels.

    Parameters
    ----------
    family : what to run (see `fucina.models`).
    threads : threads of a pass; None takes the physical cores that the process may use.
    context : positions that a state may hold.
    cache_dtype : "f16", "q8_0" or "f32".
    options : of the team, for tests; see `team.TeamOptions`.
    """

    name = "native"
    arithmetic = ""
    activations = "q8"

    def __init__(
        self,
        family: LoadedFamily,
        *,
        threads: int | None = None,
        context: int,
        cache_dtype: str = "f16",
        **options: Any,
    ) -> None:
        self.threads = default_threads() if threads is None else threads
        if not 1 <= self.threads <= MAX_THREADS:
            raise InvalidOption(f"threads must be 1 to {MAX_THREADS}, got {self.threads}")
        self._family, self._layout = family, Layout(family.parts, MAX_ROWS)
        self._context, self._dtype, self._options = context, cache_dtype, options
        self._store = WeightStore(context, self.threads)
        self._overrides = Overrides()
        self._closed = False
        self._rows = aligned(MAX_ROWS * R.ROW_BYTES).view(np.int64).reshape(MAX_ROWS, R.ROW_WORDS)
        self._streams = aligned(MAX_ROWS * R.STREAM_BYTES).view(np.int64).reshape(MAX_ROWS, R.STREAM_WORDS)
        self._out_rows = aligned(MAX_ROWS * 8).view(np.int64)
        self._job = {
            R.ROW_TABLE: self._rows.ctypes.data,
            R.STREAM_TABLE: self._streams.ctypes.data,
            R.OUT_ROWS: self._out_rows.ctypes.data,
        }
        compiled()
        self._plain = self._current = self._record()

    def _record(self) -> Recorded:
        """Run the forward over symbolic tensors, and make a team for what it leaves behind."""
        recorder = Recorder(self._store, self._layout, self._dtype, self._overrides, self._family.head)
        logits: Value = self._family.forward(recorder, self._family.config, self._family.weights)
        if not isinstance(logits, Value) or logits.space not in (OUTPUT, LOGITS) or logits.base is not None:
            raise ModelError("the forward must return the logits of the rows of output_rows")
        hidden = recorder.hidden
        program = build(recorder.schedule, recorder.values, address, logits, [] if hidden is None else [hidden])
        part_bytes = MAX_SPLIT * -(-self._context // CHUNK) * recorder.part
        options = TeamOptions(scratch_bytes=recorder.scratch, part_bytes=part_bytes, **self._options)
        return Recorded(Team(program, self.threads, options), recorder.schedule, logits, hidden)

    def run(self, batch: RowBatch, hidden: np.ndarray | None = None) -> np.ndarray:
        """Logits, float32 [len(batch.out_rows), vocab], a new array.  Writes to the states; moves no state's `len`.

        hidden : float32 [len(batch.hidden_rows), dim], takes the hidden states of these rows.

        One pass at a time: the caller holds the engine's lock.
        """
        if self._closed:
            raise EngineClosed("this model was closed; load it again")
        current = self._current
        if hidden is not None and current.hidden is None:
            raise ModelError(NO_HEAD)
        n_logits, vocab = len(batch.out_rows), current.logits.cols
        self._fill_tables(batch)
        words = {**self._job, R.M: len(batch.tokens), R.N_STREAMS: len(batch.states)}
        words |= {R.N_OUT: n_logits + len(batch.hidden_rows), R.N_LOGITS: n_logits}
        rows = current.logits.space.count(words)
        out = aligned(rows * vocab * 4, zero=False, alignment=64).view(np.float32)
        current.team.program.direct(out.ctypes.data)  # the kernels write the logits where the caller will read them
        current.team.run(words, batch)
        if hidden is not None and len(hidden):
            start = current.team.program.kept[0] + n_logits * hidden.shape[1] * 4
            found = np.ctypeslib.as_array((ctypes.c_float * hidden.size).from_address(start))
            hidden[...] = found.reshape(hidden.shape)
        return out.reshape(rows, vocab)[:n_logits]

    def _fill_tables(self, batch: RowBatch) -> None:
        """Rows, streams and rows that want logits; tables of RoPE as far as this pass needs them."""
        m, n, rows, streams = len(batch.tokens), len(batch.states), self._rows, self._streams
        rows[:m, R.TOK] = batch.tokens
        rows[:m, R.POS] = batch.positions
        rows[:m, R.STREAM] = batch.stream
        if n == 1:
            streams[0, R.STREAM_FIRST], streams[0, R.STREAM_ROWS] = 0, m
        else:
            streams[batch.stream[::-1], R.STREAM_FIRST] = np.arange(m - 1, -1, -1)  # the first row is written last
            streams[:n, R.STREAM_ROWS] = np.bincount(batch.stream, minlength=n)
        for i, state in enumerate(batch.states):
            words = state.words()
            streams[i, R.STREAM_STATE : R.STREAM_STATE + len(words)] = words
        self._out_rows[: len(batch.out_rows)] = batch.out_rows
        if len(batch.hidden_rows):
            self._out_rows[len(batch.out_rows) :][: len(batch.hidden_rows)] = batch.hidden_rows
        needed = 1 + int(rows[0, R.POS] if m == 1 else rows[:m, R.POS].max())
        if needed > self._store.rope_filled:
            if needed > self._context:
                raise KvCacheOverflow(f"position {needed - 1} is outside the context of {self._context}")
            self._store.fill_rope(needed)

    def explain(self) -> str:
        """The recorded stages, readable."""
        return explain(self._current.schedule, self.threads)

    def summary(self) -> dict[str, int]:
        """Counts of records, chains, steps, and steps that threads share in a pass of one row."""
        return summary(self._current.schedule)

    def override(self, op: str, function: Callable[..., np.ndarray]) -> Callable[[], None]:
        """Let a function take the place of an op; returns what undoes it.  The forward is recorded anew."""
        restore = self._overrides.add(op, function)
        try:
            self._record_again()
        except BaseException:
            restore()
            raise

        def undo() -> None:
            restore()
            self._record_again()

        return undo

    def _record_again(self) -> None:
        old, self._current = self._current, self._record() if self._overrides else self._plain
        if old is not self._plain:
            old.team.close()

    def close(self) -> None:
        """End the threads and let go of the weights."""
        self._closed = True
        for recorded in {id(r): r for r in (self._plain, self._current)}.values():
            recorded.team.close()
