"""Chapter 00 - Welcome: two warm-up exercises.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch00`, or in the notebook with a cell that begins
with `%%exercise ch00.decode_ceiling`. Both are the same file: this one. Stuck?
`python3 -m course hint ch00.decode_ceiling`.

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


# %% ch00.decode_ceiling - How fast can decoding be? (1 point, easy, section 00.3)

def decode_ceiling(weight_bytes, bandwidth):
    """The most tokens per second that decoding can reach when memory is the limit.

    To decode one token, the engine reads every weight of the model once.  However fast
    the arithmetic is, it cannot be faster than memory delivers those bytes.

    Parameters
    ----------
    weight_bytes : int
        Size of the weights, in bytes.
    bandwidth : float
        What the memory delivers, in GB/s (1 GB = 10**9 bytes).

    Returns
    -------
    float
        Tokens per second.

    Raises
    ------
    ValueError
        When one of the two is not greater than 0.

    Examples
    --------
    >>> decode_ceiling(100_000_000, 20)
    200.0
    """
    raise NotImplementedError("ch00.decode_ceiling: your code here")


# %% ch00.next_token - From logits to the next token (5 points, easy, section 00.2)

def next_token(logits, k):
    """The k most probable next tokens, with their probabilities.

    A model ends each step with one number for each token of its vocabulary, the logits.
    Softmax turns them into probabilities:
    p[i] = exp(logits[i]) / (sum over j of exp(logits[j])).

    Parameters
    ----------
    logits : list of float
        One number per token; its id is its place in the list.  A logit may be large
        (1000.0), or -inf for a token that is forbidden.  At least one is finite.
    k : int
        How many tokens to return.

    Returns
    -------
    list of (int, float)
        `(id, probability)`, the most probable first; of equal logits, the lowest id first.
        A probability is that among all tokens, not among the k.

    Raises
    ------
    ValueError
        When k is not between 1 and len(logits).

    Examples
    --------
    >>> next_token([0.0, 0.0, 0.0, 0.0], 2)
    [(0, 0.25), (1, 0.25)]
    """
    raise NotImplementedError("ch00.next_token: your code here")
