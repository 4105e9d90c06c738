"""The recorder: the op vocabulary, run once over symbolic tensors, leaves a schedule of kernel calls behind.

A family's forward is called with a `Recorder` in place of an interpreter.  Nothing is computed: every op adds one
or two records to the schedule and returns the `Value` that they will write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ...cache import LayerGeometry
from ...errors import ModelError
from ...kernels.formats import FORMATS, activation_bytes
from ...kernels.record import ATTENTION, COLS, HOST, MAX_ROWS, ROWS
from ..rope import RopeSpec
from .schedule import Address, Partition, Record, Schedule, Value

UNIT = 32  # columns in a unit of most column kernels: one cache line of a quantised row, four groups of a matrix
BLOCK = {"q8": 32, "q8k": 256}  # columns in a block of quantised activations
PARTIAL = "partial results"  # the resource that split attention writes and combine reads


class Sources(Protocol):
    """Where the recorder gets addresses of weights and tables from."""

    def matrix(self, w: Any) -> tuple[int, str]:
        """Address and format name of a packed matrix."""

    def vector(self, w: Any) -> int:
        """Address of a float32 vector."""

    def rope(self, spec: RopeSpec) -> int:
        """Address of a table of cosines and sines."""


Params = list[int | float | Address]
HostOp = Callable[[list[np.ndarray], Any], np.ndarray]


class Recorder:
    """Interpreter of the op vocabulary that records instead of computing.

    Parameters
    ----------
    sources : addresses of weights and tables.
    geometry : shape of each layer's cache rows.
    cache_dtype : "f16" or "f32".
    """

    def __init__(self, sources: Sources, geometry: Sequence[LayerGeometry], cache_dtype: str = "f16") -> None:
        self.schedule = Schedule()
        self.values: list[Value] = []
        self.attentions: set[tuple[int, int, int, int]] = set()  # kv heads, group, k_dim, v_dim
        self._sources, self._geometry, self._dtype = sources, tuple(geometry), cache_dtype
        self._item = 2 if cache_dtype == "f16" else 4
        self._offsets: list[tuple[int, int]] = []  # of each layer's keys and values, in numbers a position
        at = 0
        for g in self._geometry:
            self._offsets.append((at, at + g.kv_heads * g.k_dim))
            at += g.width
        self._quantised: dict[tuple[int, str], Value] = {}

    # --- tensors ------------------------------------------------------------------------------------------------------

    def _value(self, name: str, cols: int, sel: int = 0, nbytes: int | None = None) -> Value:
        value = Value(name, cols, sel, MAX_ROWS * cols * 4 if nbytes is None else nbytes)
        self.values.append(value)
        return value

    def _rows(self, record: Record, sel: int, parts: int = 1) -> None:
        self.schedule.add(record, Partition(ROWS, parts, sel))

    def _columns(self, record: Record, cols: int, sel: int, unit: int = UNIT) -> None:
        self.schedule.add(record, Partition(COLS, cols, sel), unit)

    def quantised(self, x: Value, kind: str) -> Value:
        """The int8 form of a tensor, made once a kind; behind its producer where the blocks allow it."""
        known = self._quantised.get((id(x), kind))
        if known is not None:
            return known
        block = BLOCK[kind]
        if x.cols % block:
            raise ModelError(f"a matrix in blocks of {block} columns cannot take {x.cols} columns")
        starts = _starts(kind, x.cols)
        q = self._value(f"{kind}({x.name})", x.cols, x.sel, starts["end"])
        params: Params = [
            Address(x),
            x.cols,
            *(Address(q, starts[name]) for name in ("q", "d", "s", "s16")),
        ]
        record = Record("", params, local=[x], writes=[q], cost=5)
        columns = Partition(COLS, x.cols, x.sel)
        if self.schedule.fits_behind(x, columns, block):
            record.kernel = f"quantise.{kind}.cols"
            self._columns(record, x.cols, x.sel, block)
        else:
            parts = x.writer.partition.extent if x.writer.partition.rule == ROWS else 1
            if x.cols % (parts * block):
                parts = 1
            record.kernel = f"quantise.{kind}.rows"
            record.cost = 3 * x.cols // (2 * parts)
            self._rows(record, x.sel, parts)
        self._quantised[id(x), kind] = q
        return q

    # --- the vocabulary -----------------------------------------------------------------------------------------------

    def embed(self, w: Any, scale: float = 1.0) -> Value:
        """Row `token` of the embedding matrix for every row of the pass.  -> [m, dim]"""
        address, fmt = self._sources.matrix(w)
        out = self._value("embedding", w.shape[1])
        params: Params = [address, out.cols, Address(out), float(scale)]
        self._rows(Record(f"embed.{fmt}", params, writes=[out], cost=2 * out.cols, weight=w), 0)
        return out

    def output_rows(self, x: Value) -> Value:
        """The rows that want logits.  [m, dim] -> [n, dim]"""
        out = self._value("output rows", x.cols, 1)
        self._rows(Record("gather_rows", [Address(x), x.cols, Address(out)], whole=[x], writes=[out], cost=x.cols), 1)
        return out

    def rms_norm(self, x: Value, w: Any, eps: float, heads: int = 1) -> Value:
        """Root-mean-square norm of each row, or of each head of it.  [m, n] -> [m, n]"""
        out = self._value(f"norm({x.name})", x.cols, x.sel)
        width = x.cols // heads
        if width * heads != x.cols or w.shape != (width,):
            raise ModelError(f"{w.name} has shape {list(w.shape)}, expected [{x.cols}] / {heads} heads")
        params: Params = [Address(x), Address(out), self._sources.vector(w), width, heads, float(eps)]
        self._rows(Record("rms_norm", params, local=[x], writes=[out], cost=x.cols, weight=w), x.sel)
        return out

    def linear(self, x: Value, w: Any) -> Value:
        """x Wᵀ.  [m, cols] -> [m, rows of w]"""
        n, cols = w.shape
        if cols != x.cols:
            raise ModelError(f"{w.name} has {cols} columns, its input {x.cols}")
        address, name = self._sources.matrix(w)
        fmt = FORMATS[name]
        out = self._value(w.name.removesuffix(".weight"), n, x.sel)
        source = x
        scales: list[int | Address] = [0, 0]
        if fmt.sums is not None:
            source, starts = self.quantised(x, fmt.activations), _starts(fmt.activations, cols)
            scales = [Address(source, starts["d"]), Address(source, starts[fmt.sums])]
        params: Params = [address, cols, Address(source), *scales, Address(out), n]
        cost = cols // fmt.cols * fmt.raw
        self._columns(Record(f"linear.{name}", params, whole=[source], writes=[out], cost=cost, weight=w), n, x.sel)
        return out

    def add(self, x: Value, y: Value) -> Value:
        """x + y, the residual connection."""
        return self._columnwise("add", x, y)

    def swiglu(self, gate: Value, up: Value) -> Value:
        """silu(gate) · up."""
        return self._columnwise("swiglu", gate, up)

    def geglu(self, gate: Value, up: Value) -> Value:
        """gelu(gate) · up."""
        return self._columnwise("geglu", gate, up)

    def _columnwise(self, kernel: str, x: Value, y: Value) -> Value:
        if (x.cols, x.sel) != (y.cols, y.sel):
            raise ModelError(f"{kernel} needs two tensors of one shape, got {x.cols} and {y.cols} columns")
        out = self._value(kernel, x.cols, x.sel)
        params: Params = [Address(x), Address(y), Address(out), x.cols]
        self._columns(Record(kernel, params, local=[x, y], writes=[out], cost=12), x.cols, x.sel)
        return out

    def rope(self, x: Value, heads: int, rope: RopeSpec) -> Value:
        """Turn each head of each row by its position.  [m, heads · head_dim] -> the same"""
        out = self._value(f"rope({x.name})", x.cols, x.sel)
        width = x.cols // heads
        self._needs_every_row(x, "rope")
        if width * heads != x.cols or rope.dims > width:
            raise ModelError(f"RoPE of {rope.dims} numbers does not fit {heads} heads in {x.cols} columns")
        params: Params = [Address(x), Address(out), heads, width, rope.dims, self._sources.rope(rope)]
        self._rows(Record(f"rope.{rope.pairing}", params, local=[x], writes=[out], cost=x.cols), x.sel)
        return out

    def kv_append(self, layer: int, k: Value, v: Value) -> None:
        """Store each row's key and value at its position in its stream's cache."""
        g = self._geometry[layer]
        self._needs_every_row(k, "kv_append")
        self._needs_every_row(v, "kv_append")
        if (k.cols, v.cols) != (g.kv_heads * g.k_dim, g.kv_heads * g.v_dim):
            raise ModelError(
                f"layer {layer} keeps {g.kv_heads} heads of {g.k_dim} and {g.v_dim}, got {k.cols} and {v.cols}"
            )
        params: Params = [Address(k), Address(v), g.kv_heads, g.k_dim, g.v_dim, *self._offsets[layer]]
        cost = k.cols + v.cols
        self._rows(Record(f"kv_append.{self._dtype}", params, local=[k, v], changes=[rows_of(layer)], cost=cost), 0)

    def attention(self, layer: int, q: Value, heads: int, scale: float, window: int = 0) -> Value:
        """Each row looks at its stream's positions up to its own.  [m, heads · k_dim] -> [m, heads · v_dim]"""
        g = self._geometry[layer]
        group = heads // g.kv_heads
        self._needs_every_row(q, "attention")
        if group * g.kv_heads != heads or q.cols != heads * g.k_dim:
            raise ModelError(
                f"layer {layer}: {heads} heads in {q.cols} columns do not fit {g.kv_heads} heads of {g.k_dim}"
            )
        self.attentions.add((g.kv_heads, group, g.k_dim, g.v_dim))
        out = self._value("attention", heads * g.v_dim)
        name = f"{self._dtype}.{group}.{g.k_dim}.{g.v_dim}"
        params: Params = [Address(q), Address(out), g.kv_heads, *self._offsets[layer], int(window), float(scale)]
        # a position costs its key and value, and some arithmetic a query head
        cost = (g.k_dim + g.v_dim) * (self._item + group // 2)
        first = Record(
            f"attention.{name}", params, whole=[q], writes=[out], uses=[rows_of(layer)], changes=[PARTIAL], cost=cost
        )
        self.schedule.add(first, Partition(ATTENTION, g.kv_heads))
        second = Record(f"combine.{name}", params, local=[out], writes=[out], uses=[PARTIAL], cost=4 * group * g.v_dim)
        self._rows(second, 0, g.kv_heads)
        return out

    @staticmethod
    def _needs_every_row(x: Value, op: str) -> None:
        if x.sel:
            raise ModelError(f"{op} behind output_rows: the rows of its input are no longer those of the pass")

    # --- Python in the middle -----------------------------------------------------------------------------------------

    def host_op(
        self, function: HostOp, inputs: Sequence[Value], cols: int, note: str = "host", uses: Sequence[str] = ()
    ) -> Value:
        """A host stage: the team rests, Python computes one tensor, the team goes on.

        Parameters
        ----------
        function : called as function(arrays, batch), one read-only float32 [rows, cols] view an input (valid during the
            call), and the pass's RowBatch.  Returns float32 [rows, cols].
        cols : columns of the result.
        note : names the function in messages.
        uses : resources that it reads, e.g. rows_of(layer).
        """
        sels = {x.sel for x in inputs}
        if len(sels) != 1:
            raise ModelError(f"{note}: a host stage takes tensors over the same rows")
        (sel,) = sels
        out = self._value(note, cols, sel)
        params: Params = [*(Address(x) for x in inputs), Address(out)]
        record = Record(note, params, whole=list(inputs), writes=[out], uses=uses, host=function)
        self.schedule.add(record, Partition(HOST, 1, sel))
        return out


def rows_of(layer: int) -> str:
    """Name of the resource that a layer's cache rows are."""
    return f"K/V of layer {layer}"


def _starts(kind: str, cols: int) -> dict[str, int]:
    """Where the arrays of a quantised tensor start in its buffer, for the largest pass; and where it ends."""
    starts, end = {}, 0
    for name, size in activation_bytes(kind, MAX_ROWS, cols).items():
        starts[name] = end
        end += -(-size // 64) * 64
    return {**starts, "end": end}
