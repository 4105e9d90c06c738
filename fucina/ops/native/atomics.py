"""The few machine instructions that the team needs and that numba does not offer, as intrinsics over int64 addresses.

Every atomic is sequentially consistent.  On x86-64 that costs nothing extra for a load, and on arm64 it is what makes
"raise my flag, then look at yours" (parking against publishing) correct.  Plain `load` and `store` are for words that
the atomics around them protect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

_INT = ir.IntType(64)
_I32 = ir.IntType(32)
_PTR = ir.PointerType()
_VOID = ir.VoidType()
_I = types.int64

# Who calls an intrinsic does not give it the typing context, which its own signature has.
intrinsic: Callable[[Callable[..., Any]], Callable[..., int]] = extending.intrinsic


def _pointer(builder, address):
    return builder.inttoptr(address, _PTR)


def _zero():
    return ir.Constant(_INT, 0)


@intrinsic
def load(typingctx, address):
    """The int64 at an address."""

    def codegen(context, builder, signature, args):
        return builder.load(_pointer(builder, args[0]), typ=_INT)

    return _I(_I), codegen


@intrinsic
def store(typingctx, address, value):
    """Write an int64."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], _pointer(builder, args[0]))
        return _zero()

    return _I(_I, _I), codegen


@intrinsic
def atomic_load(typingctx, address):
    """The int64 at an address that other threads write."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_pointer(builder, args[0]), "seq_cst", 8, typ=_INT)

    return _I(_I), codegen


@intrinsic
def atomic_add(typingctx, address, value):
    """Add; returns what was there before."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", _pointer(builder, args[0]), args[1], "seq_cst")

    return _I(_I, _I), codegen


@intrinsic
def atomic_exchange(typingctx, address, value):
    """Write; returns what was there before."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("xchg", _pointer(builder, args[0]), args[1], "seq_cst")

    return _I(_I, _I), codegen


def _declare(module, name, arguments):
    known = module.globals.get(name)
    return known if known is not None else ir.Function(module, ir.FunctionType(_VOID, arguments), name)


@intrinsic
def pause(typingctx):
    """Tell the core that this is a waiting loop: `pause` on x86, `yield` on arm64, nothing elsewhere."""

    def codegen(context, builder, signature, args):
        triple = builder.module.triple
        if triple.startswith(("x86_64", "i386", "i686", "amd64")):
            builder.call(_declare(builder.module, "llvm.x86.sse2.pause", []), [])
        elif triple.startswith(("aarch64", "arm64")):
            builder.call(_declare(builder.module, "llvm.aarch64.hint", [_I32]), [ir.Constant(_I32, 1)])
        return _zero()

    return _I(), codegen


@intrinsic
def call_kernel(typingctx, function, record, job, u0, u1, tid):
    """Call `void function(record, job, u0, u1, tid)` by its address."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_VOID, [_INT] * 5)
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return _zero()

    return _I(*[_I] * 6), codegen


@intrinsic
def call_yield(typingctx, function):
    """Call `int function(void)` by its address: give the rest of this time slice to another thread."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_I32, [])
        return builder.zext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), []), _INT)

    return _I(_I), codegen


@intrinsic
def call_acquire(typingctx, function, lock):
    """Call `int function(lock, 1)` by its address: sleep until the lock is released."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_I32, [_INT, _I32])
        wait = ir.Constant(_I32, 1)
        return builder.zext(builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1], wait]), _INT)

    return _I(_I, _I), codegen


@intrinsic
def call_release(typingctx, function, lock):
    """Call `void function(lock)` by its address: wake the thread that sleeps on the lock."""

    def codegen(context, builder, signature, args):
        kind = ir.FunctionType(_VOID, [_INT])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return _zero()

    return _I(_I, _I), codegen
