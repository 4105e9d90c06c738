"""Chapter 05 - The loop, the invariant, the rewindable cache.

Every trick of part II is a change of one loop.  All of them stand on two small things
that you build here: a cache that can forget its last rows, and a loop that keeps one
promise.  Whatever goes wrong,

    len(history) == cache.len + 1

The history holds every token that is settled; the cache holds one row for each of them
but the last, which goes in with the next step.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch05`, or in the notebook with a cell that begins
with `%%exercise ch05.truncate`. Both are the same file: this one. Stuck?
`python3 -m course hint ch05.truncate`.

Rules for all exercises:

- An exercise is graded alone, in a process of its own. It knows what its file in
  exercises/ holds, and nothing of your notebook: import and define what you use there,
  or in the exercise's cell.
- Arguments stay as they are, unless the contract says that they change: work on a copy.
- Types count: where the contract says list, a tuple or an array is wrong. A number of
  NumPy's counts as a number.
- You build it yourself: the engine (`fucina`) and the solutions are no part of an
  answer, unless the contract says so.
"""

import math
import random
from types import SimpleNamespace
import numpy as np


class InvalidDecodeState(ValueError):
    """History and cache do not belong together: len(history) != cache.len + 1."""


class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


class KvCacheShapeMismatch(ValueError):
    """K/V rows do not have the shape that the cache was made for."""


class ToyCache:
    """A KV cache reduced to what the loop sees: rows, of which the first `len` count.

    Real caches reserve all their rows at the start, so there are rows at position `len`
    and after it, too.  Nobody reads them, and they are overwritten when the cache grows.
    """

    def __init__(self, capacity):
        self.rows = [None] * capacity
        self.len = 0

    def append(self, row):
        """Write one row after the last and count it."""
        if self.len == len(self.rows):
            raise KvCacheOverflow(f"the cache holds {self.len} rows already")
        self.rows[self.len] = row
        self.len += 1


class ListCache:
    """A cache that is nothing but a list: `len` is a property, a rewind deletes."""

    def __init__(self):
        self.rows = []

    @property
    def len(self):
        """How many rows there are."""
        return len(self.rows)

    def append(self, row):
        """Write one more row."""
        self.rows.append(row)

    def truncate(self, keep):
        """Keep the first `keep` rows."""
        del self.rows[keep:]


class ToyModel:
    """A pretend model: the next token depends on every row in the cache.

    `step(token, cache)` writes the row of `token` into the cache and returns the next
    token.  `fails_at=n` lets the n-th step (from 0) raise an OSError in the middle: it
    has written `leaves` rows by then, and they stay in the cache.
    """

    def __init__(self, fails_at=None, leaves=1):
        self.fails_at = fails_at
        self.leaves = leaves
        self.steps = 0

    def step(self, token, cache):
        """Write one row, return the next token."""
        self.steps += 1
        if self.steps - 1 == self.fails_at:
            for _ in range(self.leaves):
                cache.append(token)
            raise OSError("the machine coughed in the middle of a step")
        cache.append(token)
        seen = 0
        for row in cache.rows[:cache.len]:
            seen = (31 * seen + row + 7) % 1009
        return seen % 97


# %% ch05.truncate - Rewind a cache (5 points, easy, section 05.2)

def truncate(cache, keep):
    """Forget all rows of a cache but the first `keep`.

    The rows themselves stay where they are: forgetting is moving `cache.len`, and costs
    the same for one row and for a million.

    Parameters
    ----------
    cache : ToyCache
        Has `rows`, a list, and `len`, how many of them count.  Changed in place.
    keep : int
        How many rows to keep.  At or above `cache.len`: nothing changes.

    Raises
    ------
    ValueError
        When keep is negative; the cache is unchanged.

    Examples
    --------
    >>> cache = ToyCache(capacity=8)
    >>> for token in [11, 12, 13, 14]:
    ...     cache.append(token)
    >>> truncate(cache, 1)
    >>> cache.len
    1
    """
    raise NotImplementedError("ch05.truncate: your code here")


# %% ch05.decode_loop - A loop that keeps its promise (15 points, medium, section 05.3)

def decode(model, cache, history, max_tokens, emit, stop=None):
    """Decode up to `max_tokens` tokens; on every way out len(history) == cache.len + 1.

    In each step the last token of the history goes into the model, and its row into the
    cache.  The token that comes back is appended to the history: from then on it is
    settled.  Then it is handed to `emit`.

    When `model.step` or `emit` raises, the error goes on to the caller.  So does
    Ctrl-C, which is a KeyboardInterrupt.  Tokens in the history stay there.  The cache is
    rewound: it keeps the rows of all tokens but the last.

    Parameters
    ----------
    model : object with `step(token, cache) -> token`
        `step` writes one row into the cache.  When it raises, it may have written none,
        one or several.
    cache : object with `len` and `truncate(keep)`
    history : list of int
        Settled tokens, prompt included; grows in place.
    max_tokens : int
        At most this many new tokens; 0 is allowed.
    emit : callable
        Called with each new token, in order.
    stop : int, optional
        The loop ends after this token, which is settled and emitted like any other.  It
        may be token 0; None means that there is no stop token.  A prompt may end with it:
        only new tokens end the loop.

    Returns
    -------
    int
        How many tokens were added.

    Raises
    ------
    InvalidDecodeState
        At the start, when the promise does not hold; nothing has been touched.

    Examples
    --------
    >>> cache, history, seen = ListCache(), [5], []
    >>> decode(ToyModel(), cache, history, 3, emit=seen.append)
    3
    >>> history == [5] + seen, cache.len
    (True, 3)
    """
    raise NotImplementedError("ch05.decode_loop: your code here")


# %% ch05.find_the_fault - Find the fault in three loops (10 points, hard, section 05.3)

FAULTS = {
    1: "computes the row of the last token too: as many rows in the cache as tokens",
    2: "computes the row of a token twice, although it is in the cache already",
    3: "rewinds to one row too many",
    4: "rewinds to one row too few",
    5: "settles a token after emit: an error there loses a token that was seen",
    6: "hides the error from the caller",
}


def loop_a(model, cache, history, max_tokens, emit):
    """A decode loop with one fault."""
    try:
        for _ in range(max_tokens):
            token = model.step(history[-1], cache)
            history.append(token)
            emit(token)
    except BaseException:
        cache.truncate(len(history))
        raise


def loop_b(model, cache, history, max_tokens, emit):
    """A decode loop with one fault."""
    try:
        for _ in range(max_tokens):
            token = model.step(history[-1], cache)
            emit(token)
            history.append(token)
    except BaseException:
        cache.truncate(len(history) - 1)
        raise


def loop_c(model, cache, history, max_tokens, emit):
    """A decode loop with one fault."""
    try:
        for _ in range(max_tokens):
            token = model.step(history[-1], cache)
            history.append(token)
            emit(token)
        if max_tokens:
            model.step(history[-1], cache)
    except BaseException:
        cache.truncate(len(history) - 1)
        raise


def find_the_fault():
    """Name the fault of `loop_a`, `loop_b` and `loop_c`, with a counterexample each.

    Each loop has exactly one of the FAULTS.  A scenario is a run of the loop on the
    history [5] with an empty cache: how many tokens it is asked for, and what fails.
    It shows the fault when the loop ends in a state that the contract of `decode`
    forbids: the rows are not those of the history without its last token, or an
    emitted token is missing from the history.

    Returns
    -------
    dict of str to (int, dict)
        For "a", "b" and "c": the number of its fault in FAULTS, and a scenario, such as
        {"max_tokens": 4, "model_fails_at": None, "emit_fails_at": 2}.

        `max_tokens` : 0 to 32.
        `model_fails_at` : the step (from 0) that raises, its row already in the cache.
        `emit_fails_at` : the call of emit (from 0) that raises.
        None: it never fails.

    Examples
    --------
    >>> sorted(find_the_fault())
    ['a', 'b', 'c']
    """
    raise NotImplementedError("ch05.find_the_fault: your code here")


# %% ch05.row_cache - A cache of half-precision rows (15 points, medium, section 05.4)

class RowCache:
    """K and V rows of several layers, kept in half precision (float16).

    One step of a model appends m rows to every layer, then advances once: the rows of
    all layers stand at the same positions.  `read` returns the rows as float16 keeps
    them, so a row is the same whether it was written just now or long ago.

    Parameters
    ----------
    layers, capacity, dim : int
        Number of layers, number of positions, and values per row.

    Attributes
    ----------
    k, v : float16 arrays [layers, capacity, dim]
    len : int
        Positions that count.

    Examples
    --------
    >>> cache = RowCache(layers=1, capacity=4, dim=2)
    >>> cache.append(0, np.ones((3, 2), np.float32), np.zeros((3, 2), np.float32))
    >>> cache.len
    0
    >>> cache.advance(3)
    >>> cache.truncate(1)
    >>> cache.read(0)[0].tolist()
    [[1.0, 1.0]]
    """

    def __init__(self, layers, capacity, dim):
        self.k = np.zeros((layers, capacity, dim), np.float16)
        self.v = np.zeros((layers, capacity, dim), np.float16)
        self.len = 0

    def append(self, layer, k, v):
        """Write rows k and v of one layer at positions len ... len + m - 1.

        k and v are float32 [m, dim] each.  Does not move `len`.

        Raises KvCacheShapeMismatch when k or v is not [m, dim] with the same m, and
        KvCacheOverflow when len + m is above the capacity; nothing is written then.
        """
        raise NotImplementedError("ch05.row_cache: your code here")

    def advance(self, m):
        """Count m more positions, once all layers are written.

        Raises KvCacheOverflow, and counts nothing, when len + m is above the capacity.
        """
        raise NotImplementedError("ch05.row_cache: your code here")

    def truncate(self, keep):
        """Keep the first `keep` positions; at or above `len` nothing changes.

        Raises ValueError when keep is negative.
        """
        raise NotImplementedError("ch05.row_cache: your code here")

    def read(self, layer):
        """The pair (k, v) of a layer: float32 [len, dim] each, as the cache has it."""
        raise NotImplementedError("ch05.row_cache: your code here")


# %% ch05.prove - Prove a cache (15 points, hard, section 05.2)

def forgetful(capacity):
    """A wrong cache to try your proof on: whatever is appended, it stays empty."""
    return SimpleNamespace(len=0, append=lambda row: None, truncate=lambda keep: None, read=list)


def prove(make):
    """Look for a case in which a cache breaks its contract.

    `make(capacity)` makes an empty cache. What a cache promises:

    - `cache.len` is the number of rows that count.
    - `cache.append(row)` puts a row after them and counts it. A row is any whole number. A
      full cache raises KvCacheOverflow instead, and is afterwards as it was before.
    - `cache.truncate(keep)` keeps the first `keep` rows; at or above `len` nothing changes.
      `keep` is 0 or more. The places that become free can be used again.
    - `cache.read()` returns the rows that count, as a list that nobody else holds: what
      happens to the cache later does not change it, and changing it does not change the
      cache.
    - Two caches have nothing to do with each other.

    Whether a cache deletes rows or leaves them lying after `len` is not your business.

    Parameters
    ----------
    make : callable
        You may make up to 4000 caches, of a capacity from 1 on, and call `append` up to 4000
        times on each; calls that a full cache refuses count as well.

    Returns
    -------
    str or None
        None when you found nothing wrong. Otherwise a text, your counterexample.

    Examples
    --------
    >>> prove(forgetful) is None
    False
    """
    raise NotImplementedError("ch05.prove: your code here")
