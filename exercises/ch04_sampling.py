"""Chapter 04 - Sampling.

A model gives a row of logits: one number for each token of its vocabulary.  Somebody
has to choose one token.  You write that choice here, piece by piece: softmax with a
temperature, two cuts, one random draw, penalties, and a processor that forbids tokens.
At the end of the chapter your pieces choose the tokens of a real model.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch04`, or in the notebook with a cell that begins
with `%%exercise ch04.softmax_temperature`. Both are the same file: this one. Stuck?
`python3 -m course hint ch04.softmax_temperature`.

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

from collections import Counter
import math
import numpy as np


class CounterRng:
    """A random generator that is a seed and a counter, and nothing else.

    Draw number `position` of a seed is worked out from these two alone, so a place in
    the stream of draws can be read, saved and set again.  (splitmix64, as the engine's)
    """

    def __init__(self, seed, position=0):
        self.seed = seed
        self.position = position

    def uniform(self):
        """One draw: a float in [0, 1)."""
        self.position += 1
        z = (self.seed + self.position * 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return ((z ^ (z >> 31)) >> 11) / 2**53


# %% ch04.softmax_temperature - Softmax with a temperature (5 points, easy, section 04.2)

def softmax(logits, temperature):
    """Turn logits into probabilities.

        p[i] = exp(logits[i] / T) / (sum over j of exp(logits[j] / T))

    Parameters
    ----------
    logits : float array [n]
        Of any size: 10000 and -10000 are fine.  -inf forbids a token; at least one
        logit is finite.
    temperature : float
        T, above 0.

    Returns
    -------
    float64 array [n]
        They sum to 1; a forbidden token has exactly 0.  Compute in float64, even where
        the logits are float32.

    Examples
    --------
    >>> softmax(np.array([2.0, 2.0, -np.inf, 2.0, 2.0]), 0.7).tolist()
    [0.25, 0.25, 0.0, 0.25, 0.25]
    """
    raise NotImplementedError("ch04.softmax_temperature: your code here")


# %% ch04.top_p - top-p: the nucleus (10 points, medium, section 04.3)

def top_p(probabilities, p):
    """Keep the most probable tokens that hold the mass p together: the nucleus.

    The tokens are taken from the best one down, until their probabilities sum to p or
    more.  The token that reaches p belongs to them, so at least one is kept.  p = 1
    means off: every token is kept, also where a sum of floats reaches 1 earlier, and also
    those of probability 0.  Where rounding keeps the sum of all just below p, all are kept.

    Parameters
    ----------
    probabilities : float64 array [n]
        They sum to 1.
    p : float
        In [0, 1].  0 keeps the best one only.

    Returns
    -------
    int array [kept]
        Ids of the kept tokens, the best first; of equal probabilities, the lowest id first.

    Examples
    --------
    >>> top_p(np.array([0.125, 0.5, 0.125, 0.25]), 0.7).tolist()
    [1, 3]
    """
    raise NotImplementedError("ch04.top_p: your code here")


# %% ch04.min_p - min-p: measured by the best (1 point, easy, section 04.3)

def min_p(probabilities, least):
    """Keep the tokens that are at least `least` times as probable as the best one.

    Parameters
    ----------
    probabilities : float64 array [n]
        They sum to 1.
    least : float
        In [0, 1].  0 keeps every token; 1 keeps the best, and those equal to it.

    Returns
    -------
    int array [kept]
        Ids of the kept tokens, the best first; of equal probabilities, the lowest id first.

    Examples
    --------
    >>> min_p(np.array([0.1875, 0.5, 0.0625, 0.25]), 0.3).tolist()
    [1, 3, 0]
    """
    raise NotImplementedError("ch04.min_p: your code here")


# %% ch04.draw - One draw per token (10 points, medium, section 04.4)

def draw(ids, weights, rng, greedy=False):
    """Choose one of the tokens that the cuts have left.

    The weights lie one after another on a line, in the order given.  One draw u in
    [0, 1) marks the point u * sum(weights), and the token that owns the point is
    chosen.  Token i owns the stretch from where token i - 1 ends up to, but not
    including, its own end.  Every u finds its token, also the largest float below 1,
    however the sums round.

    Parameters
    ----------
    ids : int array [n]
        The candidates, the best first.
    weights : float64 array [n]
        Their probabilities.  After a cut they sum to less than 1.
    rng : CounterRng
        `rng.uniform()` is one draw, and moves `rng.position` on by one.
    greedy : bool
        True: the best token is chosen, and no draw is made.

    Returns
    -------
    int
        The id of the chosen token, after exactly one draw, or none if greedy.

    Examples
    --------
    >>> rng = CounterRng(seed=3)
    >>> [draw(np.array([40, 2]), np.array([0.5, 0.25]), rng) for _ in range(4)]
    [40, 2, 40, 40]
    >>> rng.position
    4
    """
    raise NotImplementedError("ch04.draw: your code here")


# %% ch04.penalties - Penalties over a window (10 points, medium, section 04.5)

def penalise(logits, history, last_n, repeat=1.0, frequency=0.0, presence=0.0):
    """Lower the logits of tokens that came up lately.

    The window is the last `last_n` tokens of the history.  Each distinct token in it is
    treated once, in this order:

    1. repeat: a logit above 0 is divided by `repeat`, any other is multiplied by it;
    2. frequency: `frequency` is subtracted once for each time the token is in the window;
    3. presence: `presence` is subtracted once.

    Parameters
    ----------
    logits : float array [n]
        Is not changed.
    history : list of int
        The tokens so far, the oldest first; may be empty.
    last_n : int
        Length of the window; 0 turns all penalties off.  If the history is shorter, all
        of it is the window.
    repeat, frequency, presence : float
        1.0, 0.0 and 0.0 do nothing.

    Returns
    -------
    float64 array [n]
        A new one.

    Examples
    --------
    >>> logits, history = np.array([5.0, 4.0, 0.0, 0.0]), [0, 0, 0, 1]
    >>> penalise(logits, history, 64, frequency=0.5, presence=0.3).tolist()
    [3.2, 3.2, 0.0, 0.0]
    """
    raise NotImplementedError("ch04.penalties: your code here")


# %% ch04.ban - Ban these tokens (10 points, medium, section 04.6)

class Ban:
    """A logit processor that forbids tokens: for a whole turn, or while it is short.

    The engine calls exactly these methods.  Before each choice it hands `process` a row
    of logits; after each choice it calls `commit` with the token; `reset` says that a
    new turn begins.

    Parameters
    ----------
    tokens : list of int
        Ids that may not be chosen; may be empty.  Later changes of the caller's list
        change nothing.
    first : int, optional
        The ban holds for the first `first` tokens of a turn; afterwards everything is
        allowed.  None, the default: it always holds.

    Raises
    ------
    ValueError
        When an id is negative.

    Examples
    --------
    >>> ban, row = Ban([0, 2], first=1), np.array([5.0, 3.0, 4.0])
    >>> ban.process(row, [])
    >>> row.tolist()
    [-inf, 3.0, -inf]
    >>> ban.commit(1)
    >>> row = np.array([5.0, 3.0, 4.0])
    >>> ban.process(row, [1])
    >>> row.tolist()
    [5.0, 3.0, 4.0]
    """

    def __init__(self, tokens, first=None):
        """Keep what is to be forbidden; no token has been chosen yet."""
        raise NotImplementedError("ch04.ban: your code here")

    def process(self, logits, history):
        """Forbid the tokens in `logits`, a float array [vocab], in place.

        `history` is the list of all tokens so far, the prompt included.  May be called
        more than once before a token is chosen.
        """
        raise NotImplementedError("ch04.ban: your code here")

    def commit(self, token):
        """Take note that `token` was chosen."""
        raise NotImplementedError("ch04.ban: your code here")

    def reset(self):
        """A new turn begins: forget the tokens that were committed."""
        raise NotImplementedError("ch04.ban: your code here")


# %% ch04.prove - Prove a sampler (15 points, hard, section 04.4)

def all_alike(n):
    """A wrong sampler to try your proof on: it draws the token 0 every time."""
    return np.zeros(n, int)


def prove(sample, p):
    """Look for a sign that a sampler does not draw as it should.

    `sample(n)` makes n draws and returns them: an array of n token ids. It claims that each
    draw is the token i with probability p[i], independent of all draws before it, also of
    those of an earlier call.

    No number of draws proves that. Your verdict may be wrong by chance: of a thousand right
    samplers you may accuse one. The faults that are looked for show themselves clearly in
    20000 draws. Right draws stray from what is expected: to stray far is suspicious, and so
    is not to stray at all.

    Parameters
    ----------
    sample : callable
        May be asked for 20000 draws, all calls together.
    p : float64 array [k]
        The probability of each token; none is below 0.004, and they sum to 1.

    Returns
    -------
    str or None
        None when nothing is suspicious. Otherwise a text that says what is.

    Examples
    --------
    >>> prove(all_alike, np.array([0.5, 0.3, 0.2])) is None
    False
    """
    raise NotImplementedError("ch04.prove: your code here")
