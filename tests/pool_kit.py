"""A slot pool over the toy model of `tests/state_models.py`: its rows are known, so every slot can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fucina.cache import Layout, State
from fucina.cache.persist import read_header, read_tokens
from fucina.cache.pool import Slot, SlotPool
from fucina.cache.pool.tree import path_of, text_of_path
from fucina.errors import KvCacheShapeMismatch, KvFileInvalid
from tests.state_models import PARTS, TOY_ROWS, check_claims, extend

VOCAB = 1000


class ToyModel:
    """What a pool asks of a model."""

    def __init__(self, parts: Sequence = PARTS, fingerprint: bytes = b"toy", context: int = 400, dtype: str = "f32"):
        self.layout = Layout(parts, TOY_ROWS)
        self.fingerprint, self.context, self.cache_dtype, self.n_tokens = fingerprint, context, dtype, VOCAB

    def new_cache(self, capacity: int | None = None) -> State:
        """An empty state."""
        return State(self.layout, capacity or self.context, self.cache_dtype, self.fingerprint)

    def check_state(self, state: State, where: str = "") -> None:
        """As of an engine."""
        if state.fingerprint != self.fingerprint or state.layout != self.layout:
            raise KvCacheShapeMismatch(f"{where}another model's state")


def take(pool: SlotPool, ids: Sequence[int], shift: int = 0, **options) -> Slot:
    """Acquire a slot and check every row of it; `shift` is added to the tokens that the toy model computes with."""
    slot = pool.acquire(ids, **options)
    assert 0 <= slot.cached <= len(ids) - 1
    assert slot.state.len == slot.cached
    assert slot.tokens == list(ids[: slot.cached])
    check_claims(slot.state, [t + shift for t in ids])
    return slot


def serve(pool: SlotPool, ids: Sequence[int], reply: Sequence[int] = (), **options) -> int:
    """A request as a server makes it: a slot, the rest of the prompt, the reply, and back; returns what was cached.

    The prompt is computed first, with a checkpoint at its end; the newest token of the reply has no row.
    """
    slot = take(pool, ids, **options)
    extend(slot.state, ids)
    slot.state.checkpoint()
    text = [*ids, *reply]
    if len(reply) > 1:
        extend(slot.state, text[:-1])
    check_claims(slot.state, text)
    slot.release(text)
    return slot.cached


def check(pool: SlotPool) -> None:
    """Everything that a pool says about itself is so: counted over all of its trees."""
    store, total, entries = pool._rows, 0, 0
    for scope, tree in store._trees.items():
        assert tree.scope == scope
        assert tree.root.children
        todo = [tree.root]
        while todo:
            node = todo.pop()
            assert list(node.children) == [child.key[:4] for child in node.children.values()]
            below = [child.latest for child in node.children.values()]
            if node.entry is not None:
                entries += 1
                total += 512
                below.append(node.entry)
                assert node.entry in store._order
                assert node.entry.node is node
            if node is not tree.root:
                total += node.nbytes
                assert node.rows.base is None, "a view would keep more memory than is counted"
                assert len(node.rows) == node.end - node.start == len(node.key) // 4 > 0
                assert node.start // 64 == (node.end - 1) // 64
                assert all(node.start <= low <= node.end for low in node.low)
                assert below, "a leaf that no entry needs"
                assert node.latest is max(below, key=lambda e: e.used)
            for child in node.children.values():
                assert child.parent is node
                assert child.start == node.end
                todo.append(child)
    assert entries == len(store._order)
    assert total == store.usage.bytes <= store.budget
    used = [entry.used for entry in store._order]
    assert used == sorted(used)


def files(pool: SlotPool) -> list[Path]:
    """The files of a pool's folder that have the name of one, in the order of their numbers."""
    found = pool._disk._folder.path.glob("kv-slot-*.fuxkv")
    return sorted(found, key=lambda path: int(path.stem.rsplit("-", 1)[1]))


def check_disk(pool: SlotPool) -> None:
    """The budget is kept on the file system itself, and the index says what is there."""
    disk, folder = pool._disk, pool._disk._folder
    assert not disk._lock.locked()
    mine = 0
    for path in files(pool):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            header = read_header(path)
        except KvFileInvalid:
            continue
        if not header.differs(folder._identity._replace(salt=header.salt)):
            mine += path.stat().st_size
    assert mine <= disk.budget
    folder.scan()
    assert folder.size == mine
    assert not any(stored.busy for stored in folder.files.values())
    for name, stored in folder.files.items():
        assert stored.name == name
        if stored.entry is not None:
            assert stored.entry.item is stored
            held = read_tokens(folder.path / name)
            path = text_of_path(path_of(stored.entry.tree.nodes_to(stored.entry.node)))
            assert held[: len(path[0])] == path[0]
