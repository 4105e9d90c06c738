"""The readable interpreter: every op of the vocabulary in plain NumPy, one after the other.

A family's forward calls these ops (`ops/vocabulary.py` says what each means); each returns a new array.  Rows are
multiplied one by one, so that a row's result does not depend on how many rows share the pass.  With the functions
`EXACT` this is the mathematical reference: weights become float32, and nothing is rounded on the way but what a state
keeps.  `ops/native_bits.py` has the same table with the arithmetic of the compiled kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import ModelError
from ..gguf.weights import Matrix
from .functions import EXACT, Functions, attention, geglu, gelu, rms_norm, rotate, silu, softmax, swiglu
from .override import OVERRIDES, Overrides, looked_at
from .rope import RopeSpec
from .rows import NO_HEAD, RowBatch
from .vocabulary import AttentionSpec, LoadedFamily, Ops, RouterSpec

__all__ = ["Naive", "attention", "geglu", "gelu", "rms_norm", "rotate", "silu", "softmax", "swiglu"]


class Naive:
    """Interpreter of the op vocabulary in NumPy.

    Parameters
    ----------
    family : what to run (see `fucina.models`).
    dequantize : block decoders by format name, e.g. {"Q4_1": f}; f(raw uint8 [rows, bytes]) -> float32 [rows, cols].
    functions : what the ops compute with.
    """

    name = "naive"
    threads = 1

    def __init__(
        self,
        family: LoadedFamily,
        dequantize: dict[str, Callable[[np.ndarray], np.ndarray]] | None = None,
        functions: Functions = EXACT,
    ) -> None:
        self._family, self._functions = family, functions
        self.activations = functions.activations
        self._dequantize = dict(dequantize or {})
        native = self.activations == "q8" and not self._dequantize
        self.arithmetic = "" if native else " ".join(["naive", self.activations, *sorted(self._dequantize)])
        self._float32: dict[str, np.ndarray] = {}  # decoded weights, kept: decoding costs more than multiplying
        self._matrices: dict[tuple[str, int], Any] = {}
        self._overrides = Overrides()
        self._batch: Any = None  # the RowBatch of the pass that runs
        self._hidden: np.ndarray | None = None  # its hidden states, once they are computed

    def run(self, batch: RowBatch, hidden: np.ndarray | None = None) -> np.ndarray:
        """Logits, float32 [len(batch.out_rows), vocab].  Writes to the states of the batch; moves no state's `len`.

        hidden : float32 [len(batch.hidden_rows), dim], takes the hidden states of these rows.
        """
        self._batch, self._hidden = batch, None
        try:
            logits = self._family.forward(self, self._family.config, self._family.weights)
            if hidden is not None:
                if self._hidden is None:
                    raise ModelError(NO_HEAD)
                hidden[...] = self._hidden
            return logits
        finally:
            self._batch = self._hidden = None

    def explain(self) -> str:
        """What this interpreter does, in words."""
        return (
            f"naive interpreter, activations={self.activations}: the ops of the family's forward run one by one "
            "in NumPy, each on all rows of the pass; matrix products row by row."
        )

    def override(self, op: str, function: Callable[..., np.ndarray]) -> Callable[[], None]:
        """Let a function take the place of an op (see `ops/override.py`); returns what undoes it."""
        return self._overrides.add(op, function)

    def close(self) -> None:
        """Forget the decoded weights."""
        self._float32.clear()
        self._matrices.clear()

    def float32(self, w: Matrix) -> np.ndarray:
        """A weight as float32 of its shape, decoded once."""
        if w.name not in self._float32:
            mine = self._dequantize.get(w.ggml_type.name)
            self._float32[w.name] = w.float32() if mine is None else w.decoded_by(mine)  # type: ignore[attr-defined]
        return self._float32[w.name]

    def matrix(self, w: Matrix, index: int = 0) -> Any:
        """A matrix, or matrix `index` of a stack, as the functions' `product` takes it."""
        key = w.name, index
        if key not in self._matrices:
            rows, cols = w.shape[-2:]
            if self._functions.unpack is None or w.ggml_type.name in self._dequantize:
                self._matrices[key] = self.float32(w).reshape(-1, rows, cols)[index]
            else:
                raw = w.raw[index * rows : (index + 1) * rows]
                self._matrices[key] = self._functions.unpack(raw, w.ggml_type.name.lower())
        return self._matrices[key]

    def _rows(self) -> Iterator[tuple[int, Any, int]]:
        """(index, state of its stream, position) of every row of the pass."""
        for i, (stream, position) in enumerate(zip(self._batch.stream, self._batch.positions, strict=True)):
            yield i, self._batch.states[stream], int(position)

    # --- the vocabulary -----------------------------------------------------------------------------------------------

    def embed(self, w: Matrix, scale: float = 1.0) -> np.ndarray:
        return self.float32(w)[self._batch.tokens] * np.float32(scale)

    def output_rows(self, x: np.ndarray) -> np.ndarray:
        return x[np.concatenate([self._batch.out_rows, self._batch.hidden_rows])]

    def linear(self, x: np.ndarray, w: Matrix) -> np.ndarray:
        if w is self._family.head and self._hidden is None:
            x, self._hidden = np.split(x, [len(self._batch.out_rows)])  # no head for rows that want none
        if mine := self._overrides.get("linear"):
            return OVERRIDES["linear"].rows(mine, self._batch, x, self.float32(w))
        return self._functions.product(x, self.matrix(w))

    def linear_heads(self, x: np.ndarray, w: Matrix, heads: int) -> np.ndarray:
        by_head = x.reshape(len(x), heads, -1)  # [m, heads, inputs]
        out = [self._functions.product(by_head[:, h], self.matrix(w, h)) for h in range(heads)]
        return np.concatenate(out, axis=1)

    def add(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x + y

    def mul(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return x * y

    def scale(self, x: np.ndarray, w: Matrix | float) -> np.ndarray:
        return x * (np.float32(w) if isinstance(w, (int, float)) else self.float32(w))

    def bias(self, x: np.ndarray, w: Matrix) -> np.ndarray:
        return x + self.float32(w)

    def sigmoid(self, x: np.ndarray) -> np.ndarray:
        return self._functions.sigmoid(x)

    def softplus(self, x: np.ndarray) -> np.ndarray:
        return self._functions.softplus(x)

    def softcap(self, x: np.ndarray, cap: float) -> np.ndarray:
        return self._functions.softcap(x, cap)

    def swiglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return (self._overrides.get("swiglu") or self._functions.swiglu)(gate, up)

    def geglu(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        return (self._overrides.get("geglu") or self._functions.geglu)(gate, up)

    def rms_norm(self, x: np.ndarray, w: Matrix | None, eps: float, heads: int = 1) -> np.ndarray:
        weight = np.ones(x.shape[1] // heads, np.float32) if w is None else self.float32(w)
        if mine := self._overrides.get("rms_norm"):
            return OVERRIDES["rms_norm"].rows(mine, self._batch, x, weight, eps, heads)
        by_head = x.reshape(len(x), heads, x.shape[1] // heads)  # [m, heads, n / heads]
        return self._functions.rms_norm(by_head, weight, eps).reshape(x.shape)

    def rope(self, x: np.ndarray, heads: int, spec: RopeSpec) -> np.ndarray:
        if mine := self._overrides.get("rope"):
            return OVERRIDES["rope"].rows(mine, self._batch, x, heads, spec)
        by_head = x.reshape(len(x), heads, -1)  # [m, heads, head_dim]
        return self._functions.rope(by_head, self._batch.positions, spec).reshape(x.shape)

    def split(self, x: np.ndarray, *widths: int, heads: int = 1) -> tuple[np.ndarray, ...]:
        by_head = x.reshape(len(x), heads, sum(widths))
        ends = np.cumsum(widths)
        return tuple(
            by_head[:, :, end - n : end].reshape(len(x), heads * n) for n, end in zip(widths, ends, strict=True)
        )

    def concat(self, x: np.ndarray, y: np.ndarray, heads: int = 1) -> np.ndarray:
        parts = [t.reshape(len(t), heads, t.shape[1] // heads) for t in (x, y)]
        return np.concatenate(parts, axis=2).reshape(len(x), -1)

    def attention(
        self, slot: int, q: np.ndarray, k: np.ndarray | None, v: np.ndarray | None, spec: AttentionSpec
    ) -> np.ndarray:
        if k is not None:
            part = self._family.parts[slot]
            kv_heads = getattr(part, "kv_heads", 1)  # a latent is one key head
            for i, state, position in self._rows():
                value = None if v is None else v[i].reshape(kv_heads, -1)
                state.write(slot, position, k[i].reshape(kv_heads, -1), value)
        if mine := self._overrides.get("attention"):
            return OVERRIDES["attention"].rows(mine, self._batch, q, slot, spec)
        out = []
        for i, state, position in self._rows():
            keys, values = looked_at(state, slot, position, spec)  # [kv_heads, n, dim]
            first = position + 1 - keys.shape[1]
            out.append(
                self._functions.attend(q[i].reshape(spec.heads, -1), keys, values, spec.scale, first).reshape(-1)
            )
        return np.stack(out)

    def delta_rule(
        self, slot: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, decay: np.ndarray, beta: np.ndarray, heads: int
    ) -> np.ndarray:
        k_dim, v = self._family.parts[slot].shape[1], v.reshape(len(v), heads, -1)  # type: ignore[union-attr]
        turns = heads * k_dim // q.shape[1]  # heads that share a key
        q, k = (np.tile(t.reshape(len(t), -1, k_dim), (1, turns, 1)) for t in (q, k))
        rule = self._functions.delta_rule
        return self._recur(slot, lambda s, i: rule(s, q[i], k[i], v[i], decay[i], beta[i]))

    def conv(self, slot: int, x: np.ndarray, w: Matrix) -> np.ndarray:
        kernel = self.float32(w)  # [n, taps]

        def one(latest: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
            window = np.concatenate([latest, x[i : i + 1]])  # [taps, n]
            return window[1:], self._functions.conv(window, kernel)

        return self._recur(slot, one)

    def _recur(self, slot: int, one: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
        """The rows of each stream in order: one(array of its slot before row i, i) -> the array after it, its output."""
        arrays: dict[int, np.ndarray] = {}  # by stream, after its last row so far
        out = []
        for i, state, _ in self._rows():
            stream = int(self._batch.stream[i])
            before = arrays[stream] if stream in arrays else state.recurrent(slot)[0]
            arrays[stream], y = one(before, i)
            out.append(y.reshape(-1))
        for stream, after in arrays.items():
            self._batch.states[stream].recurrent(slot)[1][...] = after
        return np.stack(out)

    def route(
        self, x: np.ndarray, w: Matrix, spec: RouterSpec, bias: Matrix | None = None, scales: Matrix | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = self._functions.product(x, self.matrix(w))  # [m, experts]
        vectors = (None if v is None else self.float32(v) for v in (bias, scales))
        return self._functions.choose(scores, spec, *vectors)

    def moe_ffn(
        self,
        x: np.ndarray,
        experts: np.ndarray,
        weights: np.ndarray,
        gate: Matrix,
        up: Matrix | None,
        down: Matrix,
        gating: str = "swiglu",
    ) -> np.ndarray:
        f = self._functions
        gated = getattr(f, gating)
        out = np.empty_like(x)
        for i in range(len(x)):
            row, results = x[i : i + 1], []
            for e in experts[i]:
                first = f.product(row, self.matrix(gate, e))
                h = gated(first, f.product(row, self.matrix(up, e))) if up else gated(*np.split(first, 2, axis=1))
                results.append(f.product(h, self.matrix(down, e))[0])
            out[i] = f.weighted_sum(np.stack(results), weights[i])
        return out


def _has_every_op(naive: Naive) -> Ops[np.ndarray]:
    """For type checkers."""
    return naive
