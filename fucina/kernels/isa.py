"""Instruction sets: which one this CPU has, and the handful of operations that differ between them.

Everything else in a kernel is plain vector code that LLVM lowers by itself.  What differs:

- the dot product of int8 quadruples into int32 lanes (`Dot`), the heart of every quantised matrix product,
- the dot product of int16 pairs (`pairs`),
- looking bytes up in a table of sixteen (`lookup`),
- float16 to and from float32,
- how many activation rows and output rows a tile of a matrix product holds (`tiles`, `wide`): more registers, more rows.

The integer operations are exact and the float ones are IEEE, so every lowering gives the same bits.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..errors import IsaError
from .lang import F16, F32, I8, I16, I32, Emitter, Value, vec

Start = Callable[[], Value] | None  # emits the vector that a sum starts from


class Dot:
    """Sums of products of int8 quadruples: lane i gains w[4i]·x[4i] + … + w[4i+3]·x[4i+3].

    `w` are weights, unsigned and at most `bound`, or signed (`bound` None); `x` are activations in -127 … 127.
    `bias` gives the vector to start from; `offset` gives -128 · Σx of the block, for the lowering that needs it.
    This is the generic lowering: exact in int16 and int32, any CPU.
    """

    def __init__(self, k: Emitter, bound: int | None, bias: Start = None, offset: Start = None) -> None:
        self.k, self.bound, self.bias, self.offset = k, bound, bias, offset
        self.sum: Value | None = None  # before the first product

    def add(self, w: Value, x: Value) -> None:
        wide = w.signed(I16) if self.bound is None else w.unsigned(I16)
        two = generic_pairs(self.k, wide, x.signed(I16))
        self.gain(every(two, 2, 0) + every(two, 2, 1))

    def gain(self, v: Value) -> None:
        if self.sum is None and self.bias is not None:
            self.sum = self.bias()
        self.sum = v if self.sum is None else self.sum + v

    def total(self) -> Value:
        assert self.sum is not None, "a sum of no products"
        return self.sum

    def times(self, scale: Value) -> Value:
        """The sums times an int32 scale (|scale| <= 128) in each lane."""
        return self.total() * scale


class Avx2Dot(Dot):
    """`vpmaddubsw` multiplies unsigned by signed bytes and adds pairs into int16, which saturates: 2·255·127 does not
    fit.  With weights up to `bound`, 32767 // (2·bound·127) of them may be summed in int16 before `vpmaddwd` widens:
    eight for 4-bit weights, four for 5-bit, two for 6-bit.  Signed weights: |w| · (x with the sign of w)."""

    def __init__(self, k: Emitter, bound: int | None, bias: Start = None, offset: Start = None) -> None:
        super().__init__(k, bound, bias, offset)
        self.halves: list[Value] = []
        self.room, self.most = 0, 32767 // (2 * (bound or 128) * 127)

    def add(self, w: Value, x: Value) -> None:
        k = self.k
        if self.bound is None:
            x = k.call("llvm.x86.avx2.psign.b", x.type, x, w)
            w = k.where(w < 0, k.const(w.type, 0) - w, w)  # -128 becomes 128, unsigned
        h = k.call("llvm.x86.avx2.pmadd.ub.sw", vec(I16, 16), w, x)
        if self.most == 1:  # widened at once: kept, they would fill the registers
            self.gain(k.isa.pairs(k, h, k.const(h.type, 1)))
        elif self.room:
            self.halves[-1] = self.halves[-1] + h
            self.room -= 1
        else:
            self.halves.append(h)
            self.room = self.most - 1

    def total(self) -> Value:
        return self.times(None)

    def times(self, scale: Value | None) -> Value:
        k = self.k
        by = k.const(vec(I16, 16), 1) if scale is None else ((scale & 0xFFFF) | (scale << 16)).bits(vec(I16, 16))
        for h in self.halves:
            self.gain(k.isa.pairs(k, h, by))
        if self.most == 1 and scale is not None:  # nothing waits in halves
            return super().total() * scale
        return super().total()


class VnniDot(Dot):
    """`vpdpbusd`: unsigned times signed quadruples, added to int32, one instruction.  Signed weights become unsigned
    by + 128 (flip the top bit), which adds 128 · Σx to each sum: start from -128 · Σx instead of 0."""

    def add(self, w: Value, x: Value) -> None:
        k, lanes = self.k, w.type.count // 4
        t = vec(I32, lanes)  # older LLVMs declare the operands so, newer ones upgrade it
        if self.sum is None:
            start = self.offset if self.bound is None else self.bias
            self.sum = start() if start else k.const(t, 0)
        if self.bound is None:
            w = w ^ -128
        self.sum = k.call(f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", t, self.sum, w.bits(t), x.bits(t))


class NeonDot(Dot):
    """`sdot` of Armv8.2 (FEAT_DotProd): signed quadruples into int32.  Weights up to 127 are signed as they are."""

    def add(self, w: Value, x: Value) -> None:
        k, t = self.k, vec(I32, 4)
        if self.sum is None:
            self.sum = self.bias() if self.bias else k.const(vec(I32, 8), 0)
        out = []
        for i in range(2):
            part = lambda v, n: v.shuffle(range(n * i, n * i + n))
            out.append(k.call("llvm.aarch64.neon.sdot.v4i32.v16i8", t, part(self.sum, 4), part(w, 16), part(x, 16)))
        self.sum = k.concat(out)


def every(v: Value, step: int, first: int) -> Value:
    """Lanes first, first + step, …"""
    return v.shuffle(range(first, v.type.count, step))


def generic_pairs(k: Emitter, x: Value, y: Value) -> Value:
    """int16 pairs: lane i is x[2i]·y[2i] + x[2i+1]·y[2i+1], in int32."""
    even, odd = ((every(x, 2, i).signed(I32), every(y, 2, i).signed(I32)) for i in (0, 1))
    return even[0] * even[1] + odd[0] * odd[1]


def x86_pairs(k: Emitter, x: Value, y: Value) -> Value:
    """`vpmaddwd`."""
    lanes = x.type.count // 2
    name = "llvm.x86.avx2.pmadd.wd" if lanes == 8 else "llvm.x86.avx512.pmaddw.d.512"
    return k.call(name, vec(I32, lanes), x, y)


def half_to_float(k: Emitter, h: Value) -> Value:
    """float16 bits (int16 lanes) to float32 by integer arithmetic: move the exponent, let a multiplication
    normalise the subnormals, and restore infinities and NaNs."""
    u = h.unsigned(I32)
    magnitude = u & 0x7FFF
    f = (magnitude << 13).bits(_floats(h)) * 2.0**112
    big = k.where(magnitude > 0x7BFF, k.const(u.type, 0x7F800000), k.const(u.type, 0))
    return (f.bits(u.type) | big | ((u & 0x8000) << 16)).bits(_floats(h))


def float_to_half(k: Emitter, x: Value) -> Value:
    """float32 to float16 bits, to nearest, ties to even, by integer arithmetic."""
    t = vec(I32, x.type.count)
    u = x.bits(t)
    a = u & 0x7FFFFFFF
    normal = (a - 0x37FFF001 + ((a >> 13) & 1)) >> 13  # new exponent, plus just under half a unit, plus the odd bit
    small = (a.bits(x.type) + 0.5).bits(t) - 0x3F000000  # adding 0.5 rounds to the subnormals' unit
    special = k.where(a > 0x7F800000, ((a >> 13) & 0x3FF) | 0x7E00, k.const(t, 0x7C00))
    h = k.where(a < 0x38800000, small, k.where(a > 0x477FFFFF, special, normal))
    return (h | ((u >> 16) & 0x8000)).narrow(I16)


def _floats(v: Value):
    return vec(F32, v.type.count)


@dataclass(frozen=True, slots=True)
class Isa:
    """One lowering.

    Attributes
    ----------
    registers : int
        How many vectors of 256 bits the registers hold.
    tiles : tuple[int, ...]
        Activation rows in a tile of a quantised product, descending to 1.
    float_tiles : tuple[int, ...]
        The same for float weights, which need four accumulators a row.
    wide : int
        Groups of eight output rows in a tile: two where vectors of 512 bits hold them.
    repeats : bool
        A tile may compute a row twice instead of leaving odd rows to smaller tiles: worth it where multiplying a row
        (12 instructions per block of Q4_1, 20 with AVX2) takes less than unpacking the weights (16, and 12).
    halves : bool
        The CPU converts float16 itself.
    """

    name: str
    dot: type[Dot]
    tiles: tuple[int, ...] = (4, 2, 1)
    float_tiles: tuple[int, ...] = (2, 1)
    wide: int = 1
    repeats: bool = False
    halves: bool = True
    x86: bool = True
    registers: int = 16

    @property
    def unsigned(self) -> bool:
        """Weights are multiplied as bytes of 0 … 255; signed ones cost more."""
        return self.dot is VnniDot

    def pairs(self, k: Emitter, x: Value, y: Value) -> Value:
        """Lane i is x[2i]·y[2i] + x[2i+1]·y[2i+1] of int16 lanes, in int32."""
        return (x86_pairs if self.x86 else generic_pairs)(k, x, y)

    def lookup(self, k: Emitter, table: Sequence[int], codes: Value) -> Value:
        """table[code] in every lane of bytes; `table` has 8 or 16 numbers of 8 bits, codes are below that."""
        t = codes.type
        numbers = [(v + 128) % 256 - 128 for v in table]
        numbers += [0] * (16 - len(numbers))
        if not self.x86:
            return self.gather(k, numbers, codes)
        name = "llvm.x86.avx2.pshuf.b" if t.count == 32 else "llvm.x86.avx512.pshuf.b.512"
        return k.call(name, t, k.const(t, numbers * (t.count // 16)), codes)

    def gather(self, k: Emitter, numbers: list[int], codes: Value) -> Value:
        """`lookup` of a CPU that is not x86."""
        if self.dot is NeonDot:
            t, parts = vec(I8, 16), []
            for i in range(0, codes.type.count, 16):
                part = codes.shuffle(range(i, i + 16))
                parts.append(k.call("llvm.aarch64.neon.tbl1.v16i8", t, k.const(t, numbers), part))
            return k.concat(parts)
        out = k.const(codes.type, numbers[0])
        for code in range(1, 16):
            if numbers[code] != numbers[0]:
                out = k.where(codes.eq(code), k.const(codes.type, numbers[code]), out)
        return out

    def to_float(self, k: Emitter, h: Value) -> Value:
        """float16 bits (int16 lanes) to float32, exactly."""
        if not self.halves:
            return half_to_float(k, h)
        return Value(k.b, k.b.fpext(h.bits(vec(F16, h.type.count)).v, _floats(h)))

    def to_half(self, k: Emitter, x: Value) -> Value:
        """float32 to float16 bits (int16 lanes), to nearest, ties to even."""
        if not self.halves:
            return float_to_half(k, x)
        n = x.type.count
        return Value(k.b, k.b.fptrunc(x.v, vec(F16, n))).bits(vec(I16, n))


LOWERINGS = {
    i.name: i
    for i in (
        Isa("generic", Dot, halves=False, x86=False),
        Isa("avx2", Avx2Dot),
        Isa("avxvnni", VnniDot),
        Isa("avx512vnni", VnniDot, tiles=(8, 6, 4, 2, 1), float_tiles=(4, 2, 1), wide=2, repeats=True, registers=32),
        Isa("neon", NeonDot, x86=False),
    )
}


def supported() -> tuple[str, ...]:
    """Names of the lowerings that run on this CPU, best first; "generic" is always the last.

    Asks for the features that numba compiles for, so NUMBA_CPU_FEATURES, NUMBA_CPU_NAME and NUMBA_ENABLE_AVX count.
    """
    from llvmlite import binding
    from numba.core import config
    from numba.core.codegen import get_host_cpu_features

    text, cpu = get_host_cpu_features(), binding.get_host_cpu_name()
    # numba makes these settings when it is imported
    name, features = config.CPU_NAME, config.CPU_FEATURES  # type: ignore[attr-defined]
    if features is not None or name not in (None, "host"):
        text, cpu = features or "", ""  # compiling for a CPU that need not be this one
    have = {f[1:] for f in text.split(",") if f.startswith("+")}
    if cpu.startswith("apple-"):
        have |= {"neon", "dotprod"}  # every Mac has them, whether or not the system lists features
    names = []
    if platform.machine().lower() in ("x86_64", "amd64"):
        base = {"avx2", "fma", "f16c"} <= have
        wide = base and {"avx512vnni", "avx512vl", "avx512bw", "avx512dq"} <= have
        names += ["avx512vnni"] * wide + ["avxvnni"] * (wide or (base and "avxvnni" in have)) + ["avx2"] * base
    elif platform.machine().lower() in ("arm64", "aarch64"):
        names += ["neon"] * ({"neon", "dotprod"} <= have)
    return (*names, "generic")


def choose(name: str | None = None) -> Isa:
    """The lowering to use: `name`, else the environment variable FUCINA_ISA, else the best that this CPU runs.

    Raises
    ------
    IsaError
        The name is unknown, or this CPU does not have it.
    """
    have = supported()
    wanted = name or os.environ.get("FUCINA_ISA") or have[0]
    if wanted not in have:
        raise IsaError(f"instruction set {wanted!r} is not one that this CPU runs: {', '.join(have)}")
    return LOWERINGS[wanted]
