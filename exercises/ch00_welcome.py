"""Chapter 00 - Welcome: two warm-up exercises.

Write your code below each docstring, in place of the line that says `your code here`.  Then, in a terminal,

    python3 -m course check ch00

or in the notebook, in a cell that begins with `%%exercise ch00.decode_ceiling`.  Both are the same file: this one.
Stuck?  `python3 -m course hint ch00.decode_ceiling`.
"""

import math


# %% ch00.decode_ceiling - How fast can decoding be? (5 points, easy, section 00.3)

def decode_ceiling(weight_bytes, bandwidth):
    """The most tokens a second that decoding can reach when memory is the limit.

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
        Tokens a second.

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

    A model ends each step with one number a vocabulary entry, the logits.  Softmax turns
    them into probabilities:
    p[i] = exp(logits[i]) / (sum over j of exp(logits[j])).

    Parameters
    ----------
    logits : list of float
        One number a token id; the id is the position in the list.  May be large (1000.0),
        or -inf for a token that is forbidden.  At least one is finite.
    k : int
        How many tokens to return.

    Returns
    -------
    list of (int, float)
        `(id, probability)`, most probable first; equal logits: the lowest id first.  The
        probabilities are those among all tokens, not among the k.

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
