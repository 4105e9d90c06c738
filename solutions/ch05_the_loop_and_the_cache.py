"""Chapter 05 - The loop, the invariant, the rewindable cache.

Every trick of part II is a change of one loop.  All of them stand on two small things
that you build here: a cache that can forget its last rows, and a loop that keeps one
promise.  Whatever goes wrong,

    len(history) == cache.len + 1

The history holds every token that is settled; the cache holds one row for each of them
but the last, which goes in with the next step.
"""

import contextlib
import random
from types import SimpleNamespace

import numpy as np

from course.exercises import Exercise, given
from course.grading import proving


@given
class InvalidDecodeState(ValueError):
    """History and cache do not belong together: len(history) != cache.len + 1."""


@given
class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


@given
class KvCacheShapeMismatch(ValueError):
    """K/V rows do not have the shape that the cache was made for."""


@given
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


@given
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


@given
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


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch05.truncate",
    title="Rewind a cache",
    points=5,
    level="easy",
    section="05.2",
    hints=[
        "Nothing has to be erased: every reader looks at the first `cache.len` rows only.",
        "One store into `cache.len` is enough. What should it hold when keep is larger than the length?",
        "Refuse a negative keep first. Then the new length is the smaller of cache.len and keep.",
    ],
)


@ex.solution
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
    if keep < 0:
        raise ValueError(f"keep must be 0 or more, got {keep}")
    cache.len = min(cache.len, keep)


@ex.wrong("A rewind must never make a cache longer: the rows after `len` are leftovers, and they would count again.")
def can_grow(cache, keep):
    if keep < 0:
        raise ValueError("keep")
    cache.len = keep


@ex.wrong("`keep` is how many rows stay, not how many go.")
def drops_keep_rows(cache, keep):
    if keep < 0:
        raise ValueError("keep")
    cache.len = max(0, cache.len - keep)


@ex.wrong("One row too few: `keep` is a count, not the index of the last row.")
def keep_as_index(cache, keep):
    if keep < 0:
        raise ValueError("keep")
    cache.len = max(0, min(cache.len, keep - 1))


@ex.wrong("Clears or removes rows. Nobody reads the rows after `len`, so this work is for nothing, and it grows with "
          "the number of rows. Removing them also takes capacity away.")
def erases_rows(cache, keep):
    if keep < 0:
        raise ValueError("keep")
    for i in range(keep, cache.len):
        cache.rows[i] = None
    cache.len = min(cache.len, keep)


@ex.wrong("A negative keep passes: min(len, -1) is a negative length, and the next append writes at the end of the "
          "list. Refuse it before anything changes.")
def negative_length(cache, keep):
    cache.len = min(cache.len, keep)


@ex.wrong("Counts down, one row at a time. The contract promises the same cost for one row and for a million: a single "
          "store into `cache.len`.")
def counts_down(cache, keep):
    if keep < 0:
        raise ValueError("keep")
    while cache.len > keep:
        cache.len -= 1


def filled(n, capacity):
    """A toy cache with rows 10, 11, ... and the code that makes it."""
    cache = ToyCache(capacity)
    for i in range(n):
        cache.append(10 + i)
    return cache, f"cache = ToyCache({capacity}), then {n} rows appended"


@ex.check("keep below the length: exactly `keep` rows are left")
def keeps_the_first(truncate, t):
    for n in range(1, 6):
        for keep in range(n):
            cache, code = filled(n, 6)
            t.case(code)
            t.call(truncate, cache, keep, shown=f"truncate(cache, {keep})", changes=True)
            t.equal(cache.len, keep, "cache.len")


@ex.check("keep at or above the length: nothing changes")
def no_op(truncate, t):
    for n in range(4):
        for keep in (n, n + 1, n + 7):
            cache, code = filled(n, 6)
            t.case(code)
            t.call(truncate, cache, keep, shown=f"truncate(cache, {keep})", changes=True)
            t.equal(cache.len, n, "cache.len")


@ex.check("rows stay where they are, and are overwritten when the cache grows again")
def rows_stay(truncate, t):
    cache, code = filled(4, 6)
    rows = cache.rows
    t.case(code)
    t.call(truncate, cache, 2, shown="truncate(cache, 2)", changes=True)
    t.holds(cache.rows is rows, "cache.rows is a different list than before")
    t.equal(cache.rows, [10, 11, 12, 13, None, None], "cache.rows")
    cache.append(99)
    t.story.append("cache.append(99)")
    t.equal(cache.rows[:cache.len], [10, 11, 99], "cache.rows[:cache.len]")


class CountingCache(ToyCache):
    """A ToyCache that counts the stores into `len`."""

    stores, _len = 0, 0

    @property
    def len(self):
        return self._len

    @len.setter
    def len(self, value):
        self._len = value
        self.stores += 1


@ex.check("the cost is the same, however many rows are forgotten")
def one_store(truncate, t):
    for n, keep in ((3, 1), (90, 2)):
        cache = CountingCache(100)
        for i in range(n):
            cache.append(i)
        cache.stores = 0
        t.case(f"cache = ToyCache(100), then {n} rows appended")
        t.call(truncate, cache, keep, shown=f"truncate(cache, {keep})", changes=True)
        t.holds(cache.stores <= 2, f"stores into cache.len {cache.stores} times, expected once")
        t.equal(cache.len, keep, "cache.len")


@ex.check("a negative keep is a ValueError and changes nothing")
def negative(truncate, t):
    for n, keep in ((0, -1), (3, -1), (3, -3)):
        cache, code = filled(n, 6)
        t.case(code)
        t.raises("ValueError", truncate, cache, keep, shown=f"truncate(cache, {keep})")
        t.equal(cache.len, n, "cache.len after the error")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch05.decode_loop",
    title="A loop that keeps its promise",
    points=15,
    level="medium",
    section="05.3",
    hints=[
        "Which tokens are settled when an error comes? All that are in `history`. What must the cache hold then?",
        "In each step: call model.step with history[-1], append what comes back to the history, hand it to emit, and "
        "leave the loop after the stop token.",
        "An error may come out of step or out of emit. Not every error is an Exception: KeyboardInterrupt is not. One "
        "and the same line makes the promise true again after all of them.",
        "`except BaseException: cache.truncate(len(history) - 1); raise`. A bare `raise` passes the error on.",
    ],
)


@ex.solution
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
    if len(history) != cache.len + 1:
        raise InvalidDecodeState(f"{len(history)} tokens of history and {cache.len} rows in the cache")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
            if token == stop:
                break
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("When a step fails after it wrote its row, the row stays in the cache: one more than the history allows. "
          "Rewind on the way out.")
def no_rewind(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    for added in range(max_tokens):
        token = model.step(history[-1], cache)
        history.append(token)
        emit(token)
        if token == stop:
            return added + 1
    return max_tokens


@ex.wrong("The error is swallowed: the caller believes that all went well. Rewind, then `raise`.")
def swallows(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
            if token == stop:
                break
    except Exception:
        cache.truncate(len(history) - 1)
    return added


@ex.wrong("Catches Exception only. Ctrl-C is a KeyboardInterrupt, a BaseException but no Exception: it passes by, and "
          "nothing is rewound.")
def misses_ctrl_c(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
            if token == stop:
                break
    except Exception:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("Rewinds to len(history) rows, which is one too many: the last token of the history has no row yet.")
def rewinds_too_little(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
            if token == stop:
                break
    except BaseException:
        cache.truncate(len(history))
        raise
    return added


@ex.wrong("Takes a settled token back when emit fails. The model has chosen it, and somebody may have seen it. The "
          "history keeps it; only the cache is rewound.")
def unsettles(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    start, added = len(history), 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            emit(token)
            added += 1
            if token == stop:
                break
    except BaseException:
        del history[start + added:]
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("Starts without a look at the promise. If it is broken already, every later step writes rows at wrong "
          "positions: raise InvalidDecodeState before anything is touched.")
def unchecked(model, cache, history, max_tokens, emit, stop=None):
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
            if token == stop:
                break
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("Feeds the whole history in every step, although the cache holds the rows of the earlier tokens already. "
          "Only the last token is new.")
def feeds_everything(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            for old in list(history):
                token = model.step(old, cache)
            history.append(token)
            added += 1
            emit(token)
            if token == stop:
                break
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("The stop token is thrown away: it is not emitted and not in the history. It is settled like any other; "
          "whether to show it is up to who reads.")
def drops_the_stop(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            if token == stop:
                cache.truncate(len(history) - 1)
                break
            history.append(token)
            added += 1
            emit(token)
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("Hands a token to emit before it is in the history. If emit fails, somebody has seen a token that is not "
          "settled. Append first, then emit.")
def emits_first(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            emit(token)
            history.append(token)
            added += 1
            if token == stop:
                break
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("Token 0 never stops the loop: `if stop` asks whether the stop token is different from 0, not whether there is "
          "one. Write `token == stop`, or `stop is not None`.")
def zero_is_none(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
            if stop and token == stop:
                break
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("Looks for the stop token at the end of the history, before the first step, too. A prompt may end with it: only "
          "new tokens end the loop.")
def stops_at_the_prompt(model, cache, history, max_tokens, emit, stop=None):
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens and (stop is None or history[-1] != stop):
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


@ex.wrong("Returns before it looks at the promise when there is nothing to do. The error is due whenever the promise does not "
          "hold at the start: look at that first.")
def nothing_to_check(model, cache, history, max_tokens, emit, stop=None):
    if max_tokens == 0:
        return 0
    if len(history) != cache.len + 1:
        raise InvalidDecodeState("state")
    added = 0
    try:
        while added < max_tokens:
            token = model.step(history[-1], cache)
            history.append(token)
            added += 1
            emit(token)
            if token == stop:
                break
    except BaseException:
        cache.truncate(len(history) - 1)
        raise
    return added


def prefilled(prompt):
    """A cache that holds all of a prompt but its last token, and its history."""
    cache = ListCache()
    for token in prompt[:-1]:
        cache.append(token)
    return cache, list(prompt)


def plain(prompt, n):
    """What n undisturbed steps add to a prompt, written without a loop that could be copied."""
    tokens, cache, model = list(prompt), prefilled(prompt)[0], ToyModel()
    return [tokens.append(model.step(tokens[-1], cache)) or tokens[-1] for _ in range(n)]


def expect_promise(t, cache, history, settled):
    """The history holds what was settled, and the cache the rows of all of it but the last."""
    t.equal(history, settled, "history")
    t.equal(cache.len, len(history) - 1, f"cache.len (len(history) is {len(history)})")
    t.equal(cache.rows[:cache.len], history[:-1], "the list of rows in the cache")


@ex.check("the tokens are those of one step after the other, emitted in order")
def decodes(decode, t):
    for prompt in ([5], [1, 2], [3, 1, 4, 1, 5]):
        for n in (1, 2, 0, 6):
            cache, history = prefilled(prompt)
            seen = []
            t.case(f"history = {prompt}; the cache holds {len(prompt) - 1} rows")
            count = t.call(decode, ToyModel(), cache, history, n, seen.append, changes=True,
                           shown=f"decode(ToyModel(), cache, history, {n}, seen.append)")
            want = plain(prompt, n)
            t.equal(count, n, "the result")
            t.equal(seen, want, "what was emitted")
            expect_promise(t, cache, history, prompt + want)


@ex.check("a token is in the history when it is emitted")
def settles_first(decode, t):
    for prompt in ([5], [1, 2]):
        cache, history = prefilled(prompt)
        early = []

        def emit(token, history=history, early=early):
            if history[-1] != token:
                early.append(token)

        t.case(f"history = {prompt}; the cache holds {len(prompt) - 1} rows")
        t.call(decode, ToyModel(), cache, history, 3, emit, changes=True,
               shown="decode(ToyModel(), cache, history, 3, emit)")
        t.holds(not early, f"{early} went to emit while the history did not end with it yet")


@ex.check("the loop ends after the stop token, which is settled and emitted")
def stops(decode, t):
    for prompt, at in (([5], 0), ([5], 1), ([14], 1), ([1, 2], 3), ([22], 3)):  # [14] and [22] come to token 0
        want = plain(prompt, at + 1)
        cache, history = prefilled(prompt)
        seen = []
        t.case(f"history = {prompt}; the cache holds {len(prompt) - 1} rows; token number {at + 1} is {want[-1]}")
        count = t.call(decode, ToyModel(), cache, history, 8, seen.append, want[-1], changes=True,
                       shown=f"decode(ToyModel(), cache, history, 8, seen.append, stop={want[-1]})")
        t.equal(seen, want, "what was emitted")
        t.equal(count, at + 1, "the result")
        expect_promise(t, cache, history, prompt + want)


@ex.check("a stop token at the end of the prompt ends nothing")
def prompt_ends_with_stop(decode, t):
    for prompt in ([5], [1, 2], [3, 0]):
        want = plain(prompt, 3)
        cache, history = prefilled(prompt)
        t.case(f"history = {prompt}; the cache holds {len(prompt) - 1} rows")
        t.call(decode, ToyModel(), cache, history, 3, len_of, prompt[-1], changes=True,
               shown=f"decode(ToyModel(), cache, history, 3, emit, stop={prompt[-1]})")
        expect_promise(t, cache, history, prompt + want)


@ex.check("an error in the middle of a step goes on to the caller, and the promise holds")
def survives_the_model(decode, t):
    for prompt, n, leaves in (([5], 0, 0), ([5], 0, 2), ([5], 0, 1), ([5], 2, 1), ([1, 2, 3], 0, 1), ([1, 2], 3, 2)):
        cache, history = prefilled(prompt)
        t.case(f"history = {prompt}; the cache holds {len(prompt) - 1} rows")
        t.raises("OSError", decode, ToyModel(fails_at=n, leaves=leaves), cache, history, 8, len_of,
                 shown=f"decode(ToyModel(fails_at={n}, leaves={leaves}), cache, history, 8, emit)")
        expect_promise(t, cache, history, prompt + plain(prompt, n))
        t.call(decode, ToyModel(), cache, history, 2, len_of, changes=True,
               shown="decode(ToyModel(), cache, history, 2, emit)      # and on it goes")
        expect_promise(t, cache, history, prompt + plain(prompt, n + 2))


def len_of(token):
    """An emit that does nothing."""


class InterruptedModel(ToyModel):
    """A ToyModel whose failing step is stopped by Ctrl-C, or by another error that is no Exception."""

    error = KeyboardInterrupt

    def step(self, token, cache):
        try:
            return super().step(token, cache)
        except OSError:
            raise self.error from None


@ex.check("Ctrl-C in the middle of a step goes on to the caller as well, and the promise holds")
def survives_ctrl_c(decode, t):
    for fails_at in (0, 2):
        cache, history = prefilled([7, 8])
        t.case("history = [7, 8]; the cache holds 1 row", f"Ctrl-C in step number {fails_at + 1}, after it wrote its row")
        t.raises("KeyboardInterrupt", decode, InterruptedModel(fails_at), cache, history, 8, len_of,
                 shown="decode(model, cache, history, 8, emit)")
        expect_promise(t, cache, history, [7, 8] + plain([7, 8], fails_at))
    cache, history = prefilled([7, 8])
    t.case("history = [7, 8]; the cache holds 1 row", "step number 2 raises a GeneratorExit after it wrote its row")
    model = InterruptedModel(1)
    model.error = GeneratorExit
    t.raises("GeneratorExit", decode, model, cache, history, 8, len_of, shown="decode(model, cache, history, 8, emit)")
    expect_promise(t, cache, history, [7, 8] + plain([7, 8], 1))


@ex.check("an error in emit goes on to the caller; the token is settled, and the promise holds")
def survives_emit(decode, t):
    for fails_at in (0, 2):
        seen = []

        def emit(token, seen=seen, fails_at=fails_at):
            seen.append(token)
            if len(seen) - 1 == fails_at:
                raise BrokenPipeError("nobody listens")

        cache, history = prefilled([7, 8])
        t.case("history = [7, 8]; the cache holds 1 row", f"emit raises BrokenPipeError at token number {fails_at + 1}")
        t.raises("BrokenPipeError", decode, ToyModel(), cache, history, 8, emit,
                 shown="decode(ToyModel(), cache, history, 8, emit)")
        expect_promise(t, cache, history, [7, 8] + plain([7, 8], fails_at + 1))


@ex.check("a promise that is broken at the start is InvalidDecodeState, and nothing is touched")
def refuses(decode, t):
    for rows, tokens, n in ((0, 0, 2), (1, 1, 2), (0, 2, 2), (3, 2, 2), (0, 2, 0), (2, 1, 0)):
        cache, history = prefilled(list(range(rows + 1)))[0], list(range(tokens))
        t.case(f"history = {history}; the cache holds {rows} rows")
        model = ToyModel()
        t.raises("InvalidDecodeState", decode, model, cache, history, n, len_of,
                 shown=f"decode(ToyModel(), cache, history, {n}, emit)")
        t.holds(model.steps == 0 and cache.len == rows and len(history) == tokens,
                "model, cache or history were touched before the error")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch05.find_the_fault",
    title="Find the fault in three loops",
    points=10,
    level="hard",
    section="05.3",
    hints=[
        "Run each loop with pencil and paper. After every line, how long is the history, and how many rows has the "
        "cache? Do it for a quiet run, and for an error in each place that can raise.",
        "One loop is wrong even in a quiet run. The other two need a failure: one in the model, one in emit.",
        "In loop_a look at the number in truncate. In loop_b ask when the token is settled. In loop_c count rows after "
        "the last token.",
    ],
)

FAULTS = given({
    1: "computes the row of the last token too: as many rows in the cache as tokens",
    2: "computes the row of a token twice, although it is in the cache already",
    3: "rewinds to one row too many",
    4: "rewinds to one row too few",
    5: "settles a token after emit: an error there loses a token that was seen",
    6: "hides the error from the caller",
})


@given
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


@given
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


@given
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


@ex.solution
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
    return {
        "a": (3, {"max_tokens": 1, "model_fails_at": 0, "emit_fails_at": None}),
        "b": (5, {"max_tokens": 1, "model_fails_at": None, "emit_fails_at": 0}),
        "c": (1, {"max_tokens": 1, "model_fails_at": None, "emit_fails_at": None}),
    }


@ex.wrong("loop_a rewinds to len(history) rows. The last token has no row yet: that is one row too many, not too few.")
def too_few():
    quiet = {"max_tokens": 1, "model_fails_at": None, "emit_fails_at": None}
    return {"a": (4, {**quiet, "model_fails_at": 0}), "b": (5, {**quiet, "emit_fails_at": 0}), "c": (1, quiet)}


@ex.wrong("A quiet run does not show what goes wrong in an error path: let something fail for loop_a and loop_b.")
def only_quiet_runs():
    quiet = {"max_tokens": 3, "model_fails_at": None, "emit_fails_at": None}
    return {"a": (3, quiet), "b": (5, quiet), "c": (1, quiet)}


@ex.wrong("loop_b does pass the error on (`raise`). Look at the order of emit and append.")
def hides():
    quiet = {"max_tokens": 1, "model_fails_at": None, "emit_fails_at": None}
    return {"a": (3, {**quiet, "model_fails_at": 0}), "b": (6, {**quiet, "emit_fails_at": 0}), "c": (1, quiet)}


@ex.wrong("The last step of loop_c computes the row of a token for the first time: it was not in the cache before. That "
          "is the trouble: afterwards there are as many rows as tokens.")
def twice():
    quiet = {"max_tokens": 1, "model_fails_at": None, "emit_fails_at": None}
    return {"a": (3, {**quiet, "model_fails_at": 0}), "b": (5, {**quiet, "emit_fails_at": 0}), "c": (2, quiet)}


def run_scenario(loop, scenario):
    """The state that a loop ends in: history, rows of the cache, emitted tokens."""
    cache, history, seen = ListCache(), [5], []

    def emit(token):
        seen.append(token)
        if len(seen) - 1 == scenario["emit_fails_at"]:
            raise BrokenPipeError("nobody listens")

    with contextlib.suppress(OSError):
        loop(ToyModel(scenario["model_fails_at"]), cache, history, scenario["max_tokens"], emit)
    return history, cache.rows[:cache.len], seen


def answer_for(t, answers, name):
    """The pair of one loop, or a message that says what it should look like."""
    pair = answers.get(name) if isinstance(answers, dict) else None
    good = isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], dict)
    t.holds(good, f'the answer for "{name}" is {pair!r}, expected (number, scenario)')
    wanted = {"max_tokens", "model_fails_at", "emit_fails_at"}
    t.holds(set(pair[1]) == wanted, f'the scenario for "{name}" has keys {sorted(pair[1])}, expected {sorted(wanted)}')
    t.holds(isinstance(pair[1]["max_tokens"], int) and 0 <= pair[1]["max_tokens"] <= 32,
            f'max_tokens for "{name}" is {pair[1]["max_tokens"]!r}, expected 0 to 32')
    return pair


def check_loop(t, find_the_fault, name, loop, fault):
    """The scenario must show that the loop is wrong, and the number must be that of its fault."""
    t.case()
    number, scenario = answer_for(t, t.call(find_the_fault), name)
    t.story.append(f"loop_{name} in {scenario}")
    history, rows, seen = run_scenario(loop, scenario)
    settled = history[1:]
    wrong = len(history) != len(rows) + 1 or rows != history[:-1] or settled != seen
    t.holds(wrong, f"the scenario shows no fault: len(history) is {len(history)}, cache.len {len(rows)}, and all "
                   f"emitted tokens ({len(seen)}) are in the history")
    t.holds(number == fault, f"the scenario shows a fault of loop_{name}, but it is not number {number}: "
                             f"len(history) is {len(history)}, cache.len {len(rows)}, emitted {len(seen)}")


@ex.check("loop_a: a scenario that shows its fault, and the fault's number")
def fault_a(find_the_fault, t):
    check_loop(t, find_the_fault, "a", loop_a, 3)


@ex.check("loop_b: a scenario that shows its fault, and the fault's number")
def fault_b(find_the_fault, t):
    check_loop(t, find_the_fault, "b", loop_b, 5)


@ex.check("loop_c: a scenario that shows its fault, and the fault's number")
def fault_c(find_the_fault, t):
    check_loop(t, find_the_fault, "c", loop_c, 1)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch05.row_cache",
    title="A cache of half-precision rows",
    points=15,
    level="medium",
    section="05.4",
    hints=[
        "All layers of one step write at the same positions, from `len` on. Only `advance` moves `len`, once per step.",
        "In `append`, check first and write then. k.shape and v.shape must both be (m, dim) with the same m. len + m "
        "must not pass the capacity. An error leaves the arrays as they were.",
        "`self.k[layer, self.len:self.len + m] = k` rounds to float16 by itself; `read` slices `[:self.len]` and "
        "turns it into float32 with `.astype(np.float32)`.",
        "`advance` and `truncate` are a check that raises, and one store into `self.len` each.",
    ],
)


@ex.solution
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

    @given
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
        layers, capacity, dim = self.k.shape
        if k.ndim != 2 or k.shape[1] != dim or v.shape != k.shape:
            raise KvCacheShapeMismatch(f"expected k and v [m, {dim}], got {k.shape} and {v.shape}")
        end = self.len + k.shape[0]
        if end > capacity:
            raise KvCacheOverflow(f"{end} rows do not fit into {capacity}")
        self.k[layer, self.len:end] = k
        self.v[layer, self.len:end] = v

    def advance(self, m):
        """Count m more positions, once all layers are written.

        Raises KvCacheOverflow, and counts nothing, when len + m is above the capacity.
        """
        if self.len + m > self.k.shape[1]:
            raise KvCacheOverflow(f"{self.len + m} rows do not fit into {self.k.shape[1]}")
        self.len += m

    def truncate(self, keep):
        """Keep the first `keep` positions; at or above `len` nothing changes.

        Raises ValueError when keep is negative.
        """
        if keep < 0:
            raise ValueError(f"keep must be 0 or more, got {keep}")
        self.len = min(self.len, keep)

    def read(self, layer):
        """The pair (k, v) of a layer: float32 [len, dim] each, as the cache has it."""
        return self.k[layer, :self.len].astype(np.float32), self.v[layer, :self.len].astype(np.float32)


@ex.wrong("`append` moves `len`: the second layer of the same step then lands after the first. "
          "Only `advance` moves it, once per step.")
class AppendAdvances(RowCache):
    def append(self, layer, k, v):
        super().append(layer, k, v)
        self.len += k.shape[0]


@ex.wrong("`read` also returns the rows after `len`: leftovers of a rewind, or zeros that nobody wrote.")
class ReadsEverything(RowCache):
    def read(self, layer):
        return self.k[layer].astype(np.float32), self.v[layer].astype(np.float32)


@ex.wrong("Rows are kept in float32. The cache then takes twice the memory, and its rows differ from those of a float16 "
          "cache. Every row goes through float16.")
class KeepsFloat32(RowCache):
    def __init__(self, layers, capacity, dim):
        self.k = np.zeros((layers, capacity, dim), np.float32)
        self.v = np.zeros((layers, capacity, dim), np.float32)
        self.len = 0


@ex.wrong("Only the first of the m rows is written. A decode step appends one row, but a prompt appends many at once.")
class OneRowAtATime(RowCache):
    def append(self, layer, k, v):
        layers, capacity, dim = self.k.shape
        if k.ndim != 2 or k.shape[1] != dim or v.shape != k.shape:
            raise KvCacheShapeMismatch("shape")
        if self.len + k.shape[0] > capacity:
            raise KvCacheOverflow("full")
        if k.shape[0]:
            self.k[layer, self.len] = k[0]
            self.v[layer, self.len] = v[0]


@ex.wrong("The last position can never be used: len + m == capacity still fits.")
class LastRowUnused(RowCache):
    def append(self, layer, k, v):
        if self.len + k.shape[0] >= self.k.shape[1]:
            raise KvCacheOverflow("full")
        super().append(layer, k, v)


@ex.wrong("Compares k with v, and neither with `dim`. Rows of one value agree with each other as well, and NumPy copies "
          "it to all `dim` places without a word (broadcasting). Look at k.shape[1], too.")
class ForgetsDim(RowCache):
    def append(self, layer, k, v):
        if k.ndim != 2 or k.shape != v.shape:
            raise KvCacheShapeMismatch("shape")
        end = self.len + k.shape[0]
        if end > self.k.shape[1]:
            raise KvCacheOverflow("full")
        self.k[layer, self.len:end] = k
        self.v[layer, self.len:end] = v


@ex.wrong("Shapes are not checked. NumPy copies a single row to all m positions without a word (broadcasting). Check k "
          "and v yourself.")
class Broadcasts(RowCache):
    def append(self, layer, k, v):
        end = self.len + max(len(k), len(v))
        if end > self.k.shape[1]:
            raise KvCacheOverflow("full")
        self.k[layer, self.len:end] = k
        self.v[layer, self.len:end] = v


@ex.wrong("Writes K before it looks at V. When V does not fit, half of a row is in the cache already. Check everything "
          "first, then write.")
class WritesThenChecks(RowCache):
    def append(self, layer, k, v):
        end = self.len + k.shape[0]
        if end > self.k.shape[1]:
            raise KvCacheOverflow("full")
        if k.ndim != 2 or k.shape[1] != self.k.shape[2]:
            raise KvCacheShapeMismatch("k")
        self.k[layer, self.len:end] = k
        if v.shape != k.shape:
            raise KvCacheShapeMismatch("v")
        self.v[layer, self.len:end] = v


@ex.wrong("What was read once is remembered by the number of rows. After a rewind and other rows there are as many as before, but not "
          "the same.")
class RemembersReadings(RowCache):
    def read(self, layer):
        self.readings = vars(self).setdefault("readings", {})
        if (layer, self.len) not in self.readings:
            self.readings[layer, self.len] = super().read(layer)
        return self.readings[layer, self.len]


@ex.wrong("`read` writes into one array of the cache's own, and hands out parts of that. What was read before changes with it: "
          "`astype` makes a new array each time.")
class OneArrayForAll(RowCache):
    def read(self, layer):
        if not hasattr(self, "lent"):
            self.lent = np.zeros((2, *self.k.shape), np.float32)
        self.lent[0, layer, :self.len], self.lent[1, layer, :self.len] = super().read(layer)
        return self.lent[0, layer, :self.len], self.lent[1, layer, :self.len]


def some_rows(t, m, dim):
    """Random rows that float16 has to round, K and V different."""
    return t.rng.standard_normal((m, dim)).astype(np.float32), t.rng.standard_normal((m, dim)).astype(np.float32)


def write(t, cache, layers, k, v):
    """One step: append to every layer, then advance; told as code."""
    for layer in range(layers):
        t.call(cache.append, layer, k + layer, v - layer, shown=f"cache.append({layer}, k, v)      # {len(k)} row(s)")
    t.call(cache.advance, len(k), shown=f"cache.advance({len(k)})")


def expect_rows(t, cache, layer, k, v):
    """`read(layer)` gives the rows k and v, rounded to float16."""
    got = t.call(cache.read, layer, shown=f"cache.read({layer})")
    t.holds(isinstance(got, tuple) and len(got) == 2 and all(isinstance(a, np.ndarray) for a in got),
            f"read({layer}) is {got!r}, expected a pair of arrays")
    for name, rows, want in (("k", got[0], k), ("v", got[1], v)):
        t.equal(rows, want.astype(np.float16).astype(np.float32), name)
        t.holds(rows.dtype == np.float32, f"{name} is of {rows.dtype}, expected float32")


@ex.check("rows come back at their positions, rounded to float16")
def reads_back(RowCache, t):
    for m in (1, 2, 3):
        k, v = some_rows(t, m, 3)
        t.case(f"cache = RowCache(layers=1, capacity={m + 1}, dim=3)")
        cache = t.call(RowCache, 1, m + 1, 3, shown=f"# k, v: {m} random rows")
        write(t, cache, 1, k, v)
        expect_rows(t, cache, 0, k, v)


@ex.check("all layers of a step stand at the same positions; only advance moves len")
def layers_together(RowCache, t):
    k, v = some_rows(t, 2, 2)
    t.case("cache = RowCache(layers=2, capacity=8, dim=2)")
    cache = RowCache(2, 8, 2)
    t.call(cache.append, 0, k, v, shown="cache.append(0, k, v)      # 2 rows")
    t.equal(cache.len, 0, "cache.len before advance")
    t.call(cache.append, 1, v, k, shown="cache.append(1, v, k)      # 2 rows")
    t.call(cache.advance, 2, shown="cache.advance(2)")
    t.equal(cache.len, 2, "cache.len")
    expect_rows(t, cache, 0, k, v)
    expect_rows(t, cache, 1, v, k)


@ex.check("rewind and append again = a cache that never held the other rows, bit for bit")
def rewinds(RowCache, t):
    for first, keep, again in ((1, 0, 1), (2, 1, 1), (3, 1, 2), (5, 2, 3), (6, 6, 2), (4, 1, 5)):
        (k, v), (k2, v2) = some_rows(t, first, 4), some_rows(t, again, 4)
        t.case("cache = RowCache(layers=2, capacity=8, dim=4)")
        cache = RowCache(2, 8, 4)
        write(t, cache, 2, k, v)
        expect_rows(t, cache, 1, k + 1, v - 1)
        earlier = t.last
        t.call(cache.truncate, keep, shown=f"cache.truncate({keep})")
        t.equal(cache.len, min(first, keep), "cache.len")
        write(t, cache, 2, k2, v2)
        expect_rows(t, cache, 1, np.concatenate([k[:keep], k2]) + 1, np.concatenate([v[:keep], v2]) - 1)
        for name, got, rows in zip("kv", earlier, (k + 1, v - 1), strict=True):
            t.equal(got, rows.astype(np.float16).astype(np.float32), f"{name} as it was read before the rewind, looked at now,")
    t.case("cache = RowCache(layers=1, capacity=4, dim=2)")
    cache = RowCache(1, 4, 2)
    t.call(cache.truncate, 3, shown="cache.truncate(3)")
    t.equal(cache.len, 0, "cache.len")
    t.raises("ValueError", cache.truncate, -1, shown="cache.truncate(-1)")


@ex.check("the last position can be used; one more is KvCacheOverflow, and nothing is written")
def overflows(RowCache, t):
    for layers, held, m in ((1, 0, 3), (1, 2, 1), (1, 1, 2), (4, 2, 1)):
        k, v = some_rows(t, 3, 2)
        t.case(f"cache = RowCache(layers={layers}, capacity=3, dim=2)")
        cache = RowCache(layers, 3, 2)
        write(t, cache, layers, k[:held], v[:held])
        write(t, cache, layers, k[held:held + m], v[held:held + m])
        expect_rows(t, cache, 0, k, v)
        before = cache.k.copy(), cache.v.copy()
        t.raises("KvCacheOverflow", cache.append, 0, k[:1], v[:1], shown="cache.append(0, k, v)      # 1 row more")
        t.raises("KvCacheOverflow", cache.advance, 1, shown="cache.advance(1)")
        t.equal(cache.len, 3, "cache.len after the errors")
        t.equal(cache.k, before[0], "cache.k after the errors")
        t.equal(cache.v, before[1], "cache.v after the errors")


@ex.check("k and v must both be [m, dim]; else KvCacheShapeMismatch, and nothing is written")
def shapes(RowCache, t):
    for k_shape, v_shape in (((2, 3), (1, 3)), ((1, 3), (2, 3)), ((1, 1), (1, 1)), ((1, 3), (1, 2)), ((1, 2), (1, 3)),
                             ((3,), (3,))):
        t.case("cache = RowCache(layers=1, capacity=4, dim=3)")
        cache = RowCache(1, 4, 3)
        k, v = np.ones(k_shape, np.float32), np.ones(v_shape, np.float32)
        t.raises("KvCacheShapeMismatch", cache.append, 0, k, v,
                 shown=f"cache.append(0, k, v)      # k {k_shape}, v {v_shape}")
        t.holds(not cache.k.any() and not cache.v.any(), "rows were written although the call raised")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch05.prove",
    title="Prove a cache",
    points=15,
    level="hard",
    section="05.2",
    cpu_seconds=8.0,
    hints=[
        "What must a cache hold after any calls? You know a cache that cannot be wrong: a list. Do everything to both, and "
        "compare `len` and `read()` after every call.",
        "A few lines of random calls find more than a page of cases: append mostly, truncate sometimes, on caches of capacity "
        "1 to 8, a few hundred calls. Use random.Random(seed), so that the same calls come each time.",
        "Three things a list does not show you: an append to a full cache (KvCacheOverflow, and nothing has changed), a "
        "result of `read()` that changes later, and two caches that share something.",
    ],
)


@given
def forgetful(capacity):
    """A wrong cache to try your proof on: whatever is appended, it stays empty."""
    return SimpleNamespace(len=0, append=lambda row: None, truncate=lambda keep: None, read=list)


@ex.solution
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
    def same(cache, want, calls):
        assert cache.len == len(want), f"{calls}: len is {cache.len}, expected {len(want)}"
        assert list(cache.read()) == want, f"{calls}: {cache.read()}, expected {want}"

    try:
        for seed in range(40):
            chance = random.Random(seed)
            capacity = 1 + seed % 8
            caches, wanted = [make(capacity), make(capacity)], [[], []]
            calls, kept = [], []
            for _ in range(40):
                who = chance.randrange(2)
                cache, want = caches[who], wanted[who]
                if chance.random() < 0.7:
                    row = chance.choice([0, -1, 1, 2, 3, 500])
                    calls.append(f"{who}.append({row})")
                    try:
                        cache.append(row)
                    except KvCacheOverflow:
                        assert len(want) == capacity, f"{calls}: refused at {len(want)} rows of {capacity}"
                    else:
                        assert len(want) < capacity, f"{calls}: no KvCacheOverflow"
                        want.append(row)
                else:
                    keep = chance.randrange(capacity + 3)
                    calls.append(f"{who}.truncate({keep})")
                    cache.truncate(keep)
                    del want[keep:]
                for each, rows in zip(caches, wanted):
                    same(each, rows, calls)
                for got, copy in kept:
                    assert got == copy, f"{calls}: what was read before is {got} now, it was {copy}"
                kept.append((cache.read(), list(want)))
                cache.read().append(7)
                same(cache, want, calls)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


@ex.wrong("Says that nothing is wrong, whatever it is given. Try it on `forgetful` first.")
def content(make):
    return None


@ex.wrong("Calls every cache wrong, right ones too. What it complains of must be a broken promise.")
def never_content(make):
    return "Caches are never right."


@ex.wrong("Only ever appends. A cache that is never rewound is a list; what makes a KV cache difficult is the way back, and "
          "what is appended after it.")
def only_appends(make):
    try:
        cache = make(5)
        for i in range(5):
            cache.append(i)
        return None if list(cache.read()) == [0, 1, 2, 3, 4] and cache.len == 5 else "the rows are wrong"
    except Exception as error:
        return repr(error)


@ex.wrong("Believes the cache: it compares `len` with the length of `read()`, both of the same cache. They can be wrong "
          "together. Keep a list of your own, and compare with that.")
def believes_the_cache(make):
    try:
        cache = make(6)
        for i in range(4):
            cache.append(i)
        cache.truncate(2)
        cache.append(9)
        return None if len(cache.read()) == cache.len > 0 else "len and read() disagree"
    except Exception as error:
        return repr(error)


@ex.wrong("Never fills a cache. The promise about the full one has three parts: the error, that nothing changed, and that "
          "there is room again after a rewind.")
def never_full(make):
    try:
        for n in range(1, 6):
            cache, want, others = make(50), [], make(50)
            for i in range(3 * n):
                cache.append(i % 3)
                want.append(i % 3)
                before = cache.read()
                if i % n == 0:
                    cache.truncate(i // 2)
                    del want[i // 2:]
                if list(cache.read()) != want or cache.len != len(want) or others.len:
                    return f"{cache.read()} is not {want}"
                before.append(1)
                if list(cache.read()) != want:
                    return "a list that was read is the cache's own"
    except Exception as error:
        return repr(error)
    return None


@ex.wrong("Looks inside: at `cache.rows`. The contract has no such attribute, and right caches keep their rows elsewhere. "
          "`read()` is the only way to see them.")
def looks_inside(make):
    cache = make(4)
    cache.append(3)
    try:
        return None if cache.rows[0] == 3 else "rows[0] is not 3"
    except AttributeError:
        return "there is no cache.rows"


def cache_maker(fault="", error=ValueError):
    """A function that makes caches with one fault, named by a word; without a word they are right."""
    shared = []

    class Cache:
        def __init__(self, capacity):
            self.capacity = capacity
            self.rows = shared if fault == "shared" else []
            self.len = 0
            self.appended = 0
            self.view = []

        def append(self, row):
            full = self.appended if fault == "counts_appends" else self.len
            if full >= self.capacity + (fault == "one_more"):
                if fault == "counts_first":
                    self.len += 1
                if fault == "drops_last":
                    self.rows[self.len - 1] = row
                if fault != "silent":
                    raise (IndexError if fault == "other_error" else error)(f"{self.len} rows")
                return
            if fault == "zero" and not row:
                return
            place = self.appended if fault == "appends_at_the_end" else self.len
            self.rows[place:place + 1] = [row]
            self.len += 1
            self.appended = max(self.appended + 1, self.len) if fault == "counts_appends" else len(self.rows)

        def truncate(self, keep):
            if fault == "grows":
                self.len = min(keep, len(self.rows))
            elif fault == "drops":
                self.len = max(0, self.len - keep)
            elif fault == "zero_is_all":
                self.len = min(self.len, keep or self.len)
            elif fault == "one_too_few":
                self.len = min(self.len, max(keep - 1, 0)) if keep < self.len else self.len
            elif fault == "never":
                pass
            else:
                self.len = min(self.len, keep)

        def read(self):
            if fault == "stale":
                return list(self.rows)
            if fault == "a_view":
                self.view[:] = self.rows[:self.len]
                return self.view
            if fault == "its_own":
                del self.rows[self.len:]
                return self.rows
            return self.rows[:self.len]

    return Cache


def right_makers(error):
    """Right caches in many styles, each with a word on it."""

    class Deletes:
        def __init__(self, capacity):
            self.all, self.most = [], capacity

        @property
        def len(self):
            return len(self.all)

        def append(self, row):
            if len(self.all) == self.most:
                raise error("full")
            self.all.append(row)

        def truncate(self, keep):
            del self.all[keep:]

        def read(self):
            return list(self.all)

    class Array:
        def __init__(self, capacity):
            self.k = np.full(capacity, -99, dtype=object)  # of Python's numbers, however large
            self.len = 0

        def append(self, row):
            if self.len == len(self.k):
                raise type("Full", (error,), {})("full")
            self.k[self.len] = row
            self.len += 1

        def truncate(self, keep):
            self.len = min(keep, self.len)

        def read(self):
            return self.k[:self.len].tolist()

    def chain(capacity):
        """Each row knows the one before it."""
        cache = SimpleNamespace(len=0, top=None)

        def append(row):
            if cache.len == capacity:
                raise error("full")
            cache.top, cache.len = (cache.top, row), cache.len + 1

        def truncate(keep):
            while cache.len > keep:
                cache.top, cache.len = cache.top[0], cache.len - 1

        def read():
            rows, at = [], cache.top
            while at is not None:
                rows.insert(0, at[1])
                at = at[0]
            return rows

        cache.append, cache.truncate, cache.read = append, truncate, read
        return cache

    return {
        "rows stay after `len`, as in the chapter": cache_maker(error=error),
        "it deletes rows": Deletes,
        "an array, and an error derived from KvCacheOverflow": Array,
        "functions around a chain of rows, no class at all": chain,
    }


def overflow_of(prove):
    """The KvCacheOverflow of the file in which a proof stands."""
    return proving.home(prove).get("KvCacheOverflow", KvCacheOverflow)


def watched(make):
    """The same caches, whose appends are counted, so that nobody waits for ever until one is full."""

    def made(capacity):
        cache = make(capacity)
        cache.append = proving.counted(cache.append, name="`append` of one cache")
        return cache

    return proving.counted(made, name="`make`")


def must_find(prove, t, fault, hint):
    """The proof must have a counterexample against a cache with this fault."""
    proving.finds(t, prove, watched(cache_maker(fault, overflow_of(prove))), shown="prove(make)", hint=hint)


@ex.check("a right cache is spared, written as in the chapter")
def spares_one(prove, t):
    proving.spares(t, prove, watched(cache_maker(error=overflow_of(prove))), shown="prove(make)",
           style="rows stay after `len`, as in the chapter", vital=True)


@ex.check("right caches in other styles are spared")
def spares_styles(prove, t):
    for style, make in right_makers(overflow_of(prove)).items():
        proving.spares(t, prove, watched(make), shown="prove(make)", style=style)


@ex.check("wrong cache 1 is found: it takes the wrong number")
def finds_01(prove, t):
    must_find(prove, t, "drops",
              "Which rows are left after a rewind?")


@ex.check("wrong cache 2 is found: it takes one row more than it should")
def finds_02(prove, t):
    must_find(prove, t, "one_too_few",
              "Which rows are left after a rewind?")


@ex.check("wrong cache 3 is found: it never looks back")
def finds_03(prove, t):
    must_find(prove, t, "never",
              "Which rows are left after a rewind?")


@ex.check("wrong cache 4 is found: it remembers what was taken back")
def finds_04(prove, t):
    must_find(prove, t, "grows",
              "A rewind to a place above `len` must change nothing. Above which rows did you try it?")


@ex.check("wrong cache 5 is found: it cannot begin anew")
def finds_05(prove, t):
    must_find(prove, t, "zero_is_all",
              "Is there a number of rows to keep that a careless `if` takes for none given?")


@ex.check("wrong cache 6 is found: a certain row never arrives")
def finds_06(prove, t):
    must_find(prove, t, "zero",
              "A row is any whole number. Which one is False?")


@ex.check("wrong cache 7 is found: yesterday's rows are still to be seen")
def finds_07(prove, t):
    must_find(prove, t, "stale",
              "What do you read after a rewind?")


@ex.check("wrong cache 8 is found: yesterday's rows come back")
def finds_08(prove, t):
    must_find(prove, t, "appends_at_the_end",
              "What do you read after a rewind and an append that follows it?")


@ex.check("wrong cache 9 is found: what was read is not for keeps")
def finds_09(prove, t):
    must_find(prove, t, "a_view",
              "Keep what you have read, go on, and look at it again.")


@ex.check("wrong cache 10 is found: what was read is not yours")
def finds_10(prove, t):
    must_find(prove, t, "its_own",
              "Change what you have read, and read again.")


@ex.check("wrong cache 11 is found: it is not alone")
def finds_11(prove, t):
    must_find(prove, t, "shared",
              "How many caches have you made at once?")


@ex.check("wrong cache 12 is found: its border is at a wrong place")
def finds_12(prove, t):
    must_find(prove, t, "one_more",
              "What happens at the first row that has no place?")


@ex.check("wrong cache 13 is found: it is too polite to complain")
def finds_13(prove, t):
    must_find(prove, t, "silent",
              "What happens at the first row that has no place?")


@ex.check("wrong cache 14 is found: it complains in a wrong language")
def finds_14(prove, t):
    must_find(prove, t, "other_error",
              "Which error does the contract name?")


@ex.check("wrong cache 15 is found: a refusal leaves a trace in what it says")
def finds_15(prove, t):
    must_find(prove, t, "counts_first",
              "It refuses as it should. Is it the same afterwards?")


@ex.check("wrong cache 16 is found: a refusal leaves a trace in what it holds")
def finds_16(prove, t):
    must_find(prove, t, "drops_last",
              "It refuses as it should. Is it the same afterwards?")


@ex.check("wrong cache 17 is found: it is full too early")
def finds_17(prove, t):
    must_find(prove, t, "counts_appends",
              "Fill it, rewind it, and fill it again.")
