"""A prefix tree over token sequences: equal prefixes are one path, whatever the number of texts that begin with them.

A *node* holds at most 64 tokens and never crosses a multiple of 64; its children differ in their first token.  A walk
compares every token of the text with the tokens of the nodes, so a match is never a guess, and it costs the length of
the match, not the number of entries.

Nodes carry what the owner of the tree keeps per position: rows, first positions held, recurrent parts.  An *entry* is
the end of a text that somebody stored: the nodes on the way to it stay for as long as it does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

BLOCK = 64
"""A node does not cross a multiple of so many tokens."""

TOKEN = 4  # bytes of a token in a key: uint32, little-endian

_PREFIX = b"\xff" * TOKEN  # stands in a path for a row of a prefix, which belongs to no token; it is no token id

NODE_BYTES = 1024
"""What a node is counted as, besides its tokens, rows and recurrent parts: the Python objects that it consists of."""

ENTRY_BYTES = 512
"""What an entry is counted as."""


def path_of_text(tokens: Sequence[int], prefix_rows: int = 0) -> bytes:
    """A text as the tree compares it: one item per position, those of a prefix first."""
    return _PREFIX * prefix_rows + np.asarray(tokens, "<u4").tobytes()


def text_of_path(path: bytes) -> tuple[list[int], int]:
    """The tokens of a path, and the rows of its prefix."""
    items = np.frombuffer(path, "<u4")
    others = np.flatnonzero(items != 0xFFFFFFFF)
    prefix_rows = int(others[0]) if len(others) else len(items)
    return items[prefix_rows:].tolist(), prefix_rows


def shared(a: bytes, b: bytes) -> int:
    """Items with which two paths begin."""
    n = min(len(a), len(b)) // TOKEN
    differ = np.flatnonzero(np.frombuffer(a, "<u4", n) != np.frombuffer(b, "<u4", n))
    return int(differ[0]) if len(differ) else n


class Node:
    """Some tokens of a path, after those of its parent.

    Attributes
    ----------
    key, start : its tokens; the position of the first one.
    entry : the entry that ends here, or None.
    latest : of the entries that end here or below, the most recently used one.
    rows : uint8 [tokens, row_bytes], or None in a tree without rows.
    low : per area of planes, the first position from which on the rows are there, up to the end of the node.
    bank : recurrent parts after the last token, or None.
    """

    __slots__ = ("bank", "children", "entry", "key", "latest", "low", "parent", "rows", "start")

    def __init__(self, key: bytes, start: int, parent: Node | None) -> None:
        self.key, self.start, self.parent = key, start, parent
        self.children: dict[bytes, Node] = {}
        self.entry: Entry | None = None
        self.latest: Entry | None = None
        self.rows: np.ndarray | None = None
        self.low: tuple[int, ...] = ()
        self.bank: np.ndarray | None = None

    @property
    def end(self) -> int:
        """The position after the last token."""
        return self.start + len(self.key) // TOKEN

    @property
    def nbytes(self) -> int:
        """What it is counted as."""
        rows = 0 if self.rows is None else self.rows.nbytes
        bank = 0 if self.bank is None else self.bank.nbytes
        return NODE_BYTES + len(self.key) + rows + bank


class Entry:
    """The end of a stored text.

    Attributes
    ----------
    tree, node : where it ends.
    used : a number that grows with every use of any entry.
    kept : an extension does not take its place: it was stored for others to begin with.
    item : whatever the owner of the tree attaches.
    """

    __slots__ = ("item", "kept", "node", "tree", "used")

    def __init__(self, tree: PrefixTree, node: Node, kept: bool = False, item: Any = None) -> None:
        self.tree, self.node, self.kept, self.item, self.used = tree, node, kept, item, 0

    @property
    def length(self) -> int:
        """Positions of the text."""
        return self.node.end


class Usage:
    """Counts over several trees: bytes held, and nodes that walks have looked at."""

    def __init__(self) -> None:
        self.bytes = self.visits = 0


RowsOf = Callable[[int, int], tuple[np.ndarray | None, tuple[int, ...]]]
"""Gives the rows of positions [first, last), and from where on each area's are there."""


class PrefixTree:
    """The texts of one scope (a tenant): no other scope's walk ever comes here."""

    def __init__(self, scope: bytes, usage: Usage) -> None:
        self.scope, self.usage = scope, usage
        self.root = Node(b"", 0, None)

    def walk(self, path: bytes) -> tuple[list[Node], int]:
        """The nodes that a text passes, and how many of its tokens they hold; of the last node perhaps only the first."""
        nodes: list[Node] = []
        node, at = self.root, 0
        while (child := node.children.get(path[at : at + TOKEN])) is not None:
            self.usage.visits += 1
            nodes.append(child)
            if not path.startswith(child.key, at):
                at += TOKEN * shared(child.key, path[at : at + len(child.key)])
                break
            node, at = child, at + len(child.key)
        return nodes, at // TOKEN

    def split(self, node: Node, position: int) -> Node:
        """Let a node end at `position`, the rest become its child; returns it.  The node itself, if it ends there."""
        if position == node.end:
            return node
        assert node.parent is not None and node.start < position < node.end
        n, at = position - node.start, (position - node.start) * TOKEN
        upper = Node(node.key[:at], node.start, node.parent)
        upper.latest, upper.low = node.latest, tuple(min(low, position) for low in node.low)
        upper.children[node.key[at : at + TOKEN]] = node
        rows = node.rows
        if rows is not None:  # copies: a view would keep the other half's memory
            upper.rows, rows = rows[:n].copy(), rows[n:].copy()
        first = node.key[:TOKEN]
        node.key, node.start, node.rows = node.key[at:], position, rows
        node.low = tuple(max(low, position) for low in node.low)
        node.parent.children[first] = upper
        node.parent = upper
        self.usage.bytes += NODE_BYTES
        return upper

    def end_of(self, path: bytes, rows: RowsOf = lambda first, last: (None, ())) -> Node:
        """The node at which a text ends.  What is missing on the way is added, in blocks: `rows` gives rows and `low`."""
        nodes, at = self.walk(path)
        node = nodes[-1] if nodes else self.root
        if at < node.end:
            node = self.split(node, at)
        while at * TOKEN < len(path):
            stop = min(len(path) // TOKEN, at - at % BLOCK + BLOCK)
            child = Node(path[at * TOKEN : stop * TOKEN], at, node)
            child.rows, child.low = rows(at, stop)
            node.children[child.key[:TOKEN]] = child
            self.usage.bytes += child.nbytes
            node, at = child, stop
        return node

    def add(self, node: Node, kept: bool = False, item: Any = None) -> Entry:
        """Let an entry end at a node; the one that does already, if there is one."""
        if node.entry is None:
            node.entry = Entry(self, node, kept, item)
            self.usage.bytes += ENTRY_BYTES
        node.entry.kept |= kept
        return node.entry

    def remove(self, entry: Entry) -> None:
        """Remove an entry, and the nodes that no other one needs."""
        node: Node | None = entry.node
        assert node is not None and node.entry is entry
        node.entry = None
        self.usage.bytes -= ENTRY_BYTES
        while node is not None and node.parent is not None:
            parent = node.parent
            if node.entry is None and not node.children:
                del parent.children[node.key[:TOKEN]]
                self.usage.bytes -= node.nbytes
            elif node.latest is entry:
                below = [child.latest for child in node.children.values()] + [node.entry]
                node.latest = max((e for e in below if e is not None), key=lambda e: e.used)
            node = parent

    def touch(self, nodes: Sequence[Node], entry: Entry) -> None:
        """Note the use of an entry on nodes that lie on the way to it."""
        for node in nodes:
            if node.latest is None or node.latest.used < entry.used:
                node.latest = entry

    def nodes_to(self, node: Node) -> list[Node]:
        """The path from the root to a node, the root left out."""
        nodes = []
        at: Node | None = node
        while at is not None and at.parent is not None:
            nodes.append(at)
            at = at.parent
        return nodes[::-1]


def path_of(nodes: Sequence[Node]) -> bytes:
    """The text of a path."""
    return b"".join(node.key for node in nodes)
