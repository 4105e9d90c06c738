"""A prefix tree over token sequences: equal prefixes are one path, whatever the number of texts that begin with them.

A *node* holds at most 64 tokens and never crosses a multiple of 64; its children differ in their first token.  A walk
compares every token of the text with the tokens of the nodes, so a match is never a guess, and it costs the length of
the match, not the number of entries.

Nodes carry what the owner of the tree keeps per position: rows, first positions held, recurrent parts.  An *entry* is
the end of a text that somebody stored: the nodes on the way to it stay for as long as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

BLOCK = 64
"""A node does not cross a multiple of so many tokens."""

TOKEN = 4  # bytes of a token in a key: int32, little-endian

NODE_BYTES = 1024
"""What a node is counted as, besides its tokens, rows and recurrent parts: the Python objects that it consists of."""

ENTRY_BYTES = 512
"""What an entry is counted as."""


def key_of(tokens: Sequence[int]) -> bytes:
    """Tokens as the tree compares them."""
    return np.asarray(tokens, "<i4").tobytes()


def tokens_of(key: bytes) -> list[int]:
    """The tokens of a key."""
    return [int(t) for t in np.frombuffer(key, "<i4")]


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
                at += TOKEN * _shared(child.key, path[at : at + len(child.key)])
                break
            node, at = child, at + len(child.key)
        return nodes, at // TOKEN

    def node_at(self, path: bytes, position: int) -> Node | None:
        """The node that ends at a position of a text, split off if need be; None if the tree does not hold so much."""
        nodes, matched = self.walk(path[: position * TOKEN])
        if matched < position or not nodes:
            return None
        return self.split(nodes[-1], position)

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

    def grow(self, parent: Node, key: bytes, rows: np.ndarray | None, low: tuple[int, ...]) -> Node:
        """Add a child after a node."""
        node = Node(key, parent.end, parent)
        node.rows, node.low = rows, low
        parent.children[key[:TOKEN]] = node
        self.usage.bytes += node.nbytes
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
        """Note on a walk's nodes that an entry below them is the latest used one."""
        for node in nodes:
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


def _shared(a: bytes, b: bytes) -> int:
    """Tokens with which both begin."""
    n = min(len(a), len(b)) // TOKEN
    differ = np.flatnonzero(np.frombuffer(a, "<i4", n) != np.frombuffer(b, "<i4", n))
    return int(differ[0]) if len(differ) else n
