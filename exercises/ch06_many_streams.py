"""Chapter 06 - Many streams, one weight pass.

A decode step reads every weight of the model, and uses it once.  A step for eight
streams can read each weight once as well, and use it eight times: one pass, with one row
of each stream.  Here you build the loop that does this, keep a failure in its own stream,
predict what a batch is worth, and let a new stream join.

The toy model below is called like the real one: `forward_rows` takes (cache, tokens,
want) for each of several streams, and returns the logits of each.  So a loop that drives
the toy drives the real model, too.

A stream does by itself what it did alone in chapter 05: `stream.take(logits)` chooses a
token, settles it, and hands it out.  The exercises are about what is new.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch06`, or in the notebook with a cell that begins
with `%%exercise ch06.lockstep`. Both are the same file: this one. Stuck?
`python3 -m course hint ch06.lockstep`.

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
import numpy as np


class EmptyInput(ValueError):
    """A pass has no row."""


class DuplicateCache(ValueError):
    """One cache appears twice in one pass; every stream needs its own."""


class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


class ToyCache:
    """The cache of chapter 05: rows, of which the first `len` count."""

    def __init__(self, capacity):
        self.rows = [None] * capacity
        self.capacity = capacity
        self.len = 0

    def append(self, row):
        """Write one row after the last and count it."""
        if self.len == self.capacity:
            raise KvCacheOverflow(f"the cache holds {self.len} rows already")
        self.rows[self.len] = row
        self.len += 1

    def truncate(self, keep):
        """Keep the first `keep` rows."""
        self.len = min(self.len, keep)


class ToyModel:
    """A pretend model: logits depend on every row of a stream, and on nothing else.

    `passes` has one entry per pass: how many rows each stream had in it.  Every pass
    stands for one reading of the weights.  With `fails_at=n` the n-th pass (from 0)
    raises an OSError.
    """

    vocab = 97

    def __init__(self, fails_at=None):
        self.passes = []
        self.fails_at = fails_at

    def forward_rows(self, requests):
        """Run the next tokens of several streams together.

        `requests` is a list of (cache, tokens, want).  `want` is "all", "last" or "none":
        the rows of which the logits are returned.  For each request, the result has an
        array [rows wanted, vocab].  Everything is checked first; a pass that fails has
        written no row.
        """
        if not requests:
            raise EmptyInput("a pass needs at least one stream")
        if len({id(cache) for cache, _, _ in requests}) < len(requests):
            raise DuplicateCache("one cache appears twice in the pass; every stream needs its own")
        for cache, tokens, _ in requests:
            if cache.len + len(tokens) > cache.capacity:
                raise KvCacheOverflow(f"{len(tokens)} more rows do not fit after {cache.len}")
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
        """Three likely tokens, the first of them the likeliest."""
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
        Its own.  They keep the promise of chapter 05: len(history) == cache.len + 1.
    max_tokens, stop
        It ends after this many new tokens, or after the token `stop`, if there is one.
    choose
        Its sampler: takes logits [vocab], returns a token.  Called once per token.
    emit
        Called with each new token.
    ended : bool
        Once it is True, the stream takes part in no further pass.
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

    def take(self, logits):
        """Choose a token from a row of logits, append it to the history, hand it to emit.

        Sets `ended` when it was the last one.  `choose` and `emit` may raise.
        """
        token = self.choose(logits)
        self.history.append(token)
        if token == self.stop or self.added >= self.max_tokens:
            self.ended = True
        self.emit(token)


def open_stream(prompt, max_tokens, rows=None, capacity=64, **options):
    """A stream whose cache holds the first `rows` rows of its prompt; by default, all but the last one."""
    cache = ToyCache(capacity)
    for token in prompt[:len(prompt) - 1 if rows is None else rows]:
        cache.append(token)
    return Stream(cache, list(prompt), max_tokens, **options)


# %% ch06.lockstep - Many streams, one pass per step (10 points, medium, section 06.3)

def lockstep(model, streams):
    """Decode several streams together, one pass per step, until all have ended.

    Each step is one call of `model.forward_rows`.  Every stream that has not ended has
    one row in it: that of its newest token.  Then each of them takes its own logits,
    in the same step, with `stream.take`, which sets `stream.ended` after the last token.
    A stream that has ended takes part in no further pass.

    Parameters
    ----------
    model : ToyModel, or anything with its `forward_rows`
    streams : list of Stream
        Each has a cache of its own, and len(history) == cache.len + 1.  Some may have
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


# %% ch06.isolate - A failure stays in its stream (15 points, hard, section 06.4)

def step(model, streams):
    """One step of a batch, in which a failure stays in its stream.

    A step is that of `lockstep`: one pass with one row of each stream that has not ended,
    then each of them takes its logits.

    Before the pass, a stream whose cache is full ends, with a KvCacheOverflow as its
    `error`.  It has no row in the pass.

    An error of the pass itself belongs to no stream.  It goes on to the caller.  The
    streams that took part have not changed, and the same step may be tried again.

    After the pass, a stream whose `take` raises an Exception has ended, with the exception
    as its `error`; the others do not notice.  A token that was appended before emit failed
    stays in the history.  An error that is no Exception, such as Ctrl-C
    (KeyboardInterrupt), is no stream's error: it goes on to the caller.

    Whatever happened, len(history) == cache.len + 1 for every stream afterwards.

    Parameters
    ----------
    model : ToyModel, or anything with its `forward_rows`
    streams : list of Stream

    Returns
    -------
    int
        How many rows the pass had.  When no stream goes on, there is no pass, and the
        result is 0.

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

def gain(seconds, lengths):
    """How many times faster several replies are together than one after another.

    Together they run in lockstep: each pass has one row of every stream that still goes
    on.  One after another, every token has a pass with one row.  Nothing but the passes
    takes time.  For N replies of one length, the result is N / C(N).

    Parameters
    ----------
    seconds : callable
        seconds(rows): the time of a pass with that many rows, 1 or more.
    lengths : list of int
        How many tokens each reply has; 0 is allowed.

    Returns
    -------
    float
        The time one after another, divided by the time together.

    Raises
    ------
    ValueError
        When there is no token at all.

    Examples
    --------
    >>> gain(lambda rows: 1 + rows, [2, 1])      # a pass of 2 rows, then one of 1
    1.2
    """
    raise NotImplementedError("ch06.predict: your code here")


# %% ch06.admit - A new stream joins (15 points, medium, section 06.6)

def next_pass(streams, limit):
    """Choose the rows of the next pass, for streams that decode and streams that join.

    A stream that has not ended has tokens without a row: those of its history from
    position cache.len on.  If there is one, the stream decodes.  If there are more, its
    prompt is still to be computed, in one piece or in several.

    Every stream that decodes gets its row, so that no reader has to wait.  The rows that
    are left go to the prompts, first come, first served: the first prompt gets as many as
    it needs, or as many as there are; then the second; and so on.

    Parameters
    ----------
    streams : list of Stream
        In the order in which they came.  For this exercise,
        len(history) > cache.len instead of the promise of chapter 05.
    limit : int
        The most rows that a pass may have; at least as many as there are streams.

    Returns
    -------
    list of (Stream, list of int, str)
        For each stream that takes part: the stream; its next tokens, beginning with the
        first one without a row; and "last" if they reach the end of its history (a token
        will be chosen there), else "none".  In any order, each stream at most once.
        Empty when all have ended.

    Examples
    --------
    >>> a, b = open_stream([5], 3), open_stream([8, 2, 9, 4], 3, rows=0)
    >>> sorted((tokens, want) for _, tokens, want in next_pass([a, b], 4))  # in any order
    [([5], 'last'), ([8, 2, 9], 'none')]
    """
    raise NotImplementedError("ch06.admit: your code here")
