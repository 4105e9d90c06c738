"""From records to chains to steps: which records run back to back, side by side, one after the other.

A forward never overwrites a tensor: every op gives a new *value*.  So there is one kind of order among activations,
writer before reader; the state that does change (K/V rows, the partial results of split attention) is named as a
*resource*, with readers and writers in the order of the forward.

Each record goes to the earliest step that its inputs allow.

- It reads an input **locally** when unit u needs only what unit u of the same partition wrote: the same chain may hold both.
- It reads an input **whole** when a unit needs more than that: the writer must be in an earlier step.

Records of one step with the same partition share a chain: whoever claims a chunk of it runs all of them back to back,
while the chunk's data is in its nearest cache.  Chains of one step are independent of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import lcm
from typing import Any

from ...errors import ModelError
from ...kernels.record import ATTENTION, COLS, HOST, ROWS
from .spaces import PASS, RowSpace

MAX_UNIT = 256  # columns in a unit, at most: the block of the K-quants


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the forward: float32 [rows, cols], the quantised form of one, or a view of one.

    A row of a view is `heads` runs of cols / heads numbers of a row of `base`: the first run begins at `offset`, the
    next ones follow at a distance of `head_step`.  `step` is the distance of two rows.  All three count numbers.

    space : which rows it has.
    nbytes : bytes of its buffer, for the largest pass; 0 for a view.
    chain : the last one that writes it.  first, last : the steps that need its buffer.
    """

    name: str
    cols: int
    space: RowSpace
    nbytes: int
    base: Value | None = None
    offset: int = 0
    step: int = 0
    heads: int = 1
    head_step: int = 0
    chain: Chain | None = None
    first: int = -1
    last: int = -1

    def __post_init__(self) -> None:
        self.step = self.step or self.cols

    @property
    def root(self) -> Value:
        """The value that has the buffer: itself, unless it is a view."""
        return self if self.base is None else self.base

    @property
    def writer(self) -> Chain:
        """The chain that writes it; ModelError where a forward reads what nothing has written."""
        chain = self.root.chain
        if chain is None:
            raise ModelError(f"the forward reads {self.name} before anything writes it")
        return chain


@dataclass(frozen=True, slots=True)
class Address:
    """A parameter that becomes the address of a value's first number, plus an offset in bytes."""

    value: Value
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Partition:
    """How a chain is cut into units.

    COLS: `extent` columns in units of whole columns.  ROWS and ATTENTION: `extent` units per row of the space.
    """

    rule: int
    extent: int
    space: RowSpace = PASS


@dataclass(slots=True, eq=False)
class Record:
    """One kernel call over a partition: its parameters, and what it reads and writes."""

    kernel: str
    params: Sequence[int | float | Address]
    local: Sequence[Value] = ()
    whole: Sequence[Value] = ()
    writes: Sequence[Value] = ()
    uses: Sequence[str] = ()  # resources read
    changes: Sequence[str] = ()  # resources written
    cost: int = 0  # per column (COLS), unit (ROWS), position (ATTENTION): bytes, or quarters of a nanosecond
    host: Callable[..., Any] | None = None
    weight: Any = None


@dataclass(slots=True, eq=False)
class Chain:
    """Records that run back to back on the same units."""

    partition: Partition
    unit: int
    step: int
    records: list[Record] = field(default_factory=list)

    @property
    def units(self) -> int:
        """Units of the chain (COLS), or units per row."""
        p = self.partition
        return -(-p.extent // self.unit) if p.rule == COLS else p.extent

    @property
    def cost(self) -> int:
        """Bytes per unit."""
        bytes_ = sum(r.cost for r in self.records)
        return bytes_ * self.unit if self.partition.rule == COLS else bytes_


class Schedule:
    """The steps of a forward, filled record by record in the order of the forward."""

    def __init__(self) -> None:
        self.steps: list[list[Chain]] = []
        self.records: list[Record] = []  # in the order of the forward
        self._readers: dict[str, list[Chain]] = {}
        self._writer: dict[str, Chain] = {}

    def fits_after(self, value: Value, partition: Partition, unit: int) -> bool:
        """Whether a record with this partition that reads `value` locally could join the chain that writes it."""
        return value.root.chain is not None and self._follows(value, partition, unit)

    def add(self, record: Record, partition: Partition, unit: int = 1) -> Chain:
        """Place a record, and say in which chain."""
        earliest = 0
        for value in record.whole:
            earliest = max(earliest, value.writer.step + 1)
        for value in record.local:
            earliest = max(earliest, value.writer.step + (0 if self._follows(value, partition, unit) else 1))
        for name in (*record.uses, *record.changes):
            if name in self._writer:
                earliest = max(earliest, self._writer[name].step + 1)
        for name in record.changes:
            for chain in self._readers.get(name, ()):
                earliest = max(earliest, chain.step + 1)
        if partition.rule == HOST:
            chain = Chain(partition, 1, len(self.steps))
            self.steps.append([chain])
        else:
            chain = self._place(record, partition, unit, earliest)
        chain.unit = lcm(chain.unit, unit)
        chain.records.append(record)
        self.records.append(record)
        for value in (*record.local, *record.whole):
            value.root.last = max(value.root.last, chain.step)
        for value in record.writes:
            value.chain, value.last = chain, chain.step
            if value.first < 0:
                value.first = chain.step
        for name in record.uses:
            self._readers.setdefault(name, []).append(chain)
        for name in record.changes:
            self._writer[name], self._readers[name] = chain, []
        return chain

    def _place(self, record: Record, partition: Partition, unit: int, earliest: int) -> Chain:
        step = earliest
        while True:
            if step == len(self.steps):
                self.steps.append([])
            chains = self.steps[step]
            needed = {id(v.writer): v.writer for v in record.local if v.writer.step == step}
            if (chains and chains[0].partition.rule == HOST) or len(needed) > 1:
                step += 1
                continue
            if needed:
                (chain,) = needed.values()
                if self._joins(chain, partition, unit):
                    return chain
                step += 1
                continue
            for chain in chains:
                if self._joins(chain, partition, unit):
                    return chain
            chain = Chain(partition, unit, step)
            chains.append(chain)
            return chain

    def _follows(self, value: Value, partition: Partition, unit: int) -> bool:
        """Whether a record with this partition, which reads `value` locally, may join the chain that writes it."""
        same_units = value.base is None or (partition.rule == ROWS and partition.extent == 1)
        return same_units and self._joins(value.writer, partition, unit)

    @staticmethod
    def _joins(chain: Chain, partition: Partition, unit: int) -> bool:
        if chain.partition != partition or partition.rule in (ATTENTION, HOST):
            return False
        if partition.rule == COLS:
            return lcm(chain.unit, unit) <= MAX_UNIT
        return True
