"""From a schedule to the tables that the team walks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from ...errors import ModelError
from ...kernels.record import CHAIN, COST, FN, HOST, P0, RULE, SEL, UNIT, UNITS, WORDS
from .buffers import allocate
from .memory import aligned_words
from .program import HostFunction, Program
from .schedule import Address, Chain, Record, Schedule, Value


def build(
    schedule: Schedule,
    values: Sequence[Value],
    address: Callable[[str], int],
    result: Value | None = None,
    kv_heads: int = 0,
) -> Program:
    """Give every value its buffer, every record its words.

    Parameters
    ----------
    schedule, values : what was recorded.
    address : from a kernel's name to its address.
    result : the value that gets no buffer: each pass writes it where the caller says, see `Program.result`.
    kv_heads : most key heads of any attention.
    """
    for value in values:
        if value.chain is None:
            raise ModelError(f"the forward reads {value.name} but nothing writes it")
    kept = [v for v in values if v is not result]
    address = cache(address)  # a forward calls few kernels many times
    addresses, block = allocate(kept)
    at = [0]
    records: list[np.ndarray] = []
    chains: list[tuple[int, int]] = []
    steps: list[tuple[int, int]] = []
    hosts: list[tuple[int, HostFunction]] = []
    result_words: list[tuple[int, int]] = []
    for index, step in enumerate(schedule.steps):
        first_chain = len(chains)
        for chain in step:
            first = len(records)
            for record in chain.records:
                words = np.zeros(WORDS, np.int64)
                if record.host is None:
                    _fill(words, record, chain, first + len(chain.records), address)
                    for k, p in enumerate(record.params):
                        if isinstance(p, Address):
                            if p.value is result:
                                result_words.append((len(records), P0 + k))
                            else:
                                words[P0 + k] = addresses[id(p.value)] + p.offset
                else:
                    words[RULE], words[CHAIN] = HOST, first + 1
                    hosts.append((index, _host_function(record, addresses, result, at)))
                records.append(words)
            chains.append((first, len(records)))
        steps.append((first_chain, len(chains)))
    return Program(
        aligned_words(np.array(records)),
        aligned_words(np.array(chains)),
        aligned_words(np.array(steps)),
        hosts,
        result_words,
        at,
        kv_heads,
        [block],
    )


def _fill(words: np.ndarray, record: Record, chain: Chain, end: int, address: Callable[[str], int]) -> None:
    if P0 + len(record.params) > WORDS:
        raise ModelError(f"{record.kernel} has {len(record.params)} parameters, a record holds {WORDS - P0}")
    words[FN], words[CHAIN] = address(record.kernel), end
    words[RULE], words[SEL] = chain.partition.rule, chain.partition.sel
    words[UNITS], words[UNIT], words[COST] = chain.units, chain.unit, chain.cost
    for k, p in enumerate(record.params):
        if isinstance(p, float):
            words[P0 + k : P0 + k + 1].view(np.float32)[0] = p
        elif not isinstance(p, Address):
            words[P0 + k] = p


def _host_function(
    record: Record, addresses: dict[int, int], result: Value | None, result_address: list[int]
) -> HostFunction:
    """What a host stage does: views of its inputs, the Python function, a checked result."""
    *inputs, output = [p.value for p in record.params if isinstance(p, Address)]
    function, note, sel = record.host, record.kernel, output.sel

    def view(value: Value, rows: int) -> np.ndarray:
        address = result_address[0] if value is result else addresses[id(value)]
        return np.frombuffer((ctypes.c_float * (rows * value.cols)).from_address(address), np.float32).reshape(
            rows, value.cols
        )

    def run(m: int, n_out: int, context: Any) -> None:
        rows = n_out if sel else m
        if rows == 0:
            return
        arrays = [view(i, rows) for i in inputs]
        for a in arrays:
            a.flags.writeable = False
        given = np.asarray(function(arrays, context))  # type: ignore[misc]
        expected = (rows, output.cols)
        if given.shape != expected or given.dtype.kind not in "fiu":
            raise ModelError(f"{note} returned {given.dtype} {list(given.shape)}, expected float32 {list(expected)}")
        if not np.isfinite(given).all():
            raise ModelError(f"{note} returned {np.count_nonzero(~np.isfinite(given))} values that are not finite")
        view(output, rows)[...] = given

    return run
