"""What tests of conversations share: scripted replies, and checks of a state against a fresh engine's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fucina.cache import State
from fucina.chat import Conversation, Reply


class Script:
    """A processor that allows the given tokens only, in order, then <|im_end|>; from the start in each turn."""

    def __init__(self, tokens: Sequence[int], end: int = 257):
        self.tokens, self.at, self.commits, self.resets = [*tokens, end], 0, 0, 0

    def process(self, logits, history):
        logits[np.arange(len(logits)) != self.tokens[self.at]] = -np.inf

    def commit(self, token):
        self.at, self.commits = self.at + 1, self.commits + 1

    def reset(self):
        self.at, self.resets = 0, self.resets + 1


class FailAt:
    """A processor that fails at its n-th call."""

    def __init__(self, at: int):
        self.left, self.commits, self.resets = at, 0, 0

    def process(self, logits, history):
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("no")

    def commit(self, token):
        self.commits += 1

    def reset(self):
        self.resets += 1


def check_state(c: Conversation, complete: bool = True) -> None:
    """The state holds rows of a prefix of the tokens, and they are those that a fresh engine computes, bit for bit.

    A state that can go back anywhere holds all of them, or all but the newest; after a turn that left nothing it may
    hold fewer (not `complete`).
    """
    rows = c.cache.len - c.prefix_rows
    assert 0 <= rows <= len(c.history)
    if complete and not c.cache.layout.recurrent and all(area.kind == "full" for area in c.cache.layout.areas):
        assert rows in (len(c.history), len(c.history) - 1), (rows, len(c.history))
    if rows and not c.prefix_rows:
        fresh = c.model.new_cache(rows)
        c.model.forward_rows([(fresh, c.history[:rows], "none")])
        same_rows(c.cache, fresh)


def same_rows(mine: State, other: State) -> None:
    """Two states hold the same bits, as far as both hold them (a window's old rows are gone)."""
    a, b = mine.snapshot(), other.snapshot()
    assert a.len == b.len
    for slot, planes in a.rows.items():
        for x, y in zip(planes, b.rows[slot], strict=True):
            n = min(x.shape[1], y.shape[1])
            assert x[:, x.shape[1] - n :].tobytes() == y[:, y.shape[1] - n :].tobytes()
    if a.bank is not None:
        assert a.bank.tobytes() == b.bank.tobytes()


def fresh_reply(c: Conversation, ids: Sequence[int], position: int, processor=None, **options) -> Reply:
    """What a new conversation with the options of `c` answers to `ids`, its draws beginning at `position`."""
    o = c.sampler.options
    sampling = {name: getattr(o, name) for name in o.__dataclass_fields__}
    other = Conversation(
        c.model, template="chatml", capacity=c.cache.capacity, max_tokens=c.max_tokens, stop=c.stop,
        processor=processor,
        **{**sampling, **options},
    )  # fmt: skip
    other.sampler.rng.position = position
    return other.send_tokens_reuse(ids)
