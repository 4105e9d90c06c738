"""Chapter 11 - Constrained decoding.

A reply that must be a date, a JSON object, one of six cities: before each choice, forbid
every token that cannot go on to such a text.  You write the mask of a row.  You lift an
automaton that reads bytes to a vocabulary of tokens.  You look ahead: what must follow, and
how much of a draft may follow.  Then you write a processor that forces a phrase, and a source
of drafts that a grammar makes faster.  At the end your code constrains a real model.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch11`, or in the notebook with a cell that begins
with `%%exercise ch11.mask`. Both are the same file: this one. Stuck?
`python3 -m course hint ch11.mask`.

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


class AllTokensMasked(ValueError):
    """No token is left to choose from."""


class Automaton:
    """Says which bytes may come next.

    `edges[state]` : a dict: a byte that may follow -> the state after it.  State 0 is the start.
    `accepting` : the set of states in which a text may end.
    """

    def __init__(self, edges, accepting):
        self.edges, self.accepting = edges, set(accepting)

    def step(self, state, byte):
        """The state after one more byte, or None where that byte may not follow."""
        return self.edges[state].get(byte)

    def read(self, data, state=0):
        """The state after some bytes, or None."""
        for byte in data:
            state = self.step(state, byte)
            if state is None:
                break
        return state


# %% ch11.mask - Mask a row (5 points, easy, section 11.2)

def mask_row(logits, allowed, complete, end):
    """Forbid every token that may not come next.

    Parameters
    ----------
    logits : float array [vocab]
        As the model gave them, finite numbers.  Not changed.
    allowed : list of int
        The tokens of text that may come next; may be empty.  The end token is not among them.
    complete : bool
        Whether the text so far is a whole sentence.  It may be one and still go on.
    end : int
        The token that ends a reply.  It may be chosen after a whole sentence, and only there.

    Returns
    -------
    float array [vocab]
        A new row, of the same float type or of float64: the same logits where a token may come
        next, -inf everywhere else.  It goes to a sampler, which makes probabilities of it.

    Raises
    ------
    AllTokensMasked
        No token may come next.

    Examples
    --------
    >>> mask_row(np.array([1.0, 2.0, 3.0, 4.0]), [1], False, 3).tolist()
    [-inf, 2.0, -inf, -inf]
    >>> mask_row(np.array([1.0, 2.0, 3.0, 4.0]), [1], True, 3).tolist()
    [-inf, 2.0, -inf, 4.0]
    """
    raise NotImplementedError("ch11.mask: your code here")


# %% ch11.lift - From bytes to tokens, along a trie (20 points, hard, section 11.4)

def make_trie(pieces):
    """Arrange the tokens of a vocabulary by their bytes.

    Parameters
    ----------
    pieces : list of bytes
        pieces[i] is the text of token i.  b"" is a special token, which stands for no text.
        Two tokens may have the same bytes.

    Returns
    -------
    Anything that `allowed_tokens` can walk.

    Examples
    --------
    >>> trie = make_trie([b"a", b"ab", b"b"])
    """
    raise NotImplementedError("ch11.lift: your code here")


def allowed_tokens(automaton, state, trie):
    """Return the tokens that may come next.

    A token may come next if the automaton can read all of its bytes from `state` on.  The
    text need not be a whole sentence afterwards.

    Tokens that begin alike are looked at together: for each beginning the automaton makes one
    step per byte, however many tokens share it.

    Parameters
    ----------
    automaton : Automaton
    state : int
        Where the text so far has led.
    trie : what `make_trie` returned

    Returns
    -------
    list of int
        Ids, ascending.

    Examples
    --------
    >>> abc = Automaton([{97: 1}, {98: 2}, {99: 3}, {}], accepting={3})  # the bytes of "abc"
    >>> trie = make_trie([b"a", b"ab", b"b", b"ac", b""])
    >>> allowed_tokens(abc, 0, trie), allowed_tokens(abc, 1, trie)
    ([0, 1], [2])
    """
    raise NotImplementedError("ch11.lift: your code here")


# %% ch11.look_ahead - What must follow, and what may (10 points, medium, section 11.5)

def forced_bytes(automaton, state, limit):
    """Return the bytes that must follow.

    A byte must follow where it is the only one that may, and the text may not end.

    Parameters
    ----------
    automaton : Automaton
    state : int
        Where the text so far has led.
    limit : int
        At most this many.

    Returns
    -------
    bytes
        b"" where there is a choice.

    Examples
    --------
    >>> abc_or_abd = Automaton([{97: 1}, {98: 2}, {99: 3, 100: 3}, {}], accepting={3})
    >>> forced_bytes(abc_or_abd, 0, 99), forced_bytes(abc_or_abd, 2, 99)
    (b'ab', b'')
    """
    raise NotImplementedError("ch11.look_ahead: your code here")


def valid_prefix(automaton, state, pieces, tokens):
    """Return how many of some tokens may follow, one after another, from the first on.

    It only looks: the caller's state stays where it is.

    Parameters
    ----------
    automaton : Automaton
    state : int
        Where the text so far has led.
    pieces : list of bytes
        pieces[i] is the text of token i; b"" for a special token, which may not follow here.
    tokens : list of int
        A draft.  Ids outside the vocabulary may be among them; they may not follow either.

    Returns
    -------
    int

    Examples
    --------
    >>> abc = Automaton([{97: 1}, {98: 2}, {99: 3}, {}], accepting={3})
    >>> pieces = [b"a", b"ab", b"b", b"c"]
    >>> valid_prefix(abc, 0, pieces, [0, 2, 3]), valid_prefix(abc, 0, pieces, [1, 2, 3])
    (3, 1)
    """
    raise NotImplementedError("ch11.look_ahead: your code here")


# %% ch11.phrase - A ban, and a phrase that must follow (15 points, medium, section 11.8)

class Phrase:
    """A processor that bans tokens, and forces a phrase after a trigger.

    In chapter 04 a processor banned tokens.  This one also knows what must follow: once
    `trigger` was chosen, the tokens of `phrase` follow, one by one, and nothing else.
    Then everything but the banned tokens may follow again, until the next trigger.

    Parameters
    ----------
    banned : list of int
        May be empty.
    trigger : int
    phrase : list of int
        At least one token.

    Raises
    ------
    ValueError
        A token of the phrase is banned, or is the trigger.

    Examples
    --------
    >>> p, row = Phrase(banned=[0], trigger=1, phrase=[2, 3]), np.zeros(4)
    >>> p.process(row, [])
    >>> row.tolist()
    [-inf, 0.0, 0.0, 0.0]
    >>> p.commit(1)
    >>> p.forced_tokens(limit=8), p.valid_prefix([2, 3, 0])
    ([2, 3], 2)
    """

    def __init__(self, banned, trigger, phrase):
        """Keep the three; no phrase is due yet."""
        raise NotImplementedError("ch11.phrase: your code here")

    def process(self, logits, history):
        """Forbid in `logits`, a float array [vocab], in place, what may not come next.

        It may be called several times before a token is chosen, and must not change what it
        will say the next time.
        """
        raise NotImplementedError("ch11.phrase: your code here")

    def commit(self, token):
        """Take note that `token` was chosen."""
        raise NotImplementedError("ch11.phrase: your code here")

    def reset(self):
        """A new turn begins: no phrase is due."""
        raise NotImplementedError("ch11.phrase: your code here")

    def forced_tokens(self, limit):
        """Return what must follow now: what is left of the phrase, at most `limit` tokens.

        A look ahead: it changes nothing.  An empty list where there is a choice.
        """
        raise NotImplementedError("ch11.phrase: your code here")

    def valid_prefix(self, tokens):
        """Return how many of `tokens`, from the first on, could be chosen one after another.

        A look ahead: it changes nothing.
        """
        raise NotImplementedError("ch11.phrase: your code here")


# %% ch11.source - A source of drafts that knows the grammar (20 points, hard, section 11.9)

class GrammarSource:
    """Another source of drafts, under a grammar.

    Parameters
    ----------
    processor : object with `forced_tokens(limit)` and `valid_prefix(tokens)`
        What must follow, and how many tokens of a draft may.
    inner : object with `suggest(context, limit)`, `observe(committed)` and `truncate_pending(n)`
        The source that drafts where there is a choice.

    Tokens come from both as any sequence, a list or a tuple for example.
    """

    def __init__(self, processor, inner):
        """Keep the two."""
        raise NotImplementedError("ch11.source: your code here")

    def suggest(self, context, limit):
        """Return a draft: at most `limit` tokens that may follow `context`.

        What must follow is the whole draft, and the inner source is not asked then.  Where
        nothing is forced, the inner source drafts.  Of its draft, only the tokens before the first
        refused one are kept.  If that is less than it proposed, it is told the number with
        `truncate_pending`.

        Parameters
        ----------
        context : list of int
            The text so far.
        limit : int

        Returns
        -------
        list of int
        """
        raise NotImplementedError("ch11.source: your code here")

    def truncate_pending(self, n):
        """The decoder verifies only the first `n` tokens of the latest draft.

        The inner source is told, if that draft was its own.
        """
        raise NotImplementedError("ch11.source: your code here")

    def observe(self, committed):
        """Pass on which tokens became text, whoever drafted them."""
        raise NotImplementedError("ch11.source: your code here")
