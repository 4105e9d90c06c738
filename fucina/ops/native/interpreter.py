"""The fast interpreter: a forward recorded once at load, run for every pass by a team of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...errors import EngineClosed, InvalidOption, KvCacheOverflow, ModelError
from ...kernels import attention as attention_kernels
from ...kernels.compile import address
from ...kernels.record import CHUNK, KV, MAX_ROWS, POS, ROW_WORDS, STRIDE, TOK
from ..rows import RowBatch
from .build import build
from .compiled import compiled
from .cores import default_threads
from .explain import explain, summary
from .layout import MAX_THREADS
from .learner import LearnerRecorder
from .memory import aligned
from .planner import MAX_SPLIT
from .schedule import Schedule, Value
from .sources import WeightStore
from .team import Team


class Recording(NamedTuple):
    """A forward, recorded."""

    team: Team
    schedule: Schedule
    vocab: int


class Native:
    """Interpreter of the op vocabulary in compiled kernels.

    Parameters
    ----------
    forward, config, weights : of the family (see `fucina.models`).
    threads : threads of a pass; None takes the physical cores that the process may use.
    context : positions that a cache may hold.
    cache_dtype : "f16" or "f32".
    options : of the team, for tests (`target_ns`, `tiny_ns`, `spin_seconds`, `hook`).
    """

    name = "native"

    def __init__(
        self,
        forward: Callable[..., Any],
        config: Any,
        weights: Any,
        *,
        threads: int | None = None,
        context: int,
        cache_dtype: str = "f16",
        **options: Any,
    ) -> None:
        self._forward, self._config, self._weights = forward, config, weights
        self.threads = default_threads() if threads is None else threads
        if not 1 <= self.threads <= MAX_THREADS:
            raise InvalidOption(f"threads must be 1 to {MAX_THREADS}, got {self.threads}")
        self._context, self._dtype, self._options = context, cache_dtype, options
        self._store = WeightStore(context, self.threads)
        self._overrides: list[tuple[str, Callable[..., np.ndarray]]] = []
        self._closed = False
        # one entry a row: token, position, cache, its stride
        self._rows = aligned(MAX_ROWS * ROW_WORDS * 8).view(np.int64).reshape(MAX_ROWS, ROW_WORDS)
        self._out_rows = aligned(MAX_ROWS * 8).view(np.int64)
        self._rows_at, self._out_rows_at = self._rows.ctypes.data, self._out_rows.ctypes.data
        compiled()
        self._plain = self._current = self._record()

    def _record(self) -> Recording:
        """Run the forward over symbolic tensors, and make a team for what it leaves behind."""
        recorder = LearnerRecorder(self._store, self._config.cache_geometry(), self._dtype, dict(self._overrides))
        logits: Value = self._forward(recorder, self._config, self._weights)
        if not isinstance(logits, Value) or not logits.sel:
            raise ModelError("the forward must return the logits of the rows behind output_rows")
        kv_heads = max((heads for heads, *_ in recorder.attentions), default=1)
        program = build(recorder.schedule, recorder.values, address, logits, kv_heads)
        scratch, part = 64, 64
        for _, group, k_dim, v_dim in recorder.attentions:
            scratch = max(scratch, attention_kernels.scratch_bytes(group, k_dim, v_dim))
            part = max(part, attention_kernels.part_bytes(group, v_dim))
        chunks = -(-self._context // CHUNK)
        team = Team(program, self.threads, scratch, MAX_SPLIT * chunks * part, **self._options)
        return Recording(team, recorder.schedule, logits.cols)

    def run(self, batch: RowBatch) -> np.ndarray:
        """Logits, float32 [len(batch.out_rows), vocab], a new array.  Writes K/V rows; moves no cache's `len`.

        One pass at a time: the caller holds the model's lock.
        """
        if self._closed:
            raise EngineClosed("this model was closed; load it again")
        recording = self._current
        m, n_out, rows, caches = len(batch.tokens), len(batch.out_rows), self._rows, batch.caches
        rows[:m, TOK] = batch.tokens
        rows[:m, POS] = batch.positions
        if len(caches) == 1:
            rows[:m, KV] = caches[0].address
            rows[:m, STRIDE] = caches[0].stride
        else:
            rows[:m, KV] = np.array([c.address for c in caches], np.int64)[batch.stream]
            rows[:m, STRIDE] = np.array([c.stride for c in caches], np.int64)[batch.stream]
        self._out_rows[:n_out] = batch.out_rows
        needed = 1 + int(rows[0, POS] if m == 1 else rows[:m, POS].max())
        if needed > self._store.rope_filled:
            if needed > self._context:
                raise KvCacheOverflow(f"position {needed - 1} is outside the context of {self._context}")
            self._store.fill_rope(needed)
        out = aligned(n_out * recording.vocab * 4, zero=False, alignment=64).view(np.float32)
        recording.team.program.direct(out.ctypes.data)  # the kernels write the logits where the caller will read them
        recording.team.run(m, self._rows_at, n_out, self._out_rows_at, batch)
        return out.reshape(n_out, recording.vocab)

    def explain(self) -> str:
        """The recorded stages: kernels, units, costs, what they read and write."""
        return explain(self._current.schedule, self.threads)

    def summary(self) -> dict[str, int]:
        """Counts of records, chains, steps, and steps that threads share in a pass of one row."""
        return summary(self._current.schedule)

    def override(self, op: str, function: Callable[..., np.ndarray]) -> Callable[[], None]:
        """Let a function take the place of an op; returns what undoes it.  The forward is recorded anew."""
        mine = (op, function)
        self._replace([*self._overrides, mine])

        def restore() -> None:
            self._replace([o for o in self._overrides if o is not mine])

        return restore

    def _replace(self, overrides: list[tuple[str, Callable[..., np.ndarray]]]) -> None:
        before, self._overrides = self._overrides, overrides
        old = self._current
        try:
            self._current = self._record() if overrides else self._plain
        except BaseException:
            self._overrides = before
            raise
        if old is not self._plain:
            old.team.close()

    def close(self) -> None:
        """End the threads and let go of the weights."""
        self._closed = True
        for recording in {id(r): r for r in (self._plain, self._current)}.values():
            recording.team.close()
