"""Chapter 15 - A server that batches continuously.

One model, and many who ask at once.  You write the step that lets requests join and leave
between any two passes.  You send text piece by piece, and never cut a character.  You decide
who may wait and who should come back later, and share one model among tenants fairly.  At
the end your scheduler serves the real model, under load.

A server is made of parts that know little of each other.  The scheduler knows rows, and
nothing of text.  The framing knows bytes, and nothing of the model.  The admission rule
knows counts alone.
"""

import codecs
import json
import math

import numpy as np

from course.exercises import Exercise, given

@given
class EmptyInput(ValueError):
    """A pass has no row."""


@given
class KvCacheOverflow(ValueError):
    """Rows would be written past a cache's capacity."""


@given
class ToyCache:
    """Rows of one request; a row is its token, and `len` counts them."""

    def __init__(self, capacity):
        self.rows, self.capacity = [], capacity

    @property
    def len(self):
        """How many rows there are."""
        return len(self.rows)


@given
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


@given
def greedy(logits):
    """The most likely token."""
    return int(np.argmax(logits))


@given
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


@given
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


@given
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


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch15.step",
    title="A step of the scheduler",
    points=20,
    level="hard",
    section="15.3",
    hints=[
        "Five things happen in a step. Those who have gone leave, others join, the rows of the pass are chosen, the pass runs, and "
        "each request whose newest token was in it takes its logits. Write them one below the other.",
        "A request has `missing` tokens: those without a row. With one of them it decodes. With more it is still reading its prompt. "
        "First plan one row for each that decodes; then let those that read share what is left of `rows`, in the order of `running`.",
        "Make a list `works` of (request, tokens, want) and build the requests of the pass from it. Zip the logits with this list, "
        "and with no other: `running` may hold somebody who got no row.",
        "Taking turns is one line after the pass: the first that read in it is removed from `running`, and appended at its end.",
    ],
)


@ex.solution
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

    @given
    def __init__(self, model, rows=16, streams=4):
        self.model, self.rows, self.streams = model, rows, streams
        self.waiting, self.running = [], []

    @given
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
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]


@ex.wrong("Prompts come first, and those who are in the middle of a sentence get what is left: nothing, as long as a long prompt is "
          "read. Every request that decodes has its row in every pass.", "Scheduler")
class ReadersFirst(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works, room, readers = [], self.rows, []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1][:room] + works
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Nobody joins before all who run are done. A newcomer waits for the slowest of strangers, and free places stay empty. Let "
          "requests join in every step.", "Scheduler")
class OneGroupAtATime(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        free = not self.running
        while free and self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Reads prompts only while nobody decodes. On a busy server somebody always does, and a newcomer starves. What the "
          "decoding requests leave of the rows goes to prompts.", "Scheduler")
class PromptsStarve(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = 0 if works else self.rows, []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("The pass that ends a prompt gives the first token of the reply. This scheduler throws its logits away when the request "
          "has joined in the same step, and the token is lost.", "Scheduler")
class LosesTheFirstToken(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        before = list(self.running)
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last" and (request in before or len(request.history) > request.prompt):
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Zips the logits with `running`. Requests that read their prompts stand elsewhere in the pass, or not in it at all, so as "
          "soon as somebody joins, tokens reach the wrong people. Zip with the list from which the pass was made.", "Scheduler")
class MixesUp(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        running = list(self.running)
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for request, logits in zip(running, out):
            if len(logits):
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("A prompt goes into the pass whole, and the pass has more rows than `rows`. Everybody in it waits. Cut the prompt to what "
          "is left.", "Scheduler")
class WholePrompts(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo, "last"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Gives prompts `rows` rows beside those of the requests that decode. The budget is for all rows of the pass together.", "Scheduler")
class TwoBudgets(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows, []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Takes one prompt per pass, although rows are left. The weights are read anyway: go on with the next prompt.", "Scheduler")
class OnePromptPerPass(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room = 0
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Those that read do not take turns. A short question that came after a long one waits until all of the long one is read.", "Scheduler")
class NoTurns(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Serves the shortest prompt first. That is good on average, but as long as short ones keep coming, a long one never has "
          "its turn: it starves.", "Scheduler")
class ShortestFirst(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in sorted(self.running, key=lambda r: len(r.missing)):
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Takes logits in the middle of a prompt. A token is chosen before the whole question was read. They are wanted only where "
          "no token is missing afterwards.", "Scheduler")
class ChoosesEarly(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Runs a pass for the prompts and another one for the rest. Each of them reads all the weights: put all rows into one call "
          "of forward_rows.", "Scheduler")
class TwoPasses(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = []
        for part in (works[:len(works) - len(readers)], works[len(works) - len(readers):]):
            if part:
                out += self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in part])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Who has said everything keeps its place until the next step, or longer, and somebody waits for that place. Leave in the "
          "step that made the last token.", "Scheduler")
class LeavesLate(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        late = [r for r in self.running if r.ended]
        self.running = [r for r in self.running if not r.ended]
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return self.step() if late and self.waiting else []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Goes on for somebody who has hung up. The rows of nobody's reply cost everybody time.", "Scheduler")
class ServesTheGone(Scheduler):
    def step(self):
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Looks for those who have hung up among the running ones only. Who gave up while waiting still gets a place, and its "
          "prompt is read for nobody.", "Scheduler")
class WaitingAreForgotten(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("One reader's failure stops the step for the others, and reaches the caller. Catch it around what one request does.", "Scheduler")
class FailsTogether(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                request.take(logits[-1])
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("An error of the pass ends all who are in it. It belongs to none of them: let it go on to the caller, who may try the "
          "step again.", "Scheduler")
class BlamesAll(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        try:
            out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        except Exception as error:
            for request, _, _ in works:
                request.error, request.ended = error, True
            raise
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Sends the whole history through the model in every pass. Tokens that have a row are done: `missing` are those that have "
          "none.", "Scheduler")
class BeginsAnew(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        for request in self.running:
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Ctrl-C becomes the error of a request, and the server goes on. Somebody wants to stop everything: catch Exception, not "
          "BaseException.", "Scheduler")
class SwallowsCtrlC(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except BaseException as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("The error is lost: the request ends as if all were well, and nobody learns why. Keep the exception in `request.error`.", "Scheduler")
class KeepsTheError(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop(0)
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception:
                    request.ended = True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]



@ex.wrong("Whoever came last joins first, and the first may wait for ever. The line is served from its beginning.", "Scheduler")
class LastInFirstOut(Scheduler):
    def step(self):
        self.running = [r for r in self.running if not r.gone]
        self.waiting = [r for r in self.waiting if not r.gone]
        while self.waiting and len(self.running) < self.streams:
            request = self.waiting.pop()
            request.cache = self.model.new_cache(len(request.history) + request.max_tokens)
            self.running.append(request)
        works = [(r, r.missing, "last") for r in self.running if len(r.missing) == 1]
        room, readers = self.rows - len(works), []
        for request in self.running:
            todo = request.missing
            if len(todo) > 1 and room > 0:
                works.append((request, todo[:room], "last" if len(todo) <= room else "none"))
                readers.append(request)
                room -= len(works[-1][1])
        if not works:
            return []
        out = self.model.forward_rows([(r.cache, tokens, want) for r, tokens, want in works])
        if readers:
            self.running.remove(readers[0])
            self.running.append(readers[0])
        for (request, _, want), logits in zip(works, out):
            if want == "last":
                try:
                    request.take(logits[-1])
                except Exception as error:
                    request.error, request.ended = error, True
        self.running = [r for r in self.running if not r.ended]
        return [(r, len(tokens)) for r, tokens, _ in works]


NAMES = "abcdefghij"


def said_alone(prompt, max_tokens, stop=None):
    """The reply to a prompt on its own."""
    rows = list(prompt)
    for _ in range(max_tokens):
        rows.append(greedy(ToyModel().logits(rows)))
        if rows[-1] == stop:
            break
    return rows[len(prompt):]


class Play:
    """A scheduler under observation: requests that come and go at certain steps."""

    def __init__(self, t, Scheduler, rows, streams, fails_at=None):
        self.t, self.model, self.made = t, ToyModel(fails_at), []
        t.case("model = ToyModel()" if fails_at is None else f"model = ToyModel(fails_at={fails_at})",
               f"s = Scheduler(model, rows={rows}, streams={streams})")
        self.rows, self.streams = rows, streams
        self.scheduler = t.call(Scheduler, self.model, rows, streams, shown=None)

    def ask(self, length, max_tokens, said_stop=None, emit=None, note=""):
        """A request with a prompt of so many tokens."""
        n = len(self.made)
        prompt = [(7 * n + 3 * i + 5) % 90 for i in range(length)]
        stop = None if said_stop is None else said_alone(prompt, said_stop)[-1]
        request = Request(prompt, max_tokens, stop, emit=emit)
        request.name, request.want = NAMES[n], said_alone(prompt, max_tokens, stop)
        self.made.append(request)
        told = f"[{length} tokens], {max_tokens}" + ("" if stop is None else f", stop={stop}")
        self.t.story.append(f"{request.name} = Request({told}); s.submit({request.name}){note}")
        self.scheduler.submit(request)
        return request

    def step(self):
        """One step, checked for form and budget; gives {name: rows}."""
        before = len(self.model.passes)
        self.t.story.append("s.step()")
        got = self.t.call(self.scheduler.step, shown=None, changes=True)
        self.t.holds(isinstance(got, list), f"step() returned {got!r}, expected a list of (request, rows)")
        rows = {}
        for item in got:
            self.t.holds(isinstance(item, tuple) and len(item) == 2 and item[0] in self.made,
                         "an item of what step() returned is not (request, rows)")
            self.t.holds(item[0].name not in rows, f"{item[0].name} appears twice in what step() returned")
            rows[item[0].name] = item[1]
        passes = self.model.passes[before:]
        self.t.holds(len(passes) <= 1, f"one step ran {len(passes)} passes, of {passes} rows; expected one")
        if passes:
            self.t.holds(sum(passes[0]) <= self.rows, f"the pass has {sum(passes[0])} rows, the limit is {self.rows}")
        self.t.equal([n for _, n in got], passes[0] if passes else [], "the rows that step() returned")
        return rows

    def expect(self, *steps):
        """Steps with exactly these rows."""
        for want in steps:
            got = self.step()
            self.t.holds(got == want, f"the pass has rows {told_rows(got)}, expected {told_rows(want)}")
            self.t.holds(list(got) == list(want), f"the rows came in the order {', '.join(got)}, expected {', '.join(want)}")

    def run_out(self, most=200):
        """Steps until nobody is left."""
        for n in range(most):
            if not self.step():
                return n
        return self.t.fail(f"after {most} steps somebody still runs")

    def expect_said(self, *but):
        """Everybody has said what they say alone, and has left."""
        for request in self.made:
            if request not in but:
                self.t.equal(request.said, request.want, f"{request.name}.said")
                self.t.holds(request.ended, f"{request.name} has said everything, but {request.name}.ended is not set")
        left = [r.name for r in (*self.scheduler.running, *self.scheduler.waiting)]
        self.t.equal(left, [], "who is left in running and waiting")


def told_rows(rows):
    """{'a': 1} as words."""
    return ", ".join(f"{name}: {n}" for name, n in rows.items()) or "none"


@ex.check("one request: its prompt in pieces of at most `rows`, then a row per token")
def alone(Scheduler, t):
    play = Play(t, Scheduler, 4, 2)
    play.ask(1, 1)
    play.expect({"a": 1}, {})
    play.expect_said()
    play = Play(t, Scheduler, 4, 2)
    play.ask(6, 3)
    play.expect({"a": 4}, {"a": 2}, {"a": 1}, {"a": 1}, {})
    play.expect_said()
    play = Play(t, Scheduler, 4, 1)
    play.ask(3, 6, said_stop=2)
    play.run_out()
    play.expect_said()
    play = Play(t, Scheduler, 1, 1)
    play.ask(3, 2)
    play.expect({"a": 1}, {"a": 1}, {"a": 1}, {"a": 1}, {})
    play.expect_said()


@ex.check("who decodes has a row in every pass; what is left goes to prompts")
def readers_wait(Scheduler, t):
    play = Play(t, Scheduler, 4, 3)
    play.ask(1, 6)
    play.expect({"a": 1})
    play.ask(9, 2)
    play.expect({"a": 1, "b": 3}, {"a": 1, "b": 3}, {"a": 1, "b": 3}, {"a": 1, "b": 1}, {"a": 1})
    play.expect_said()
    play = Play(t, Scheduler, 3, 3)
    play.ask(1, 3)
    play.ask(1, 3)
    play.ask(2, 1)
    play.expect({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1}, {})
    play.expect_said()


@ex.check("a free place is taken in the next step, by whoever has waited longest")
def joining(Scheduler, t):
    play = Play(t, Scheduler, 8, 2)
    for n in (3, 1, 2, 1):
        play.ask(1, n)
    play.expect({"a": 1, "b": 1}, {"a": 1, "c": 1}, {"a": 1, "c": 1}, {"d": 1}, {})
    play.expect_said()


@ex.check("prompts share what is left, and take turns to be first")
def turns(Scheduler, t):
    play = Play(t, Scheduler, 4, 3)
    play.ask(9, 1)
    play.ask(2, 2)
    play.expect({"a": 4}, {"b": 2, "a": 2}, {"b": 1, "a": 3}, {})
    play.expect_said()
    play = Play(t, Scheduler, 5, 4)
    play.ask(2, 1)
    play.ask(2, 1)
    play.ask(7, 1)
    play.expect({"a": 2, "b": 2, "c": 1}, {"c": 5}, {"c": 1}, {})
    play.expect_said()
    play = Play(t, Scheduler, 4, 3)
    play.ask(9, 1)
    for _ in range(6):
        play.ask(3, 1)
    for _ in range(2):
        play.step()
    first = play.made[0]
    for _ in range(6):
        play.step()
    t.holds(first.ended, "a asked first, and short prompts that came after it go before it again and again")
    play.run_out()
    play.expect_said()


@ex.check("who has hung up takes part in no further pass, and its place is free at once")
def gone(Scheduler, t):
    play = Play(t, Scheduler, 4, 2)
    a, b = play.ask(1, 5), play.ask(1, 5)
    play.expect({"a": 1, "b": 1})
    play.ask(1, 2)
    t.story.append("a.gone = True")
    a.gone = True
    play.expect({"b": 1, "c": 1})
    t.equal(len(a.said), 1, "tokens of a, which has hung up")
    t.story.append("b.gone = True")
    b.gone = True
    play.run_out()
    play.expect_said(a, b)
    play = Play(t, Scheduler, 4, 1)
    play.ask(1, 1)
    b = play.ask(3, 2)
    play.ask(1, 1)
    t.story.append("b.gone = True      # while it waits")
    b.gone = True
    play.expect({"a": 1}, {"c": 1}, {})
    play.expect_said(b)
    play = Play(t, Scheduler, 4, 1)
    a = play.ask(9, 1)
    play.expect({"a": 4})
    t.story.append("a.gone = True      # in the middle of its prompt")
    a.gone = True
    play.expect({})


@ex.check("a reader who fails ends its own request alone")
def fails_alone(Scheduler, t):
    for at in (0, 1):
        seen = []

        def emit(token, at=at, seen=seen):
            seen.append(token)
            if len(seen) > at:
                raise ConnectionError("the reader has left")

        play = Play(t, Scheduler, 4, 3)
        play.ask(1, 3)
        b = play.ask(2, 4, emit=emit, note=f"      # its emit raises a ConnectionError at call {at}")
        play.ask(1, 3)
        play.run_out()
        t.holds(type(b.error).__name__ == "ConnectionError", f"b.error is {b.error!r}, expected what its emit raised")
        t.holds(b.ended, "b.ended is not set")
        t.equal(b.said, b.want[:at + 1], "b.said")
        play.expect_said(b)
    play = Play(t, Scheduler, 4, 2)

    def stop_it(token):
        raise KeyboardInterrupt

    play.ask(1, 3, emit=stop_it, note="      # Ctrl-C comes while a emits")
    t.raises("KeyboardInterrupt", play.scheduler.step, shown="s.step()")


@ex.check("an error of the pass goes on to the caller, and the next step tries again")
def pass_fails(Scheduler, t):
    for at in (0, 1, 2):
        play = Play(t, Scheduler, 4, 2, fails_at=at)
        play.ask(1, 3)
        play.ask(7, 2)
        play.ask(1, 1)
        for _ in range(at):
            play.step()
        before = [list(r.history) for r in play.made]
        t.raises("OSError", play.scheduler.step, shown="s.step()      # the pass fails")
        t.equal([r.history for r in play.made], before, "the histories")
        t.holds(not any(r.ended or r.error for r in play.made),
                "a request has ended, or has an error; the failure was not its own")
        play.run_out()
        play.expect_said()


@ex.check("caches have room for the prompt and what may be said, and no more")
def capacities(Scheduler, t):
    play = Play(t, Scheduler, 4, 2)
    for length, n in ((1, 1), (5, 3)):
        request = play.ask(length, n)
        play.step()
        t.equal(request.cache.capacity, length + n, f"{request.name}.cache.capacity")


@ex.check("random traffic: everybody says what they say alone, within the budget, and nobody starves")
def traffic(Scheduler, t):
    for _ in range(40):
        streams = int(t.rng.integers(1, 5))
        rows = streams + int(t.rng.integers(0, 6))
        play = Play(t, Scheduler, rows, streams)
        shapes = [(int(t.rng.integers(1, 14)), int(t.rng.integers(1, 6)), int(t.rng.integers(0, 12))) for _ in range(7)]
        due = sorted(range(7), key=lambda i: shapes[i][2])
        for now in range(60):
            while due and shapes[due[0]][2] <= now:
                play.ask(*shapes[due.pop(0)][:2])
            decoding = [r for r in play.scheduler.running if len(r.missing) == 1]
            got = play.step()
            for request in decoding:
                t.holds(got.get(request.name) == 1, f"{request.name} decodes, but has no row in this pass")
            used, todo = sum(got.values()), [r for r in play.scheduler.running if len(r.missing) > 1]
            t.holds(used == rows or not todo or all(r.name in got for r in todo),
                    f"the pass has {used} rows of {rows}, although somebody has a prompt to read")
        play.run_out()
        play.expect_said()


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch15.frames",
    title="Events that never cut a character",
    points=10,
    level="medium",
    section="15.5",
    hints=[
        "A token is bytes, and a character may have up to four of them. Which bytes at the end of what has come so far may be the "
        "beginning of a character? Keep these, and send the rest.",
        "Python has a decoder that does this: codecs.getincrementaldecoder(\"utf-8\")(\"replace\"). Its decode(piece) gives what is "
        "decided, and keeps the rest for the next call.",
        "At the end, decode(b\"\", True) gives what was kept as replacement signs. An event is "
        "b\"data: \" + json.dumps({\"text\": text}).encode() + b\"\\n\\n\"; without text there is none.",
    ],
)


@given
def read_events(data):
    """What a reader makes of whole events: JSON values, and "[DONE]"."""
    bodies = [block.removeprefix("data: ") for block in data.decode("utf-8").split("\n\n")[:-1]]
    return [body if body == "[DONE]" else json.loads(body) for body in bodies]


@ex.solution
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
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece):
        """The next piece of the reply, as bytes of UTF-8; it may begin or end inside a character.

        Returns
        -------
        bytes
            One event, {"text": ...}, with all text that is decided: characters that are whole, and
            a U+FFFD for bytes that cannot become one any more.  Only the beginning of a
            character waits for more.  Without any text there is no event: b"".
        """
        text = self.decoder.decode(piece)
        return b"data: " + json.dumps({"text": text}).encode() + b"\n\n" if text else b""

    def end(self, reason):
        """The end of the reply.

        Returns
        -------
        bytes
            An event with what still waited, now as U+FFFD, if anything did; then the event
            {"finish": reason}; then `data: [DONE]` and an empty line, which is no JSON.
        """
        rest = self.decoder.decode(b"", True)
        events = [json.dumps({"text": rest})] if rest else []
        events += [json.dumps({"finish": reason}), "[DONE]"]
        return b"".join(b"data: " + event.encode() + b"\n\n" for event in events)


@ex.wrong("Decodes each piece on its own. A character whose bytes come in two pieces becomes two replacement signs. Keep the beginning "
          "of a character until the rest is there.", "Frames")
class EachAlone(Frames):
    def push(self, piece):
        text = piece.decode("utf-8", "replace")
        return b"data: " + json.dumps({"text": text}).encode() + b"\n\n" if text else b""


@ex.wrong("Ignores bytes that are no character. Of a character in two pieces, nothing is left; and nobody sees that something was "
          "lost.", "Frames")
class Ignores(Frames):
    def push(self, piece):
        text = piece.decode("utf-8", "ignore")
        return b"data: " + json.dumps({"text": text}).encode() + b"\n\n" if text else b""


@ex.wrong("Holds everything back until the whole of it can be decoded. One wrong byte, which a model may say, then silences the stream "
          "until its end. Only the beginning of a character waits.", "Frames")
class AllOrNothing(Frames):
    def __init__(self):
        super().__init__()
        self.held = b""

    def push(self, piece):
        self.held += piece
        try:
            self.held.decode("utf-8")
        except UnicodeDecodeError:
            return b""
        whole, self.held = self.held, b""
        return super().push(whole)

    def end(self, reason):
        return super().push(self.held) + super().end(reason)


@ex.wrong("Says everything at the end. That is no stream: the reader waits as long as without one.", "Frames")
class AtTheEnd(Frames):
    def __init__(self):
        super().__init__()
        self.held = b""

    def push(self, piece):
        self.held += piece
        return b""

    def end(self, reason):
        return super().push(self.held) + super().end(reason)


@ex.wrong("Ends an event with one line end. The empty line is what ends an event: without it the reader goes on collecting lines, and "
          "takes several events for one.", "Frames")
class OneLineEnd(Frames):
    def push(self, piece):
        return super().push(piece).replace(b"\n\n", b"\n")


@ex.wrong("Puts text into the line as it is. A line end in the text then ends the line, and the rest of it is lost; and who reads JSON "
          "finds none. json.dumps writes a line end as two characters, in one line.", "Frames")
class NoJson(Frames):
    def push(self, piece):
        text = self.decoder.decode(piece)
        return b"data: " + text.encode() + b"\n\n" if text else b""


@ex.wrong("Builds JSON by hand, with quotes around the text. A quote, a backslash or a line end in the text breaks it. json.dumps knows how "
          "to write them.", "Frames")
class JsonByHand(Frames):
    def push(self, piece):
        text = self.decoder.decode(piece)
        return b'data: {"text": "' + text.encode() + b'"}\n\n' if text else b""


@ex.wrong("Sends events without text while a character is not complete. Each costs a packet and says nothing: return b\"\".", "Frames")
class EmptyEvents(Frames):
    def push(self, piece):
        return super().push(piece) or b'data: {"text": ""}\n\n'


@ex.wrong("Forgets what still waited when the reply ends. A reply may end inside a character, where its last token or its limit of "
          "tokens falls: the reader sees a replacement sign.", "Frames")
class DropsTheRest(Frames):
    def end(self, reason):
        self.decoder.reset()
        return super().end(reason)


@ex.wrong("Always keeps the last character back. It is one token late all the time, and most characters are whole. Keep bytes only while "
          "they are the beginning of a character.", "Frames")
class OneLate(Frames):
    held = ""

    def push(self, piece):
        text = self.held + self.decoder.decode(piece)
        self.held = text[-1:]
        return b"data: " + json.dumps({"text": text[:-1]}).encode() + b"\n\n" if text[:-1] else b""

    def end(self, reason):
        text = self.held + self.decoder.decode(b"", True)
        rest = b"data: " + json.dumps({"text": text}).encode() + b"\n\n" if text else b""
        return rest + super().end(reason)


@ex.wrong("One decoder for all replies: what waits of one reply turns up in another. A decoder has a state, so each reply needs its own, "
          "made in __init__.", "Frames")
class Shared(Frames):
    decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def __init__(self):
        pass


@ex.wrong("The last line is missing. `data: [DONE]` tells the reader that the reply is complete; otherwise it cannot tell an end from a "
          "broken connection.", "Frames")
class NotDone(Frames):
    def end(self, reason):
        return super().end(reason).replace(b"data: [DONE]\n\n", b"")


@ex.wrong("Writes [DONE] as JSON, a text in quotes. It is the one line that is no JSON: readers compare it as it stands.", "Frames")
class QuotedDone(Frames):
    def end(self, reason):
        return super().end(reason).replace(b"[DONE]", b'"[DONE]"')


@ex.wrong("Does not say why the reply ended. Whether the model was done, or the limit was reached, is for the reader to know: an event "
          "{\"finish\": reason}.", "Frames")
class NoReason(Frames):
    def end(self, reason):
        told = b"data: " + json.dumps({"finish": reason}).encode() + b"\n\n"
        return super().end(reason).replace(told, b"")


def events_of(t, data):
    """What a reader makes of the bytes: a list of JSON values and "[DONE]"."""
    t.holds(isinstance(data, bytes), f"{type(data).__name__} came back, expected bytes")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        t.fail(f"the event is cut inside a character: {data!r}")
    t.holds(not text or text.endswith("\n\n"), f"what came back does not end with an empty line: {data!r}")
    events = []
    for block in text.split("\n\n")[:-1]:
        t.holds(block.startswith("data: ") and "\n" not in block,
                f"an event is not one line that begins with `data: `: {block!r}")
        body = block[6:]
        if body == "[DONE]":
            events.append(body)
            continue
        try:
            events.append(json.loads(body))
        except ValueError:
            t.fail(f"what follows `data: ` is no JSON: {body!r}")
        t.holds(isinstance(events[-1], dict), f"an event is {body!r}, expected an object like {{\"text\": ...}}, or [DONE] without quotes")
    return events


def text_of(t, events):
    """The texts of events that must be texts."""
    texts = []
    for event in events:
        t.holds(isinstance(event, dict) and list(event) == ["text"] and isinstance(event["text"], str),
                f"an event is {event!r}, expected {{\"text\": ...}}")
        t.holds(event["text"] != "", "an event without text was sent")
        texts.append(event["text"])
    return "".join(texts)


def play_pieces(t, Frames, pieces, reason="stop"):
    """Push pieces; every push must give what is decided by then, the end must give the rest."""
    t.case("frames = Frames()")
    frames, reference = t.call(Frames, shown=None), codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        want = reference.decode(piece)
        got = t.call(frames.push, piece, shown=f"frames.push({piece!r})")
        events = events_of(t, got)
        t.equal(text_of(t, events), want, "the text that is decided")
        t.holds(len(events) == bool(want), f"{len(events)} events came, expected one at most")
    events = events_of(t, t.call(frames.end, reason, shown=f"frames.end({reason!r})"))
    rest = reference.decode(b"", True)
    t.holds(events[-1:] == ["[DONE]"], f"the last event is {events[-1] if events else None!r}, expected [DONE]")
    t.equal(events[-2:-1], [{"finish": reason}], "the event before [DONE]")
    t.equal(text_of(t, events[:-2]), rest, "the text at the end")


def cut(data, *places):
    """Bytes cut at places."""
    edges = [0, *places, len(data)]
    return [data[a:b] for a, b in zip(edges, edges[1:])]


@ex.check("whole characters go out at once")
def at_once(Frames, t):
    for pieces in ([b"a"], [b"Hello", b" world"], ["é".encode()], ["日本".encode(), b"!"]):
        play_pieces(t, Frames, pieces)


@ex.check("the beginning of a character waits for the rest of it")
def waits(Frames, t):
    for text in ("é", "€", "🙂", "aé", "日本語", "👩‍🚀!"):
        data = text.encode()
        for at in range(1, len(data)):
            play_pieces(t, Frames, cut(data, at))
        play_pieces(t, Frames, [data[i:i + 1] for i in range(len(data))])


@ex.check("line ends, quotes and backslashes stay in the text, and in their line")
def escapes(Frames, t):
    for pieces in ([b"a\nb"], [b"\n"], [b"a\n\nb", b"c"], [b'say "yes"'], [b"C:\\new"], [b"\r\n", b"\t"], [b"data: x\n\n"]):
        play_pieces(t, Frames, pieces)


@ex.check("bytes that cannot become a character are a U+FFFD, at once")
def broken(Frames, t):
    for pieces in ([b"\xff", b"abc"], [b"a\xc3", b"b"], [b"\x80", b"x", b"y"], [b"\xe6\x97", b"!", b"?"], [b"\xf0\x9f\x99", b"\xf0\x9f\x99\x82"]):
        play_pieces(t, Frames, pieces)


@ex.check("a reply that ends inside a character says so")
def ends_inside(Frames, t):
    for pieces in ([b"a\xc3"], [b"\xf0\x9f"], [b"\xe6"], []):
        play_pieces(t, Frames, pieces, "length")


@ex.check("two replies at once do not mix")
def two_replies(Frames, t):
    t.case("one, two = Frames(), Frames()")
    one, two = t.call(Frames, shown=None), t.call(Frames, shown=None)
    t.equal(t.call(one.push, b"\xc3", shown='one.push(b"\\xc3")'), b"")
    events = events_of(t, t.call(two.push, b"b", shown='two.push(b"b")'))
    t.equal(text_of(t, events), "b", "the text of two")
    events = events_of(t, t.call(one.push, b"\xa9", shown='one.push(b"\\xa9")'))
    t.equal(text_of(t, events), "é", "the text of one")
    events_of(t, t.call(two.end, "stop", shown='two.end("stop")'))
    t.equal(text_of(t, events_of(t, t.call(one.push, b"!", shown='one.push(b"!")'))), "!", "the text of one")


@ex.check("random text and random bytes, cut anywhere")
def anywhere(Frames, t):
    letters = ["a", " ", "\n", '"', "\\", "é", "ß", "日", "🙂", "\u200d", "}"]
    for n in range(150):
        if n % 3:
            data = "".join(letters[i] for i in t.rng.integers(0, len(letters), 8)).encode()
        else:
            data = bytes(t.rng.choice([0x41, 0x80, 0xBF, 0xC3, 0xE2, 0x82, 0xAC, 0xF0, 0x9F, 0xFF], 10).tolist())
        places = sorted(set(t.rng.integers(1, len(data), 5).tolist()))
        play_pieces(t, Frames, cut(data, *places), ("stop", "length")[n % 2])


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch15.admit",
    title="Now, later, or never",
    points=10,
    level="medium",
    section="15.6",
    hints=[
        "Four answers, asked in this order. Can it ever fit? Can it begin right now, without overtaking anybody? May it wait? Otherwise, "
        "when should it come again?",
        "Little's law: a line of n that moves at `pace` per second takes n / pace seconds. The newcomer is one of the n.",
        "The most that may wait is most = min(limit, pace * patience). It need not be a whole number. If waiting + 1 are more than that, "
        "(waiting + 1 - most) / pace seconds have to pass; round up, and say at least 1.",
    ],
)


@ex.solution
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
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", math.ceil(patience))
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)


@ex.wrong("Lets a small request overtake those that wait. A large one, for which the rows are never free at once, then waits for "
          "ever. \"now\" is for an empty line.")
def overtakes(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", math.ceil(patience))
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Lets a request wait that can never fit. It would wait for ever, and all after it as well. Say \"never\" first.")
def waits_for_ever(need, load, limit, patience):
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", math.ceil(patience))
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Counts heads alone. A line of eight is short if it moves fast, and hopeless if it does not: compare the time that it "
          "takes with `patience`.")
def heads_alone(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", math.ceil(patience))
    most = limit
    if line <= most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Looks at the time alone. However fast the line moves, no more than `limit` may stand in it: each holds memory.")
def time_alone(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return "wait", 0
    most = load.pace * patience
    if line <= most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Forgets that the newcomer stands in the line as well. With it, the line has waiting + 1.")
def not_itself(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", math.ceil(patience))
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Multiplies where Little divides. A line of n that moves at `pace` per second takes n / pace seconds.")
def multiplies(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", math.ceil(patience))
    most = min(limit, patience / load.pace)
    if line <= most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Always says: in one second. Everybody who was refused comes back at once, and again, while the line has hardly moved. "
          "Say when there will be room.")
def one_second(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", 1)
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", 1



@ex.wrong("Sends them away until the whole line is gone. It is enough if so many have left that one more fits.")
def whole_line(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", math.ceil(patience))
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", max(1, math.ceil(load.waiting / load.pace))



@ex.wrong("Rounds down. Who comes back then is a moment too early, and is refused again; and 0 seconds is no answer at all. Round "
          "up, to at least 1.")
def rounds_down(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", int(patience))
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", int((line - most) / load.pace)



@ex.wrong("Divides by a pace of 0. A server that has just begun has no pace yet: then only `limit` counts.")
def divides_by_zero(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    most = min(limit, load.pace * patience)
    if line <= limit and line / load.pace <= patience:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Refuses where the numbers are equal. What needs exactly the rows that are there fits; and `limit` and `patience` may "
          "be reached.")
def strict(need, load, limit, patience):
    if need >= load.capacity:
        return "never", 0
    if load.waiting == 0 and need < load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line < limit else ("later", math.ceil(patience))
    most = min(limit, load.pace * patience)
    if line < most:
        return "wait", 0
    return "later", math.ceil((line - most) / load.pace)



@ex.wrong("Says the seconds as a float. A retry-after header has whole seconds.")
def as_float(need, load, limit, patience):
    if need > load.capacity:
        return "never", 0
    if load.waiting == 0 and need <= load.free:
        return "now", 0
    line = load.waiting + 1
    if load.pace == 0:
        return ("wait", 0) if line <= limit else ("later", float(patience))
    most = min(limit, load.pace * patience)
    if line <= most:
        return "wait", 0
    return "later", max(1.0, (line - most) / load.pace)


def expect_admit(t, admit, need, load, limit, patience, want):
    """One call, compared."""
    t.case(f"load = {load!r}")
    before = (load.capacity, load.free, load.waiting, load.pace)
    got = t.call(admit, need, load, limit, patience, shown=f"admit({need}, load, limit={limit}, patience={patience})")
    t.holds(isinstance(got, tuple) and len(got) == 2, f"the result is {got!r}, expected (what, seconds)")
    t.holds(isinstance(got[1], int), f"the seconds are {got[1]!r}, expected a whole number, an int")
    t.equal(got, want)
    t.equal((load.capacity, load.free, load.waiting, load.pace), before, "the load, which is not yours to change")


@ex.check("what can never fit is told so")
def never(admit, t):
    for need, capacity, want in ((101, 100, "never"), (100, 100, "now"), (5000, 100, "never"), (1, 1, "now")):
        expect_admit(t, admit, need, Load(capacity, capacity), 4, 10, (want, 0))
    expect_admit(t, admit, 101, Load(100, 0, waiting=3, pace=1.0), 4, 10, ("never", 0))
    expect_admit(t, admit, 101, Load(100, 0, waiting=4, pace=0.0), 4, 10, ("never", 0))


@ex.check("it begins now if it fits and nobody waits; nobody is overtaken")
def now(admit, t):
    for free, waiting, want in ((40, 0, "now"), (39, 0, "wait"), (100, 0, "now"), (100, 1, "wait"), (40, 2, "wait")):
        expect_admit(t, admit, 40, Load(100, free, waiting, pace=2.0), 4, 10, (want, 0))


@ex.check("it waits if line and time allow that")
def may_wait(admit, t):
    for waiting, pace, limit, patience in ((0, 1.0, 1, 1), (3, 1.0, 4, 4), (3, 0.5, 8, 8), (7, 4.0, 8, 2), (0, 0.25, 9, 4)):
        expect_admit(t, admit, 50, Load(100, 10, waiting, pace), limit, patience, ("wait", 0))


@ex.check("otherwise it is told when there will be room")
def later(admit, t):
    for waiting, pace, limit, patience, seconds in (
        (4, 1.0, 4, 100, 1), (6, 1.0, 4, 100, 3), (4, 0.5, 4, 100, 2), (9, 4.0, 4, 100, 2), (4, 0.5, 8, 8, 2), (8, 0.25, 32, 8, 28),
        (1, 0.25, 32, 2, 6), (16, 4.0, 16, 2, 3), (5, 8.0, 4, 100, 1), (7, 0.5, 8, 15, 1),
    ):
        expect_admit(t, admit, 50, Load(100, 10, waiting, pace), limit, patience, ("later", seconds))


@ex.check("a server that has just begun has no pace: only the limit counts")
def no_pace(admit, t):
    for waiting, limit, patience, want in ((0, 1, 3, ("wait", 0)), (3, 4, 3, ("wait", 0)), (4, 4, 3, ("later", 3)), (9, 4, 2.5, ("later", 3)),
                                           (2, 2, 0.5, ("later", 1))):
        expect_admit(t, admit, 50, Load(100, 10, waiting, 0.0), limit, patience, want)


@ex.check("many cases: who comes back when told is let in, and not a second earlier")
def comes_back(admit, t):
    for _ in range(300):
        waiting, pace = int(t.rng.integers(0, 20)), float(t.rng.choice([0.25, 0.5, 1.0, 2.0]))
        limit, patience = int(t.rng.integers(1, 12)), float(t.rng.choice([4, 8, 16]))
        load = Load(100, 0, waiting, pace)
        t.case(f"load = {load!r}")
        got = t.call(admit, 50, load, limit, patience, shown=f"admit(50, load, limit={limit}, patience={patience})")
        t.holds(isinstance(got, tuple) and len(got) == 2, f"the result is {got!r}, expected (what, seconds)")
        fits = waiting + 1 <= limit and (waiting + 1) / pace <= patience
        t.equal(got[0], "wait" if fits else "later", "what becomes of it")
        if not fits:
            after = [s for s in range(1, 200) if waiting + 1 - s * pace <= min(limit, pace * patience)]
            t.equal(got[1], after[0], "the seconds")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch15.fair",
    title="A fair queue",
    points=15,
    level="hard",
    section="15.7",
    hints=[
        "Keep an account for each tenant: the cost of all that was popped for it. The one with the lowest account goes next. Which two "
        "questions are left? What happens when two are equal, and what account a newcomer gets.",
        "A tenant that comes back after a rest must not have saved up anything, and must not have lost its debts either. Keep a clock: at each "
        "pop, the account of the tenant that is served, before its cost is added.",
        "In push: account = max(account so far, or 0; clock). In pop: the tenant among those that wait "
        "with the smallest (account, number of its oldest request).",
    ],
)


@ex.solution
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
        self.lines, self.accounts, self.clock, self.count = {}, {}, 0, 0

    def __len__(self):
        """How many requests wait."""
        return sum(map(len, self.lines.values()))

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
        self.accounts[tenant] = max(self.accounts.get(tenant, 0), self.clock)
        self.lines.setdefault(tenant, []).append((self.count, request, cost))
        self.count += 1

    def pop(self):
        """Take out the request whose turn it is; None if nobody waits.

        The tenant with the lowest account, of those for whom somebody waits, is served.  Of
        equal accounts, the one whose oldest waiting request came first.  Within a tenant,
        the oldest request comes first.  The cost goes to the account.
        """
        waiting = [tenant for tenant, line in self.lines.items() if line]
        if not waiting:
            return None
        tenant = min(waiting, key=lambda name: (self.accounts[name], self.lines[name][0][0]))
        _, request, cost = self.lines[tenant].pop(0)
        self.clock = self.accounts[tenant]
        self.accounts[tenant] += cost
        return request


@ex.wrong("First come, first served, whoever it is. A tenant that sends a hundred requests at once makes everybody else wait for all of them.",
          "FairQueue")
class InOrder:
    def __init__(self):
        self.line = []

    def __len__(self):
        return len(self.line)

    def push(self, tenant, request, cost):
        self.line.append(request)

    def pop(self):
        return self.line.pop(0) if self.line else None


@ex.wrong("Tenants take turns, a request each. Whose requests are ten times as long gets ten times the work. Count the cost, not the "
          "requests.", "FairQueue")
class ByRequests(FairQueue):
    def push(self, tenant, request, cost):
        super().push(tenant, request, 1)


@ex.wrong("A newcomer's account begins at 0, far below those that have been here all day: it is served alone until it has caught up. Begin at "
          "the clock.", "FairQueue")
class NewcomersFirst(FairQueue):
    def push(self, tenant, request, cost):
        clock, self.clock = self.clock, 0
        super().push(tenant, request, cost)
        self.clock = clock


@ex.wrong("Lifts the account of a new tenant, but not that of one who comes back after a rest. It has saved up turns, and now takes them all at "
          "once.", "FairQueue")
class RestIsSaved(FairQueue):
    def push(self, tenant, request, cost):
        if tenant in self.accounts:
            clock, self.clock = self.clock, 0
            super().push(tenant, request, cost)
            self.clock = clock
        else:
            super().push(tenant, request, cost)


@ex.wrong("Forgets the account when nobody of a tenant waits any more. Who sends the next request only after the last one began then never "
          "pays. Take the larger one of account and clock.", "FairQueue")
class ForgetsDebts(FairQueue):
    def push(self, tenant, request, cost):
        if not self.lines.get(tenant):
            self.accounts[tenant] = self.clock
        super().push(tenant, request, cost)


@ex.wrong("A newcomer begins at the highest account, and waits until all others have come as far. It has done nothing wrong: begin at the "
          "clock.", "FairQueue")
class NewcomersLast(FairQueue):
    def push(self, tenant, request, cost):
        if not self.lines.get(tenant):
            self.accounts[tenant] = max([self.clock, *self.accounts.values()])
        super().push(tenant, request, cost)


@ex.wrong("The clock is set after the cost was added, so it stands at what is not done yet: a newcomer pays for work of others. Take the account "
          "before.", "FairQueue")
class ClockTooLate(FairQueue):
    def pop(self):
        before = dict(self.accounts)
        request = super().pop()
        self.clock = max([self.clock, *(a for t, a in self.accounts.items() if a != before[t])])
        return request


@ex.wrong("Charges a request when it comes. Who has many waiting is then far up, though none of them was served yet. Charge what is "
          "popped.", "FairQueue")
class ChargesAtPush(FairQueue):
    def push(self, tenant, request, cost):
        super().push(tenant, request, 0)
        self.accounts[tenant] += cost


@ex.wrong("Serves the cheapest request of a tenant first. The order within a tenant is that in which it asked.", "FairQueue")
class CheapestFirst(FairQueue):
    def pop(self):
        for line in self.lines.values():
            line.sort(key=lambda item: (item[2], item[0]))
        return super().pop()


@ex.wrong("The newest request of a tenant comes first. Its oldest one may wait for ever.", "FairQueue")
class NewestFirst(FairQueue):
    def pop(self):
        for line in self.lines.values():
            line.reverse()
        request = super().pop()
        for line in self.lines.values():
            line.reverse()
        return request


@ex.wrong("Of equal accounts, the tenant comes first whose name is first in the alphabet, or who was seen first. Then its name decides about its "
          "service. Compare the oldest requests.", "FairQueue")
class ByName(FairQueue):
    def pop(self):
        waiting = [tenant for tenant, line in self.lines.items() if line]
        if not waiting:
            return None
        tenant = min(waiting, key=lambda name: (self.accounts[name], name))
        _, request, cost = self.lines[tenant].pop(0)
        self.clock = self.accounts[tenant]
        self.accounts[tenant] += cost
        return request


@ex.wrong("An empty queue raises. Nobody waits is an ordinary state of a server: return None.", "FairQueue")
class RaisesWhenEmpty(FairQueue):
    def pop(self):
        if not len(self):
            raise IndexError("pop from an empty queue")
        return super().pop()


class Ledger:
    """The contract, told another way: every request in one list, accounts worked out from what was done so far."""

    def __init__(self):
        self.items, self.accounts, self.clock = [], {}, 0

    def push(self, tenant, request, cost):
        """As the contract says."""
        if tenant not in (who for who, _, _ in self.items):
            self.accounts[tenant] = max(self.clock, self.accounts.get(tenant, 0))
        self.items.append((tenant, request, cost))

    def pop(self):
        """As the contract says."""
        if not self.items:
            return None
        lowest = min(self.accounts[who] for who, _, _ in self.items)
        item = next(item for item in self.items if self.accounts[item[0]] == lowest)
        self.items.remove(item)
        self.clock = lowest
        self.accounts[item[0]] += item[2]
        return item[1]


class Counter:
    """A queue and the ledger beside it; told as code."""

    def __init__(self, t, FairQueue):
        self.t, self.made = t, {}
        t.case("queue = FairQueue()")
        self.queue, self.ledger = t.call(FairQueue, shown=None), Ledger()

    def push(self, tenant, cost):
        """A request of a tenant; its name counts up."""
        self.made[tenant] = self.made.get(tenant, 0) + 1
        request = f"{tenant}{self.made[tenant]}"
        self.t.call(self.queue.push, tenant, request, cost, shown=f"queue.push({tenant!r}, {request!r}, {cost})")
        self.ledger.push(tenant, request, cost)

    def pop(self, times=1):
        """Pops, compared."""
        for _ in range(times):
            want = self.ledger.pop()
            self.t.equal(self.t.call(self.queue.pop, shown="queue.pop()"), want)
            self.t.equal(self.t.call(len, self.queue, shown=None), len(self.ledger.items), "len(queue)")


@ex.check("one tenant: in the order in which it asked")
def one_tenant(FairQueue, t):
    play = Counter(t, FairQueue)
    for cost in (5, 1, 3):
        play.push("a", cost)
    play.pop(4)


@ex.check("an empty queue gives None, and goes on working")
def empty(FairQueue, t):
    play = Counter(t, FairQueue)
    play.pop(2)
    play.push("a", 4)
    play.pop(2)


@ex.check("many requests of one tenant push nobody away")
def many(FairQueue, t):
    play = Counter(t, FairQueue)
    for _ in range(4):
        play.push("b", 10)
    play.push("a", 10)
    play.push("c", 10)
    play.pop(7)


@ex.check("the share is one of work, not of requests")
def by_cost(FairQueue, t):
    play = Counter(t, FairQueue)
    for _ in range(3):
        play.push("a", 30)
    for _ in range(7):
        play.push("b", 10)
    play.pop(11)


@ex.check("a newcomer begins where the others are")
def newcomer(FairQueue, t):
    play = Counter(t, FairQueue)
    for _ in range(6):
        play.push("a", 10)
        play.push("b", 10)
    play.pop(6)
    for _ in range(4):
        play.push("c", 10)
    play.pop(11)


@ex.check("a newcomer does not pay for work that has just begun")
def clock(FairQueue, t):
    play = Counter(t, FairQueue)
    for tenant, cost in (("a", 100), ("c", 10), ("c", 10)):
        play.push(tenant, cost)
    play.pop(2)
    play.push("b", 10)
    play.push("b", 10)
    play.pop(4)
    play = Counter(t, FairQueue)
    play.push("a", 100)
    play.push("a", 10)
    play.pop()
    play.push("b", 10)
    play.push("b", 10)
    play.pop(4)


@ex.check("whoever rests saves nothing up")
def rests(FairQueue, t):
    play = Counter(t, FairQueue)
    play.push("a", 10)
    play.pop()
    for _ in range(10):
        play.push("b", 10)
    play.pop(6)
    for _ in range(4):
        play.push("a", 10)
    play.pop(9)


@ex.check("whoever asks one thing at a time keeps its account")
def one_at_a_time(FairQueue, t):
    play = Counter(t, FairQueue)
    for _ in range(6):
        play.push("b", 10)
    play.push("a", 50)
    play.pop(2)
    play.push("a", 50)
    play.pop(4)
    play.push("a", 50)
    play.pop(3)


@ex.check("of equals, the one whose request is oldest")
def equals(FairQueue, t):
    play = Counter(t, FairQueue)
    for tenant in "cabcab":
        play.push(tenant, 10)
    play.pop(7)


@ex.check("random pushes and pops, beside a slow account of the same rules")
def random_traffic(FairQueue, t):
    for _ in range(60):
        play = Counter(t, FairQueue)
        for _ in range(40):
            if t.rng.random() < 0.55:
                play.push("abcd"[int(t.rng.integers(0, 4))], int(t.rng.integers(1, 6)) * (1 if t.rng.random() < 0.7 else 20))
            else:
                play.pop()
        play.pop(len(play.ledger.items) + 1)


@ex.check("two tenants that always wait: their accounts stay within one request of each other")
def shares(FairQueue, t):
    t.case("queue = FairQueue()", "# two tenants with 60 requests each, of 1 to 9 tokens and of 1 to 90")
    queue, costs, done = t.call(FairQueue, shown=None), {}, {"a": 0, "b": 0}
    for n in range(60):
        for tenant, most in (("a", 9), ("b", 90)):
            costs[f"{tenant}{n}"] = int(t.rng.integers(1, most + 1))
            t.call(queue.push, tenant, f"{tenant}{n}", costs[f"{tenant}{n}"], shown=None)
    while done["a"] < 200:
        request = t.call(queue.pop, shown=None)
        t.holds(request in costs, f"pop() gave {request!r}, which nobody pushed")
        done[request[0]] += costs[request]
        t.holds(abs(done["a"] - done["b"]) <= 90, f"a has got {done['a']} tokens of work, b has got {done['b']}")
