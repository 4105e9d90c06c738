"""Values of the kernel language: scalars and vectors of the machine, with operators."""

from __future__ import annotations

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F16, F32 = ir.HalfType(), ir.FloatType()
POINTER = ir.PointerType()
vec = ir.VectorType
F8 = vec(F32, 8)  # the virtual vector of every float reduction


def constant(ty: ir.Type, x) -> ir.Constant:
    """The constant `x`; for a vector, `x` in every lane or a sequence of the lanes."""
    if isinstance(ty, vec):
        return ir.Constant(ty, list(x) if hasattr(x, "__len__") else [x] * ty.count)
    return ir.Constant(ty, x)


def element(ty: ir.Type) -> ir.Type:
    return ty.element if isinstance(ty, vec) else ty


def like(ty: ir.Type, scalar: ir.Type) -> ir.Type:
    """`scalar`, with as many lanes as `ty`."""
    return vec(scalar, ty.count) if isinstance(ty, vec) else scalar


class Value:
    """A scalar or a vector of the machine.  Operators work lane by lane; Python numbers are taken as constants."""

    __slots__ = ("b", "v")

    def __init__(self, b: ir.IRBuilder, v: ir.Value) -> None:
        self.b, self.v = b, v

    @property
    def type(self) -> ir.Type:
        return self.v.type

    @property
    def is_float(self) -> bool:
        return isinstance(element(self.type), (ir.FloatType, ir.HalfType))

    def _arg(self, o) -> ir.Value:
        return o.v if isinstance(o, Value) else constant(self.type, o)

    def _op(self, o, on_int, on_float=None) -> Value:
        return Value(self.b, (on_float if self.is_float else on_int)(self.v, self._arg(o)))

    # --- arithmetic: // and % are for non-negative integers, >> brings in zeros
    def __add__(self, o):
        return self if isinstance(o, int) and o == 0 else self._op(o, self.b.add, self.b.fadd)

    def __mul__(self, o):
        return self if isinstance(o, int) and o == 1 else self._op(o, self.b.mul, self.b.fmul)

    def __sub__(self, o):
        return self._op(o, self.b.sub, self.b.fsub)

    def __truediv__(self, o):
        return self._op(o, None, self.b.fdiv)

    def __floordiv__(self, o):
        return self._op(o, self.b.sdiv)

    def __mod__(self, o):
        return self._op(o, self.b.srem)

    def __and__(self, o):
        return self._op(o, self.b.and_)

    def __or__(self, o):
        return self._op(o, self.b.or_)

    def __xor__(self, o):
        return self._op(o, self.b.xor)

    def __lshift__(self, o):
        return self._op(o, self.b.shl)

    def __rshift__(self, o):
        return self._op(o, self.b.lshr)

    def shift_signed(self, o) -> Value:
        return self._op(o, self.b.ashr)

    __radd__, __rmul__ = __add__, __mul__

    # --- comparisons, lane by lane, false where a NaN takes part
    def _cmp(self, op: str, o) -> Value:
        f = self.b.fcmp_ordered if self.is_float else self.b.icmp_signed
        return Value(self.b, f(op, self.v, self._arg(o)))

    def __lt__(self, o):
        return self._cmp("<", o)

    def __le__(self, o):
        return self._cmp("<=", o)

    def __gt__(self, o):
        return self._cmp(">", o)

    def __ge__(self, o):
        return self._cmp(">=", o)

    def eq(self, o) -> Value:
        return self._cmp("==", o)

    # --- lanes and conversions
    def lane(self, i: int) -> Value:
        return Value(self.b, self.b.extract_element(self.v, constant(I32, i)))

    def bits(self, ty: ir.Type) -> Value:
        """The same bits read as another type."""
        return Value(self.b, self.b.bitcast(self.v, ty))

    def signed(self, scalar: ir.Type) -> Value:
        """Each lane widened to `scalar`, sign kept."""
        return Value(self.b, self.b.sext(self.v, like(self.type, scalar)))

    def unsigned(self, scalar: ir.Type) -> Value:
        """Each lane widened to `scalar` with zeros."""
        return Value(self.b, self.b.zext(self.v, like(self.type, scalar)))

    def narrow(self, scalar: ir.Type) -> Value:
        """The low bits of each lane."""
        return Value(self.b, self.b.trunc(self.v, like(self.type, scalar)))

    def float(self) -> Value:
        """Each signed integer as float32."""
        return Value(self.b, self.b.sitofp(self.v, like(self.type, F32)))

    def int(self) -> Value:
        """Each float towards zero, as int32."""
        return Value(self.b, self.b.fptosi(self.v, like(self.type, I32)))

    def shuffle(self, lanes, other: Value | None = None) -> Value:
        """Lane i of the result is lane `lanes[i]` of this vector (followed by `other`)."""
        right = other.v if other else ir.Constant(self.type, ir.Undefined)
        index = ir.Constant(vec(I32, len(lanes)), list(lanes))
        return Value(self.b, self.b.shuffle_vector(self.v, right, index))


class Var:
    """A mutable cell; it lives in a register."""

    __slots__ = ("b", "p", "t")

    def __init__(self, b: ir.IRBuilder, init: Value) -> None:
        self.b, self.t = b, init.type
        with b.goto_entry_block():
            self.p = b.alloca(init.type)
        self.set(init)

    def get(self) -> Value:
        return Value(self.b, self.b.load(self.p, typ=self.t))

    def set(self, v: Value) -> None:
        self.b.store(v.v, self.p)


def suffix(scalar: ir.Type) -> str:
    return {F32: "f32", F16: "f16"}.get(scalar) or f"i{scalar.width}"


def type_suffix(ty: ir.Type) -> str:
    return f"v{ty.count}{suffix(ty.element)}" if isinstance(ty, vec) else suffix(ty)
