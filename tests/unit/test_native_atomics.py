"""The team's machine instructions, on every kind of processor: what LLVM makes of them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from llvmlite import binding, ir
from numba import njit, types

from fucina.ops.native import atomics
from fucina.ops.native.layout import (
    COUNTER_BYTES,
    FIXED,
    PAIR,
    SLOT_BYTES,
    WORKER_BYTES,
    WORKERS,
    bank_bytes,
    control_bytes,
    counters_offset,
    totals_offset,
)

INT = ir.IntType(64)
ARGUMENTS = {
    "load": 1,
    "store": 2,
    "atomic_load": 1,
    "atomic_add": 2,
    "atomic_exchange": 2,
    "pause": 0,
    "call_kernel": 6,
}


def module_of(name: str, triple: str) -> ir.Module:
    """A function that is nothing but the intrinsic, for a processor."""
    n = ARGUMENTS[name]
    _, codegen = getattr(atomics, name)._defn(None, *[types.int64] * n)
    module = ir.Module()
    module.triple = triple
    function = ir.Function(module, ir.FunctionType(INT, [INT] * n), name)
    builder = ir.IRBuilder(function.append_basic_block())
    builder.ret(codegen(None, builder, None, function.args))
    return module


def assembly(name: str, triple: str) -> str:
    """Its machine code."""
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(triple).create_target_machine(opt=2)
    return target.emit_assembly(binding.parse_assembly(str(module_of(name, triple))))


@pytest.mark.parametrize(
    ("name", "x86", "arm"),
    [
        ("pause", "pause", "yield"),
        ("atomic_load", "movq", "ldar"),  # not ldapr, which may pass an earlier store
        ("atomic_exchange", "xchgq", "stlxr"),
        ("atomic_add", "lock", "stlxr"),
        ("call_kernel", "jmpq|callq", "blr|br"),
    ],
)
def test_instructions(name, x86, arm):
    for triple, wanted in (("x86_64-unknown-linux-gnu", x86), ("aarch64-unknown-linux-gnu", arm)):
        words = assembly(name, triple).replace("\t", " ").split()
        assert set(wanted.split("|")) & set(words), words


def test_pause_is_nothing_where_there_is_no_such_instruction():
    assert "call" in str(module_of("pause", "arm64-apple-darwin"))
    assert "call" not in str(module_of("pause", "riscv64-unknown-linux-gnu"))


def test_atomics_on_memory():
    words = np.zeros(4, np.int64)
    at = words.ctypes.data

    @njit(types.int64(types.int64, types.int64), nogil=True)
    def add_many(address, n):
        for _ in range(n):
            atomics.atomic_add(address, 1)
        return atomics.atomic_load(address)

    @njit(types.int64(types.int64, types.int64), nogil=True)
    def exchange(address, value):
        return atomics.atomic_exchange(address, value)

    threads = [threading.Thread(target=add_many, args=(at, 100_000)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert words.tolist() == [400_000, 0, 0, 0]
    assert exchange(at + 8, -5) == 0 and exchange(at + 8, 7) == -5 and words[1] == 7


def test_words_that_threads_write_are_apart():
    """No two of them share a pair of cache lines."""
    assert COUNTER_BYTES >= 2 * PAIR and WORKER_BYTES >= PAIR and SLOT_BYTES * 4 + PAIR <= FIXED
    assert (FIXED + 16 * 8) <= WORKERS and control_bytes(3) == WORKERS + 3 * WORKER_BYTES
    for chains, steps in ((1, 1), (302, 272), (1000, 999)):
        assert totals_offset(chains) % PAIR == counters_offset(chains, steps) % PAIR == 0
        assert totals_offset(chains) + steps * 8 <= counters_offset(chains, steps)
        assert bank_bytes(chains, steps) == counters_offset(chains, steps) + steps * COUNTER_BYTES
