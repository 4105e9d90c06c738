"""What a forward leaves behind when it is recorded: values, and records in a schedule.

`recorder.Recorder` adds the op vocabulary; here is what every op needs: new values, views, the quantised form of a
tensor, records with named parameters, and host stages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ...errors import ModelError
from ...gguf.weights import Matrix
from ...kernels import record as R
from ...kernels.catalogue import kernel_words
from ...kernels.formats import Format, activation_bytes
from ..override import OVERRIDES, Overrides
from ..rope import RopeSpec
from .schedule import Address, Partition, Record, Schedule, Value
from .spaces import PASS, RowSpace

UNIT = 32  # columns per unit of most column kernels: one cache line of a quantised row, four groups of a matrix
BLOCK = {"q8": 32, "q8k": 256}  # columns per block of quantised activations
HostOp = Callable[[list[np.ndarray], Any], np.ndarray]


class Packed(NamedTuple):
    """Where a packed weight lies: address, name of its format, bytes from one of its matrices to the next."""

    address: int
    format: str
    step: int = 0


class Sources(Protocol):
    """Where the recorder gets addresses of weights and tables from."""

    def matrix(self, w: Matrix) -> Packed:
        """A packed matrix, or a stack of them."""

    def vector(self, w: Matrix) -> int:
        """Address of a float32 vector, or of a small matrix whose columns follow each other."""

    def constant(self, x: float, n: int) -> int:
        """Address of n times the same float32 number."""

    def rope(self, spec: RopeSpec) -> int:
        """Address of a table of cosines and sines."""


class Ones:
    """Stands for the weight of a norm that has none."""

    def __init__(self, n: int) -> None:
        self.name, self._n = f"{n} ones", n

    def float32(self) -> np.ndarray:
        return np.ones(self._n, np.float32)


class Recording:
    """Values and records of one forward.

    Parameters
    ----------
    sources : addresses of weights and tables.
    overrides : functions that take the place of ops.
    head : the matrix whose product with the output rows are the logits.

    Attributes
    ----------
    hidden : what the head multiplies; None before that, or if there is no such product.
    """

    def __init__(self, sources: Sources, overrides: Overrides | None = None, head: Matrix | None = None) -> None:
        self.schedule = Schedule()
        self.head = head
        self.hidden: Value | None = None
        self.values: list[Value] = []  # those with a buffer
        self._sources, self._overrides = sources, overrides or Overrides()
        self._quantised: dict[tuple[Value, str], Value] = {}
        self._copies: dict[Value, Value] = {}
        self._float32: dict[str, np.ndarray] = {}  # weights of host stages: decoded when first used, then kept

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, name: str, cols: int, space: RowSpace = PASS, nbytes: int | None = None) -> Value:
        """A new tensor, without a writer as yet."""
        value = Value(name, cols, space, space.limit * cols * 4 if nbytes is None else nbytes)
        self.values.append(value)
        return value

    def views(self, x: Value, widths: Sequence[int], heads: int) -> tuple[Value, ...]:
        """Parts of each head of x, without a copy."""
        x, head_step = self.by_head(x, heads)
        at, parts = x.offset, []
        for i, width in enumerate(widths):
            name = f"{x.name}[{i}]"
            parts.append(Value(name, width * heads, x.space, 0, x.root, at, x.step, heads, head_step))
            at += width
        return tuple(parts)

    def by_head(self, x: Value, heads: int) -> tuple[Value, int]:
        """x with `heads` heads at an even distance, and that distance in numbers: a copy where x is a view of others."""
        if x.heads not in (1, heads):
            x = self.joined(x)
        return x, x.head_step if x.heads > 1 else x.cols // heads

    def joined(self, x: Value) -> Value:
        """x, or a copy (made once) where its rows are not one run of numbers."""
        if x.heads == 1:
            return x
        if x in self._copies:
            return self._copies[x]
        out, width = self.value(f"copy({x.name})", x.cols, x.space), x.cols // x.heads
        params = {"x": x, "x_step": x.step, "x_head": x.head_step, "x_cols": width}
        params |= {"y": x, "y_step": 0, "y_head": 0, "y_cols": 0, "out": out, "heads": x.heads}
        self.rows("concat", params, x.space, local=[x], writes=[out], cost=x.cols)
        self._copies[x] = out
        return out

    # --- records ------------------------------------------------------------------------------------------------------

    def rows(self, kernel: str, params: Mapping[str, Any], space: RowSpace, parts: int = 1, **fields: Any) -> None:
        """A record of a kernel over `parts` units per row; for `fields` see `schedule.Record`."""
        self._add(kernel, params, Partition(R.ROWS, parts, space), 1, fields)

    def columns(
        self, kernel: str, params: Mapping[str, Any], space: RowSpace, cols: int, unit: int = UNIT, **fields: Any
    ) -> None:
        """A record of a kernel over units of columns."""
        self._add(kernel, params, Partition(R.COLS, cols, space), unit, fields)

    def attends(self, kernel: str, params: Mapping[str, Any], heads: int, **fields: Any) -> None:
        """A record of an attention kernel."""
        self._add(kernel, params, Partition(R.ATTENTION, heads, PASS), 1, fields)

    def _add(self, kernel: str, params: Mapping[str, Any], partition: Partition, unit: int, fields: dict) -> None:
        named = {name: Address(p) if isinstance(p, Value) else p for name, p in params.items()}
        self.schedule.add(Record(kernel, kernel_words(kernel, **named), **fields), partition, unit)

    def columnwise(self, kernel: str, x: Value, y: Value) -> Value:
        """A new tensor, number by number from two of one shape."""
        if (x.cols, x.space) != (y.cols, y.space):
            raise ModelError(f"{kernel} needs two tensors of one shape, got {x.cols} and {y.cols} columns")
        x, y = self.joined(x), self.joined(y)
        out = self.value(kernel, x.cols, x.space)
        params = {"x": x, "x_step": x.step, "y": y, "y_step": y.step, "out": out, "cols": x.cols}
        self.columns(kernel, params, x.space, x.cols, local=[x, y], writes=[out], cost=12)
        return out

    def one_input(self, kernel: str, x: Value, whole: Sequence[Value] = (), **more: Any) -> Value:
        """A new tensor, number by number from one, and from what `more` says; `whole`: values that it reads besides."""
        x = self.joined(x)
        out = self.value(kernel, x.cols, x.space)
        params = {"x": x, "x_step": x.step, "out": out, "cols": x.cols, **more}
        self.columns(kernel, params, x.space, x.cols, local=[x], whole=whole, writes=[out], cost=12)
        return out

    @staticmethod
    def needs_every_row(x: Value, op: str) -> None:
        """ModelError unless x has the rows of the pass."""
        if x.space != PASS:
            raise ModelError(f"{op} after output_rows: the rows of its input are no longer those of the pass")

    # --- what products read -------------------------------------------------------------------------------------------

    def product_input(self, x: Value, fmt: Format) -> tuple[Value, dict[str, Any]]:
        """What a product with weights of this format reads, and the parameters that say where it lies."""
        x = self.joined(x)
        if fmt.sums is None:
            return x, {"x": x, "x_step": x.step, "d": 0, "s": 0}
        q, starts = self.quantised(x, fmt.activations), _starts(fmt.activations, x)
        at = {"d": Address(q, starts["d"]), "s": Address(q, starts[fmt.sums])}
        return q, {"x": q, "x_step": q.step, **at}

    def quantised(self, x: Value, kind: str) -> Value:
        """The int8 form of a tensor, made once per kind; in its producer's chain where the blocks allow it."""
        known = self._quantised.get((x, kind))
        if known is not None:
            return known
        block, space = BLOCK[kind], x.space
        if x.cols % block:
            raise ModelError(f"a matrix in blocks of {block} columns cannot take {x.cols} columns")
        starts = _starts(kind, x)
        q = self.value(f"{kind}({x.name})", x.cols, space, starts["end"])
        params = {"x": x, "x_step": x.step, "cols": x.cols}
        params |= {name: Address(q, starts[name]) for name in ("q", "d", "s", "s16")}
        if self.schedule.fits_after(x, Partition(R.COLS, x.cols, space), block):
            self.columns(f"quantise.{kind}.cols", params, space, x.cols, block, local=[x], writes=[q], cost=5)
        else:
            writer = x.writer.partition
            parts = writer.extent if writer.rule == R.ROWS and writer.space == space and x.base is None else 1
            if x.cols % (parts * block):
                parts = 1
            cost = 3 * x.cols // (2 * parts)
            self.rows(f"quantise.{kind}.rows", params, space, parts, local=[x], writes=[q], cost=cost)
        self._quantised[x, kind] = q
        return q

    # --- Python in the middle -----------------------------------------------------------------------------------------

    def host(
        self,
        function: HostOp,
        inputs: Sequence[Value],
        cols: int,
        name: str = "Python",
        space: RowSpace = PASS,
        uses: Sequence[str] = (),
    ) -> Value:
        """A host stage: the team rests, Python computes one tensor, the team goes on.

        Parameters
        ----------
        function : called as function(arrays, batch): one read-only float32 [rows, cols] view per input (valid during
            the call), and the pass's RowBatch.  Returns float32 [rows, cols].
        cols : columns of the result.
        name : of the function, for messages.
        space : rows of the result when there are no inputs.
        uses : resources that it reads, e.g. `rows_of(slot)`.
        """
        inputs = [self.joined(x) for x in inputs]
        spaces = {x.space for x in inputs} or {space}
        if len(spaces) != 1:
            raise ModelError(f"{name}: a host stage takes tensors over the same rows")
        (space,) = spaces
        out = self.value(name, cols, space)
        params = [*(Address(x) for x in inputs), Address(out)]
        record = Record(name, params, whole=inputs, writes=[out], uses=uses, host=function)
        self.schedule.add(record, Partition(R.HOST, 1, space))
        return out

    def replaced(
        self,
        op: str,
        inputs: Sequence[Value],
        cols: int,
        w: Matrix | Ones | None = None,
        *more: Any,
        uses: Sequence[str] = (),
    ) -> Value | None:
        """A host stage with the function that takes the place of an op; None where none does."""
        mine = self._overrides.get(op)
        if mine is None:
            return None

        def call(arrays: list[np.ndarray], batch: Any) -> np.ndarray:
            weight = [] if w is None else [self._decoded(w)]
            return OVERRIDES[op].rows(mine, batch, *arrays, *weight, *more)

        return self.host(call, inputs, cols, f"{op} (Python)", uses=uses)

    def _decoded(self, w: Matrix | Ones) -> np.ndarray:
        if w.name not in self._float32:
            self._float32[w.name] = w.float32()
        return self._float32[w.name]


def _starts(kind: str, x: Value) -> dict[str, int]:
    """Where the arrays of a quantised tensor start in its buffer, for the largest pass; and where it ends."""
    starts, end = {}, 0
    for name, size in activation_bytes(kind, x.space.limit, x.cols).items():
        starts[name] = end
        end += -(-size // 64) * 64
    return {**starts, "end": end}
