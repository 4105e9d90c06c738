"""Chapter 08 - Where drafts come from.

A wrong draft never changes what the model says, so drafts may come from anywhere.  Here
they come from text that the model has seen already.  You write the matcher that finds them
by brute force.  You write the suffix automaton that finds them in a few steps per token,
and the drafter around it.  Then come a drafter that recycles logits, and the rules by which
several sources share one decoder.  At the end your automaton drafts for a real model.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch08`, or in the notebook with a cell that begins
with `%%exercise ch08.match`. Both are the same file: this one. Stuck?
`python3 -m course hint ch08.match`.

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

from collections import deque
import math
import random
from typing import NamedTuple
import numpy as np


class AllStrings:
    """An index without any trick: it keeps every string of tokens that was said, one by one.

    A text of n tokens has up to n (n + 1) / 2 of them, so this is for toys only.  It is used
    like an `Automaton`: `append` takes a token, and afterwards these are up to date:

    `match_length`, `match_state` : the longest suffix of the text that had also ended
        earlier, and the number of its state.
    `sample[state]` : where a state's string ended.  `append` writes it once, when the
        string is said for the first time; you may overwrite it with a later place.
    `stream` : the text.
    """

    def __init__(self):
        self.stream = []
        self.states = {(): 0}
        self.sample = [-1]
        self.match_state, self.match_length = 0, 0

    def append(self, token):
        """Take one more token."""
        self.stream += [token]
        ending_here = [tuple(self.stream[i:]) for i in range(len(self.stream) + 1)]  # the longest first
        known = next(string for string in ending_here if string in self.states)
        self.match_state, self.match_length = self.states[known], len(known)
        for string in ending_here:
            if string not in self.states:
                self.states[string] = len(self.sample)
                self.sample.append(len(self.stream) - 1)


# %% ch08.match - The longest earlier match, by brute force (10 points, easy, section 08.1)

def longest_match(stream):
    """Find the longest suffix of a text that has also ended earlier.

    Parameters
    ----------
    stream : list of int
        n tokens.

    Returns
    -------
    (length, end)
        The last `length` tokens of the text are also the `length` tokens that end at index
        `end`, with end < n - 1.  The longest such length; of several ends, the latest.  The
        two may overlap.  (0, -1) when not even the last token has occurred before.

    Examples
    --------
    >>> longest_match([5, 6, 7, 5, 6])
    (2, 1)
    >>> longest_match([1, 1, 1])
    (2, 1)
    >>> longest_match([1, 2, 3])
    (0, -1)
    """
    raise NotImplementedError("ch08.match: your code here")


def continuation(stream, limit, min_match=2):
    """Draft what followed the longest earlier match.

    Parameters
    ----------
    stream : list of int
        The text so far.
    limit : int
        At most this many tokens, 0 or more; fewer where the text ends before.
    min_match : int
        A shorter match drafts nothing; 1 or more.

    Returns
    -------
    list of int

    Examples
    --------
    >>> continuation([5, 6, 7, 5, 6], limit=8)
    [7, 5, 6]
    >>> continuation([5, 6, 7, 5, 6], limit=1)
    [7]
    >>> continuation([5, 6, 7, 5], limit=8)
    []
    """
    raise NotImplementedError("ch08.match: your code here")


# %% ch08.walk - Move the cursor over a token (5 points, easy, section 08.4)

class FinishedIndex:
    """The suffix automaton of a finished text, built slowly, straight from the definition.

    A state stands for all strings that end at the same places of the text.  State 0, the
    root, is the empty string.

    `link[state]` : the state of its longest suffix that ends at more places; -1 for the root.
    `length[state]` : of its longest string.
    `edges[state]` : a dict: token -> the state of "its string, then the token".
    """

    def __init__(self, text):
        ends = {}
        for first in range(len(text)):
            for last in range(first, len(text)):
                ends.setdefault(tuple(text[first:last + 1]), []).append(last)
        alike = {}
        for string, places in sorted(ends.items(), key=lambda entry: len(entry[0])):
            alike.setdefault(tuple(places), []).append(string)  # the shortest string first
        state_of = {(): 0}
        for number, strings in enumerate(alike.values(), 1):
            state_of.update(dict.fromkeys(strings, number))
        self.length = [0] + [len(strings[-1]) for strings in alike.values()]
        self.link = [-1] + [state_of[strings[0][1:]] for strings in alike.values()]
        self.edges = [{} for _ in self.length]
        for string, number in state_of.items():
            if string:
                self.edges[state_of[string[:-1]]][string[-1]] = number


def walk(index, state, length, token):
    """Move a cursor over one more token.

    The cursor stands for the longest suffix of the tokens shown so far that occurs in the
    index's text.  From it, and from the token, find the longest suffix that occurs there now.

    While the state has no edge for the token, go to the state's link: that forgets as few
    tokens from the front as possible.  At the root nothing is left to forget.

    Parameters
    ----------
    index : FinishedIndex
        Or anything with `link`, `length` and `edges`, such as an `Automaton`.
    state, length : int
        The cursor: the state of the match, and how many tokens match.  (0, 0) before the
        first token, and whenever nothing matches.
    token : int

    Returns
    -------
    (state, length)
        The new cursor.

    Examples
    --------
    >>> index = FinishedIndex([5, 6, 7])
    >>> walk(index, *walk(index, 0, 0, 5), 6)
    (2, 2)
    >>> walk(index, 2, 2, 9)
    (0, 0)
    """
    raise NotImplementedError("ch08.walk: your code here")


# %% ch08.append - Append to a suffix automaton (20 points, hard, section 08.4)

class Automaton:
    """A suffix automaton over a growing text, with a cursor on the longest earlier match.

    A state stands for all strings that have ended at the same places.  The longest of them
    has `length[state]` tokens.  The others are its suffixes, down to one token more than
    `length[link[state]]`.  State 0, the root, is the empty string.

    Attributes
    ----------
    stream : list of int
        The text.
    link : list of int
        For each state, the state of its longest suffix that has ended at more places; -1
        for the root.
    length : list of int
    sample : list of int
        For each state one place where its strings have ended; -1 for the root.
    edges : list of dict
        For each state: token -> the state of "its string, then the token".
    last : int
        The state of the whole text.
    match_state, match_length : int
        The cursor: the longest suffix of the text that had ended earlier.

    Examples
    --------
    >>> a = Automaton()
    >>> for token in [5, 6, 7, 5, 6]:
    ...     a.append(token)
    >>> a.match_length, a.sample[a.match_state]
    (2, 1)
    """

    def __init__(self):
        self.stream = []
        self.link, self.length, self.sample, self.edges = [-1], [0], [-1], [{}]
        self.last = 0
        self.match_state, self.match_length = 0, 0

    def add_state(self, length, sample, link, edges):
        """Make a new state and return its number."""
        self.link.append(link)
        self.length.append(length)
        self.sample.append(sample)
        self.edges.append(edges)
        return len(self.link) - 1

    def walk(self, state, length, token):
        """Move a cursor over a token: your `walk` of ch08.walk, with `self` as the index.

        Nothing of the automaton changes, its own cursor included.
        """
        raise NotImplementedError("ch08.append: your code here")

    def append(self, token):
        """Take one more token, at position pos = len(stream) as it is before the call.

        (A few steps per token are the point of it.  But what is checked is what it finds, not
        what it costs.)

        The cursor moves first, in the automaton without the token: what it finds has ended
        earlier.  Then the automaton becomes that of the longer text:

        - The whole text is a new state, with sample pos.
        - Where some strings of a state have ended at pos and others have not, the state is
          split.  The longer strings keep it, and its sample.  The shorter ones move to a new state, the
          clone, which takes the edges, the link and the sample of the state that it came
          from.  (Its strings have ended at pos as well, but nothing follows there yet.)  The
          clone's longest string is just the match, so the cursor moves to the clone.
        - A state whose edge for the token is set, found in place or turned to a clone stands
          for suffixes of the text before the token.  They have ended at pos - 1, and that
          becomes the state's sample.  The root's sample stays -1.
        """
        raise NotImplementedError("ch08.append: your code here")


# %% ch08.draft - From a state to a draft (15 points, medium, section 08.5)

class Drafter:
    """A source of drafts over an index of everything that was said.

    Parameters
    ----------
    index : object
        An `Automaton`, or anything with `append`, `stream`, `sample`, `match_state` and
        `match_length`, such as `AllStrings`.
    min_match : int
        A shorter match drafts nothing; 1 or more.

    Examples
    --------
    >>> drafter = Drafter(AllStrings())
    >>> drafter.observe([1, 2, 3, 1, 2, 4, 1, 2])
    >>> drafter.suggest([1, 2], limit=3)
    [4, 1, 2]
    """

    def __init__(self, index, min_match=2):
        self.index, self.min_match = index, min_match

    def observe(self, committed):
        """Take note of tokens that have become part of the text, one after the other.

        Of a string that was said several times, the latest place is the one to copy from.
        The match ends at the end of the text.  It cannot be copied from there yet, because
        nothing follows.  With the next token something does: so, *before* the index takes a
        token, the sample of the match's state becomes the last position of the stream as it
        is then.  Without a match there is nothing to refresh: the root's sample stays -1.
        (No draft begins at a match shorter than `min_match`.  Whether you refresh those as
        well makes no difference.)

        Parameters
        ----------
        committed : list of int
        """
        raise NotImplementedError("ch08.draft: your code here")

    def suggest(self, context, limit):
        """Return a draft: what followed the match's sample in the stream.

        Parameters
        ----------
        context : list of int
            The text as the decoder has it.  If it is empty, or its last token is not the last
            token of the index, the two are out of step, and nothing is drafted.
        limit : int
            At most this many tokens, 0 or more; fewer where the stream ends before.

        Returns
        -------
        list of int
            Empty as well when the match is shorter than `min_match`.
        """
        raise NotImplementedError("ch08.draft: your code here")


# %% ch08.recycle - Recycle what the model nearly said (20 points, medium, section 08.7)

class TopKRow(NamedTuple):
    """Feedback of one verified row: the token that went in, and the best next tokens, best first."""

    token: int
    top_k: list


class NearModel:
    """A pretend model that looks at the newest token only."""

    def top_k(self, history):
        """The three best next tokens; the first one is what it says."""
        best = (5 * history[-1] + 3) % 64
        return [best, (best + 7) % 64, (best + 20) % 64]


class FarModel:
    """A pretend model that looks at the newest two tokens."""

    def top_k(self, history):
        """The three best next tokens; the first one is what it says."""
        best = (history[-2] + history[-1] + 1) % 64
        return [best, (best + 7) % 64, (best + 20) % 64]


def verify(model, history, draft):
    """One verify step as in chapter 07, on a pretend model.

    Returns
    -------
    (committed, rows)
        The tokens that the step settles: the accepted part of the draft, then one of the
        model's own.  And a TopKRow for each row that was looked at.
    """
    committed, rows = [], []
    for guess in [*draft, None]:
        text = history + committed
        best = model.top_k(text)
        rows.append(TopKRow(text[-1], best))
        committed.append(best[0])
        if best[0] != guess:
            break
    return committed, rows


class Recycler:
    """A source of drafts that remembers, for each token, what came or nearly came after it.

    Parameters
    ----------
    k : int
        Candidates that are kept per token.
    chain : int
        The longest draft.

    Attributes
    ----------
    table : dict
        token -> list of at most k candidates, the best first.
    last : int or None
        The newest token.
    newest : list of (token, follower)
        The pairs of the latest `observe`.

    Examples
    --------
    >>> recycler = Recycler()
    >>> recycler.observe([3, 7, 5])
    >>> recycler.suggest([3], limit=8)
    [7, 5]
    """

    def __init__(self, k=8, chain=8):
        self.k, self.chain = k, chain
        self.table = {}
        self.last = None
        self.newest = []

    def promote(self, token, follower):
        """Make `follower` the first candidate after `token`.

        The other candidates follow it in their old order; what is beyond k is dropped.
        """
        raise NotImplementedError("ch08.recycle: your code here")

    def observe(self, committed):
        """Take note of tokens that were settled: each is promoted as a follower of the one before it.

        The first one follows the last token of the call before.
        """
        raise NotImplementedError("ch08.recycle: your code here")

    def observe_top_k(self, rows):
        """Take note of verified rows; called after `observe`.

        The first k tokens of a row become the candidates after `row.token`, in place of those
        that were there.  Then what was really settled is promoted again: the pairs of the
        latest `observe`, in their order.

        Parameters
        ----------
        rows : list of TopKRow
        """
        raise NotImplementedError("ch08.recycle: your code here")

    def suggest(self, context, limit):
        """Follow first candidates from the last token of the context, which has one at least.

        Returns
        -------
        list of int
            At most min(limit, chain) tokens; it ends where a token has no candidate.
        """
        raise NotImplementedError("ch08.recycle: your code here")


def run(model, drafter, prompt, n):
    """Decode n tokens with drafts, and count.

    The drafter observes the prompt, in one call.  Then, step by step: for the text so far,
    prompt included, it suggests a draft of at most 8 tokens, and never more than one less than
    are still missing; `verify` settles some tokens; the drafter observes them, all in one call,
    and after that the rows (`observe_top_k`).

    Parameters
    ----------
    model : NearModel or FarModel
    drafter : object with suggest, observe and observe_top_k
    prompt : list of int
        Two tokens or more.
    n : int
        0 or more.

    Returns
    -------
    (tokens, counts)
        The n new tokens, and a dict with "steps", "drafted" and "accepted".

    Examples
    --------
    >>> tokens, counts = run(NearModel(), Recycler(), [1, 2], 4)
    >>> tokens, counts["steps"]
    ([13, 4, 23, 54], 4)
    """
    raise NotImplementedError("ch08.recycle: your code here")


# %% ch08.cascade - Who may draft (15 points, medium, section 08.8)

WINDOW = 64


class Source(NamedTuple):
    """A source of drafts, as `choose` sees it."""

    name: str
    match_length: int
    muted: bool = False


def choose(sources, limit, min_match=2):
    """Choose who drafts, and how much.

    Of the sources that are not muted and match at least `min_match` tokens, the one with the
    longest match drafts; at a tie the first of them.  A long match is trusted with a long
    draft: 2 * (1 + match_length) tokens, but no more than `limit`.

    Parameters
    ----------
    sources : list of Source
        The conversation first, then the references.
    limit : int
        0 or more.
    min_match : int
        1 or more.

    Returns
    -------
    (number, budget)
        The source's number in the list and the tokens that it may draft, 0 where the limit
        is 0; (None, 0) if no source may.

    Examples
    --------
    >>> talk, notes = Source("conversation", 2), Source("reference", 3)
    >>> choose([talk, notes], limit=16)
    (1, 8)
    >>> choose([talk], limit=16)
    (0, 6)
    """
    raise NotImplementedError("ch08.cascade: your code here")


class SourceGate:
    """Mutes a source of drafts that is rarely right.

    It looks at the latest 64 drafted *tokens* (WINDOW), not drafts.

    Parameters
    ----------
    least : float
        The share of them that must have been accepted.
    mute_for : int
        A source below that is muted for so many committed tokens.

    Attributes
    ----------
    window : deque of bool
        One entry per drafted token: was it accepted?
    muted_for : int
        Committed tokens until the source may draft again; 0 when it may now.

    Examples
    --------
    >>> gate = SourceGate()
    >>> for _ in range(8):
    ...     gate.record(drafted=8, accepted=1)
    >>> gate.muted_for
    128
    >>> gate.count_down(100)
    >>> gate.muted_for
    28
    """

    def __init__(self, least=0.2, mute_for=128):
        self.least, self.mute_for = least, mute_for
        self.window = deque(maxlen=WINDOW)
        self.muted_for = 0

    def record(self, drafted, accepted):
        """Enter what became of a draft.

        The first `accepted` of its `drafted` tokens were accepted, the rest were not; there may
        be none.  All of them are entered, in a pause as well.  Then it is judged, once: when
        the window is full (64 tokens) and a smaller share of it than `least` was accepted, the
        source is muted for `mute_for` tokens from now on.  Then the window is emptied too: after
        the pause the old failures no longer count.
        """
        raise NotImplementedError("ch08.cascade: your code here")

    def count_down(self, committed):
        """Let `committed` tokens pass; `muted_for` never falls below 0."""
        raise NotImplementedError("ch08.cascade: your code here")


# %% ch08.prove - Prove an index of all strings (15 points, hard, section 08.4)

class KnowsNothing:
    """A wrong index to try your proof on: it forgets what it is told."""

    match = 0

    def append(self, token):
        """Take one more token."""

    def occurs(self, tokens):
        """Whether these tokens stand in the text, one after the other."""
        return False


def prove(make):
    """Look for a text on which an index of all strings gives a wrong answer.

    `make()` makes an index of an empty text. What an index promises:

    - `index.append(token)` takes one more token, a whole number from 0 on.
    - `index.match` is the length of the longest match: of the longest string at the end of
      the text that has ended earlier in the text as well. It may overlap itself; 0 if there
      is none. (The length that `longest_match` finds.)
    - `index.occurs(tokens)` is True when these tokens, a list, stand somewhere in the text
      one after the other, and False otherwise. The empty list stands in every text.
    - Two indexes have nothing to do with each other, and asking changes nothing.

    Whether there is an automaton inside, or a search through everything, is not your
    business. What it costs is not part of this contract either.

    Parameters
    ----------
    make : callable
        You may make up to 1000 indexes. Keep the texts short, 60 tokens at most: some right
        indexes are slow.

    Returns
    -------
    str or None
        None when you found nothing wrong. Otherwise a text, your counterexample.

    Examples
    --------
    >>> prove(KnowsNothing) is None
    False
    """
    raise NotImplementedError("ch08.prove: your code here")
