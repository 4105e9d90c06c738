"""Chapter 06 - Many streams, one weight pass.

A decode step reads every weight of the model, and uses it once.  A step for eight
streams can read it once as well, and use it eight times: one pass, a row of each stream.
What you build here is the loop that does this, what keeps a failure in its own stream,
and the two small formulas that say what it is worth.

The toy model below has the face of the real one: `forward_rows` takes (cache, tokens,
want) of several streams and gives logits for each.  So a loop that drives the toy drives
the real model, too.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch06`, or in the notebook with a cell that begins
with `%%exercise ch06.throughput`. Both are the same file: this one. Stuck?
`python3 -m course hint ch06.throughput`.

Rules for all exercises:

- An exercise is graded alone, in a process of its own. It knows what its file in
  exercises/ holds, and nothing of your notebook: import and define what you use there,
  or in the exercise's cell.
- Arguments stay as they are, unless the contract says that they change: work on a copy.
- Types count: where the contract says list, a tuple or an array is wrong.
- You build it yourself: the engine (`fucina`) and the solutions are no part of an
  answer, unless the contract says so.
"""

import math
import numpy as np


class EmptyInput(ValueError):
    """A pass without a row."""


class DuplicateCache(ValueError):
    """One cache appears twice in a pass; every stream needs its own."""


class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


class ToyCache:
    """The cache of chapter 05: rows, of which the first `len` count."""

    def __init__(self, capacity):
        self.rows = [None] * capacity
        self.capacity = capacity
        self.len = 0

    def append(self, row):
        """Write one row behind the last and count it."""
        if self.len == self.capacity:
            raise KvCacheOverflow(f"the cache holds {self.len} rows already")
        self.rows[self.len] = row
        self.len += 1

    def truncate(self, keep):
        """Keep the first `keep` rows."""
        self.len = min(self.len, keep)


class ToyModel:
    """A pretend model: logits depend on every row of a stream, and on nothing else.

    `passes` notes the rows of each pass, a number for each stream in it: one entry a
    pass, and a pass is one reading of the weights.  `fails_at=n` lets the n-th pass
    (from 0) raise an OSError.
    """

    vocab = 97

    def __init__(self, fails_at=None):
        self.passes = []
        self.fails_at = fails_at

    def forward_rows(self, requests):
        """Run the next tokens of several streams together.

        `requests` is a list of (cache, tokens, want), want "all", "last" or "none": of
        which rows to return the logits.  Returns one array [rows wanted, vocab] each.
        Everything is checked first; a pass that fails has written no row.
        """
        if not requests:
            raise EmptyInput("a pass needs at least one stream")
        if len({id(cache) for cache, _, _ in requests}) < len(requests):
            raise DuplicateCache("one cache appears twice in the pass; every stream needs its own")
        for cache, tokens, _ in requests:
            if cache.len + len(tokens) > cache.capacity:
                raise KvCacheOverflow(f"{len(tokens)} rows more do not fit behind {cache.len}")
        if len(self.passes) == self.fails_at:
            self.fails_at = None
            raise OSError("the machine coughed")
        self.passes.append([len(tokens) for _, tokens, _ in requests])
        out = []
        for cache, tokens, want in requests:
            rows = []
            for token in tokens:
                cache.append(token)
                rows.append(self.logits(cache.rows[:cache.len]))
            kept = {"all": rows, "last": rows[-1:], "none": []}[want]
            out.append(np.array(kept, np.float32).reshape(len(kept), self.vocab))
        return out

    def logits(self, rows):
        """Three tokens that are likely, one more than the other."""
        seen = 0
        for row in rows:
            seen = (31 * seen + row + 7) % 1009
        logits = np.zeros(self.vocab, np.float32)
        for i in range(3):
            logits[(seen + 11 * i) % self.vocab] = 3 - i
        return logits


def greedy(logits):
    """The most likely token."""
    return int(np.argmax(logits))


class Stream:
    """A reply under way: everything that belongs to one stream alone.

    Attributes
    ----------
    cache, history
        Its own, in step: len(history) == cache.len + 1 (chapter 05).
    max_tokens, stop
        It ends after so many new tokens, or after the token `stop`, if there is one.
    choose
        Its sampler: logits [vocab] in, a token out.  Called once a token.
    emit
        Called with each new token.
    ended : bool
        It takes part in no pass any more.
    error : Exception or None
        What ended it, if something went wrong.
    """

    def __init__(self, cache, history, max_tokens, stop=None, choose=greedy, emit=None):
        self.cache = cache
        self.history = history
        self.prompt = len(history)
        self.max_tokens = max_tokens
        self.stop = stop
        self.choose = choose
        self.emit = emit or (lambda token: None)
        self.ended = max_tokens == 0
        self.error = None

    @property
    def added(self):
        """How many new tokens there are."""
        return len(self.history) - self.prompt


def open_stream(prompt, max_tokens, rows=None, capacity=64, **options):
    """A stream with `rows` of its prompt in the cache: all but the last token's, if not said otherwise."""
    cache = ToyCache(capacity)
    for token in prompt[:len(prompt) - 1 if rows is None else rows]:
        cache.append(token)
    return Stream(cache, list(prompt), max_tokens, **options)


# %% ch06.throughput - What a batch is worth (5 points, easy, section 06.2)

def throughput(seconds, n):
    """Tokens a second of n streams in one pass each step, and the gain over one after another.

    Parameters
    ----------
    seconds : dict of int to float
        Measured: rows in a pass to the seconds that the pass takes.  Holds 1; in no
        particular order.  Between two neighbours that were measured, the time is
        taken to be on the straight line from one to the other.
    n : int
        How many streams.

    Returns
    -------
    (float, float)
        Tokens a second of all streams together; and how many times faster that is than
        running the same streams one after another, each in passes of one row.

    Raises
    ------
    ValueError
        When n is below 1 or above the largest measured number of rows.

    Examples
    --------
    >>> throughput({1: 0.004, 4: 0.008}, 4)
    (500.0, 2.0)
    """
    raise NotImplementedError("ch06.throughput: your code here")


# %% ch06.lockstep - Many streams, one pass a step (15 points, medium, section 06.3)

def lockstep(model, streams):
    """Decode several streams together, one pass a step, until all have ended.

    Each step is one call of `model.forward_rows`, with one row, the newest token, of
    each stream that has not ended.  From its own logits each stream chooses a token
    with its own `choose`.  The token is appended to its history and handed to its
    `emit` in the same step.  A stream has ended after `max_tokens` new tokens, or after
    the token `stop`, which is settled and emitted like any other: then set its `ended`.
    It takes part in no further pass.

    Parameters
    ----------
    model : ToyModel, or anything with its `forward_rows`
    streams : list of Stream
        Each with a cache of its own, and len(history) == cache.len + 1.  Some may have
        ended already.  The list itself is not changed.

    Returns
    -------
    int
        How many passes it took.

    Examples
    --------
    >>> a, b = open_stream([5], 3), open_stream([8, 2], 2)
    >>> lockstep(ToyModel(), [a, b])
    3
    >>> a.added, b.added
    (3, 2)
    """
    raise NotImplementedError("ch06.lockstep: your code here")


# %% ch06.isolate - A failure stays in its stream (20 points, hard, section 06.4)

def step(model, streams):
    """One step of a batch, in which a failure stays in its stream.

    A step is that of `lockstep`: one pass with one row of each stream that has not ended;
    each chooses a token, which is appended and emitted; a stream may end with it.

    A stream whose `choose` or `emit` raises an Exception has ended, with the exception as
    its `error`; the others do not notice.  So has a stream whose cache is full: it does
    not enter the pass at all, and its error is a KvCacheOverflow.  A token that was
    appended before emit failed stays in the history.

    An error of the pass itself belongs to no stream.  It goes on to the caller, and no
    stream has changed; the same step may be tried again.  What is no Exception, such as
    Ctrl-C (KeyboardInterrupt) in an emit, goes on to the caller as well, and is no
    stream's error.

    Afterwards len(history) == cache.len + 1 for every stream, whatever happened.

    Parameters
    ----------
    model : ToyModel, or anything with its `forward_rows`
    streams : list of Stream

    Returns
    -------
    int
        How many rows the pass had; 0 when no stream goes on, and then there was none.

    Examples
    --------
    >>> a, b = open_stream([5], 3), open_stream([8], 3, emit=lambda token: 1 / 0)
    >>> step(ToyModel(), [a, b])
    2
    >>> a.error is None, type(b.error).__name__, b.ended
    (True, 'ZeroDivisionError', True)
    """
    raise NotImplementedError("ch06.isolate: your code here")


# %% ch06.predict - Predict the gain (10 points, medium, section 06.5)

def predict(seconds, lengths):
    """How many times faster some replies are together than one after another.

    Together: lockstep, one pass a step, with a row of each stream that still goes on.
    One after another: every token has a pass of one row.  Nothing but passes takes time.

    Parameters
    ----------
    seconds : callable
        seconds(rows): the time of a pass with so many rows, for rows of 1 or more.
    lengths : list of int
        How many tokens each reply has; 0 is allowed.

    Returns
    -------
    float
        Time of one after another over time of together.

    Raises
    ------
    ValueError
        When there is no token at all.

    Examples
    --------
    >>> predict(lambda rows: 1 + rows, [2, 1])      # a pass of 2 rows, then one of 1
    1.2
    """
    raise NotImplementedError("ch06.predict: your code here")


# %% ch06.admit - A new stream joins (15 points, medium, section 06.6)

def next_pass(streams, limit):
    """Choose the rows of the next pass, for streams that decode and streams that join.

    A stream that has not ended has tokens without a row: those behind its cache.  If it
    is one token, the stream decodes.  If there are more, its prompt is still to be
    computed, in one piece or in several.

    Every stream that decodes gets its row, so that nobody who reads has to wait.  The
    rows that are left go to prompts, first come, first served: the first one gets as many
    as it needs, or as there are; then the second; and so on.

    Parameters
    ----------
    streams : list of Stream
        In the order in which they came.  For this exercise,
        len(history) > cache.len instead of the promise of chapter 05.
    limit : int
        Most rows of a pass; at least as many as there are streams.

    Returns
    -------
    list of (Stream, list of int, str)
        For each stream that takes part: itself; its next tokens, from the first one
        without a row on; and "last" if they reach the end of its history (a token will
        be chosen there), else "none".  In any order, each stream at most once.  Empty
        when all have ended.

    Examples
    --------
    >>> a, b = open_stream([5], 3), open_stream([8, 2, 9, 4], 3, rows=0)
    >>> [(tokens, want) for _, tokens, want in next_pass([a, b], 4)]
    [([5], 'last'), ([8, 2, 9], 'none')]
    """
    raise NotImplementedError("ch06.admit: your code here")
