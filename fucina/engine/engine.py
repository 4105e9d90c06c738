"""The engine: passes over the rows of streams.  It works on token ids and states, not on text.

`Engine` checks everything that comes from outside, cuts work into passes of at most 128 rows, and lets states keep
what was computed only when every pass of a call has succeeded.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, Self

import numpy as np

from .. import checks
from ..cache import State
from ..cache.parts import Layout
from ..errors import (
    DuplicateCache,
    EmptyInput,
    InvalidOption,
    KvCacheOverflow,
    KvCacheShapeMismatch,
    ReentrantForward,
    TokenOutOfRange,
)
from ..models import LoadedFamily
from ..ops.override import OVERRIDES
from ..ops.rows import MAX_ROWS, RowBatch
from .call import CallRows, Hidden, batch_of, part_of, per_request

Tokens = Sequence[int] | np.ndarray
Request = tuple[State, Tokens, str | int | Hidden]

_WANTS: dict[Any, Callable[[int], int]] = {"all": lambda rows: rows, "last": lambda rows: 1, "none": lambda rows: 0}


class Interpreter(Protocol):
    """What runs a family's forward: `fucina.ops.naive.Naive` or `fucina.ops.native.Native`."""

    name: str
    threads: int
    arithmetic: str  # "" if rows have the native bits, else a name for those that they have

    def run(self, batch: RowBatch, hidden: np.ndarray | None = None) -> np.ndarray:
        """Logits, float32 [len(batch.out_rows), vocab].  Writes rows of the states; moves no state's `len`.

        hidden : float32 [len(batch.hidden_rows), dim], takes the hidden states of these rows.
        """

    def explain(self) -> str:
        """A readable listing of what runs in a pass."""

    def override(self, op: str, function: Callable[..., np.ndarray]) -> Callable[[], None]:
        """Let a function take the place of an op; returns what undoes it."""

    def close(self) -> None:
        """End the threads and release the weights."""


class Engine:
    """Runs passes of one model.

    Parameters
    ----------
    family : config, weights and forward (see `fucina.models`).
    interpreter : runs the forward.
    context : positions that a state may hold.
    cache_dtype : "f16", "q8_0" or "f32", of keys and values.
    fingerprint : 16 bytes that name the weights; states carry them.

    Attributes
    ----------
    config, weights : of the family.
    context, cache_dtype, fingerprint : as given.
    n_tokens : ids that a text may hold are below this.  Logits have `config.vocab_size` numbers, one per row of the
        embedding; a padded vocabulary has more rows than tokens.
    """

    def __init__(
        self, family: LoadedFamily, interpreter: Interpreter, context: int, cache_dtype: str, fingerprint: bytes
    ) -> None:
        self.family, self.config, self.weights = family, family.config, family.weights
        self.context, self.cache_dtype, self.fingerprint = context, cache_dtype, fingerprint
        self.n_tokens: int = family.config.vocab_size
        self._interpreter = interpreter
        self._layout = Layout(family.parts)
        self._lock = threading.RLock()
        self._process = os.getpid()

    @property
    def backend(self) -> str:
        """Name of the interpreter: "native" or "naive"."""
        return self._interpreter.name

    @property
    def threads(self) -> int:
        """Threads that a pass uses."""
        return self._interpreter.threads

    def explain(self) -> str:
        """A readable listing of what runs in a pass."""
        return self._interpreter.explain()

    def close(self) -> None:
        """End the threads and release the weights.  The engine cannot be used afterwards."""
        with self._passes():
            self._interpreter.close()

    # --- state --------------------------------------------------------------------------------------------------------

    def new_cache(self, capacity: int | None = None) -> State:
        """An empty state for one stream of this model; `capacity`, in positions, defaults to the context.

        Raises
        ------
        KvCacheOverflow : capacity below 1, or above the context (load with a larger `context=` for that).
        """
        if capacity is None:
            capacity = self.context
        capacity = checks.integer("capacity", capacity, 1, error=KvCacheOverflow)
        if capacity > self.context:
            raise KvCacheOverflow(
                f"capacity {capacity} is above the context of {self.context}; load with context={capacity}"
            )
        return State(self._layout, capacity, self.cache_dtype, self.fingerprint)

    # --- passes -------------------------------------------------------------------------------------------------------

    def logits(self, tokens: Tokens) -> np.ndarray:
        """Logits after every position of a new stream: float32 [len(tokens), vocab]."""
        ids = self.check_tokens(tokens)
        return self.forward(ids, self.new_cache(len(ids)))

    def hidden(self, tokens: Tokens) -> np.ndarray:
        """Hidden states after every position of a new stream, before the output matrix: float32 [len(tokens), dim]."""
        ids = self.check_tokens(tokens)
        (out,) = self.forward_rows([(self.new_cache(len(ids)), ids, Hidden(len(ids)))])  # the state is let go
        return out

    def forward(self, tokens: Tokens, cache: State) -> np.ndarray:
        """Run the next tokens of one stream and advance its state: logits float32 [len(tokens), vocab].

        Raises the errors of `forward_rows`.
        """
        return self.forward_rows([(cache, tokens, "all")])[0]

    def forward_rows(self, requests: Sequence[Request]) -> list[np.ndarray]:
        """Run the next tokens of several streams together.

        Every row has the same bits as if it ran alone.  Everything is checked before anything runs, and a failure
        advances no state.

        Parameters
        ----------
        requests : (state, tokens, want) of each stream; want is "all", "last" or "none": which rows' logits to return.
            Or a number n: the logits of the last n rows, and this state is not advanced: it waits for the caller's
            `state.commit(rows)`, with as many of the rows as are to be kept.  `Hidden(n)` likewise gives hidden states.

        Returns
        -------
        Per request one float32 array [rows wanted, vocab], or [rows wanted, dim] of hidden states.

        Raises
        ------
        EmptyInput : no request, or one without tokens.
        TokenOutOfRange : an id outside the vocabulary.
        DuplicateCache : one state in two requests.
        KvCacheShapeMismatch : a state of another model, geometry or dtype.
        KvCacheOverflow : the tokens do not fit.
        InvalidOption : another `want`.
        ReentrantForward : called from inside a pass of this model.
        """
        with self._passes():
            rows = self._check(requests)
            out = self._run(rows)
            for row, (_, _, want) in zip(rows, requests, strict=True):
                if isinstance(want, str):
                    row.state.owner = None
                    row.state.commit(len(row.tokens))
        return out

    def _run(self, rows: Sequence[CallRows]) -> list[np.ndarray]:
        """Passes of at most 128 rows, one after another; the states are in the middle of them afterwards."""
        batch = batch_of(rows)
        hidden = None
        if any(row.hidden for row in rows):
            hidden = np.empty((len(batch.hidden_rows), self.config.dim), np.float32)
        for row in rows:
            row.state.begin(len(row.tokens))
        try:
            if len(batch.tokens) <= MAX_ROWS:
                out = self._pass(batch, hidden)
            else:
                out = np.empty((len(batch.out_rows), self.config.vocab_size), np.float32)
                for start in range(0, len(batch.tokens), MAX_ROWS):
                    part = part_of(batch, start)
                    out[part.logits] = self._pass(part.batch, None if hidden is None else hidden[part.hidden])
        except BaseException:
            for row in rows:
                row.state.rollback()
            raise
        return per_request(rows, out, hidden)

    def _pass(self, batch: RowBatch, hidden: np.ndarray | None) -> np.ndarray:
        out = self._interpreter.run(batch) if hidden is None else self._interpreter.run(batch, hidden)
        for state in batch.states:
            state.next_pass()
        return out

    def check_tokens(self, tokens: Tokens) -> np.ndarray:
        """Token ids as int64 [n]; EmptyInput if there are none, TokenOutOfRange if one is no id of this vocabulary."""
        ids = np.asarray(tokens)
        if ids.size == 0:
            raise EmptyInput("a pass needs at least one token, got none")
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise TokenOutOfRange(
                f"tokens must be a flat sequence of integers, got {ids.dtype} of shape {list(ids.shape)}"
            )
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or high >= self.n_tokens:
            bad = low if low < 0 else high
            raise TokenOutOfRange(f"token id {bad} is outside the vocabulary of {self.n_tokens}")
        return ids.astype(np.int64)

    def check_state(self, state: State, where: str = "") -> None:
        """Raise KvCacheShapeMismatch unless a state is one of this model's; `where` begins the message."""
        if not isinstance(state, State):
            raise KvCacheShapeMismatch(f"{where}expected a State of new_cache(), got {type(state).__name__}")
        if (state.layout is not self._layout and state.layout != self._layout) or state.dtype != self.cache_dtype:
            raise KvCacheShapeMismatch(f"{where}the state was not made by this model (geometry or dtype differ)")
        if state.fingerprint != self.fingerprint:
            raise KvCacheShapeMismatch(f"{where}the state belongs to another model; use this model's new_cache()")

    def _check(self, requests: Sequence[Request]) -> list[CallRows]:
        """The rows of a call, checked."""
        if not requests:
            raise EmptyInput("a pass needs at least one stream, got none")
        checked = []
        for i, (state, tokens, want) in enumerate(requests):
            self.check_state(state, f"stream {i}: ")
            ids = self.check_tokens(tokens)
            if state.len + len(ids) > min(state.capacity, self.context):
                raise KvCacheOverflow(
                    f"stream {i}: {len(ids)} tokens at position {state.len} pass the capacity of {state.capacity}"
                    + ("" if state.capacity <= self.context else f" or the context of {self.context}")
                )
            wanted: Any = want[0] if isinstance(want, Hidden) else want
            if isinstance(want, str) and want in _WANTS:
                wanted = _WANTS[want](len(ids))
            if type(wanted) is not int or not 0 <= wanted <= len(ids):
                raise InvalidOption(
                    f"stream {i}: want must be one of {', '.join(_WANTS)}, or a number of rows, got {checks.shown(want)}"
                )
            checked.append(CallRows(state, ids, wanted, isinstance(want, Hidden)))
        if len({id(r.state) for r in checked}) != len(checked):
            raise DuplicateCache("one state appears in two streams of a pass; every stream needs its own")
        return checked

    def _passes(self) -> threading.RLock:
        """The lock that passes hold, for `with`: one thread at a time.

        The same thread twice would be a pass inside a pass, so that is an error.  The lock is CPython's own, used by
        `with` directly: Ctrl-C cannot come between taking it and being sure that it is given back.
        """
        if self._process != os.getpid():  # forked, perhaps while a thread that does not exist here held the lock
            self._lock, self._process = threading.RLock(), os.getpid()
        if self._lock._is_owned():  # type: ignore[attr-defined]
            raise ReentrantForward(
                "this model is in the middle of a pass; an op or host stage cannot start another one"
            )
        return self._lock

    @contextmanager
    def override(self, op: str, function: Callable[..., np.ndarray]) -> Iterator[Self]:
        """Inside the `with`, `function` takes the place of an op; `fucina.ops.override.OVERRIDES` lists them.

        The signatures are:

            rms_norm(x [n], weight [n], eps)        linear(matrix [rows, cols], x [cols])
            swiglu(gate, up)    geglu(gate, up)     rope(x [heads, head_dim], cos, sin, pairing)
            attention(q [heads, k_dim], k [kv_heads, n, k_dim], v [kv_heads, n, v_dim], scale)

        Wrong shapes or values that are not finite come back as a ModelError that names the function.
        """
        checks.one_of("op", op, tuple(OVERRIDES))
        with self._passes():
            restore = self._interpreter.override(op, function)
        try:
            yield self
        finally:
            with self._passes():
                restore()


__all__ = ["Engine", "Interpreter", "Request", "Tokens"]
