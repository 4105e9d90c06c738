"""What is raced: the texts, who runs, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

_PASSAGE = "Bees find their way by the sun. A forager that has found clover returns to the hive and dances on the comb."
TEXTS: dict[str, str] = {
    "prose": "The lighthouse keeper woke before dawn, and",
    "copying": f"{_PASSAGE}\n\n{_PASSAGE}\n\nBees find",
    "code": (
        "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
        "        self.items.append(item)\n\n    def pop(self):\n        return self.items.pop()\n\n\nclass Queue:\n    def"
    ),
}
"""Name -> a text to go on with: one that says something new, one that repeats itself, and code, which does both."""

SAMPLING: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.9,
    "min_p": 0.02,
    "repeat": 1.1,
    "frequency": 0.1,
    "presence": 0.1,
    "seed": 11,
}
"""Settings of the sampled run: each piece of chapter 04 has something to do."""
BANNED = 3  # of the tokens that plain decoding begins with, the sampled run forbids so many

NUMPY, COMPILED = "numpy", "fucina"


@dataclass(frozen=True, slots=True)
class Entry:
    """One contestant.

    who : its name in tables.  side : "yours", "ours" or "llama.cpp".  forward : "numpy" or "fucina".
    how : a way of decoding, of `pieces.AT_WORK`; of ours "plain" or "drafts".
    bought : what this step of the ladder adds to the one before; "" where it is no step.
    timed : False for runs whose tokens alone matter.
    """

    who: str
    side: str
    forward: str
    how: str
    bought: str = ""
    timed: bool = True


ENTRIES = (
    Entry("yours, all NumPy", "yours", NUMPY, "cache"),
    Entry("yours, all NumPy, with drafts", "yours", NUMPY, "gate"),
    Entry("your loop, no cache", "yours", COMPILED, "reread", "the plain loop"),
    Entry("your loop, with a cache", "yours", COMPILED, "cache", "the cache"),
    Entry("your verify, prompt lookup", "yours", COMPILED, "lookup", "verify and lookup"),
    Entry("your verify, suffix automaton", "yours", COMPILED, "index", "the index"),
    Entry("... and recycled logits", "yours", COMPILED, "cascade", "the cascade"),
    Entry("... as many as pay, by their odds", "yours", COMPILED, "odds", "the best length"),
    Entry("... and the gate: all of it", "yours", COMPILED, "gate", "the gate"),
    Entry("ours", "ours", COMPILED, "plain"),
    Entry("ours, with drafts", "ours", COMPILED, "drafts"),
    Entry("llama.cpp", "llama.cpp", COMPILED, "plain"),
)
PROOFS = tuple(
    Entry(how, "yours", COMPILED, how, timed=False)
    for how in (
        "sampled",
        "until a stop",
        "streaming",
        "from a document",
        "three streams",
        "isolated",
        "one by one",
        "served",
    )
)
"""Pieces that no timed run goes through: their tokens are compared, too."""

LAST_STEP = "gate"
"""The way of decoding in which all pieces of the ladder are at work."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is run.

    rounds, tokens : of the runs on the compiled forward.  numpy_rounds, numpy_tokens : of the forward in NumPy; 0 rounds
    leave it out.  texts : name -> text or token ids.
    """

    rounds: int = 5
    tokens: int = 96
    numpy_rounds: int = 2
    numpy_tokens: int = 24
    texts: dict[str, Any] = field(default_factory=lambda: dict(TEXTS))

    def rounds_of(self, entry: Entry) -> int:
        """How often an entry runs on each text."""
        return self.numpy_rounds if entry.forward == NUMPY else self.rounds if entry.timed else 1

    def tokens_of(self, entry: Entry) -> int:
        """How many tokens it decodes; without a cache an eighth will do."""
        if entry.forward == NUMPY:
            return self.numpy_tokens
        return max(self.tokens // 8, 2) if entry.how == "reread" else self.tokens


QUICK = Plan(rounds=2, tokens=24, numpy_rounds=1, numpy_tokens=8)
FULL = Plan()
