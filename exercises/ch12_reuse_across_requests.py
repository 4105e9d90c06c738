"""Chapter 12 - KV reuse across requests.

What a request leaves in the cache can serve the next one, if both begin with the same
tokens.  You count how much of a cache fits a prompt, build the pool that decides which
rows stay, and store rows of many conversations in blocks.  Then you write them to a file
that survives a crash at any byte.  At the end your pool serves a real model.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch12`, or in the notebook with a cell that begins
with `%%exercise ch12.common_prefix`. Both are the same file: this one. Stuck?
`python3 -m course hint ch12.common_prefix`.

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
import struct
import zlib
import numpy as np


class ToyCache:
    """A KV cache in miniature: a list of rows, one for each token.

    A row is a number.  As with keys and values, it depends on its token and on all tokens
    before it.
    """

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
        """Keep the first `keep` rows; with fewer rows than that, nothing changes."""
        del self.rows[keep:]

    def copy_from(self, other, keep):
        """Hold copies of the first `keep` rows of another cache, and nothing else."""
        if keep > other.len:
            raise ValueError(f"{keep} rows were asked for, the other cache has {other.len}")
        self.rows = other.rows[:keep]


class ToyModel:
    """A pretend model: the next token depends on every row in the cache.

    `step(token, cache)` writes the row of `token` and returns the next token.  `steps`
    counts how often that was done: it is the price of everything.
    """

    def __init__(self):
        self.steps = 0

    def step(self, token, cache):
        """Write one row, return the next token."""
        self.steps += 1
        before = cache.rows[-1] if cache.rows else 1
        cache.append((31 * before + token + 7) % 65521)
        seen = 0
        for row in cache.rows:
            seen = (31 * seen + row) % 1009
        return seen % 97


class Slot:
    """A cache and its shadow: the tokens whose rows the cache holds, a list."""

    def __init__(self, cache):
        self.cache, self.shadow = cache, []


def serve(pool, model, ids, n):
    """Answer one request: `n` tokens after the prompt `ids`.

    The last token of an answer is never run, so there is no row for it.
    """
    slot, cached = pool.acquire(ids)
    if cached >= len(ids):
        raise ValueError("every token of the prompt is cached, so nothing gives the next one: logits are not kept")
    for token in ids[cached:]:
        following = model.step(token, slot.cache)
    said = [following]
    while len(said) < n:
        said.append(model.step(said[-1], slot.cache))
    pool.release(slot, ids + said)
    return said


# %% ch12.common_prefix - How much of a cache fits (5 points, easy, section 12.2)

def common_prefix(shadow, ids):
    """Count the rows of a cache that a prompt can use.

    Rows can be used from the first on, as long as the tokens agree.  The last token of the
    prompt is run in any case: its logits are needed, and no cache keeps logits.

    Parameters
    ----------
    shadow : list of int
        The tokens whose rows the cache holds; may be empty.
    ids : list of int
        The prompt, at least one token.

    Returns
    -------
    int

    Examples
    --------
    >>> common_prefix([7, 8, 9, 4], [7, 8, 5])
    2
    >>> common_prefix([7, 8, 9, 4], [7, 8, 9])
    2
    >>> common_prefix([], [7])
    0
    """
    raise NotImplementedError("ch12.common_prefix: your code here")


# %% ch12.pool - A pool of two slots (20 points, hard, section 12.4)

class Pool:
    """Slots of earlier requests, at rest, for requests to come.

    Parameters
    ----------
    size : int
        Most slots at rest, 1 or more.
    new_cache : callable
        Makes an empty cache, with `len`, `truncate` and `copy_from` as `ToyCache` has them.

    Attributes
    ----------
    slots : list of Slot
        Those at rest.  Each one's shadow is exactly as long as its cache.

    Examples
    --------
    >>> pool, model = Pool(), ToyModel()
    >>> said = serve(pool, model, [1, 2, 3, 4], 3)
    >>> model.steps, [len(slot.shadow) for slot in pool.slots]
    (6, [6])
    >>> more = serve(pool, model, [1, 2, 3, 4] + said + [5], 2)
    >>> model.steps
    9
    """

    def __init__(self, size=2, new_cache=ToyCache):
        raise NotImplementedError("ch12.pool: your code here")

    def acquire(self, ids):
        """Hand out a slot for a prompt.

        The best slot is the one of which the prompt can use the most rows (see
        `common_prefix`).  Of equals, one that the prompt *continues* is better: one whose
        whole shadow is the beginning of the prompt, or all of it (its last row is then cut).

        - If the prompt continues the best slot, and more than a tenth of the prompt can be
          used, the best slot is handed out itself and rests no longer.
        - Otherwise a new one is handed out, with copies of the rows that the prompt can use
          of the best slot.  The best slot stays as it is.  At most `size` - 1 slots may then
          rest: if there are more, the one that was released first is dropped.

        Parameters
        ----------
        ids : list of int
            The prompt, at least one token.

        Returns
        -------
        (slot, cached)
            `cached` says how many tokens of the prompt need not be run.  The cache of the
            slot holds their rows and no others.
        """
        raise NotImplementedError("ch12.pool: your code here")

    def release(self, slot, tokens):
        """Take a slot back: from now on it rests.

        Parameters
        ----------
        slot : Slot
        tokens : list of int
            The prompt and what was said.  They may be more than the rows: the last token of
            an answer is never run.  They may be fewer, after an error.  What has no row
            leaves the shadow, and a row without a token leaves the cache.

        If more than `size` slots rest now, the one that was released first is dropped.
        """
        raise NotImplementedError("ch12.pool: your code here")


# %% ch12.prove - Prove a pool (15 points, hard, section 12.4)

class Amnesia:
    """A wrong pool to try your proof on: it hands out new slots and keeps none."""

    def __init__(self, size=2):
        self.slots = []

    def acquire(self, ids):
        """A new slot."""
        return Slot(ToyCache()), 0

    def release(self, slot, tokens):
        """Forget it."""


def prove(make):
    """Look for a case in which a pool breaks its promises.

    `make(size)` makes an empty pool over `ToyCache`.  What a pool promises:

    - `pool.slots` is a list of the slots at rest, in any order, at most `size` of them.  A
      slot has a `shadow`, a list of tokens, and a `cache` with exactly the rows of these.
    - `pool.acquire(ids)` returns (slot, cached).  The slot's cache holds the rows of the first
      `cached` tokens of `ids`, and no others.  `cached` is the largest number that a slot at
      rest allows, and at most len(ids) - 1.
    - If the shadow of the slot that allows the most is a beginning of `ids` as a whole (or all
      of `ids`), and cached * 10 > len(ids), that slot itself is handed out, and rests no longer.
      (Of equals, such a slot goes first.)  Otherwise a different one is handed out: the slots
      at rest stay as they are, but at most size - 1 may rest then, and if there are more, the
      one that was released first is dropped.
    - `pool.release(slot, tokens)` puts it to rest.  Shadow and cache are cut to what both have.
      If more than `size` slots rest then, the one that was released first is dropped.
    - The lists that a pool is given stay as they are, and are not kept.  Two pools have
      nothing to do with each other.

    Parameters
    ----------
    make : callable
        You may make up to 4000 pools, of any size from 1 on.  Some twenty pools are put to the
        proof; a right one should take it less than a second.

    Returns
    -------
    str or None
        None when you found nothing wrong.  Otherwise a text, your counterexample.

    Examples
    --------
    >>> prove(Amnesia) is None
    False
    """
    raise NotImplementedError("ch12.prove: your code here")


# %% ch12.blocks - Blocks that are stored once (20 points, hard, section 12.5)

class Block:
    """Tokens with their rows; `before` is the block before it, None for a first one.

    `key` is None until the block is full.  `users` says how many tables hold it.
    """

    def __init__(self, before=None, tokens=(), rows=()):
        self.before, self.tokens, self.rows = before, list(tokens), list(rows)
        self.key, self.users = None, 0


def digest(key, tokens):
    """The key of a block: from the key of the block before it (0 if there is none) and its tokens, a list."""
    return zlib.crc32(repr((key, tokens)).encode())


class BlockStore:
    """Rows of many conversations, in blocks: what begins alike is stored once.

    A conversation is a *table*: a list of blocks, all of them full but perhaps the last.
    Only full blocks are known, which means that `open` finds them.  At any time
    `block.users` is the number of tables that hold a block.

    Parameters
    ----------
    size : int
        Tokens of a full block.
    digest : callable
        `digest(key, tokens)`, as above.  Two different blocks may have the same key.

    Examples
    --------
    >>> blocks = BlockStore(size=2)
    >>> one = blocks.open([5, 6, 7, 8])
    >>> for token in [5, 6, 7, 8]:
    ...     blocks.append(one, token, row=100 + token)
    >>> two = blocks.open([5, 6, 7, 9])
    >>> len(two), two[0] is one[0]
    (1, True)
    """

    def __init__(self, size=4, digest=digest):
        raise NotImplementedError("ch12.blocks: your code here")

    def open(self, ids):
        """Return the table of known blocks with which a prompt begins.

        They are taken as long as a known block fits: one with the tokens of the prompt, and
        after the same blocks.  At most len(ids) - 1 tokens are taken.

        Parameters
        ----------
        ids : list of int
            The prompt, at least one token.

        Returns
        -------
        list of Block
            A new list.  May be empty.
        """
        raise NotImplementedError("ch12.blocks: your code here")

    def append(self, table, token, row):
        """Add a token and its row to a conversation: to its last block, or to a new one.

        The table changes, and no other table sees anything of it: if another one holds the
        last block as well, this table takes a copy of it and writes there.  The last table
        that holds a block writes in place.

        A block that becomes full gets its `key` and is known from then on.  If an equal block
        is known already (the same tokens, after the same block), the table takes that one in
        place of its own.  If a different block has this key, that one stays, and the new one
        is not known.

        Parameters
        ----------
        table : list of Block
            Changed in place.
        token, row : int
        """
        raise NotImplementedError("ch12.blocks: your code here")

    def fork(self, table):
        """Return a second table for a conversation: it holds the same blocks, the last one included.

        Parameters
        ----------
        table : list of Block

        Returns
        -------
        list of Block
            A new list.
        """
        raise NotImplementedError("ch12.blocks: your code here")

    def close(self, table):
        """A conversation is over: its table becomes empty.  What is known stays known.

        Parameters
        ----------
        table : list of Block
            Changed in place.
        """
        raise NotImplementedError("ch12.blocks: your code here")


# %% ch12.append - A file that survives (15 points, hard, section 12.7)

HEAD = 32


RECORD = 12


START = 12345


def record(seal, token, row):
    """The 12 bytes of a record after one with this seal (START for the first), and its own seal."""
    body = struct.pack("<II", token, row)
    seal = zlib.crc32(body, seal)
    return body + struct.pack("<I", seal), seal


def unpack(seal, data):
    """(token, row, its seal) of a record, or None if these bytes do not continue the seal before."""
    if len(data) != RECORD or zlib.crc32(data[:8], seal) != struct.unpack("<I", data[8:])[0]:
        return None
    return struct.unpack("<III", data)


def read_count(file):
    """The counter: how many records the file says it has.

    It stands in two places of the head, which are written by turns.  A crash while one of them is
    written leaves the other, so the counter is the old one or the new one, never a mixture.
    """
    return max(_places(file))[1]


def write_count(file, count):
    """Write the counter, into the older of its two places."""
    places = _places(file)
    number, place = max(places)[0] + 1, places.index(min(places))
    body = struct.pack("<II", number, count)
    file.seek(16 * place)
    file.write(body + struct.pack("<I", zlib.crc32(body)))


def _places(file):
    """[(number, count), ...] of the two places; (0, 0) for one that is torn or empty."""
    found = []
    for place in (0, 16):
        file.seek(place)
        data = file.read(12)
        whole = len(data) == 12 and zlib.crc32(data[:8]) == struct.unpack("<I", data[8:])[0]
        found.append(struct.unpack("<II", data[:8]) if whole else (0, 0))
    return found


def reopen(file):
    """Read the conversation that a file holds, whatever happened to it.

    Records are read as long as the counter says and each continues the seal of the record
    before it.  The first one that is torn, stale or foreign ends the conversation: it and
    everything after it is not read.

    Parameters
    ----------
    file : binary file, open for reading and writing
        HEAD bytes with the counter, then records of RECORD bytes.  It may be empty, and it
        may end anywhere.

    Returns
    -------
    (tokens, rows)
        Two lists of int, as long as each other.
    """
    raise NotImplementedError("ch12.append: your code here")


def append(file, tokens, rows):
    """Let a file hold a conversation, and write only what it does not hold yet.

    What the file and the conversation have in common at the beginning stays.  The
    conversation may be longer than what the file holds, shorter (a turn was taken back), or
    different from some token on (a turn was edited).

    The write may be cut off at any byte.  `reopen` must then find a beginning of the old
    conversation or of the new one, and at least what both have in common.

    Parameters
    ----------
    file : binary file, open for reading and writing
        See `reopen`.  Its `write` takes bytes.  It need not be cut: what lies after the last
        record that counts does not matter.
    tokens, rows : list of int
        The whole conversation, from its first token on.  A row depends on the tokens up to
        its own.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> append(file, [7, 8], [70, 80])
    >>> append(file, [7, 8, 9], [70, 80, 90])
    >>> reopen(file), len(file.getvalue()) == HEAD + 3 * RECORD
    (([7, 8, 9], [70, 80, 90]), True)
    """
    raise NotImplementedError("ch12.append: your code here")
