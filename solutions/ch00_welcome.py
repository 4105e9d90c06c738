"""Chapter 00 - Welcome: two warm-up exercises.
"""

import math

from course.exercises import Exercise

# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch00.decode_ceiling",
    title="How fast can decoding be?",
    points=1,
    level="easy",
    section="00.3",
    hints=[
        "Each new token needs every weight once. How long does reading all of them take?",
        "Seconds per token = bytes / (bytes per second). A bandwidth of 1 GB/s is 10**9 bytes per second.",
        "Tokens per second is the inverse of seconds per token. Check both arguments first: "
        "`if not x > 0: raise ValueError(...)`.",
    ],
)


@ex.solution
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
    if not weight_bytes > 0 or not bandwidth > 0:
        raise ValueError(f"weight_bytes and bandwidth must be above 0, got {weight_bytes} and {bandwidth}")
    return bandwidth * 1e9 / weight_bytes


@ex.wrong("This is seconds per token, the inverse of what is asked for: tokens per second.")
def seconds_a_token(weight_bytes, bandwidth):
    if not weight_bytes > 0 or not bandwidth > 0:
        raise ValueError("above 0")
    return weight_bytes / (bandwidth * 1e9)


@ex.wrong("A GB is taken as 2**30 bytes. That is a GiB; bandwidths are given in GB/s, 10**9 bytes per second.")
def binary_gigabytes(weight_bytes, bandwidth):
    if not weight_bytes > 0 or not bandwidth > 0:
        raise ValueError("above 0")
    return bandwidth * 2**30 / weight_bytes


@ex.wrong("Counts bits: bandwidth in GB/s is in bytes already (Gbit/s is what networks use).")
def bits(weight_bytes, bandwidth):
    if not weight_bytes > 0 or not bandwidth > 0:
        raise ValueError("above 0")
    return bandwidth * 1e9 / (8 * weight_bytes)


@ex.wrong("Rounds down to whole tokens. A ceiling of 0.4 tokens per second is slow, but not 0: use `/`, not `//`.")
def whole_tokens(weight_bytes, bandwidth):
    if not weight_bytes > 0 or not bandwidth > 0:
        raise ValueError("above 0")
    return bandwidth * 1e9 // weight_bytes


@ex.wrong("The arithmetic is right, but a size and a bandwidth below 0 go through. For a size or a bandwidth of 0 or less, "
          "the contract asks for a ValueError: look at each of the two first.")
def unchecked(weight_bytes, bandwidth):
    return bandwidth * 1e9 / weight_bytes


@ex.wrong("A wrong size is let through where the bandwidth is fine. One wrong argument is enough for the ValueError.")
def both_must_be_wrong(weight_bytes, bandwidth):
    if weight_bytes <= 0 and bandwidth <= 0:
        raise ValueError("above 0")
    return bandwidth * 1e9 / weight_bytes


@ex.wrong("A size of 0 is let through. It is not above 0 either: the ValueError is for 0 as well.")
def only_below_zero(weight_bytes, bandwidth):
    if weight_bytes < 0 or bandwidth < 0:
        raise ValueError("above 0")
    return bandwidth * 1e9 / weight_bytes


@ex.check("tokens per second = bytes per second / bytes per token")
def is_the_quotient(decode_ceiling, t):
    cases = [(1_000_000_000, 1), (500_000_000, 3), (2_500_000_000, 1), (98_000_000, 17.5), (7_000_000_000, 204.8),
             (1, 0.5)]
    for size, bandwidth in cases:
        t.case()
        t.close(t.call(decode_ceiling, size, bandwidth), bandwidth * 1e9 / size, rtol=1e-9)


@ex.check("half the bytes, twice the tokens")
def halves_double(decode_ceiling, t):
    for _ in range(20):
        size, bandwidth = int(t.rng.integers(1, 10**9)) * 2, float(t.rng.uniform(0.5, 500))
        t.case()
        whole = t.call(decode_ceiling, size, bandwidth)
        half = t.call(decode_ceiling, size // 2, bandwidth)
        t.close(half, 2 * whole, "the ceiling of half the bytes", rtol=1e-9)


@ex.check("a size or a bandwidth that is not above 0 is a ValueError")
def refuses_nonsense(decode_ceiling, t):
    for size, bandwidth in [(-1, -10), (-1, 10), (10, -2.5), (0, 10), (10, 0)]:
        t.case()
        t.raises("ValueError", decode_ceiling, size, bandwidth)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch00.next_token",
    title="From logits to the next token",
    points=5,
    level="easy",
    section="00.2",
    hints=[
        "Two steps: turn all logits into probabilities (softmax), then pick the k largest.",
        "exp(1000) overflows. Subtracting the same number from every logit does not change the probabilities: "
        "subtract the largest.",
        "Ties: sort the ids by (-logit, id). Python sorts tuples from left to right.",
        "`sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]` are the ids; divide each exp by the sum of "
        "ALL of them.",
    ],
)


@ex.solution
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
    if not 1 <= k <= len(logits):
        raise ValueError(f"k must be between 1 and {len(logits)}, got {k}")
    top = max(logits)
    weights = [math.exp(x - top) for x in logits]
    total = sum(weights)
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return [(i, weights[i] / total) for i in order[:k]]


@ex.wrong("exp of a large logit overflows. Subtract the largest logit from all of them first: same probabilities.")
def overflows(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    weights = [math.exp(x) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return [(i, weights[i] / sum(weights)) for i in order[:k]]


@ex.wrong("Equal logits: the highest id comes first. Reversing a sort reverses the order of ties too.")
def last_of_equals(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    weights = [math.exp(x - max(logits)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (logits[i], i))[::-1]
    return [(i, weights[i] / sum(weights)) for i in order[:k]]


@ex.wrong("The probabilities are shared out among the k tokens only. The others have a share as well: divide by the "
          "sum over the whole vocabulary.")
def among_the_k(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:k]
    weights = [math.exp(logits[i] - max(logits)) for i in order]
    return [(i, w / sum(weights)) for i, w in zip(order, weights, strict=True)]


@ex.wrong("Logits are not probabilities yet: they go through softmax first.")
def logits_themselves(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return [(i, logits[i]) for i in order[:k]]


@ex.wrong("Equal logits come in any order where there are many: np.argsort keeps their order only with "
          "`kind=\"stable\"`.")
def sorts_without_keeping_order(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    import numpy as np

    weights = np.exp(np.array(logits) - max(logits))
    order = np.argsort(-weights)
    return [(int(i), float(weights[i] / weights.sum())) for i in order[:k]]


@ex.wrong("Large logits are clipped, so that exp does not overflow. Two logits beyond the limit then look alike. "
          "Subtract the largest logit from all of them instead.")
def clips(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    weights = [math.exp(max(-700.0, min(700.0, x))) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return [(i, weights[i] / sum(weights)) for i in order[:k]]


@ex.wrong("The least probable tokens come out: the sort goes the wrong way.")
def least_probable(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    weights = [math.exp(x - max(logits)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (logits[i], i))
    return [(i, weights[i] / sum(weights)) for i in order[:k]]


@ex.wrong("A k of 0 or above the vocabulary goes through: a slice never complains. Check k and raise ValueError.")
def any_k(logits, k):
    weights = [math.exp(x - max(logits)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    return [(i, weights[i] / sum(weights)) for i in order[:k]]


@ex.wrong("A token that was taken is marked with -inf. A forbidden token looks just like that, so one token is taken again "
          "and again. Keep the taken ids apart, or sort once.")
def marks_with_minus_infinity(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    weights = [math.exp(x - max(logits)) for x in logits]
    left, out = list(logits), []
    for _ in range(k):
        i = left.index(max(left))
        out.append((i, weights[i] / sum(weights)))
        left[i] = -math.inf
    return out


@ex.wrong("Different logits far below the largest come out in the order of their ids: exp of both is 0, so their powers "
          "look alike. Sort by the logits themselves.")
def sorts_by_powers(logits, k):
    if not 1 <= k <= len(logits):
        raise ValueError("k")
    weights = [math.exp(x - max(logits)) for x in logits]
    order = sorted(range(len(logits)), key=lambda i: (-weights[i], i))
    return [(i, weights[i] / sum(weights)) for i in order[:k]]


def expect_tokens(t, got, want):
    """Compare a result with [(id, probability), ...]: ids first, then probabilities."""
    t.holds(isinstance(got, list) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in got),
            f"the result is {got!r}, expected a list of (id, probability)")
    t.equal([int(i) for i, _ in got], [i for i, _ in want], "the list of ids")
    t.close([p for _, p in got], [p for _, p in want], "the list of probabilities", rtol=1e-9, atol=1e-300)


@ex.check("the most probable first, with softmax probabilities")
def ordered(next_token, t):
    rows = [[math.log(3.0), 0.0], [0.0, math.log(3.0)], [math.log(2.0), math.log(5.0), math.log(3.0)]]
    for row in rows:
        weights = [math.exp(x) for x in row]
        ids = sorted(range(len(row)), key=lambda i: -row[i])
        want = [(i, weights[i] / sum(weights)) for i in ids]
        t.case()
        expect_tokens(t, t.call(next_token, row, len(row)), want)


@ex.check("the probabilities are those among all tokens")
def among_all(next_token, t):
    for n in (2, 3, 8):
        t.case()
        got = t.call(next_token, [0.0] * n, 1)
        expect_tokens(t, got, [(0, 1 / n)])


@ex.check("of equal logits the lowest id comes first")
def ties(next_token, t):
    for row in ([1.0, 1.0], [0.0, 2.0, 2.0], [5.0, 1.0, 5.0, 5.0, 1.0]):
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        t.case()
        got = t.call(next_token, row, len(row))
        t.holds(isinstance(got, list), f"the result is {got!r}, expected a list")
        t.equal([int(pair[0]) for pair in got], order, "the list of ids")
    t.case("logits = [3.0, 5.0] * 32")
    got = t.call(next_token, [3.0, 5.0] * 32, 64, shown="next_token(logits, 64)")
    t.equal([int(pair[0]) for pair in got], [*range(1, 64, 2), *range(0, 64, 2)], "the list of ids")


@ex.check("large and forbidden logits are no problem")
def extremes(next_token, t):
    t.case()
    expect_tokens(t, t.call(next_token, [1000.0, 1000.0], 1), [(0, 0.5)])
    t.case()
    expect_tokens(t, t.call(next_token, [-1000.0, -1000.0], 2), [(0, 0.5), (1, 0.5)])
    for row in ([1000.0, 1000.0 - math.log(3.0)], [-1000.0, -1000.0 - math.log(3.0)]):
        t.case()
        expect_tokens(t, t.call(next_token, row, 2), [(0, 0.75), (1, 0.25)])
    t.case()
    expect_tokens(t, t.call(next_token, [-math.inf, 0.0], 2), [(1, 1.0), (0, 0.0)])
    inf = math.inf
    for row, ids in (([0.0, -inf, -inf], [0, 1, 2]), ([-inf, 0.0, -inf], [1, 0, 2]), ([-2000.0, -1000.0, 0.0], [2, 1, 0])):
        t.case()
        expect_tokens(t, t.call(next_token, row, 3), [(i, float(row[i] == 0.0)) for i in ids])


@ex.check("k must be between 1 and the size of the vocabulary")
def refuses_k(next_token, t):
    for k in (0, 3, -1):
        t.case()
        t.raises("ValueError", next_token, [0.0, 1.0], k)
