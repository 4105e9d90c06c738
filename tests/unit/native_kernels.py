"""Kernels that only tests use: they record what the team did, or delay it."""

from __future__ import annotations

from functools import cache

from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic

from fucina.kernels.record import COLS, P0, ROWS, RULE, UNIT, UNITS, M
from fucina.ops.native.atomics import atomic_add, atomic_exchange, call_yield, load, pause, store

I64 = types.int64
VOID5 = types.void(I64, I64, I64, I64, I64)


def _pointer(builder, address):
    return builder.inttoptr(address, ir.PointerType())


@intrinsic
def load32(typingctx, address):
    """The uint32 at an address."""

    def codegen(context, builder, signature, args):
        word = builder.load(_pointer(builder, args[0]), typ=ir.IntType(32))
        return builder.zext(word, ir.IntType(64))

    return I64(I64), codegen


@intrinsic
def store32(typingctx, address, value):
    """Write the low half of a word."""

    def codegen(context, builder, signature, args):
        builder.store(builder.trunc(args[1], ir.IntType(32)), _pointer(builder, args[0]))
        return ir.Constant(ir.IntType(64), 0)

    return I64(I64, I64), codegen


def _count(record, job, u0, u1, tid):
    """P0: counters, one per unit.  P1: pauses per unit."""
    for u in range(u0, u1):
        atomic_add(load(record + 8 * P0) + 8 * u, 1)
        for _ in range(load(record + 8 * (P0 + 1))):
            pause()


def mix(a, b):
    """What the dataflow kernel makes of two numbers; both sides of the test use it."""
    return ((a ^ (b + 0x9E3779B9)) * 0x85EBCA6B + (b >> 7)) & 0xFFFFFFFF


def _dataflow(record, job, u0, u1, tid):
    """out[r, c] = mix of the seed, of the local inputs at [r, c] and of everything in the whole inputs.

    P0: seed.  P1: columns.  P2: out.  P3: local inputs, P4: whole inputs, then their addresses.
    """
    seed = load(record + 8 * P0)
    cols = load(record + 8 * (P0 + 1))
    out = load(record + 8 * (P0 + 2))
    n_local = load(record + 8 * (P0 + 3))
    n_whole = load(record + 8 * (P0 + 4))
    m = load(job + 8 * M)
    everything = seed
    for i in range(n_whole):
        x = load(record + 8 * (P0 + 5 + n_local + i))
        for at in range(m * cols):
            word = load32(x + 4 * at)
            everything = ((everything ^ (word + 0x9E3779B9)) * 0x85EBCA6B + (word >> 7)) & 0xFFFFFFFF
    rule = load(record + 8 * RULE)
    if rule == COLS:
        unit = load(record + 8 * UNIT)
        first, last = 0, m
        left, right = u0 * unit, min(u1 * unit, cols)
        for r in range(first, last):
            for c in range(left, right):
                value = everything
                for i in range(n_local):
                    word = load32(load(record + 8 * (P0 + 5 + i)) + 4 * (r * cols + c))
                    value = ((value ^ (word + 0x9E3779B9)) * 0x85EBCA6B + (word >> 7)) & 0xFFFFFFFF
                store32(out + 4 * (r * cols + c), value)
    elif rule == ROWS:
        parts = load(record + 8 * UNITS)
        for u in range(u0, u1):
            r = u // parts
            for c in range(cols * (u % parts) // parts, cols * (u % parts + 1) // parts):
                value = everything
                for i in range(n_local):
                    word = load32(load(record + 8 * (P0 + 5 + i)) + 4 * (r * cols + c))
                    value = ((value ^ (word + 0x9E3779B9)) * 0x85EBCA6B + (word >> 7)) & 0xFFFFFFFF
                store32(out + 4 * (r * cols + c), value)


# --- delays at the protocol's delicate points ------------------------------------------------------------------------

HOOK_LINE = 128


def _delay(data, point, bank, step, tid):
    """Sometimes hold the thread up for a while: spin, or give the time slice away.

    data: one line per thread, [state of the random numbers, calls, mask of points, 1 in how many, most pauses,
    address of sched_yield].
    """
    state = data + tid * HOOK_LINE
    x = load(state)
    x ^= x << 13
    x ^= (x >> 7) & 0x1FFFFFFFFFFFFFF
    x ^= x << 17
    store(state, x)
    store(state + 8, load(state + 8) + 1)
    if (load(state + 16) >> point) & 1 == 0:
        return
    r = (x >> 11) & 0xFFFFFFFF
    if r % load(state + 24) != 0:
        return
    r >>= 8
    if r & 1:
        for _ in range((r >> 1) % load(state + 32)):
            pause()
    else:
        for _ in range((r >> 1) % 12):
            call_yield(load(state + 40))


@cache
def kernel(name: str):
    """A test kernel, compiled: an object with `.address`."""
    return cfunc(VOID5)({"count": _count, "dataflow": _dataflow, "delay": _delay}[name])


__all__ = ["HOOK_LINE", "atomic_exchange", "kernel", "mix"]
