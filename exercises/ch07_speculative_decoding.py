"""Chapter 07 - Speculative decoding without a draft model.

Somebody guesses the next tokens, and one pass of the model checks the whole guess. You
write the step that does this. Then you make it end where it must, and survive what goes
wrong. You also write a guesser, and you read what the engine reports about its guesses.
All of it runs on a toy first, and on a real model at the end of the chapter.

The toy below is called like the engine: `model.forward(tokens, cache)` returns one row of
scores for each token, `sampler.next(row, history)` chooses a token from a row, and
`cache.truncate(keep)` forgets rows. So code that works here works there.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch07`, or in the notebook with a cell that begins
with `%%exercise ch07.verify`. Both are the same file: this one. Stuck?
`python3 -m course hint ch07.verify`.

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
import numpy as np


class InvalidDecodeState(ValueError):
    """History and cache do not belong together: len(history) != cache.len + 1."""


class ToyCache:
    """A KV cache reduced to what decoding sees: one row per token, and a rewind."""

    def __init__(self):
        self.rows = []

    @property
    def len(self):
        """How many rows there are."""
        return len(self.rows)

    def truncate(self, keep):
        """Keep the first `keep` rows; at or above `len` nothing changes."""
        del self.rows[keep:]


class ToyModel:
    """A pretend model over the tokens 0 to 8: a row depends on every row before it.

    `passes` notes how many rows each pass had.  With `fails_at=n` the n-th pass (from 0)
    raises an OSError once it has written `leaves` rows into the cache.
    """

    def __init__(self, fails_at=None, leaves=1):
        self.fails_at = fails_at
        self.leaves = leaves
        self.passes = []

    def forward(self, tokens, cache):
        """One pass: writes a row per token into the cache, returns a row of scores for each.

        Row i holds a score for every token that could follow tokens[i].
        """
        fails = len(self.passes) == self.fails_at
        self.passes.append(len(tokens))
        scores = []
        for i, token in enumerate(tokens):
            if fails and i >= self.leaves:
                break
            cache.rows.append(token)
            scores.append(self.row(cache.rows))
        if fails:
            raise OSError("the machine coughed in the middle of a pass")
        return scores

    def row(self, rows):
        """A score for each of the nine tokens that could come after these rows."""
        seen = 7
        for row in rows:
            seen = (31 * seen + row + 7) % 1009
        return np.array([(seen + 17) * (37 * t + 11) % 1013 / 200 for t in range(9)])


class ToySampler:
    """Chooses a token from a row of scores.

    Temperature 0 takes the best one.  Any other temperature draws one random number per
    token; `draws` counts them.  The last three tokens of `history` lose `penalty` first,
    so it matters which history it is shown.  With `fails_at=n` the n-th choice (from 0)
    raises.
    """

    def __init__(self, temperature=0.0, seed=0, penalty=0.0, fails_at=None):
        self.temperature, self.penalty, self.fails_at = temperature, penalty, fails_at
        self.random = random.Random(seed)
        self.draws = 0
        self.choices = 0

    def next(self, row, history):
        """The next token."""
        if self.choices == self.fails_at:
            raise ValueError("no token is allowed here")
        self.choices += 1
        scores = np.array(row, dtype=float)
        scores[list(set(history[-3:]))] -= self.penalty
        if self.temperature == 0:
            return int(scores.argmax())
        self.draws += 1
        edges = np.cumsum(np.exp((scores - scores.max()) / self.temperature))
        return int(np.searchsorted(edges, self.random.random() * edges[-1], side="right"))


# %% ch07.verify - Verify a draft in one pass (15 points, medium, section 07.2)

def verify_step(model, cache, history, draft, sampler):
    """One step of decoding that checks a draft; returns how many tokens it committed.

    A single pass runs the newest token of the history and the whole draft.  Then the
    sampler chooses a token from the first row.  It goes on with the next row as long as
    its choice is the drafted token.  Every choice is committed: it is appended to the
    history before the next one is made.

    The sampler sees one row for each token that is committed, and no others.  With an
    empty draft this is a plain step.

    Parameters
    ----------
    model : object with `forward(tokens, cache)`
        Writes one row per token into the cache, and returns one row of scores per token.
    cache : object with `len` and `truncate(keep)`
    history : list of int
        Committed tokens, prompt included; grows in place.
    draft : list of int
        A guess at what follows the history.  Not changed.
    sampler : object with `next(row, history)`, which returns a token

    Returns
    -------
    int
        How many tokens were appended to the history, at least 1.  Afterwards
        len(history) == cache.len + 1 again.

    Raises
    ------
    InvalidDecodeState
        At the start, when len(history) != cache.len + 1; nothing has been touched.

    Examples
    --------
    >>> cache, history = ToyCache(), [5]
    >>> verify_step(ToyModel(), cache, history, [], ToySampler())
    1
    >>> len(history), cache.len
    (2, 1)
    """
    raise NotImplementedError("ch07.verify: your code here")


# %% ch07.mid_step - A step that can end, and fail (20 points, hard, section 07.6)

def safe_step(model, cache, history, draft, sampler, emit, stop=None):
    """A verify step that can end the turn and survives errors; returns tokens committed.

    It works like `verify_step`: one pass, and every choice is committed while it agrees
    with the draft.  Each token is handed to `emit` right after it was appended to the
    history, before the next row is sampled.

    When the sampler chooses the token `stop`, that token is committed and emitted like
    any other, and the step ends there.  No later row is sampled, however right the draft
    may be.  A drafted `stop`, and what is drafted after it, may be left out of the pass.

    When the pass, the sampler or `emit` raises, the error goes on to the caller, Ctrl-C
    (KeyboardInterrupt) included.  Tokens that are in the history by then stay.

    On every way out the cache holds the rows of all tokens but the newest:
    len(history) == cache.len + 1.  (It does at the start; you need not check that here.)

    Parameters
    ----------
    model : object with `forward(tokens, cache)`
        When it raises, it may have written any number of its rows.
    cache, history, draft, sampler
        As in `verify_step`.
    emit : callable
        Called with each committed token, in order.
    stop : int, optional
        The token that ends a turn.  It may be token 0; None means that there is none.

    Returns
    -------
    int
        How many tokens were appended to the history.

    Examples
    --------
    >>> cache, history, seen = ToyCache(), [5], []
    >>> safe_step(ToyModel(), cache, history, [1, 1], ToySampler(), seen.append)
    1
    >>> history == [5] + seen, cache.len
    (True, 1)
    """
    raise NotImplementedError("ch07.mid_step: your code here")


# %% ch07.drafter - A prompt-lookup drafter (15 points, medium, section 07.7)

class PromptLookup:
    """Proposes what followed the same n tokens the last time.

    It has the two methods of `fucina.speculative.DraftSource`, so that it can draft for
    the real engine.  The engine calls `observe` with the prompt, and then with the tokens
    of every step, in order.  It calls `suggest` before a step.

    Parameters
    ----------
    n : int
        How many tokens must be the same, at least 1.

    Attributes
    ----------
    text : list of int
        All tokens that were observed.
    after : dict
        For you: whatever helps to find a place without searching.

    Examples
    --------
    >>> source = PromptLookup(n=2)
    >>> source.observe([5, 6, 7, 8, 5, 6])
    >>> source.suggest([5, 6, 7, 8, 5, 6], limit=3)
    [7, 8, 5]
    """

    def __init__(self, n=2):
        self.n = n
        self.text = []
        self.after = {}

    def observe(self, committed):
        """Take note of tokens that now follow all earlier ones.

        Note the places here, so that `suggest` need not search.  A call costs the same
        however long the text is, and so does a call of `suggest`.

        Parameters
        ----------
        committed : list of int
            One or several tokens; a piece can be shorter than n.  Not changed.
        """
        raise NotImplementedError("ch07.drafter: your code here")

    def suggest(self, context, limit):
        """Return what followed the last n tokens of the context, the last time they occurred.

        Of several places the latest counts.  The end of the text itself does not count:
        nothing follows there yet.

        Parameters
        ----------
        context : list of int
            The text so far; it ends with the newest token.  Not changed.
        limit : int
            The most tokens to return; fewer where the text ends.

        Returns
        -------
        list of int
            Empty when these n tokens were not seen before, or the context is shorter than n.
        """
        raise NotImplementedError("ch07.drafter: your code here")


# %% ch07.read_the_log - Read five lines of a log (10 points, medium, section 07.9)

LINES = {
    "a": "steps=119 (verify 117, fallback 2, off 0) committed=120 (1.01 tok/step) "
         "drafted=1767 accepted=0 (0.0% acc) bonus=0 rejected=117",
    "b": "steps=9 (verify 5, fallback 4, off 0) committed=45 (5.00 tok/step) "
         "drafted=46 accepted=36 (78.3% acc) bonus=3 rejected=1",
    "c": "steps=157 (verify 8, fallback 6, off 143) committed=160 (1.02 tok/step) "
         "drafted=23 accepted=2 (8.7% acc) bonus=1 rejected=7",
    "d": "steps=145 (verify 22, fallback 123, off 0) committed=160 (1.10 tok/step) "
         "drafted=65 accepted=14 (21.5% acc) bonus=1 rejected=21",
    "e": "steps=119 (verify 0, fallback 119, off 0) committed=120 (1.01 tok/step) "
         "drafted=0 accepted=0 (0.0% acc) bonus=0 rejected=0",
}


SITUATIONS = {
    1: "the model copies a text that stands in its prompt",
    2: "the model explains something; the engine's own index drafts",
    3: "the model tells a story; a weak source drafts, and a gate watches it",
    4: "a source that always claims to be right, and is never stopped",
    5: "a source that never proposes anything",
    6: "speculation that was disabled from the start",
}


REASONS = {
    1: "whole drafts were right, because the next words had been read before",
    2: "the first drafts lost time, so the source was not asked any more",
    3: "nearly every pass carried a long draft, wrong from its first token on",
    4: "there was never a draft, so no pass had a second row",
    5: "few steps had a draft worth its rows, and one token in five was right",
    6: "rejected tokens were taken out of the text again",
    7: "the drafts made the model say something else",
}


CLAIMS = {
    1: "steps == verify + fallback + off",
    2: "rejected == drafted - accepted",
    3: "verify == bonus + rejected",
    4: "committed == 1 + steps + accepted",
}


def read_the_log():
    """Say what each of the LINES tells, and which CLAIMS about their fields hold.

    Each line is the report of a real run.  Find its situation, and the reason why its
    fields look as they do.  Two of the REASONS are wrong for every run.

    Then judge the claims.  A claim holds if it is true in all five lines.  If not, name
    a line in which it is false.

    Returns
    -------
    dict
        "a" to "e" : (int, int)
            The line's number in SITUATIONS, and its number in REASONS.
        "claims" : dict of int to str or None
            For each number in CLAIMS: None if the claim holds, else the letter of a line
            in which it does not.

    Examples
    --------
    >>> sorted(read_the_log())
    ['a', 'b', 'c', 'claims', 'd', 'e']
    """
    raise NotImplementedError("ch07.read_the_log: your code here")


# %% ch07.prove - Prove a verify step (20 points, hard, section 07.6)

def says_five(model, cache, history, draft, sampler):
    """A wrong step to try your proof on: it always commits the token 5."""
    model.forward([history[-1]], cache)
    history.append(5)
    return 1


def prove(step):
    """Look for a case in which a verify step breaks its contract.

    `step` is called as `step(model, cache, history, draft, sampler)` and claims to do what
    the contract of `verify_step` says (at the top of this file). You bring everything else:
    models, caches, samplers, drafts, and the answers to compare with.

    A wrong step may break any of its promises, in all cases or in few. It may also raise
    where it should not: that is a counterexample, too. A right step may be written in any
    style. How it gets there is not your business, as long as every promise is kept.

    Parameters
    ----------
    step : callable
        Takes its five arguments by position. You may call it up to 1000 times.

    Returns
    -------
    str or None
        None when you found nothing wrong. Otherwise a text, your counterexample.

    Examples
    --------
    >>> prove(says_five) is None
    False
    """
    raise NotImplementedError("ch07.prove: your code here")


# %% ch07.ban - A ban, a draft, and what must come (15 points, medium, section 07.7)

class AllTokensMasked(ValueError):
    """A ban leaves no token that could be chosen."""


class Ban:
    """A sampler under a ban that depends on the text: some tokens may not come after some others.

    It has the face of a sampler, so a verify step uses it like any other. And it knows
    sometimes what must come: where the ban leaves a single token, a drafter need not guess.

    Parameters
    ----------
    sampler : object with `next(row, history)`
        Chooses from what is allowed.
    after : dict of int to set of int
        after[t] may not come after the token t. A token that is no key bans nothing. Not changed.
    vocab : int
        The tokens are 0 ... vocab - 1.

    Examples
    --------
    >>> ban = Ban(ToySampler(), {5: {2, 3}, 0: {0, 1, 2, 3, 4, 5, 6, 8}}, vocab=9)
    >>> row = np.array([0., 1, 9, 8, 7, 0, 0, 0, 0])
    >>> ban.next(row, [1, 5])
    4
    >>> ban.forced([1, 0], limit=4)
    [7]
    """

    def __init__(self, sampler, after, vocab):
        self.sampler = sampler
        self.after = after
        self.vocab = vocab

    def next(self, row, history):
        """The next token: what the sampler chooses when the banned scores are minus infinity.

        The sampler sees all other scores as they are, and the whole history. The row is
        not changed: it belongs to the model. With drafts and without, the same
        history and row give the same token, so nothing may be remembered between two calls.

        Raises
        ------
        AllTokensMasked
            When no token is allowed; the sampler is not asked then.
        """
        raise NotImplementedError("ch07.ban: your code here")

    def forced(self, history, limit):
        """The tokens that must come next, at most `limit`: a draft that cannot be wrong.

        As long as exactly one token is allowed after the newest one, it must come, and the
        question is the same for the token after it. Empty when there is a choice at once.
        """
        raise NotImplementedError("ch07.ban: your code here")
