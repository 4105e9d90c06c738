"""A tile of a matrix product: one block of eight or sixteen output rows against a few rows of activations.

What a format's block adds to each row is written with it, in `linear`.  Lane = output row.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from .lang import F32, I8, I16, I32, Emitter, Value, vec

AHEAD = 8192  # bytes between the weights that are used and those that memory is asked for, see `ask_ahead`


def ask_ahead(k: Emitter, groups: Sequence[Value], size: int) -> None:
    """Ask memory for what is read `AHEAD` bytes after the `size` bytes of each group.

    A core's own prefetcher follows a stream only to the end of its page of 4 KB, and starts anew in each.  Asking two
    pages ahead keeps memory busy: one thread then reads weights 1.5 to 2 times as fast (8.4 to 15 GB/s for Q4_1 with
    AVX2), as fast as a plain sum does.  The weights of the next groups follow in memory; past the end nobody cares.
    """
    for at in groups:
        k.prefetch(at, size, AHEAD)


class Tile:
    """One block of the weights of one or two groups of eight output rows, against the same columns of a few rows of
    activations.

    `lanes` is the number of output rows: 8 or 16.  `at` holds each group's address.
    """

    def __init__(self, k: Emitter, at: Sequence[Value], x, d, s, acc) -> None:
        self.k, self.at, self.x_at, self.d_at, self.s_at, self.acc = k, at, x, d, s, acc
        self.rows, self.lanes = range(len(acc)), 8 * len(at)

    # --- weights: lane = output row
    def field(self, scalar: ir.Type, each: int, offset: int, step: Value | int = 0) -> Value:
        """`each` numbers of each output row."""
        return self.k.concat([self.k.load(vec(scalar, 8 * each), at + step + offset) for at in self.at])

    def bytes(self, offset: int, step: Value | int = 0) -> Value:
        """Four bytes of each output row."""
        return self.field(I8, 4, offset, step)

    def half(self, offset: int) -> Value:
        """A float16 of each output row, as float32."""
        return self.k.isa.to_float(self.k, self.field(I16, 1, offset))

    def int8(self, offset: int, step: Value | int = 0) -> Value:
        """A signed byte of each output row, as int32."""
        return self.field(I8, 1, offset, step).signed(I32)

    def int8_pairs(self, offset: int, step: Value | int = 0) -> Value:
        """Two signed bytes of each output row, as int16."""
        return self.field(I8, 2, offset, step).signed(I16)

    # --- activations: the same numbers in every lane
    def x(self, row: int, offset: int, step: Value | int = 0) -> Value:
        """Four int8 activations."""
        return self.same(I32, self.x_at[row] + step + offset).bits(vec(I8, 4 * self.lanes))

    def sums(self, row: int, index: int = 0) -> Value:
        """Number `index` of the row's integer sums of activations, as int32."""
        return self.same(I32, self.s_at[row] + 4 * index)

    def d(self, row: int) -> Value:
        """The scale of the activations."""
        return self.same(F32, self.d_at[row])

    def s(self, row: int) -> Value:
        """The scaled sum of the activations."""
        return self.same(F32, self.s_at[row])

    def same(self, scalar: ir.Type, at: Value) -> Value:
        """One number of memory in every lane."""
        return self.k.splat(self.k.load(scalar, at), self.lanes)

    def pairs_of(self, v: Value) -> Value:
        """The int32 lanes as pairs of int16."""
        return v.bits(vec(I16, 2 * self.lanes))

    # --- sums
    def dots(self, bound: int | None, zero: int = 0) -> Dots:
        """Σ (w - zero) · x for each row, with w in 0 … bound (or signed: None).  `zero` is a power of two."""
        return Dots(self, bound, zero)

    def gain(self, row: int, a: Value, b: Value) -> None:
        """The row's result grows by a · b."""
        self.acc[row].set(self.k.fma(a, b, self.acc[row].get()))


class Dots:
    """Integer dot products of one tile, one per row."""

    def __init__(self, t: Tile, bound: int | None, zero: int) -> None:
        def dot(row: int):
            offset = lambda: t.sums(row)  # -128 · Σx
            bias = (lambda: t.sums(row).shift_signed(8 - zero.bit_length())) if zero else None
            return t.k.isa.dot(t.k, bound, bias, offset)

        self.t, self.sum = t, [dot(row) for row in t.rows]

    def add(self, w: Value, offset: int, step: Value | int = 0) -> None:
        """Σ += w[4 of them] · x[offset …]."""
        for row in self.t.rows:
            self.sum[row].add(w, self.t.x(row, offset, step))
