"""Chapter 15 - A server that batches continuously.

One model, and many who ask at once.  You write the step that lets requests join and leave
between any two passes.  You send text piece by piece, and never cut a character.  You decide
who may wait and who should come back later, and share one model among tenants fairly.  At
the end your scheduler serves the real model, under load.

A server is made of parts that know little of each other.  The scheduler knows rows, and
nothing of text.  The framing knows bytes, and nothing of the model.  The admission rule
knows counts alone.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch15`, or in the notebook with a cell that begins
with `%%exercise ch15.step`. Both are the same file: this one. Stuck?
`python3 -m course hint ch15.step`.

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

import codecs
import json
import math
import numpy as np


class EmptyInput(ValueError):
    """A pass has no row."""


class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


class ToyCache:
    """Rows of one request; a row is its token, and `len` counts them."""

    def __init__(self, capacity):
        self.rows, self.capacity = [], capacity

    @property
    def len(self):
        """How many rows there are."""
        return len(self.rows)


class ToyModel:
    """A pretend model: logits depend on every row of a request, and on nothing else.

    `passes` has one entry per pass: the rows that each request had in it.  With
    `fails_at=n` the n-th pass (from 0) raises an OSError.
    """

    vocab = 97

    def __init__(self, fails_at=None):
        self.passes = []
        self.fails_at = fails_at

    def new_cache(self, capacity):
        """An empty cache for so many rows."""
        return ToyCache(capacity)

    def forward_rows(self, requests):
        """Run the next tokens of several requests together.

        `requests` is a list of (cache, tokens, want).  `want` is "last" or "none": whether
        the logits of the last row are returned.  For each, the result has an array
        [rows wanted, vocab].  A pass that fails has written no row.
        """
        if not requests:
            raise EmptyInput("a pass needs at least one request")
        for cache, tokens, _ in requests:
            if not tokens:
                raise EmptyInput("a request in the pass has no token to run")
            if cache.len + len(tokens) > cache.capacity:
                raise KvCacheOverflow(f"{len(tokens)} more rows do not fit after {cache.len} of {cache.capacity}")
        if len(self.passes) == self.fails_at:
            self.fails_at = None
            raise OSError("the machine coughed")
        self.passes.append([len(tokens) for _, tokens, _ in requests])
        out = []
        for cache, tokens, want in requests:
            cache.rows += tokens
            out.append(np.array([self.logits(cache.rows)] if want == "last" else [], np.float32).reshape(-1, self.vocab))
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


class Request:
    """What somebody asks, and what has become of it.

    Attributes
    ----------
    history : list of int
        The prompt, then what was said.
    cache
        Its rows; None until it joins.
    choose, emit
        Its sampler, and who reads along: called with each new token.
    gone : bool
        Whether the one who asked has hung up.  May become True between any two steps.
    ended : bool
        Whether everything is said, or an error has ended it.
    error : Exception or None
    """

    def __init__(self, prompt, max_tokens, stop=None, choose=greedy, emit=None):
        self.history, self.prompt = list(prompt), len(prompt)
        self.max_tokens, self.stop, self.choose = max_tokens, stop, choose
        self.emit = emit or (lambda token: None)
        self.cache, self.error = None, None
        self.gone = self.ended = False

    def __repr__(self):
        return f"Request({self.history[:self.prompt]}, {self.max_tokens})"

    @property
    def said(self):
        """The new tokens."""
        return self.history[self.prompt:]

    @property
    def missing(self):
        """The tokens that have no row yet.

        One: it decodes.  More: it is still reading its prompt.
        """
        return self.history[0 if self.cache is None else self.cache.len:]

    def take(self, logits):
        """Choose a token from logits [vocab], append it, hand it out; sets `ended` after the last one.

        `choose` and `emit` may raise.
        """
        token = self.choose(logits)
        self.history.append(token)
        if token == self.stop or len(self.said) >= self.max_tokens:
            self.ended = True
        self.emit(token)


def serve_all(scheduler, requests):
    """Submit all at once and step until nobody is left; returns what each step returned."""
    for request in requests:
        scheduler.submit(request)
    passes = []
    while passed := scheduler.step():
        passes.append(passed)
        if len(passes) == 1000:
            raise RuntimeError("after 1000 steps somebody still runs")
    return passes


class Load:
    """How busy a server is.

    Attributes
    ----------
    capacity, free : int
        Rows of memory in all, and those that nobody uses now.
    waiting : int
        How many requests stand in the line.
    pace : float
        How many requests per second have left the line lately; 0 while none has.
    """

    def __init__(self, capacity, free, waiting=0, pace=0.0):
        self.capacity, self.free, self.waiting, self.pace = capacity, free, waiting, pace

    def __repr__(self):
        return f"Load({self.capacity}, {self.free}, waiting={self.waiting}, pace={self.pace})"


# %% ch15.step - A step of the scheduler (20 points, hard, section 15.3)

class Scheduler:
    """Serves many requests with one model; they join and leave between any two passes.

    Parameters
    ----------
    model : ToyModel, or anything with its `new_cache` and `forward_rows`
    rows : int
        A pass has at most so many rows; more than `streams`, or as many.
    streams : int
        So many requests run at once; others wait.

    Attributes
    ----------
    waiting, running : list of Request
        Those that have not joined yet, first come, first served; and those that have.

    Examples
    --------
    >>> scheduler = Scheduler(ToyModel(), rows=4, streams=2)
    >>> a, b, c = Request([5], 2), Request([8, 2, 9, 7, 6], 1), Request([3], 1)
    >>> [[n for _, n in passed] for passed in serve_all(scheduler, [a, b, c])]
    [[1, 3], [1, 2], [1]]
    >>> len(a.said), len(b.said), len(c.said)
    (2, 1, 1)
    """

    def __init__(self, model, rows=16, streams=4):
        self.model, self.rows, self.streams = model, rows, streams
        self.waiting, self.running = [], []

    def submit(self, request):
        """Let a request wait for its turn."""
        self.waiting.append(request)

    def step(self):
        """One step: who has gone leaves, others join, one pass runs, tokens are taken.

        1. Requests that are `gone` leave `running` and `waiting`.
        2. While fewer than `streams` run and somebody waits, the first that waits joins.
           It gets a cache of len(history) + max_tokens rows, and goes to the end of
           `running`.
        3. One pass (one call of `forward_rows`) has at most `rows` rows.  Every request
           that decodes has its one row in it.  What is left goes to those that read their
           prompts, in the order of `running`: each as much as it needs, or as much as
           there is.  Logits are wanted ("last") where a request has no token missing
           afterwards; of others "none".
        4. Those that read take turns: the first of them in this pass goes to the end of
           `running`.
        5. Each request whose logits came takes them, with `take`, in this step.  If that
           raises an Exception, the request has `ended` with this `error`; the others do not
           notice.  Who has ended leaves `running` in this step.

        An error of the pass itself goes on to the caller.  Nobody has then said anything or
        left because of it, and the next step tries again.

        Returns
        -------
        list of (Request, int)
            Who had how many rows in the pass: first those that decode, in the order of
            `running`, then those that read, in the order in which they were served.
            Without anybody to serve there is no pass, and the list is empty.
        """
        raise NotImplementedError("ch15.step: your code here")


# %% ch15.frames - Events that never cut a character (10 points, medium, section 15.5)

def read_events(data):
    """What a reader makes of whole events: JSON values, and "[DONE]"."""
    bodies = [block.removeprefix("data: ") for block in data.decode("utf-8").split("\n\n")[:-1]]
    return [body if body == "[DONE]" else json.loads(body) for body in bodies]


class Frames:
    """Turns the pieces of a reply into server-sent events.

    An event is `data: `, then JSON in one line, then an empty line: two line ends in all.

    Examples
    --------
    >>> frames = Frames()
    >>> read_events(frames.push(b"Caf"))
    [{'text': 'Caf'}]
    >>> frames.push(b"\\xc3")      # the first of two bytes
    b''
    >>> [event["text"] == "\\u00e9" for event in read_events(frames.push(b"\\xa9"))]
    [True]
    >>> read_events(frames.end("stop"))
    [{'finish': 'stop'}, '[DONE]']
    """

    def __init__(self):
        raise NotImplementedError("ch15.frames: your code here")

    def push(self, piece):
        """The next piece of the reply, as bytes of UTF-8; it may begin or end inside a character.

        Returns
        -------
        bytes
            One event, {"text": ...}, with all text that is decided: characters that are whole, and
            a U+FFFD for bytes that cannot become one any more.  Only the beginning of a
            character waits for more.  Without any text there is no event: b"".
        """
        raise NotImplementedError("ch15.frames: your code here")

    def end(self, reason):
        """The end of the reply.

        Returns
        -------
        bytes
            An event with what still waited, now as U+FFFD, if anything did; then the event
            {"finish": reason}; then `data: [DONE]` and an empty line, which is no JSON.
        """
        raise NotImplementedError("ch15.frames: your code here")


# %% ch15.admit - Now, later, or never (10 points, medium, section 15.6)

def admit(need, load, limit, patience):
    """What becomes of a request that has just come.

    Parameters
    ----------
    need : int
        Rows of memory that it takes: its prompt and what may be said.
    load : Load
        Not changed.
    limit : int
        So many may wait at most, 1 or more.
    patience : float
        Nobody should wait longer than so many seconds, as far as one can tell; above 0.

    Returns
    -------
    (str, int)
        The first of these that is true:

        - ("never", 0): it needs more rows than there are in all.
        - ("now", 0): nobody waits, and it fits into the free rows.  Nobody is overtaken.
        - ("wait", 0): with it, at most `limit` wait; and, at this pace, a line of so many
          takes at most `patience` seconds.  While the pace is 0, only `limit` counts.
        - ("later", seconds): until enough of the line has left at this pace for it to
          be let in to wait; rounded up to whole seconds, at least 1.  While the pace is 0,
          `patience` seconds, rounded up.

    Examples
    --------
    >>> admit(100, Load(1000, 400), limit=8, patience=10)
    ('now', 0)
    >>> admit(100, Load(1000, 400, waiting=3, pace=0.5), limit=8, patience=10)
    ('wait', 0)
    >>> admit(100, Load(1000, 400, waiting=6, pace=0.5), limit=8, patience=10)
    ('later', 4)
    >>> admit(2000, Load(1000, 400), limit=8, patience=10)
    ('never', 0)
    """
    raise NotImplementedError("ch15.admit: your code here")


# %% ch15.fair - A fair queue (15 points, hard, section 15.7)

class FairQueue:
    """Requests that wait, in an order that gives every tenant the same share of the work.

    Each tenant has an account: the cost of what was popped for it.  The lowest account is
    served next.  A clock says how far the accounts of those who are served have come: at each
    pop it is set to the account of the tenant that is served, before the cost is added.  It
    begins at 0.

    Examples
    --------
    >>> queue = FairQueue()
    >>> for n in range(3):
    ...     queue.push("mill", f"mill {n}", cost=10)
    >>> queue.push("ada", "ada 0", cost=10)
    >>> [queue.pop() for _ in range(4)]
    ['mill 0', 'ada 0', 'mill 1', 'mill 2']
    """

    def __init__(self):
        raise NotImplementedError("ch15.fair: your code here")

    def __len__(self):
        """How many requests wait."""
        raise NotImplementedError("ch15.fair: your code here")

    def push(self, tenant, request, cost):
        """Let a request wait.

        The account of its tenant is raised to the clock, should it be lower: whoever rests
        saves nothing up.  It is never lowered.

        Parameters
        ----------
        tenant : str
        request : anything
        cost : int
            How much work it is, in tokens; 1 or more.
        """
        raise NotImplementedError("ch15.fair: your code here")

    def pop(self):
        """Take out the request whose turn it is; None if nobody waits.

        The tenant with the lowest account, of those for whom somebody waits, is served.  Of
        equal accounts, the one whose oldest waiting request came first.  Within a tenant,
        the oldest request comes first.  The cost goes to the account.
        """
        raise NotImplementedError("ch15.fair: your code here")
