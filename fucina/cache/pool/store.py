"""Rows in prefix trees, one tree per scope: what the pool holds in memory.

Nothing here takes a lock, and no rows are copied but for splits: the pool holds its lock around each call, packs rows
before it and copies them out after it.  Arrays in the trees are never written where somebody may read them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..parts import Layout
from ..record import CHECKPOINTS
from ..rows import bytes_by_area, pack_rows, recurrent_at, row_bytes
from .tree import BLOCK, ENTRY_BYTES, NODE_BYTES, TOKEN, Entry, Node, PrefixTree, Usage, path_of

if TYPE_CHECKING:
    from ..state import State


@dataclass(frozen=True, slots=True)
class Match:
    """Rows of the beginning of a text.

    Attributes
    ----------
    point : positions whose rows are given.
    shared : positions that some stored text has in common with this one: at least `point`.
    pieces, low, bank : what `append_rows` takes for them.
    """

    point: int = 0
    shared: int = 0
    pieces: tuple[np.ndarray, ...] = ()
    low: tuple[int, ...] = ()
    bank: np.ndarray | None = None


@dataclass(frozen=True, slots=True)
class Need:
    """What a state must give so that a text can be stored: rows from `base` on, recurrent parts at `marks`."""

    base: int
    marks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """What a state gives: rows of positions [base, length), per block of 64; `low` as in `held_from`; banks by position."""

    base: int
    length: int
    blocks: Mapping[int, tuple[int, np.ndarray]]
    low: tuple[int, ...]
    banks: Mapping[int, np.ndarray]


@dataclass(frozen=True, slots=True)
class Victim:
    """An entry that went: its scope, its text, and its rows."""

    scope: bytes
    path: bytes
    match: Match


class RowStore:
    """Texts and their rows, least recently used first out.

    Parameters
    ----------
    layout, dtype : of the states.
    budget : bytes.
    """

    def __init__(self, layout: Layout, dtype: str, budget: int) -> None:
        self.budget, self.usage = budget, Usage()
        self.evictions = self.rows_stored = self.too_large = 0
        self._areas = [area for area in layout.areas if area.kind != "recurrent"]
        self._recurrent, self._width = layout.recurrent, row_bytes(layout, dtype)
        self._columns = bytes_by_area(layout, dtype)
        self._trees: dict[bytes, PrefixTree] = {}
        self._order: OrderedDict[Entry, None] = OrderedDict()
        self._tick = 0

    def __len__(self) -> int:
        return len(self._order)

    # --- reading ------------------------------------------------------------------------------------------------------

    def find(self, scope: bytes, path: bytes, limit: int) -> Match:
        """The rows of the longest beginning of a text, at most `limit` positions, after which a pass can go on."""
        tree = self._trees.get(scope)
        if tree is None:
            return Match()
        nodes, matched = tree.walk(path)
        if nodes:
            donor = nodes[-1].latest
            assert donor is not None
            self._use(nodes, donor)
        return self._match(nodes, min(matched, limit), matched)

    def _match(self, nodes: Sequence[Node], want: int, shared: int) -> Match:
        """The largest position, at most `want`, at which windows and recurrent parts are complete."""
        low: tuple[int, ...] = (0,) * len(self._areas)
        held = []  # per node: from where on its area's rows are there without a gap, up to its end
        for node in nodes:
            low = tuple(before if own == node.start else own for before, own in zip(low, node.low, strict=True))
            held.append(low)
        # A node that cannot be gone on from at its end (or at `want`) cannot inside either: there is no later row that
        # a smaller position could use, and recurrent parts are kept at ends only.
        for i in reversed(range(len(nodes))):
            node, point = nodes[i], min(want, nodes[i].end)
            if point <= node.start or (self._recurrent and (point < node.end or node.bank is None)):
                continue
            low = tuple(min(at, point) for at in held[i])
            if all(area.holds(point, at) for area, at in zip(self._areas, low, strict=True)):
                pieces = [node.rows for node in nodes[: i + 1] if node.rows is not None]
                pieces[-1] = pieces[-1][: point - node.start]
                return Match(point, shared, tuple(pieces), low, node.bank)
        return Match(0, shared)

    # --- writing ------------------------------------------------------------------------------------------------------

    def need(self, scope: bytes, path: bytes, low: Sequence[int], marks: Collection[int]) -> Need:
        """What is missing of a text whose state holds rows from `low` on, and recurrent parts at `marks`."""
        tree = self._trees.get(scope)
        if tree is None:
            return Need(0, tuple(marks))
        nodes, matched = tree.walk(path)
        base = matched
        for node in nodes:
            for own, held in zip(node.low, low, strict=True):
                at = max(held, node.start)
                if at < min(own, node.end, matched):
                    base = min(base, at)
        there = {node.end for node in nodes if node.bank is not None and node.end <= matched}
        return Need(base, tuple(mark for mark in marks if mark not in there))

    def fits(self, offer: Offer) -> bool:
        """Whether a text is within the budget alone: otherwise it would push out everything else, and then itself."""
        nodes = -(-offer.length // BLOCK)
        banks = sum(bank.nbytes for bank in offer.banks.values())
        return ENTRY_BYTES + nodes * NODE_BYTES + offer.length * (TOKEN + self._width) + banks <= self.budget

    def put(self, scope: bytes, path: bytes, offer: Offer, kept: bool, longest_kept: int) -> bool:
        """Store a text.

        Parameters
        ----------
        kept : the entry stays when an extension is stored.
        longest_kept : entries that the text continues go if they are longer than this.

        Returns
        -------
        False if the trees have changed since `need`, so that the offer does not do; nothing has changed then.
        """
        tree = self._trees.get(scope) or PrefixTree(scope, self.usage)
        if tree.walk(path)[1] < offer.base:
            return False

        def rows(first: int, last: int) -> tuple[np.ndarray, tuple[int, ...]]:
            self.rows_stored += last - first
            return _rows(offer, first, last), tuple(min(max(low, first), last) for low in offer.low)

        node = tree.end_of(path, rows)
        for passed in tree.nodes_to(node):
            self._fill(passed, offer)
        for position, bank in offer.banks.items():
            end = tree.end_of(path[: position * TOKEN])
            if end.bank is None:
                end.bank = bank
                self.usage.bytes += bank.nbytes
        self._trees[scope] = tree
        entry = tree.add(node, kept)
        nodes = tree.nodes_to(node)
        self._use(nodes, entry)
        for passed in nodes[:-1]:
            old = passed.entry
            if old is not None and not old.kept and old.length > longest_kept:
                self._drop(old)
        self._thin(nodes)
        return True

    def _fill(self, node: Node, offer: Offer) -> None:
        """Take over rows of windows that a node lacks and a state has: where nobody reads them yet, so in place."""
        for area, own in enumerate(node.low):
            first, last = max(offer.low[area], node.start), min(own, node.end)
            if first < last and first >= offer.base and node.rows is not None:
                columns = self._columns[area]
                node.rows[first - node.start : last - node.start, columns] = _rows(offer, first, last)[:, columns]
                node.low = (*node.low[:area], first, *node.low[area + 1 :])

    def _thin(self, nodes: Sequence[Node]) -> None:
        """Drop recurrent parts of a long text but for the latest places: each turn brings some, and they are large.

        Where texts end or branch they stay.
        """
        between = [n for n in nodes if n.bank is not None and n.entry is None and len(n.children) < 2]
        for node in between[:-CHECKPOINTS]:
            assert node.bank is not None
            self.usage.bytes -= node.bank.nbytes
            node.bank = None

    # --- the order of use ---------------------------------------------------------------------------------------------

    def shrink(self, rows: bool = False) -> list[Victim]:
        """Drop the least recently used entries until the budget is kept; with their rows, if those are wanted."""
        victims = []
        while self.usage.bytes > self.budget and self._order:
            entry = next(iter(self._order))
            if rows:
                victims.append(self.rows_of(entry))
            self._drop(entry)
            self.evictions += 1
        return victims

    def rows_of(self, entry: Entry) -> Victim:
        """An entry with its rows."""
        nodes = entry.tree.nodes_to(entry.node)
        return Victim(entry.tree.scope, path_of(nodes), self._match(nodes, entry.length, entry.length))

    def clear(self, rows: bool = False) -> list[Victim]:
        """Forget everything; the texts that are no part of another, the least recently used one first, if wanted.

        With windows or recurrent parts, also those that were stored for others to begin with.
        """
        special = self._recurrent or any(area.kind == "ring" for area in self._areas)
        wanted = [e for e in self._order if rows and (not e.node.children or (e.kept and special))]
        victims = [self.rows_of(entry) for entry in wanted]
        self._trees.clear()
        self._order.clear()
        self.usage.bytes = 0
        return victims

    def _use(self, nodes: Sequence[Node], entry: Entry) -> None:
        self._tick += 1
        entry.used = self._tick
        self._order[entry] = None
        self._order.move_to_end(entry)
        entry.tree.touch(nodes, entry)

    def _drop(self, entry: Entry) -> None:
        del self._order[entry]
        entry.tree.remove(entry)
        if not entry.tree.root.children:
            del self._trees[entry.tree.scope]


def _rows(offer: Offer, first: int, last: int) -> np.ndarray:
    """Rows [first, last) of one block: an array of its own memory."""
    start, rows = offer.blocks[first // BLOCK]
    return rows if (first, last) == (start, start + len(rows)) else rows[first - start : last - start].copy()


def offer_of(state: State, need: Need, length: int, low: tuple[int, ...]) -> Offer:
    """Rows of a state, from the first that is needed, per block."""
    blocks, at = {}, need.base
    while at < length:
        stop = min(length, at - at % BLOCK + BLOCK)
        blocks[at // BLOCK] = at, pack_rows(state, at, stop)
        at = stop
    banks = {mark: bank for mark in need.marks if (bank := recurrent_at(state, mark)) is not None}
    return Offer(need.base, length, blocks, low, banks)
