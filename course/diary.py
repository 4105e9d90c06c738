"""Keeps a diary of a small pool (chapter 12), so that it can be drawn: who came, what was there, who had to go."""

from __future__ import annotations

from typing import Any

from course.figures.lanes import CONTINUED, COPIED, NEW, RESTORED, Step


class Diary:
    """Serves requests with a pool of ch12.pool and a toy model, and notes what happened to the slots.

    Parameters
    ----------
    pool : a pool of slots, with `size`, `slots`, `acquire` and `release`.
    model : has `step(token, cache)`.
    disk : bool
        What the pool drops is kept aside, as on a disk.  Before each request, one that fits better than any slot at
        rest, and fits to more than a tenth of the prompt, is brought back: it takes the place of the slot that was
        released first.

    Attributes
    ----------
    steps : list of Step, for `pool_lanes`.
    """

    def __init__(self, pool: Any, model: Any, disk: bool = False) -> None:
        self.pool, self.model = pool, model
        self.steps: list[Step] = []
        self._lanes: list[Any] = [None] * pool.size
        self._names: dict[int, str] = {}
        self._released: list[Any] = []
        self._disk: dict[str, Any] | None = {} if disk else None
        self._turns: dict[str, int] = {}

    def ask(self, conversation: str, ids: list[int], n: int) -> list[int]:
        """Answer one request with `n` tokens; returns the whole text."""
        self._turns[conversation] = self._turns.get(conversation, 0) + 1
        gone, restored = self._restore(ids)
        before = list(self.pool.slots)
        best = max(before, key=lambda slot: _shared(slot.shadow, ids), default=None)
        slot, cached = self.pool.acquire(ids)
        itself = any(slot is other for other in before)
        left = [other for other in before if other is not slot and not any(other is s for s in self.pool.slots)]
        gone = gone or (left[0] if left else None)
        source = self._lane(best) if best is not None and cached and not itself else None
        lane = self._lane(slot) if itself else self._free(gone)
        dropped = self._names.get(id(gone), "") if gone is not None else ""
        spilled = self._disk is not None and gone is not None
        if spilled and self._disk is not None:
            self._disk[dropped] = gone
        self._lanes[lane] = slot
        self._names[id(slot)] = conversation
        said = self._answer(slot, ids, cached, n)
        self.pool.release(slot, ids + said)
        self._released = [s for s in self._released if s is not slot] + [slot]
        how = RESTORED if restored else CONTINUED if itself else COPIED if cached else NEW
        name = f"{conversation}{self._turns[conversation]}"
        self.steps.append(
            Step(name, conversation, lane, how, cached, len(ids), slot.cache.len, source, dropped, spilled)
        )
        return ids + said

    def _restore(self, ids: list[int]) -> tuple[Any, bool]:
        """Bring a slot back from the disk if it fits best: (the slot that had to go, whether one came back)."""
        if not self._disk:
            return None, False
        name = max(self._disk, key=lambda name: _shared(self._disk[name].shadow, ids))  # type: ignore[index]
        fits = _shared(self._disk[name].shadow, ids)
        if fits * 10 <= len(ids) or fits <= max((_shared(s.shadow, ids) for s in self.pool.slots), default=0):
            return None, False
        gone = None
        if len(self.pool.slots) >= self.pool.size:
            gone = next(slot for slot in self._released if any(slot is s for s in self.pool.slots))
            self.pool.slots[:] = [slot for slot in self.pool.slots if slot is not gone]
        slot = self._disk.pop(name)
        self.pool.slots.append(slot)
        self._lanes[self._free(gone)] = slot
        return gone, True

    def _answer(self, slot: Any, ids: list[int], cached: int, n: int) -> list[int]:
        following = 0
        for token in ids[cached:]:
            following = self.model.step(token, slot.cache)
        said = [following]
        while len(said) < n:
            said.append(self.model.step(said[-1], slot.cache))
        return said

    def _lane(self, slot: Any) -> int:
        return next(i for i, other in enumerate(self._lanes) if other is slot)

    def _free(self, gone: Any) -> int:
        """The lane of what had to go, or the first that holds nothing at rest."""
        if gone is not None:
            return self._lane(gone)
        return next(i for i, slot in enumerate(self._lanes) if slot is None)


def _shared(shadow: list[int], ids: list[int]) -> int:
    """Tokens at the beginning of a prompt that a slot has rows of, the last one left out."""
    most = min(len(shadow), len(ids) - 1)
    return next((i for i in range(most) if shadow[i] != ids[i]), most)
