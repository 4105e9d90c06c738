"""From a schedule to the tables that the team walks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from ...errors import ModelError
from ...kernels import record as R
from ...kernels.invoke import put
from ...kernels.memory import aligned_words
from .buffers import allocate
from .schedule import Address, Chain, Record, Schedule, Value

HostFunction = Callable[[Sequence[int], Any], None]


@dataclass(slots=True)
class Program:
    """What a team runs.

    Attributes
    ----------
    records : int64 [records, 32], see `fucina.kernels.record`.
    chains : int64 [chains, 2], first record and index after the last.
    steps : int64 [steps, 2], first chain and index after the last.
    hosts : (step, function(job words, context)) of the host stages, ascending.
    result : (record, word) of every word that takes the address of the pass's result.
    result_address : that address once more, for host stages; one element.
    kept : addresses of the values that stay as they are until the next pass.
    keep : what the tables point into.
    """

    records: np.ndarray
    chains: np.ndarray
    steps: np.ndarray
    hosts: list[tuple[int, HostFunction]] = field(default_factory=list)
    result: list[tuple[int, int]] = field(default_factory=list)
    result_address: list[int] = field(default_factory=lambda: [0])
    kept: list[int] = field(default_factory=list)
    keep: list[Any] = field(default_factory=list)

    def direct(self, address: int) -> None:
        """Let the next pass write its result at this address."""
        self.result_address[0] = address
        for record, word in self.result:
            self.records[record, word] = address


def build(
    schedule: Schedule,
    values: Sequence[Value],
    address: Callable[[str], int],
    result: Value | None = None,
    kept: Sequence[Value] = (),
) -> Program:
    """Give every value its buffer, every record its words.

    Parameters
    ----------
    schedule, values : what was recorded.
    address : from a kernel's name to its address.
    result : the value that gets no buffer: each pass writes it where the caller says, see `Program.result`.
    kept : values whose buffers no later one may use.
    """
    for value in kept:
        value.root.last = len(schedule.steps)
    for value in values:
        if value.chain is None:
            raise ModelError(f"the forward reads {value.name} but nothing writes it")
    address = cache(address)  # a forward calls few kernels many times
    addresses, block = allocate(v for v in values if v is not result)
    hosts: list[tuple[int, HostFunction]] = []
    result_words, result_address = [], [0]
    records: list[np.ndarray] = []
    chains: list[tuple[int, int]] = []
    steps: list[tuple[int, int]] = []
    for index, step in enumerate(schedule.steps):
        first_chain = len(chains)
        for chain in step:
            first = len(records)
            for record in chain.records:
                words = np.zeros(R.WORDS, np.int64)
                if record.host is None:
                    _fill(words, record, chain, address)
                    for word, p in enumerate(record.params, R.P0):
                        if isinstance(p, Address) and p.value is result:
                            result_words.append((len(records), word))
                        elif isinstance(p, Address):
                            words[word] = addresses[id(p.value.root)] + p.value.offset * 4 + p.offset
                else:
                    words[R.RULE] = R.HOST
                    hosts.append((index, _host_function(record, addresses, result, result_address)))
                records.append(words)
            chains.append((first, len(records)))
        steps.append((first_chain, len(chains)))
    record_table, chain_table, step_table = (aligned_words(np.array(t)) for t in (records, chains, steps))
    kept_addresses = [addresses[id(value.root)] + value.offset * 4 for value in kept]
    return Program(record_table, chain_table, step_table, hosts, result_words, result_address, kept_addresses, [block])


def _fill(words: np.ndarray, record: Record, chain: Chain, address: Callable[[str], int]) -> None:
    if R.P0 + len(record.params) > R.WORDS:
        raise ModelError(f"{record.kernel} has {len(record.params)} parameters, a record holds {R.WORDS - R.P0}")
    words[R.FN], words[R.RULE] = address(record.kernel), chain.partition.rule
    words[R.ROWS_WORD], words[R.ROWS_TIMES] = chain.partition.space.word, chain.partition.space.times
    words[R.UNITS], words[R.UNIT], words[R.COST] = chain.units, chain.unit, chain.cost
    for word, p in enumerate(record.params, R.P0):
        if not isinstance(p, Address):
            put(words, word, p)


def _host_function(
    record: Record, addresses: dict[int, int], result: Value | None, result_address: list[int]
) -> HostFunction:
    """What a host stage does: views of its inputs, the Python function, a checked result."""
    *inputs, output = [p.value for p in record.params if isinstance(p, Address)]
    function, name = record.host, record.kernel

    def view(value: Value, rows: int) -> np.ndarray:
        start = result_address[0] if value is result else addresses[id(value.root)] + value.offset * 4
        memory = (ctypes.c_float * ((rows - 1) * value.step + value.cols)).from_address(start)
        flat = np.ctypeslib.as_array(memory)
        return np.lib.stride_tricks.as_strided(flat, (rows, value.cols), (value.step * 4, 4))

    def run(job: Sequence[int], context: Any) -> None:
        rows = output.space.count(job)
        if rows == 0:
            return
        arrays = [view(i, rows) for i in inputs]
        for a in arrays:
            a.flags.writeable = False
        given = np.asarray(function(arrays, context))  # type: ignore[misc]
        expected = (rows, output.cols)
        if given.shape != expected or given.dtype.kind not in "fiu":
            raise ModelError(f"{name} returned {given.dtype} {list(given.shape)}, expected float32 {list(expected)}")
        if not np.isfinite(given).all():
            raise ModelError(f"{name} returned {np.count_nonzero(~np.isfinite(given))} values that are not finite")
        view(output, rows)[...] = given

    return run
