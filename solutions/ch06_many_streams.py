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
"""

import contextlib

import numpy as np

from course.exercises import Exercise, given


@given
class EmptyInput(ValueError):
    """A pass has no row."""


@given
class DuplicateCache(ValueError):
    """One cache appears twice in one pass; every stream needs its own."""


@given
class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


@given
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


@given
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


@given
def greedy(logits):
    """The most likely token."""
    return int(np.argmax(logits))


@given
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


@given
def open_stream(prompt, max_tokens, rows=None, capacity=64, **options):
    """A stream whose cache holds the first `rows` rows of its prompt; by default, all but the last one."""
    cache = ToyCache(capacity)
    for token in prompt[:len(prompt) - 1 if rows is None else rows]:
        cache.append(token)
    return Stream(cache, list(prompt), max_tokens, **options)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch06.lockstep",
    title="Many streams, one pass per step",
    points=10,
    level="medium",
    section="06.3",
    hints=[
        "In each step: which streams go on? Make one request for each of them and one call of forward_rows for all. Then "
        "each stream gets its own row.",
        "The logits come back in the order of the requests. Keep the list of streams from which you made the requests, "
        "and zip it with the logits.",
        "Who takes part changes with every step: make a new list of live streams each time. The request of a stream "
        "is (stream.cache, [stream.history[-1]], \"all\"), and stream.take(logits[-1]) does the rest.",
    ],
)


@ex.solution
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
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
        passes += 1
        for stream, logits in zip(live, out):
            stream.take(logits[-1])
    return passes


@ex.wrong("All rows go into the cache of the first stream. A row must look back at the rows of its own stream, so each "
          "request names the cache of its stream.")
def one_cache(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        out = model.forward_rows([(streams[0].cache, [stream.history[-1]], "all") for stream in live])
        passes += 1
        for stream, logits in zip(live, out):
            stream.take(logits[-1])
    return passes


@ex.wrong("Runs a pass for each stream, so every stream reads all the weights again. Put the rows of all streams into one "
          "call of forward_rows: that is what the batch is for.")
def a_pass_each(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        for stream in live:
            logits = model.forward_rows([(stream.cache, [stream.history[-1]], "all")])[0]
            passes += 1
            stream.take(logits[-1])
    return passes


@ex.wrong("Zips the logits with the list of all streams. They come in the order of the requests, so as soon as one stream "
          "has ended, they reach the wrong ones.")
def mixed_up(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
        passes += 1
        for stream, logits in zip(streams, out):
            token = stream.choose(logits[-1])
            stream.history.append(token)
            stream.ended = token == stream.stop or stream.added >= stream.max_tokens
            stream.emit(token)
    return passes


@ex.wrong("Hands nothing out before the slowest stream is done. Somebody is reading along: a token goes to emit in the "
          "step that made it.")
def waits_for_the_slowest(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
        passes += 1
        for stream, logits in zip(live, out):
            token = stream.choose(logits[-1])
            stream.history.append(token)
            stream.ended = token == stream.stop or stream.added == stream.max_tokens
    for stream in streams:
        for token in stream.history[stream.prompt:]:
            stream.emit(token)
    return passes


@ex.wrong("A stream that has ended keeps a row in every pass until the slowest one is done. The row costs time, and the "
          "cache grows, although nobody wants the token. Leave the stream out.")
def padding(model, streams):
    passes = 0
    going = [stream for stream in streams if not stream.ended]
    while not all(stream.ended for stream in going):
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in going])
        passes += 1
        for stream, logits in zip(going, out):
            if not stream.ended:
                token = stream.choose(logits[-1])
                stream.history.append(token)
                stream.ended = token == stream.stop or stream.added == stream.max_tokens
                stream.emit(token)
    return passes


@ex.wrong("Removes streams from a list while a `for` runs over it. The next one moves up and is skipped, although its row "
          "has been computed. Make a new list in each step.")
def removes_while_looping(model, streams):
    passes = 0
    live = [stream for stream in streams if not stream.ended]
    while live:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
        passes += 1
        for stream, logits in zip(live, out):
            stream.take(logits[-1])
            if stream.ended:
                live.remove(stream)
    return passes


@ex.wrong("Chooses the most likely token for every stream. A stream has a sampler of its own (its random numbers, its "
          "penalties): let stream.take choose.")
def always_greedy(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
        passes += 1
        for stream, logits in zip(live, out):
            stream.history.append(greedy(logits[-1]))
            stream.ended = stream.history[-1] == stream.stop or stream.added == stream.max_tokens
            stream.emit(stream.history[-1])
    return passes


@ex.wrong("Does by itself what `stream.take` does: choose, append, emit. What a stream does with its logits is the stream's own "
          "business; another kind of stream may do more. Hand the logits to `take`.")
def takes_by_itself(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "last") for stream in live])
        passes += 1
        for stream, logits in zip(live, out):
            token = stream.choose(logits[-1])
            stream.history.append(token)
            stream.ended = token == stream.stop or stream.added >= stream.max_tokens
            stream.emit(token)
    return passes


@ex.wrong("A pass that fails is tried again, and nobody hears of it. Whether that is worth it is for the caller to say: nothing "
          "catches the error here.")
def tries_again(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended]:
        try:
            out = model.forward_rows([(stream.cache, [stream.history[-1]], "last") for stream in live])
        except Exception:
            continue
        passes += 1
        for stream, logits in zip(live, out):
            stream.take(logits[-1])
    return passes


@ex.wrong("Takes eight streams at a time. All that have not ended have a row in every pass.")
def eight_at_a_time(model, streams):
    passes = 0
    while live := [stream for stream in streams if not stream.ended][:8]:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "last") for stream in live])
        passes += 1
        for stream, logits in zip(live, out):
            stream.take(logits[-1])
    return passes


NAMES = "abcdefghijkl"
# prompts, max_tokens and stop tokens of the streams of a case, from small to large
CASES = [
    [([5], 1, None)],
    [([5], 3, None)],
    [([5], 2, None), ([8], 2, None)],
    [([5], 1, None), ([8, 2], 3, None)],
    [([5], 3, 1), ([8, 2], 4, None)],
    [([5], 4, None), ([8, 2], 1, None), ([3, 1, 4], 3, None)],
    [([14], 5, 2), ([8, 2], 2, None)],  # the stop is token 0
    [([5], 5, 2), ([8, 2], 2, None), ([3, 1, 4], 6, 3), ([60], 4, None)],
    [([token], 2, None) for token in range(12)],
]


def token_at(prompt, step):
    """The token that a stream says alone, in a step (from 1)."""
    return said_alone(prompt, step)[-1]


def said_alone(prompt, max_tokens, stop=None, choose=greedy):
    """What a stream says by itself, worked out without a cache."""
    rows = list(prompt)
    for _ in range(max_tokens):
        rows.append(choose(ToyModel().logits(rows)))
        if rows[-1] == stop:
            break
    return rows[len(prompt):]


def streams_of(t, specs, **options):
    """The streams of a case, told as code; a stop is given as the step that says the token."""
    streams, lines = [], ["model = ToyModel()"]
    for name, (prompt, max_tokens, stop_at) in zip(NAMES, specs):
        stop = None if stop_at is None else token_at(prompt, stop_at)
        own = {key: value(name) for key, value in options.items()}
        streams.append(open_stream(prompt, max_tokens, stop=stop, **own))
        told = f"{prompt}, {max_tokens}" + ("" if stop is None else f", stop={stop}")
        lines.append(f"{name} = open_stream({told})")
    t.case(*lines)
    return streams


def call_lockstep(lockstep, t, model, streams):
    """Call it; the list of streams must stay what it was."""
    before = list(streams)
    got = t.call(lockstep, model, streams, changes=True,
                 shown=f"lockstep(model, [{', '.join(NAMES[:len(streams)])}])")
    t.holds(len(streams) == len(before) and all(a is b for a, b in zip(streams, before)),
            "the list of streams was changed: make a list of your own")
    return got


@ex.check("every stream says what it says alone")
def same_as_alone(lockstep, t):
    for specs in CASES:
        streams = streams_of(t, specs)
        call_lockstep(lockstep, t, ToyModel(), streams)
        for name, stream, (prompt, max_tokens, _) in zip(NAMES, streams, specs):
            want = said_alone(prompt, max_tokens, stream.stop)
            t.equal(stream.history, prompt + want, f"{name}.history")
            t.holds(stream.ended, f"{name} has said everything, but {name}.ended is not set")


@ex.check("one pass per step, with the rows of those streams that go on")
def passes(lockstep, t):
    for specs in CASES:
        streams, model = streams_of(t, specs), ToyModel()
        lengths = [len(said_alone(p, n, s.stop)) for s, (p, n, _) in zip(streams, specs)]
        got = call_lockstep(lockstep, t, model, streams)
        want = [[1] * sum(n > step for n in lengths) for step in range(max(lengths))]
        t.equal(model.passes, want, "rows of each pass (model.passes)")
        t.equal(got, len(want), "the number of passes")
        for name, stream in zip(NAMES, streams):
            t.equal(stream.cache.len, len(stream.history) - 1, f"{name}.cache.len")
    model, stream = ToyModel(), open_stream([5], 100, capacity=200)
    t.case("model = ToyModel()", "a = open_stream([5], 100, capacity=200)")
    t.equal(call_lockstep(lockstep, t, model, [stream]), 100, "the number of passes")
    t.equal(stream.history, [5] + said_alone([5], 100), "a.history")
    model = ToyModel()
    t.case("model = ToyModel()", "a = open_stream([5], 0)      # wants nothing", "b = open_stream([8], 1)")
    t.equal(call_lockstep(lockstep, t, model, [open_stream([5], 0), open_stream([8], 1)]), 1, "the number of passes")
    t.equal(model.passes, [[1]], "rows of each pass (model.passes)")
    t.case("model = ToyModel()")
    t.equal(call_lockstep(lockstep, t, ToyModel(), []), 0, "the number of passes")


@ex.check("a token is handed out in the step that made it")
def in_time(lockstep, t):
    for specs in CASES:
        model, log = ToyModel(), []

        def listener(name, model=model, log=log):
            return lambda token: log.append((len(model.passes), name, token))  # noqa: B023

        streams = streams_of(t, specs, emit=listener)
        call_lockstep(lockstep, t, model, streams)
        for name, stream in zip(NAMES, streams):
            got = [(step, token) for step, who, token in log if who == name]
            want = list(enumerate(stream.history[stream.prompt:], 1))
            t.holds([token for _, token in got] == [token for _, token in want],
                    f"{name}.emit got {[token for _, token in got]}, the history says {[token for _, token in want]}")
            for (step, token), (due, _) in zip(got, want):
                t.holds(step == due, f"{name}.emit got token {token} after pass {step}, but pass {due} made it")


@ex.check("every stream chooses with its own sampler, once per token")
def own_sampler(lockstep, t):
    def sampler(name):
        """Takes the best, second or third token in turn; every stream begins with a different one."""
        state = [NAMES.index(name)]

        def choose(logits):
            state[0] += 1
            return int(np.argsort(-logits, kind="stable")[state[0] % 3])

        return choose

    for specs in CASES:
        plain = [(prompt, max_tokens, None) for prompt, max_tokens, _ in specs]
        streams = streams_of(t, plain, choose=sampler)
        t.story.append("# each with a sampler of its own: the best, second and third token in turn")
        call_lockstep(lockstep, t, ToyModel(), streams)
        for name, stream, (prompt, max_tokens, _) in zip(NAMES, streams, plain):
            want = said_alone(prompt, max_tokens, choose=sampler(name))
            t.equal(stream.history, prompt + want, f"{name}.history")


class CountingStream(Stream):
    """A stream that counts how often it takes logits."""

    taken = ()

    def take(self, logits):
        self.taken += (len(self.history),)
        super().take(logits)


@ex.check("an error of a pass goes on to the caller")
def error_of_a_pass(lockstep, t):
    for at in (0, 1):
        streams = streams_of(t, CASES[3])
        t.story[0] = f"model = ToyModel(fails_at={at})"
        t.raises("OSError", lockstep, ToyModel(fails_at=at), streams, shown="lockstep(model, [a, b])")


@ex.check("each stream takes its logits itself, with `stream.take`")
def own_take(lockstep, t):
    for specs in CASES:
        streams = streams_of(t, specs)
        for stream in streams:
            stream.__class__ = CountingStream
        call_lockstep(lockstep, t, ToyModel(), streams)
        for name, stream in zip(NAMES, streams):
            t.holds(len(stream.taken) == stream.added,
                    f"{name} has {stream.added} new tokens, and {name}.take was called {len(stream.taken)} times")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch06.isolate",
    title="A failure stays in its stream",
    points=15,
    level="hard",
    section="06.4",
    hints=[
        "Three places can fail. Before the pass (a full cache) and after it (`take`), the failure belongs to one stream. "
        "In the pass, it belongs to all of them, and only that error goes on to the caller.",
        "Put a `try` around what one stream does after the pass, not around the loop over the streams. Catch Exception, "
        "since Ctrl-C is nobody's failure.",
        "The pass has written a row for every stream in it. A stream that got no token has a row too many. One line "
        "repairs each of them: cache.truncate(len(history) - 1).",
        "Run that line for all streams of the pass in a `finally`. It also runs when Ctrl-C breaks off the loop, and it "
        "changes nothing where all went well.",
    ],
)


@ex.solution
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
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error = KvCacheOverflow(f"the cache holds {stream.cache.len} rows, no further one fits")
            stream.ended = True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except Exception as error:
                stream.error, stream.ended = error, True
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("A stream that has ended gets a KvCacheOverflow because its last token filled the cache. Ask first whether it "
          "goes on at all.")
def full_although_ended(model, streams):
    live = []
    for stream in streams:
        if stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except Exception as error:
                stream.error, stream.ended = error, True
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("The failure of one stream ends the step for the streams after it, and reaches the caller. Catch it where it "
          "happens: around what one stream does.")
def stops_all(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except Exception as error:
                stream.error, stream.ended = error, True
                raise
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("The error is lost: the stream ends as if all were well, and nobody learns why. Keep the exception in "
          "stream.error.")
def swallows(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.ended = True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except Exception:
                stream.ended = True
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("The failing stream is left with a row too many: the pass has written its row, and no token came of it. "
          "Rewind its cache to len(history) - 1.")
def no_rewind(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    for stream, logits in zip(live, out):
        try:
            stream.take(logits[-1])
        except Exception as error:
            stream.error, stream.ended = error, True
    return len(live)


@ex.wrong("Rewinds the failing stream only. When Ctrl-C breaks off the loop, the streams that it did not reach have a row "
          "without a token as well. Rewind all of them, in a `finally`.")
def rewinds_one(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    for stream, logits in zip(live, out):
        try:
            stream.take(logits[-1])
        except Exception as error:
            stream.error, stream.ended = error, True
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("Takes a settled token back when emit fails. The model has chosen it, and the reader may have seen it: the "
          "history keeps it (chapter 05).")
def takes_back(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            before = len(stream.history)
            try:
                stream.take(logits[-1])
            except Exception as error:
                stream.error, stream.ended = error, True
                del stream.history[before:]
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("The failed stream has not ended: it takes part in the next pass again. Set `ended` as well as `error`.")
def stays_in(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except Exception as error:
                stream.error = error
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("A stream with a full cache goes into the pass, and the pass is refused for all of them. Compare cache.len with "
          "cache.capacity before the pass.")
def full_for_all(model, streams):
    live = [stream for stream in streams if not stream.ended]
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except Exception as error:
                stream.error, stream.ended = error, True
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("An error of the shared pass ends all streams. It belongs to none of them: let it go on to the caller, who may "
          "try again.")
def blames_the_streams(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    try:
        out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    except Exception as error:
        for stream in live:
            stream.error, stream.ended = error, True
        return 0
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except Exception as error:
                stream.error, stream.ended = error, True
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("Ctrl-C becomes the error of a stream, and the batch goes on. But somebody wants to stop everything: catch "
          "Exception, not BaseException.")
def swallows_ctrl_c(model, streams):
    live = []
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
        elif not stream.ended:
            live.append(stream)
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "all") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except BaseException as error:
                stream.error, stream.ended = error, True
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


@ex.wrong("Catches a few kinds of errors, those that it has seen. A stream's `choose` and `emit` are others' code, and raise what they "
          "like: `except Exception`.")
def knows_some_errors(model, streams):
    for stream in streams:
        if not stream.ended and stream.cache.len == stream.cache.capacity:
            stream.error, stream.ended = KvCacheOverflow("full"), True
    live = [stream for stream in streams if not stream.ended]
    if not live:
        return 0
    out = model.forward_rows([(stream.cache, [stream.history[-1]], "last") for stream in live])
    try:
        for stream, logits in zip(live, out):
            try:
                stream.take(logits[-1])
            except (OSError, ValueError, ArithmeticError) as error:
                stream.error, stream.ended = error, True
    finally:
        for stream in live:
            stream.cache.truncate(len(stream.history) - 1)
    return len(live)


class Faulty:
    """A choose or an emit that raises at its call number `at` (from 0)."""

    def __init__(self, at, error, work=None):
        self.at, self.error, self.work, self.calls = at, error, work, 0

    def __call__(self, value):
        self.calls += 1
        if self.calls - 1 == self.at:
            raise self.error
        return None if self.work is None else self.work(value)


def batch_of_three(t, place="", at=0, error=None, who=1):
    """Three streams of 3, 4 and 2 tokens, one of which fails in choose or emit; told as code."""
    specs = [([5], 3), ([8, 2], 4), ([3, 1, 4], 2)]
    streams, lines = [], ["model = ToyModel()"]
    for i, (prompt, n) in enumerate(specs):
        options, rest = {}, ")"
        if place and i == who:
            options[place] = Faulty(at, error, greedy if place == "choose" else None)
            rest = f", {place}=fails)      # raises {type(error).__name__} at call {at}"
        streams.append(open_stream(prompt, n, **options))
        lines.append(f"{NAMES[i]} = open_stream({prompt}, {n}{rest}")
    t.case(*lines)
    return streams, specs


def run_steps(step, t, model, streams, most=12):
    """Steps until nobody goes on; returns the rows of each."""
    rows = []
    for _ in range(most):
        got = t.call(step, model, streams, shown=None, changes=True)
        t.holds(isinstance(got, int), f"step returned {got!r}, expected how many rows the pass had")
        if got == 0:
            t.story.append(f"step(model, [a, b, c])      # {len(rows)} times, until it returns 0")
            return rows
        rows.append(got)
    return t.fail(f"step was called {most} times, and still some stream goes on")


def whole(t, streams):
    """len(history) == cache.len + 1, and the rows are those of the history."""
    for name, stream in zip(NAMES, streams):
        t.equal(stream.cache.len, len(stream.history) - 1, f"{name}.cache.len")
        t.equal(stream.cache.rows[:stream.cache.len], stream.history[:-1], f"rows of {name}.cache")


@ex.check("the other streams say what they say alone")
def others_go_on(step, t):
    for place, at in (("", 0), ("choose", 0), ("emit", 0), ("choose", 2), ("emit", 1)):
        for who in (1, 0) if place else (1,):
            streams, specs = batch_of_three(t, place, at, OSError("the reader has left"), who)
            run_steps(step, t, ToyModel(), streams)
            for i, (stream, (prompt, n)) in enumerate(zip(streams, specs)):
                if i != who or not place:
                    t.equal(stream.history, prompt + said_alone(prompt, n), f"{NAMES[i]}.history")
                    t.holds(stream.error is None, f"{NAMES[i]} did not fail, but {NAMES[i]}.error is {stream.error!r}")


@ex.check("the failing stream has ended, with its error, and takes part in no further pass")
def error_is_kept(step, t):
    for place, at, error in (("choose", 0, OSError("the reader has left")), ("emit", 0, OSError("the reader has left")),
                             ("emit", 1, type("NobodyThere", (Exception,), {})("no reader")), ("choose", 0, KeyError(3))):
        streams, _ = batch_of_three(t, place, at, error)
        rows = run_steps(step, t, ToyModel(), streams)
        t.holds(streams[1].error is error,
                f"b.error is {streams[1].error!r}, expected what b.{place} raised: {error!r}")
        t.holds(bool(streams[1].ended), "b.ended is not set")
        want = [[3, 2, 1], [3, 3, 1]][at]
        t.equal(rows, want, "rows of each pass")


@ex.check("history and cache of a failing stream fit together")
def fits(step, t):
    for place, at in (("choose", 0), ("emit", 0), ("choose", 1), ("emit", 2)):
        streams, specs = batch_of_three(t, place, at, OSError("the reader has left"))
        run_steps(step, t, ToyModel(), streams)
        prompt, n = specs[1]
        settled = at + (place == "emit")
        t.equal(streams[1].history, prompt + said_alone(prompt, n)[:settled], "b.history")
        whole(t, streams)


@ex.check("a stream whose cache is full ends before the pass, the others go on")
def full_cache(step, t):
    for room in (1, 0, 2):
        t.case("model = ToyModel()", "a = open_stream([5], 3)",
               f"b = open_stream([8, 2], 4, capacity={room + 1})      # room for {room} more",
               "c = open_stream([3], 2)")
        streams = [open_stream([5], 3), open_stream([8, 2], 4, capacity=room + 1), open_stream([3], 2)]
        run_steps(step, t, ToyModel(), streams)
        error = streams[1].error
        t.holds(type(error).__name__ == "KvCacheOverflow", f"b.error is {error!r}, expected a KvCacheOverflow")
        t.holds(bool(streams[1].ended), "b.ended is not set")
        t.equal(streams[1].history, [8, 2] + said_alone([8, 2], 4)[:room], "b.history")
        t.equal(streams[0].history, [5] + said_alone([5], 3), "a.history")
        t.equal(streams[2].history, [3] + said_alone([3], 2), "c.history")
        whole(t, streams)
    t.case("model = ToyModel()", "a = open_stream([8, 2], 4, capacity=1)      # no room")
    stream = open_stream([8, 2], 4, capacity=1)
    t.equal(t.call(step, ToyModel(), [stream], shown="step(model, [a])", changes=True), 0)
    t.holds(type(stream.error).__name__ == "KvCacheOverflow" and bool(stream.ended),
            f"a.error is {stream.error!r}, a.ended {stream.ended!r}; expected a KvCacheOverflow and True")


@ex.check("a stream ends as in `lockstep`, also when its last token fills the cache: that is no error")
def ends_well(step, t):
    for prompt, options in (([5], {"max_tokens": 2, "capacity": 2}), ([8, 2], {"max_tokens": 9}), ([0], {"max_tokens": 4})):
        said = said_alone(prompt, options["max_tokens"])
        for stop in ((None,) if "capacity" in options else (said[0], said[2])):
            words = ", ".join(f"{name}={value}" for name, value in {**options, "stop": stop}.items())
            t.case("model = ToyModel()", f"a = open_stream({prompt}, {words})")
            stream = open_stream(prompt, stop=stop, **options)
            want = prompt + (said if stop is None else said[:said.index(stop) + 1])
            run_steps(step, t, ToyModel(), [stream])
            t.call(step, ToyModel(), [stream], shown="step(model, [a])      # it has ended", changes=True)
            t.equal(stream.history, want, "a.history")
            t.holds(stream.error is None, f"a.error is {stream.error!r}, but a has simply ended")


@ex.check("an error of the pass goes on to the caller, and nothing has changed")
def pass_fails(step, t):
    for at in (0, 1):
        streams, specs = batch_of_three(t)
        t.story[0] = f"model = ToyModel(fails_at={at})"
        model = ToyModel(fails_at=at)
        for _ in range(at):
            t.call(step, model, streams, shown="step(model, [a, b, c])", changes=True)
        before = [list(stream.history) for stream in streams]
        t.raises("OSError", step, model, streams, shown="step(model, [a, b, c])      # the pass fails")
        t.equal([stream.history for stream in streams], before, "the histories")
        t.holds(not any(stream.ended or stream.error for stream in streams),
                "a stream has ended, or has an error; the failure was not its own")
        whole(t, streams)
        run_steps(step, t, model, streams)  # tried again
        for name, stream, (prompt, n) in zip(NAMES, streams, specs):
            t.equal(stream.history, prompt + said_alone(prompt, n), f"{name}.history")


@ex.check("Ctrl-C goes on to the caller, and every stream is whole")
def ctrl_c(step, t):
    for place, who in (("emit", 2), ("emit", 0), ("choose", 1)):
        streams, specs = batch_of_three(t, place, 0, KeyboardInterrupt(), who)
        t.raises("KeyboardInterrupt", step, ToyModel(), streams, shown="step(model, [a, b, c])")
        t.holds(not any(stream.error for stream in streams), "KeyboardInterrupt is nobody's error, but a stream has it")
        whole(t, streams)
        run_steps(step, t, ToyModel(), streams)  # and they can go on
        for name, stream, (prompt, n) in zip(NAMES, streams, specs):
            t.equal(stream.history, prompt + said_alone(prompt, n), f"{name}.history, after going on")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch06.predict",
    title="Predict the gain",
    points=10,
    level="medium",
    section="06.5",
    hints=[
        "Write down which streams take part in the first pass, in the second, and so on. How many rows has each pass?",
        "A stream of n tokens takes part in passes 1 to n. Pass i has as many rows as there are lengths of i or more. "
        "One after another, every token costs a pass with one row.",
        "together = sum(seconds(rows of pass i)) over all passes; alone = sum(lengths) * seconds(1); the gain is "
        "alone / together.",
    ],
)


@ex.solution
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
    if sum(lengths) == 0:
        raise ValueError("there is no token to decode")
    together = sum(seconds(sum(n > i for n in lengths)) for i in range(max(lengths)))
    return sum(lengths) * seconds(1) / together


@ex.wrong("Returns tokens per pass. That is not the speed-up, since a pass with more rows takes more time. Add up the times "
          "of the passes.")
def tokens_per_pass(seconds, lengths):
    if sum(lengths) == 0:
        raise ValueError("none")
    return sum(lengths) / max(lengths)


@ex.wrong("Compares with one stream alone. One after another, every token of every stream costs a pass with one row.")
def forgets_the_others(seconds, lengths):
    if sum(lengths) == 0:
        raise ValueError("none")
    together = sum(seconds(sum(n > i for n in lengths)) for i in range(max(lengths)))
    return max(lengths) * seconds(1) / together


@ex.wrong("Keeps all streams in every pass until the longest one is done. Streams that have ended leave the batch: later "
          "passes have fewer rows, and cost less.")
def everybody_stays(seconds, lengths):
    if sum(lengths) == 0:
        raise ValueError("none")
    return sum(lengths) * seconds(1) / (max(lengths) * seconds(len(lengths)))


@ex.wrong("Works with the average number of rows. The cost of a pass is no straight line through zero, so the cost of the "
          "average is not the average of the costs. Add up pass by pass.")
def average_rows(seconds, lengths):
    if sum(lengths) == 0:
        raise ValueError("none")
    mean = sum(lengths) / max(lengths)
    return sum(lengths) * seconds(1) / (max(lengths) * seconds(max(1, round(mean))))


@ex.wrong("Upside down: divides the time together by the time one after another. Faster means above 1.")
def upside_down(seconds, lengths):
    if sum(lengths) == 0:
        raise ValueError("none")
    together = sum(seconds(sum(n > i for n in lengths)) for i in range(max(lengths)))
    return together / (sum(lengths) * seconds(1))


@ex.wrong("One pass too few: a stream of n tokens takes part in n passes, the last one included.")
def one_pass_too_few(seconds, lengths):
    if sum(lengths) == 0:
        raise ValueError("none")
    together = sum(seconds(sum(n > i for n in lengths)) for i in range(1, max(lengths)))
    return sum(lengths) * seconds(1) / (together or seconds(1))


@ex.wrong("Without a token there is nothing to divide by. Say so with a ValueError, before dividing.")
def divides_by_nothing(seconds, lengths):
    together = sum(seconds(sum(n > i for n in lengths)) for i in range(max(lengths, default=0)))
    return sum(lengths) * seconds(1) / together


# seconds(rows), as the lambda that a learner would write
COSTS = [("lambda rows: 1.0", lambda rows: 1.0), ("lambda rows: 3 + rows", lambda rows: 3.0 + rows),
         ("lambda rows: max(4, rows)", lambda rows: max(4.0, rows))]


def expect_gain(t, gain, cost, lengths, want):
    """Call, and compare the gain."""
    told, seconds = cost
    t.case(f"seconds = {told}")
    t.close(t.call(gain, seconds, lengths, shown=f"gain(seconds, {lengths})"), want, "the gain", rtol=1e-9)


@ex.check("streams of one length: N / C(N)")
def equal_lengths(gain, t):
    for cost in COSTS:
        for n, length in ((1, 1), (2, 1), (2, 3), (8, 2)):
            expect_gain(t, gain, cost, [length] * n, n * cost[1](1) / cost[1](n))


@ex.check("streams that end leave the pass")
def ragged(gain, t):
    for lengths, rows in (([1, 2], [2, 1]), ([3, 1, 1], [3, 1, 1]), ([2, 0, 5], [2, 2, 1, 1, 1]),
                          ([1, 2, 3, 4], [4, 3, 2, 1]), ([9, 1, 1, 1, 1, 1], [6] + [1] * 8)):
        for cost in COSTS:
            alone = sum(lengths) * cost[1](1)
            expect_gain(t, gain, cost, lengths, alone / sum(cost[1](r) for r in rows))


@ex.check("where n rows cost as much as n passes, nothing is gained")
def nothing_gained(gain, t):
    for lengths in ([2], [1, 1], [3, 1], [4, 2, 7]):
        expect_gain(t, gain, ("lambda rows: 0.5 * rows", lambda rows: 0.5 * rows), lengths, 1.0)


@ex.check("no token at all is a ValueError")
def nothing_to_do(gain, t):
    for lengths in ([], [0], [0, 0]):
        t.case("seconds = lambda rows: 1.0")
        t.raises("ValueError", gain, lambda rows: 1.0, lengths, shown=f"gain(seconds, {lengths})")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch06.admit",
    title="A new stream joins",
    points=15,
    level="medium",
    section="06.6",
    hints=[
        "For any stream, which tokens have no row yet? history[cache.len:]. One token: it decodes. More: its prompt is "
        "still to be computed. The two differ in nothing else.",
        "First, one row for each stream that decodes. The rest of the limit goes to the prompts, in their order: each gets "
        "as many rows as it needs, until none are left.",
        "A request asks for \"last\" when it reaches the end of the history, since a token is chosen from that row. A "
        "piece that ends earlier asks for \"none\".",
        "Write two loops over the streams that have not ended: one for those with a single token to do, and one for the "
        "others. In the second, n = min(todo, room), and then room -= n.",
    ],
)


@ex.solution
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
    going = [stream for stream in streams if not stream.ended]
    decoding = [stream for stream in going if len(stream.history) - stream.cache.len == 1]
    requests = [(stream, stream.history[-1:], "last") for stream in decoding]
    room = limit - len(requests)
    for stream in going:
        todo = stream.history[stream.cache.len:]
        if len(todo) > 1 and room > 0:
            requests.append((stream, todo[:room], "last" if len(todo) <= room else "none"))
            room -= len(todo[:room])
    return requests


@ex.wrong("Serves prompts and readers in one queue. A long prompt takes the whole pass, and the streams that decode stand "
          "still. They come first, with one row each.")
def one_queue(streams, limit):
    requests, room = [], limit
    for stream in streams:
        todo = stream.history[stream.cache.len:]
        if not stream.ended and room > 0:
            requests.append((stream, todo[:room], "last" if len(todo) <= room else "none"))
            room -= len(todo[:room])
    return requests


@ex.wrong("A prompt goes in whole, however long it is. The pass has more rows than the limit, and everybody in it waits. "
          "Cut the prompt to the rows that are left.")
def over_the_limit(streams, limit):
    going = [stream for stream in streams if not stream.ended]
    requests = [(s, s.history[-1:], "last") for s in going if len(s.history) - s.cache.len == 1]
    room = limit - len(requests)
    for stream in going:
        todo = stream.history[stream.cache.len:]
        if len(todo) > 1 and room > 0:
            requests.append((stream, todo, "last"))
            room -= len(todo)
    return requests


@ex.wrong("Passes over a prompt that does not fit whole, and shorter ones that came later overtake it. On a busy server it "
          "may never get its turn. Give it the rows that are left.")
def overtakes(streams, limit):
    going = [stream for stream in streams if not stream.ended]
    requests = [(s, s.history[-1:], "last") for s in going if len(s.history) - s.cache.len == 1]
    room = limit - len(requests)
    for stream in going:
        todo = stream.history[stream.cache.len:]
        if 1 < len(todo) <= room:
            requests.append((stream, todo, "last"))
            room -= len(todo)
    return requests


@ex.wrong("Takes one prompt per pass, although rows are left. The weights are read anyway, so a further row is cheap: go on "
          "with the next prompt.")
def one_prompt(streams, limit):
    going = [stream for stream in streams if not stream.ended]
    requests = [(s, s.history[-1:], "last") for s in going if len(s.history) - s.cache.len == 1]
    room = limit - len(requests)
    for stream in going:
        todo = stream.history[stream.cache.len:]
        if len(todo) > 1 and room > 0:
            requests.append((stream, todo[:room], "last" if len(todo) <= room else "none"))
            break
    return requests


@ex.wrong("Asks for logits in the middle of a prompt. A token would be chosen there, before the whole question is read. "
          "Ask for \"last\" only where the tokens reach the end of the history.")
def chooses_early(streams, limit):
    going = [stream for stream in streams if not stream.ended]
    requests = [(s, s.history[-1:], "last") for s in going if len(s.history) - s.cache.len == 1]
    room = limit - len(requests)
    for stream in going:
        todo = stream.history[stream.cache.len:]
        if len(todo) > 1 and room > 0:
            requests.append((stream, todo[:room], "last"))
            room -= len(todo[:room])
    return requests


@ex.wrong("Begins the prompt again in every pass. Tokens that have a row are done: go on at history[cache.len].")
def begins_anew(streams, limit):
    going = [stream for stream in streams if not stream.ended]
    requests = [(s, s.history[-1:], "last") for s in going if len(s.history) - s.cache.len == 1]
    room = limit - len(requests)
    for stream in going:
        if len(stream.history) - stream.cache.len > 1 and room > 0:
            todo = stream.history[:room]
            requests.append((stream, todo, "last" if len(stream.history) <= room else "none"))
            room -= len(todo)
    return requests


@ex.wrong("Streams that have ended still get a row. Leave out whoever has `ended` set.")
def serves_the_ended(streams, limit):
    decoding = [stream for stream in streams if len(stream.history) - stream.cache.len == 1]
    requests = [(stream, stream.history[-1:], "last") for stream in decoding]
    room = limit - len(requests)
    for stream in streams:
        todo = stream.history[stream.cache.len:]
        if len(todo) > 1 and room > 0:
            requests.append((stream, todo[:room], "last" if len(todo) <= room else "none"))
            room -= len(todo[:room])
    return requests


@ex.wrong("Gives a prompt eight rows at most. It gets as many as it needs, or as many as there are.")
def eight_rows_each(streams, limit):
    live = [stream for stream in streams if not stream.ended]
    missing = {id(stream): stream.history[stream.cache.len:] for stream in live}
    left = limit - sum(len(tokens) == 1 for tokens in missing.values())
    out = []
    for stream in live:
        tokens = missing[id(stream)]
        part = tokens if len(tokens) == 1 else tokens[:min(left, 8)]
        left -= len(part) if len(tokens) > 1 else 0
        if part:
            out.append((stream, part, "last" if len(part) == len(tokens) else "none"))
    return out


def joining(t, specs, limit):
    """Streams from (prompt, rows in the cache, ended); told as code."""
    streams, lines = [], []
    for name, (prompt, rows, ended) in zip(NAMES, specs):
        streams.append(open_stream(prompt, 0 if ended else 4, rows))
        note = "has ended" if ended else "decodes" if len(prompt) - rows == 1 else f"{len(prompt) - rows} tokens to do"
        lines.append(f"{name} = open_stream({prompt}, {0 if ended else 4}, rows={rows})      # {note}")
    t.case(*lines)
    return streams


def requests_of(next_pass, t, streams, limit):
    """Call it; the answer as {name: (tokens, want)}, or a message that says what it should look like."""
    before = [(list(s.history), s.cache.len) for s in streams]
    names = NAMES[:len(streams)]
    got = t.call(next_pass, streams, limit, shown=f"next_pass([{', '.join(names)}], limit={limit})", changes=True)
    t.holds(isinstance(got, list), f"the result is {got!r}, expected a list of (stream, tokens, want)")
    answer = {}
    for item in got:
        t.holds(isinstance(item, tuple) and len(item) == 3, "an item of the list is not (stream, tokens, want)")
        name = next((n for n, s in zip(names, streams) if s is item[0]), None)
        t.holds(name is not None, "the first thing of a request is none of the streams")
        t.holds(name not in answer, f"{name} appears twice; a cache may be in a pass only once")
        answer[name] = (list(item[1]), item[2])
    t.holds([(s.history, s.cache.len) for s in streams] == before, "a stream was changed; the pass has not run yet")
    return answer


def expect_pass(next_pass, t, specs, limit, want):
    """The rows of one pass, compared stream by stream."""
    got = requests_of(next_pass, t, joining(t, specs, limit), limit)
    for name in NAMES[:len(specs)]:
        told = "no rows" if name not in got else f"{got[name][0]} and {got[name][1]!r}"
        wanted = "no rows" if name not in want else f"{want[name][0]} and {want[name][1]!r}"
        t.holds(told == wanted, f"{name} gets {told}, expected {wanted}")


@ex.check("streams that decode get their row, whatever waits")
def decode_first(next_pass, t):
    expect_pass(next_pass, t, [([5], 0, False)], 4, {"a": ([5], "last")})
    expect_pass(next_pass, t, [([5, 6], 1, False), ([8], 0, False)], 2, {"a": ([6], "last"), "b": ([8], "last")})
    expect_pass(next_pass, t, [([8, 2, 9], 0, False), ([5], 0, False)], 3,
                {"a": ([8, 2], "none"), "b": ([5], "last")})
    expect_pass(next_pass, t, [([8, 2, 9, 4], 0, False), ([5], 0, False), ([6, 7], 1, False)], 3,
                {"a": ([8], "none"), "b": ([5], "last"), "c": ([7], "last")})


@ex.check("what is left goes to prompts, first come, first served, within the limit")
def prompts(next_pass, t):
    expect_pass(next_pass, t, [([8, 2], 0, False)], 4, {"a": ([8, 2], "last")})
    expect_pass(next_pass, t, [([8, 2, 9], 0, False)], 2, {"a": ([8, 2], "none")})
    expect_pass(next_pass, t, [([*range(40)], 0, False), ([5], 0, False)], 33, {"a": ([*range(32)], "none"), "b": ([5], "last")})
    expect_pass(next_pass, t, [([8, 2, 9], 0, False), ([3, 1], 0, False)], 4,
                {"a": ([8, 2, 9], "last"), "b": ([3], "none")})
    expect_pass(next_pass, t, [([5], 0, False), ([8, 2, 9, 7], 0, False), ([3, 1], 0, False)], 4,
                {"a": ([5], "last"), "b": ([8, 2, 9], "none")})


@ex.check("a prompt goes on where its cache ends")
def pieces(next_pass, t):
    expect_pass(next_pass, t, [([8, 2, 9], 1, False)], 4, {"a": ([2, 9], "last")})
    expect_pass(next_pass, t, [([8, 2, 9, 7, 6], 2, False)], 2, {"a": ([9, 7], "none")})


@ex.check("streams that have ended get nothing")
def ended(next_pass, t):
    expect_pass(next_pass, t, [([5], 0, True)], 4, {})
    expect_pass(next_pass, t, [([5], 0, True), ([8, 2], 0, True), ([3], 0, False)], 4, {"c": ([3], "last")})


@ex.check("run to the end: every stream says what it says alone, and no pass is over the limit")
def to_the_end(next_pass, t):
    for limit in (3, 5, 16):
        model = ToyModel()
        specs = [([5], 3, 0), ([8, 2, 9, 7, 6, 1, 3], 2, 0), ([60, 61, 62, 63], 4, 2)]  # prompt, tokens, joins at pass
        streams, waiting, passes = [], list(specs), 0
        while passes < 40:
            while waiting and waiting[0][2] <= passes:
                prompt, n, _ = waiting.pop(0)
                streams.append(open_stream(prompt, n, rows=0))
            t.case("model = ToyModel()", f"# pass {passes} of a run with limit={limit}: prompts of 1 and 7 tokens at "
                                         "once, one of 4 joins at pass 2")
            names = dict(zip(NAMES, streams))
            requests = requests_of(next_pass, t, streams, limit)
            if not requests:
                break
            sent = [(names[name], tokens, want) for name, (tokens, want) in requests.items()]
            with contextlib.suppress(EmptyInput):
                out = model.forward_rows([(s.cache, tokens, want) for s, tokens, want in sent])
            t.holds(sum(model.passes[-1]) <= limit, f"the pass has {sum(model.passes[-1])} rows, the limit is {limit}")
            for (stream, _, want), logits in zip(sent, out):
                if want == "last":
                    stream.history.append(greedy(logits[-1]))
                    stream.ended = stream.added == stream.max_tokens
            passes += 1
        for name, stream, (prompt, n, _) in zip(NAMES, streams, specs):
            t.equal(stream.history, prompt + said_alone(prompt, n), f"{name}.history")
