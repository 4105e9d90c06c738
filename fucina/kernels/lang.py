"""The kernel language: Python that emits LLVM vector code and reads like the maths.

A kernel is a Python function of one argument, the emitter `k`.  It runs once, when the kernel is compiled; every
operation on a `Value` appends one instruction.  Python loops are therefore unrolled, and loops of the machine are
written `with k.range(lo, hi) as i:`.  Nothing else in the project builds LLVM instructions.

    @kernel("add", rule="columns", params="x x_step y y_step out cols")
    def add(k):
        two_inputs(k, lambda x, y: x + y)

Parameters are declared once, with the kernel (see `registry`), and read by name: `k.p.cols`.

Floats are IEEE throughout: no fast-math flag is ever set, a product and a sum are contracted only where the kernel says
`k.fma`, and reductions have a fixed order, so that every instruction set computes the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace

from llvmlite import ir

from . import record as R
from .registry import Param
from .value import (  # noqa: F401  (kernels import the language from here)
    F8,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    POINTER,
    Value,
    Var,
    constant,
    suffix,
    type_suffix,
    vec,
)

LINE = 64  # bytes of a cache line
LOWEST = -1e30  # stands for minus infinity where -inf - -inf must not happen


class Emitter:
    """What a kernel is written with: memory, control flow, arithmetic.  Addresses are int64 values, in bytes."""

    def __init__(self, b: ir.IRBuilder, isa, words: Sequence[ir.Value], params: Sequence[Param] = ()) -> None:
        self.b, self.isa = b, isa
        self.rec, self.job, self.u0, self.u1, self.tid = (Value(b, w) for w in words)
        # all of them are read here, before any loop; what a kernel does not use is dropped by LLVM
        at = [self.rec + 8 * (R.P0 + i) for i in range(len(params))]
        self.p = SimpleNamespace(
            **{p.name: self.load(F32 if p.is_float else I64, a) for p, a in zip(params, at, strict=True)}
        )

    # --- the contract of record.py
    def word(self, base: Value, i: int) -> Value:
        return self.load(I64, base + 8 * i)

    def row(self, r: Value, field: int) -> Value:
        """A field of row r in the pass's row table."""
        return self.word(self.word(self.job, R.ROW_TABLE) + r * R.ROW_BYTES, field)

    def stream(self, i: Value) -> Value:
        """Address of entry i of the pass's stream table."""
        return self.word(self.job, R.STREAM_TABLE) + i * R.STREAM_BYTES

    def area(self, stream: Value, area: Value) -> tuple[Value, Value]:
        """The two words of an area of the state of the stream with this entry."""
        at = stream + area * 8
        return self.word(at, 0), self.word(at, 1)

    def rows(self) -> Value:
        """How many rows this stage has, by its row space."""
        return self.load(I64, self.job + self.word(self.rec, R.ROWS_WORD) * 8) * self.word(self.rec, R.ROWS_TIMES)

    def scratch(self) -> Value:
        """Address of this thread's scratch."""
        return self.word(self.job, R.SCRATCH) + self.tid * self.word(self.job, R.SCRATCH_STEP)

    # --- constants and variables
    def const(self, ty: ir.Type, x) -> Value:
        return Value(self.b, constant(ty, x))

    def i64(self, x) -> Value:
        return x if isinstance(x, Value) else self.const(I64, x)

    def var(self, init) -> Var:
        return Var(self.b, self.i64(init))

    def cell(self, ty: ir.Type, x) -> Var:
        return Var(self.b, self.const(ty, x))

    # --- memory; with `n`, only the first n lanes are touched (the others read as zero)
    def load(self, ty: ir.Type, at: Value, n: Value | None = None) -> Value:
        p = self.b.inttoptr(at.v, POINTER)
        if n is not None:
            name = f"llvm.masked.load.v{ty.count}{suffix(ty.element)}.p0"
            return self.call(name, ty, Value(self.b, p), self.const(I32, 1), self.first(n, ty.count), self.const(ty, 0))
        x = self.b.load(p, typ=ty)
        x.align = 1
        return Value(self.b, x)

    def store(self, v: Value, at: Value, n: Value | None = None) -> None:
        p = self.b.inttoptr(at.v, POINTER)
        if n is not None:
            name = f"llvm.masked.store.v{v.type.count}{suffix(v.type.element)}.p0"
            mask = self.first(n, v.type.count)
            self.call(name, ir.VoidType(), v, Value(self.b, p), self.const(I32, 1), mask)
        else:
            self.b.store(v.v, p).align = 1

    def prefetch(self, at: Value, size: int, ahead: int = 0) -> None:
        """Ask for the `size` bytes `ahead` bytes after an address, which will be read soon; any address is harmless."""
        for line in range(ahead, ahead + size, LINE):
            p = Value(self.b, self.b.inttoptr((at + line).v, POINTER))
            self.call("llvm.prefetch.p0", ir.VoidType(), p, *(self.const(I32, c) for c in (0, 3, 1)))

    def first(self, n: Value, lanes: int) -> Value:
        """A mask with lanes 0 … n-1 set."""
        return self.const(vec(I32, lanes), range(lanes)) < self.splat(n.narrow(I32), lanes)

    # --- control flow
    @contextmanager
    def range(self, lo, hi, step=1, keep: bool = False) -> Iterator[Value]:
        """For lo, lo + step, … below hi.  `keep`: LLVM must not unroll it (and keep all its loads alive)."""
        i, hi = self.var(lo), self.i64(hi)
        with self.loop(lambda: i.get() < hi, keep):
            yield i.get()
            i.set(i.get() + step)

    @contextmanager
    def loop(self, test: Callable[[], Value], keep: bool = False) -> Iterator[None]:
        """While `test()` holds."""
        b = self.b
        head, body, end = (b.append_basic_block(name) for name in ("head", "body", "end"))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(test().v, body, end)
        b.position_at_end(body)
        yield
        back = b.branch(head)
        if keep:
            back.set_metadata("llvm.loop", _never_unroll(b.module))
        b.position_at_end(end)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        with self.b.if_then(condition.v):
            yield

    def where(self, condition: Value, x: Value, y) -> Value:
        return Value(self.b, self.b.select(condition.v, x.v, x._arg(y)))

    def min(self, x: Value, y) -> Value:
        """The smaller one; x where x is a NaN."""
        y = Value(self.b, x._arg(y))
        return self.where(y < x, y, x)

    def max(self, x: Value, y) -> Value:
        """The larger one; x where x is a NaN."""
        y = Value(self.b, x._arg(y))
        return self.where(y > x, y, x)

    # --- vectors
    def call(self, name: str, ret: ir.Type, *args: Value) -> Value:
        """An LLVM intrinsic by name."""
        f = self.b.module.globals.get(name)
        if f is None:
            f = ir.Function(self.b.module, ir.FunctionType(ret, [a.type for a in args]), name)
        return Value(self.b, self.b.call(f, [a.v for a in args]))

    def splat(self, v: Value, lanes: int = 8) -> Value:
        t = vec(v.type, lanes)
        first = self.b.insert_element(ir.Constant(t, ir.Undefined), v.v, constant(I32, 0))
        return Value(self.b, first).shuffle([0] * lanes)

    def vector(self, lanes: list[Value]) -> Value:
        """A vector of scalars."""
        v = ir.Constant(vec(lanes[0].type, len(lanes)), ir.Undefined)
        for i, x in enumerate(lanes):
            v = self.b.insert_element(v, x.v, constant(I32, i))
        return Value(self.b, v)

    def concat(self, parts: list[Value]) -> Value:
        """Vectors one after the other: one, or two of the same type."""
        return parts[0] if len(parts) == 1 else parts[0].shuffle(range(2 * parts[0].type.count), parts[1])

    def fma(self, x: Value, y: Value, z: Value) -> Value:
        """x · y + z, rounded once."""
        return self.call("llvm.fma." + type_suffix(x.type), x.type, x, y, z)

    def sqrt(self, x: Value) -> Value:
        return self.call("llvm.sqrt." + type_suffix(x.type), x.type, x)

    def round(self, x: Value) -> Value:
        """To the nearest integer, ties to even; for |x| < 2^22 (adding 1.5 · 2^23 leaves no bit for a fraction)."""
        return (x + 12582912.0) - 12582912.0

    def fold(self, v: Value, f: Callable[[Value, Value], Value]) -> Value:
        """Eight lanes to one, always in the order ((0·4)·(2·6))·((1·5)·(3·7)) for an operation written as ·."""
        x = f(v.shuffle([0, 1, 2, 3]), v.shuffle([4, 5, 6, 7]))
        x = f(x.shuffle([0, 1]), x.shuffle([2, 3]))
        return f(x.lane(0), x.lane(1))

    def sum(self, v: Value) -> Value:
        return self.fold(v, lambda x, y: x + y)

    def exp(self, x: Value) -> Value:
        """e^x: 2^n · e^r with |r| <= ln(2)/2 and a polynomial for e^r (Cephes' expf); relative error under 2 ulp.

        The argument is clamped to [-87, 88], where the result is still a normal number.
        """
        t = x.type
        x = self.min(self.max(x, -87.0), 88.0)
        n = self.round(x * 1.4426950408889634)
        r = self.fma(n, self.const(t, -0.693145751953125), x)  # ln 2 in two parts, the first exact
        r = self.fma(n, self.const(t, -1.428606765330187e-06), r)
        p = self.const(t, EXP[0])
        for c in EXP[1:]:
            p = self.fma(p, r, self.const(t, c))
        p = self.fma(p, r * r, r + 1.0)
        return p * ((n.int() + 127) << 23).bits(t)


EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
ATANH = tuple(1 / n for n in range(17, 0, -2))  # atanh(s) / s = 1 + s²/3 + s⁴/5 + … , the highest power first


def _never_unroll(module: ir.Module) -> ir.MDValue:
    """A loop's identity, which LLVM wants to be a node that names itself, with the wish not to be unrolled."""
    wish = module.add_metadata([ir.MetaDataString(module, "llvm.loop.unroll.disable")])
    node = ir.MDValue(module, [wish], name=str(len(module.metadata)))
    node.operands = (node, wish)
    return node
