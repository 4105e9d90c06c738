"""Chapter 03 - A transformer step.

You write the pieces of a language model one by one: norm, rotation, attention, the
gated feed-forward, a layer, and the whole forward.  With the weights of a real model,
your forward then gives the real model's logits.
"""

import math
from types import SimpleNamespace

import numpy as np

from course.exercises import Exercise, given


@given
class Cache:
    """Keys and values of all layers of one stream.

    `k[layer]` and `v[layer]` are float32 arrays [kv_heads, capacity, head_dim].  The
    first `len` positions count.  The others were never written: they hold NaN, so that
    whoever reads them by mistake will notice.
    """

    def __init__(self, layers, kv_heads, head_dim, capacity):
        self.k = np.full((layers, kv_heads, capacity, head_dim), np.nan, np.float32)
        self.v = np.full((layers, kv_heads, capacity, head_dim), np.nan, np.float32)
        self.len = 0


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch03.rms_norm",
    title="RMSNorm",
    points=1,
    level="easy",
    section="03.2",
    hints=[
        "RMS, read backwards, is the recipe: square, mean, root.",
        "eps is added to the mean square, before the root is taken.",
        "x / np.sqrt(np.mean(x * x) + eps), and then each number times its own weight.",
    ],
)


@ex.solution
def rms_norm(x, weight, eps):
    """Scale a row to a root mean square of 1, then multiply each number by its weight.

        out[i] = x[i] / sqrt(mean(x ** 2) + eps) * weight[i]

    Parameters
    ----------
    x : float32 array [n]
    weight : float32 array [n]
        Learned; taken as it is.
    eps : float
        Keeps the division safe when the row is all zeros.

    Returns
    -------
    float array [n]
        A new array.

    Examples
    --------
    >>> x, weight = np.array([3.0, -3.0, 3.0]), np.array([1.0, 1.0, 10.0])
    >>> rms_norm(x, weight, 0.0).tolist()
    [1.0, -1.0, 10.0]
    """
    return x / np.sqrt(np.mean(x * x) + eps) * weight


@ex.wrong("The mean is subtracted first. That is LayerNorm; RMSNorm leaves the mean where it is.")
def layer_norm(x, weight, eps):
    x = x - np.mean(x)
    return x / np.sqrt(np.mean(x * x) + eps) * weight


@ex.wrong("The squares are summed up, not averaged: the result is too small by the root of n.")
def sums(x, weight, eps):
    return x / np.sqrt(np.sum(x * x) + eps) * weight


@ex.wrong("eps is added to the root. It goes under the root, to the mean square: for small rows that matters.")
def eps_outside(x, weight, eps):
    return x / (np.sqrt(np.mean(x * x)) + eps) * weight


@ex.wrong("eps is not used, so a row of zeros is divided by zero.")
def no_eps(x, weight, eps):
    with np.errstate(all="ignore"):
        return x / np.sqrt(np.mean(x * x)) * weight


@ex.wrong("The root is missing: divides by the mean square, not by its root.")
def no_root(x, weight, eps):
    return x / (np.mean(x * x) + eps) * weight


@ex.wrong("The weight is not used. Each number has a weight of its own, which was learned.")
def no_weight(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps)


@ex.wrong("1 is added to the weight. Some training code of the Gemma family stores it so; in a GGUF file the 1 is in the "
          "weight already.")
def one_plus_weight(x, weight, eps):
    return x / np.sqrt(np.mean(x * x) + eps) * (1 + weight)


def normal(t, *shape, size=1.0):
    """Random float32 numbers that do not average to zero."""
    return (size * (t.rng.standard_normal(shape) + 0.3)).astype(np.float32)


def norm_by_hand(x, weight, eps):
    """RMSNorm, number by number."""
    root = math.sqrt(math.fsum(float(v) ** 2 for v in x) / len(x) + eps)
    return np.array([float(v) / root * float(w) for v, w in zip(x, weight, strict=True)])


@ex.check("weights of 1: the root mean square becomes 1")
def unit_weights(rms_norm, t):
    for row in ([2.0], [3.0, 4.0], [1.0, 2.0, 3.0, 4.0], [-5.0, 0.0, 0.0, 1.0]):
        x, ones = np.array(row, np.float32), np.ones(len(row), np.float32)
        t.case()
        t.close(t.call(rms_norm, x, ones, 0.0), norm_by_hand(x, ones, 0.0), rtol=1e-5)
    x = np.array([1.0, -1.0, 1.0], np.float32)
    t.case()
    t.close(t.call(rms_norm, x, np.ones(3, np.float32), 0.0), x)
    t.holds(not np.shares_memory(t.last, x), "the result is x itself, expected a new array")


@ex.check("each number is multiplied with its own weight")
def weights(rms_norm, t):
    for n in (2, 5, 64):
        x, weight = normal(t, n), normal(t, n)
        t.case(f"x, weight = random float32, [{n}]" if n > 5 else "")
        t.call(rms_norm, x, weight, 1e-5, shown=None if n > 5 else "")
        t.close(t.last, norm_by_hand(x, weight, 1e-5), rtol=1e-4, atol=1e-6)


@ex.check("eps is added under the root; a row of zeros stays zeros")
def epsilon(rms_norm, t):
    for row, eps in (([0.0, 0.0], 1e-5), ([1e-3, -2e-3, 1e-3], 1e-5), ([0.1, 0.2], 0.5)):
        x, ones = np.array(row, np.float32), np.ones(len(row), np.float32)
        t.case()
        t.close(t.call(rms_norm, x, ones, eps), norm_by_hand(x, ones, eps), rtol=1e-4)
        t.holds(not np.shares_memory(t.last, x), "the result is x itself, expected a new array")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch03.rope",
    title="RoPE: position as rotation",
    points=10,
    level="medium",
    section="03.3",
    hints=[
        "`angles`: the pairs are numbered i = 0, 1, 2, ... dims / 2 - 1, and the exponent is -2 i / dims. "
        "`np.arange(0, dims, 2) / dims` is 2 i / dims for all pairs.",
        "`rotate`: a pair (a, b) becomes (a cos - b sin, a sin + b cos). Both new numbers need both old ones: work on a "
        "copy.",
        "With n = 2 * len(cos): interleaved pairs are x[:, 0:n:2] and x[:, 1:n:2]; half pairs are x[:, :n // 2] and "
        "x[:, n // 2:n].",
    ],
)


@ex.solution
def angles(position, dims, base):
    """Cosines and sines of the rotation at a position.

    Pair i (from 0) is turned by the angle position * base ** (-2 i / dims).  The first
    pair turns fast, the last one slowly.

    Parameters
    ----------
    position : int
        The first token of a text is at position 0.
    dims : int
        How many numbers of a head are turned; even.
    base : float

    Returns
    -------
    (cos, sin)
        float32 arrays [dims / 2].

    Examples
    --------
    >>> cos, sin = angles(0, 4, 10000.0)
    >>> cos.tolist(), sin.tolist()
    ([1.0, 1.0], [0.0, 0.0])
    """
    angle = position * base ** (-np.arange(0, dims, 2) / dims)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@ex.solution
def rotate(x, cos, sin, pairing):
    """Turn pairs of numbers of each head.

    A pair (a, b) becomes (a * cos - b * sin, a * sin + b * cos).  Of each head, with
    n = 2 * len(cos), pair i is

    - "interleaved": numbers 2 i and 2 i + 1;
    - "half": numbers i and i + n / 2.

    The numbers after the first n stay as they are.

    Parameters
    ----------
    x : float32 array [heads, head_dim]
        Queries or keys of one token.  It is not changed.
    cos, sin : float32 arrays [n / 2]
    pairing : str

    Returns
    -------
    float array [heads, head_dim]

    Examples
    --------
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]], np.float32)
    >>> zero, one = np.zeros(2, np.float32), np.ones(2, np.float32)  # a quarter turn
    >>> rotate(x, zero, one, "interleaved").tolist()
    [[-2.0, 1.0, -4.0, 3.0]]
    >>> rotate(x, zero, one, "half").tolist()
    [[-3.0, -4.0, 1.0, 2.0]]
    """
    n = 2 * len(cos)
    if pairing == "interleaved":
        first, second = slice(0, n, 2), slice(1, n, 2)
    else:
        first, second = slice(0, n // 2), slice(n // 2, n)
    out = x.copy()
    out[:, first] = x[:, first] * cos - x[:, second] * sin
    out[:, second] = x[:, first] * sin + x[:, second] * cos
    return out


@ex.wrong("Positions begin at 1. The first token is at position 0: it is not turned at all.", replaces="angles")
def counts_from_one(position, dims, base):
    angle = (position + 1) * base ** (-np.arange(0, dims, 2) / dims)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@ex.wrong("The exponent is -i / dims. Pair i has -2 i / dims: the slowest pairs come out too fast.", replaces="angles")
def half_the_exponent(position, dims, base):
    angle = position * base ** (-np.arange(dims // 2) / dims)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@ex.wrong("The exponent has the wrong sign: later pairs turn faster and faster. They should turn ever more slowly.",
          replaces="angles")
def ever_faster(position, dims, base):
    angle = position * base ** (np.arange(0, dims, 2) / dims)
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


@ex.wrong("The two pairings are swapped: interleaved means neighbours, half means i and i + n / 2.", replaces="rotate")
def swaps_the_pairings(x, cos, sin, pairing):
    n = 2 * len(cos)
    if pairing == "half":
        first, second = slice(0, n, 2), slice(1, n, 2)
    else:
        first, second = slice(0, n // 2), slice(n // 2, n)
    out = x.copy()
    out[:, first] = x[:, first] * cos - x[:, second] * sin
    out[:, second] = x[:, first] * sin + x[:, second] * cos
    return out


@ex.wrong("The pairing is ignored: neighbours are turned in every case. Half pairs i with i + n / 2.", replaces="rotate")
def always_neighbours(x, cos, sin, pairing):
    n = 2 * len(cos)
    out = x.copy()
    out[:, 0:n:2] = x[:, 0:n:2] * cos - x[:, 1:n:2] * sin
    out[:, 1:n:2] = x[:, 0:n:2] * sin + x[:, 1:n:2] * cos
    return out


@ex.wrong("The pairing is ignored: i and i + n / 2 are turned in every case. Interleaved pairs neighbours.",
          replaces="rotate")
def always_halves(x, cos, sin, pairing):
    n = len(cos)
    out = x.copy()
    out[:, :n] = x[:, :n] * cos - x[:, n:2 * n] * sin
    out[:, n:2 * n] = x[:, :n] * sin + x[:, n:2 * n] * cos
    return out


@ex.wrong("Turns the other way round: the minus belongs to the first number of a pair.", replaces="rotate")
def backwards(x, cos, sin, pairing):
    n = 2 * len(cos)
    if pairing == "interleaved":
        first, second = slice(0, n, 2), slice(1, n, 2)
    else:
        first, second = slice(0, n // 2), slice(n // 2, n)
    out = x.copy()
    out[:, first] = x[:, first] * cos + x[:, second] * sin
    out[:, second] = x[:, second] * cos - x[:, first] * sin
    return out


@ex.wrong("The second number is made of the first one after it was turned. Both need the old values: read from x, write "
          "to the copy.", replaces="rotate")
def reads_what_it_wrote(x, cos, sin, pairing):
    n = 2 * len(cos)
    if pairing == "interleaved":
        first, second = slice(0, n, 2), slice(1, n, 2)
    else:
        first, second = slice(0, n // 2), slice(n // 2, n)
    out = x.copy()
    out[:, first] = out[:, first] * cos - out[:, second] * sin
    out[:, second] = out[:, first] * sin + out[:, second] * cos
    return out


@ex.wrong("Half pairs are taken over the whole head. Only its first n = 2 * len(cos) numbers are turned; the rest stays.",
          replaces="rotate")
def halves_of_the_head(x, cos, sin, pairing):
    n = 2 * len(cos)
    if pairing == "interleaved":
        first, second = slice(0, n, 2), slice(1, n, 2)
    else:
        middle = x.shape[1] // 2
        first, second = slice(0, n // 2), slice(middle, middle + n // 2)
    out = x.copy()
    out[:, first] = x[:, first] * cos - x[:, second] * sin
    out[:, second] = x[:, first] * sin + x[:, second] * cos
    return out


def turned_by_hand(x, cos, sin, pairing):
    """Rotation, pair by pair, in Python's floats."""
    out = [[float(v) for v in head] for head in x]
    for head in out:
        old = list(head)
        for i in range(len(cos)):
            a, b = (2 * i, 2 * i + 1) if pairing == "interleaved" else (i, i + len(cos))
            head[a] = old[a] * float(cos[i]) - old[b] * float(sin[i])
            head[b] = old[a] * float(sin[i]) + old[b] * float(cos[i])
    return np.array(out)


def angles_by_hand(position, dims, base):
    """Cosines and sines, pair by pair."""
    turn = [position * base ** (-2 * i / dims) for i in range(dims // 2)]
    return np.array([math.cos(a) for a in turn], np.float32), np.array([math.sin(a) for a in turn], np.float32)


@ex.check("angles: position * base ** (-2 i / dims), from position 0 on")
def all_angles(mine, t):
    for position, dims, base in ((0, 2, 10000.0), (1, 2, 10000.0), (1, 4, 100.0), (3, 8, 10000.0), (500, 64, 100000.0),
                                 (30001, 64, 100000.0), (3, 8, 500.0)):
        t.case()
        got = t.call(mine.angles, position, dims, base)
        t.holds(isinstance(got, tuple) and len(got) == 2, f"the result is {got!r}, expected (cos, sin)")
        for name, array, want in zip(("cos", "sin"), got, angles_by_hand(position, dims, base), strict=True):
            t.close(array, want, name, rtol=1e-4, atol=1e-5 if position <= 500 else 1e-2)
            t.holds(np.asarray(array).dtype == np.float32, f"{name} is an array of {np.asarray(array).dtype}, "
                    "expected float32")


def turns(mine, t, pairing, cases):
    """`rotate` agrees with the rotation by hand."""
    for heads, head_dim, dims in cases:
        small = heads * head_dim <= 8
        x = np.arange(1.0, 1 + heads * head_dim, dtype=np.float32).reshape(heads, -1) if small \
            else normal(t, heads, head_dim)
        cos, sin = angles_by_hand(int(t.rng.integers(1, 9)), dims, 100.0)
        t.case(f"x = {x.tolist()}" if small else f"x = random float32, {x.shape}",
               f"cos, sin = {cos.round(3).tolist()}, {sin.round(3).tolist()}" if small else f"cos, sin of {dims} dims")
        got = t.call(mine.rotate, x, cos, sin, pairing, shown=f'rotate(x, cos, sin, "{pairing}")')
        t.close(got, turned_by_hand(x, cos, sin, pairing), rtol=1e-4, atol=1e-5)


@ex.check("interleaved pairs: numbers 2 i and 2 i + 1")
def interleaved(mine, t):
    turns(mine, t, "interleaved", ((1, 2, 2), (1, 4, 4), (2, 4, 4), (3, 16, 16)))


@ex.check("half pairs: numbers i and i + n / 2")
def half(mine, t):
    turns(mine, t, "half", ((1, 2, 2), (1, 4, 4), (2, 4, 4), (3, 16, 16)))


@ex.check("what is not turned stays as it is")
def partial(mine, t):
    for pairing in ("interleaved", "half"):
        turns(mine, t, pairing, ((1, 6, 4), (2, 16, 8)))


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch03.attention",
    title="Attention, with shared keys",
    points=15,
    level="hard",
    section="03.4",
    hints=[
        "For one head: scores are dot products of its query with every key up to `position`, times scale. Softmax makes "
        "them shares. The result is the values, averaged by their shares.",
        "How many positions are that? Positions count from 0, and a token sees itself: `position + 1`.",
        "Heads share keys in groups: with 6 heads and 2 kv heads, heads 0, 1, 2 use kv head 0 and heads 3, 4, 5 kv head "
        "1. Head h uses kv head `h // (heads // kv_heads)`; `np.repeat(k, group, axis=0)` lines them up.",
        "Subtract the largest score before exp: the shares stay the same, and nothing overflows.",
    ],
)


@ex.solution
def attention(q, k, v, scale, position=None):
    """Attention of one token: what it takes from the positions up to its own.

    For each head: scores are the dot products of the head's query with the keys of
    positions 0 to `position`, times `scale`; softmax turns them into shares; the result
    is the sum of the values, each times its share.

    Heads share keys and values in groups of heads / kv_heads: the first group uses kv
    head 0, the next one kv head 1, and so on.

    Parameters
    ----------
    q : float32 array [heads, k_dim]
    k : float32 array [kv_heads, n, k_dim]
    v : float32 array [kv_heads, n, v_dim]
        Planes of a cache.  Whatever they hold after `position` is left over from
        earlier, and may be anything, even NaN or inf: do not let it into the result.
    scale : float
    position : int, optional
        The token's own.  By default the last one, n - 1.

    Returns
    -------
    float array [heads, v_dim]

    Examples
    --------
    >>> q = np.zeros((2, 3), np.float32)                 # all scores are 0
    >>> k = np.zeros((1, 2, 3), np.float32)
    >>> v = np.array([[[1.0], [5.0]]], np.float32)
    >>> attention(q, k, v, 1.0).tolist()
    [[3.0], [3.0]]
    >>> attention(q, k, v, 1.0, position=0).tolist()
    [[1.0], [1.0]]
    """
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.repeat(k[:, :position + 1], group, axis=0)
    values = np.repeat(v[:, :position + 1], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("Groups are dealt out in turn: head 1 gets kv head 1. Groups are neighbours: `np.repeat`, not "
          "`np.tile`.")
def tiles(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.tile(k[:, :position + 1], (group, 1, 1))
    values = np.tile(v[:, :position + 1], (group, 1, 1))
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("All heads look at kv head 0. Each group has keys and values of its own.")
def one_kv_head(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    keys = np.repeat(k[:1, :position + 1], len(q), axis=0)
    values = np.repeat(v[:1, :position + 1], len(q), axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("The token does not see itself: positions 0 to `position` are `position + 1` of them.")
def blind_to_itself(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.repeat(k[:, :max(position, 1)], group, axis=0)
    values = np.repeat(v[:, :max(position, 1)], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("One position too many: the token sees the one after it, which does not exist yet.")
def sees_the_next(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.repeat(k[:, :position + 2], group, axis=0)
    values = np.repeat(v[:, :position + 2], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("The position is ignored: everything in the cache is looked at, even what is left over from earlier.")
def sees_everything(q, k, v, scale, position=None):
    group = len(q) // len(k)
    keys = np.repeat(k[:, :], group, axis=0)
    values = np.repeat(v[:, :], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("The scores are not scaled. Long keys have large dot products, and softmax turns those into all or "
          "nothing.")
def no_scale(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.repeat(k[:, :position + 1], group, axis=0)
    values = np.repeat(v[:, :position + 1], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("The scale comes after softmax. It belongs to the scores, before.")
def scales_the_shares(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.repeat(k[:, :position + 1], group, axis=0)
    values = np.repeat(v[:, :position + 1], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares = shares / shares.sum(axis=1, keepdims=True) * scale
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("Softmax runs over the heads. The shares of each head, over the positions, sum to 1.")
def across_heads(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.repeat(k[:, :position + 1], group, axis=0)
    values = np.repeat(v[:, :position + 1], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores - scores.max(axis=0, keepdims=True))
    shares = shares / shares.sum(axis=0, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


@ex.wrong("exp overflows for large scores. Subtract the largest one first: the shares stay the same.")
def overflows(q, k, v, scale, position=None):
    position = k.shape[1] - 1 if position is None else position
    group = len(q) // len(k)
    keys = np.repeat(k[:, :position + 1], group, axis=0)
    values = np.repeat(v[:, :position + 1], group, axis=0)
    scores = np.einsum("hd,hnd->hn", q, keys) * scale
    shares = np.exp(scores)
    shares = shares / shares.sum(axis=1, keepdims=True)
    return np.einsum("hn,hnd->hd", shares, values)


def attend_by_hand(q, k, v, scale, position):
    """Attention, head by head and position by position, in Python's floats."""
    out = []
    for h in range(len(q)):
        kv = h * len(k) // len(q)
        scores = [scale * math.fsum(float(a) * float(b) for a, b in zip(q[h], k[kv, p], strict=True))
                  for p in range(position + 1)]
        shares = [math.exp(s - max(scores)) for s in scores]
        out.append([math.fsum(s * float(v[kv, p, j]) for p, s in enumerate(shares)) / math.fsum(shares)
                    for j in range(v.shape[2])])
    return np.array(out)


def attends(attention, t, q, k, v, scale, position, *story):
    """Compare with attention by hand; position None is the last one."""
    t.case(*story)
    said = "" if position is None else f", position={position}"
    args = (q, k, v, scale) if position is None else (q, k, v, scale, position)
    with np.errstate(all="ignore"):
        got = t.call(attention, *args, shown=f"attention(q, k, v, {scale}{said})")
    want = attend_by_hand(q, k, v, scale, k.shape[1] - 1 if position is None else position)
    t.close(got, want, rtol=1e-4, atol=1e-5)


@ex.check("one head: shares by softmax, values averaged")
def one_head(attention, t):
    for n, k_dim, v_dim in ((1, 2, 2), (2, 2, 3), (3, 4, 2), (9, 8, 5)):
        q, k, v = normal(t, 1, k_dim), normal(t, 1, n, k_dim), normal(t, 1, n, v_dim)
        attends(attention, t, q, k, v, 0.5, None, f"q, k, v = random, {q.shape}, {k.shape}, {v.shape}")


@ex.check("heads share keys in groups")
def groups(attention, t):
    for heads, kv_heads, n in ((2, 2, 2), (4, 2, 3), (6, 3, 4), (9, 3, 7)):
        q, k, v = normal(t, heads, 4), normal(t, kv_heads, n, 4), normal(t, kv_heads, n, 3)
        attends(attention, t, q, k, v, 0.5, None, f"heads = {heads}, kv heads = {kv_heads}, positions = {n}, random")


@ex.check("a token sees the positions up to its own, and nothing after it")
def causal(attention, t):
    for n, position, rest in ((4, 1, "random"), (2, 0, "random"), (6, 3, "random"), (6, 2, "NaN"), (6, 2, "inf"), (6, 5, "random")):
        q, k, v = normal(t, 2, 4), normal(t, 1, n, 4), normal(t, 1, n, 3)
        if rest != "random":
            k[:, position + 1:], v[:, position + 1:] = float(rest), float(rest)
        attends(attention, t, q, k, v, 0.5, position, f"q, k, v = random, {q.shape}, {k.shape}, {v.shape}"
                + (f"; everything after position {position} is {rest}" if rest != "random" else ""))


@ex.check("large scores do not overflow")
def large(attention, t):
    for size in (10.0, 40.0):
        q, k, v = normal(t, 2, 8, size=size), normal(t, 1, 3, 8, size=size), normal(t, 1, 3, 2)
        attends(attention, t, q, k, v, 1.0, None, f"q, k = random numbers of about {size:g}, {q.shape}, {k.shape}")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch03.swiglu",
    title="SwiGLU, the gated activation",
    points=1,
    level="easy",
    section="03.5",
    hints=[
        "silu(x) is x times a number between 0 and 1, the sigmoid of x.",
        "silu(x) = x / (1 + exp(-x)). For very negative x, exp(-x) is inf and x / inf is 0, which is right; "
        "`np.errstate(over='ignore')` keeps the warning away.",
        "silu of `gate`, times `up`, number by number.",
    ],
)


@ex.solution
def swiglu(gate, up):
    """silu(gate) * up, number by number, where silu(x) = x / (1 + exp(-x)).

    Parameters
    ----------
    gate, up : float32 arrays of the same shape

    Returns
    -------
    float array of that shape

    Examples
    --------
    >>> gate, up = np.array([0.0, 100.0, -100.0]), np.array([5.0, 2.0, 2.0])
    >>> swiglu(gate, up).round(6).tolist()
    [0.0, 200.0, -0.0]
    """
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


@ex.wrong("gate and up are swapped: silu is applied to `gate`, `up` goes in as it is.")
def silu_of_up(gate, up):
    with np.errstate(over="ignore"):
        return up / (1 + np.exp(-up)) * gate


@ex.wrong("This is the sigmoid of gate, times up. silu is gate * sigmoid(gate).")
def sigmoid_only(gate, up):
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-gate)) * up


@ex.wrong("exp(x) / (1 + exp(x)) is inf / inf for large x, which is NaN. 1 / (1 + exp(-x)) is the same number, and safe.")
def nan_for_large(gate, up):
    with np.errstate(all="ignore"):
        return gate * (np.exp(gate) / (1 + np.exp(gate))) * up


@ex.wrong("This is GELU, which looks alike. Models of the Gemma family use it; the llama family uses silu.")
def gelu(gate, up):
    return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up


@ex.wrong("A ReLU: negative gates give exactly 0. silu lets a little of them through.")
def relu(gate, up):
    return np.maximum(gate, 0) * up


def gated_by_hand(gate, up):
    """SwiGLU, number by number."""
    flat = [float(g) / (1 + math.exp(-float(g))) * float(u) if g > -700 else -0.0
            for g, u in zip(gate.reshape(-1), up.reshape(-1), strict=True)]
    return np.array(flat).reshape(gate.shape)


@ex.check("silu of the gate, with up = 1")
def only_gate(swiglu, t):
    for row in ([0.0], [1.0, -1.0], [0.5, 2.0, -3.0]):
        gate, up = np.array(row, np.float32), np.ones(len(row), np.float32)
        t.case()
        t.close(t.call(swiglu, gate, up), gated_by_hand(gate, up), rtol=1e-5, atol=1e-7)


@ex.check("times up, for any shape")
def times_up(swiglu, t):
    for shape in ((3,), (2, 4), (5, 64)):
        gate, up = normal(t, *shape, size=2.0), normal(t, *shape)
        t.case(f"gate, up = random float32, {shape}" if len(shape) > 1 else "")
        t.close(t.call(swiglu, gate, up, shown=None if len(shape) > 1 else ""), gated_by_hand(gate, up), rtol=1e-4,
                atol=1e-6)


@ex.check("very large and very small gates give no NaN")
def extreme(swiglu, t):
    gate, up = np.array([200.0, -200.0, 1000.0, -1000.0], np.float32), np.ones(4, np.float32)
    t.case()
    with np.errstate(all="ignore"):
        t.close(t.call(swiglu, gate, up), gated_by_hand(gate, up), rtol=1e-5, atol=1e-30)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch03.layer",
    title="A whole layer",
    points=20,
    level="hard",
    section="03.6",
    hints=[
        "Two halves, and both have the same shape: x + something(norm(x)). The first something is attention, the second "
        "the feed-forward.",
        "Row i of x is at position cache.len + i. Its turned key and its value go into the cache *before* it attends: it "
        "sees itself.",
        "A matrix is [outputs, inputs], so a product is `rows @ matrix.T`; then reshape q to [m, heads, head_dim], k and "
        "v to [m, kv_heads, head_dim].",
        "`cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)` stores one key. Then "
        "`ops.attention(turned_query, cache.k[layer], cache.v[layer], 1 / math.sqrt(c.head_dim), position)`.",
    ],
)


@ex.solution
def run_layer(ops, x, layer, w, c, cache):
    """One layer over the next m tokens of a stream.

        h = norm(x, attn_norm)                    # row by row
        q, k, v = h @ w.q.T, h @ w.k.T, h @ w.v.T
        q, k, v cut into heads; q and k turned by position; k and v stored
        x = x + (attention of each token, its heads side by side) @ w.attn_output.T
        h = norm(x, ffn_norm)                     # row by row
        x = x + swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T

    Row i of x is the token at position cache.len + i.  Its turned key and its value are
    stored at that position in `cache.k[layer]` and `cache.v[layer]`, and it sees all
    positions up to its own.  `cache.len` stays as it is: the other layers need it too.

    Parameters
    ----------
    ops : the functions of this chapter
        ops.rms_norm(x [n], weight, eps), ops.angles(position, dims, base),
        ops.rotate(x [heads, head_dim], cos, sin, pairing),
        ops.attention(q, k, v, scale, position), ops.swiglu(gate, up).
    x : float32 array [m, dim]
    layer : int
        Its number, from 0.
    w : weights of this layer
        Vectors w.attn_norm, w.ffn_norm; matrices [outputs, inputs] w.q, w.k, w.v,
        w.attn_output, w.gate, w.up, w.down.
    c : sizes of the model
        c.heads, c.kv_heads, c.head_dim, c.eps, and c.rope with dims, base, pairing.
    cache : Cache

    Returns
    -------
    float array [m, dim]
        A new array; x itself stays as it is.  The scale of attention is
        1 / sqrt(head_dim).

    Examples
    --------
    Two tokens at once, or one after the other: the same rows.

        both = run_layer(ops, x, 0, w, c, cache)          # x [2, dim], cache.len 0
        first = run_layer(ops, x[:1], 0, w, c, another)   # another.len 0
        another.len = 1                                   # when all layers are done
        second = run_layer(ops, x[1:], 0, w, c, another)
    """
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Attention replaces x. It is added to it: x keeps what it had, the residual connection.")
def no_first_residual(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The feed-forward replaces x. It is added to it, as attention is.")
def no_second_residual(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Attention is added to the normed rows. The norm is only for what goes into attention; the sum is with "
          "x itself.")
def adds_to_the_norm(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = h + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The second norm uses attn_norm again. The feed-forward has a norm of its own, ffn_norm.")
def one_norm_for_both(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The feed-forward reads x as it was before attention. The two halves come one after the other.")
def old_rows_into_the_feed_forward(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    x = x + np.stack(seen) @ w.attn_output.T
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The values are turned as well. Position matters for who looks where: queries and keys. What is handed "
          "over, the values, stays as it is.")
def values_are_turned(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = ops.rotate(v[i], cos, sin, c.rope.pairing)
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Keys go into the cache without their rotation. Queries and keys are both turned: only then the score "
          "depends on their distance.")
def keys_are_not_turned(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = k[i]
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Positions begin at 0 in each call. The first row of x is at cache.len: the prompt works, the next "
          "token does not.")
def positions_from_zero(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("A token attends before its own key and value are stored. It sees itself too, so store first.")
def stores_afterwards(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The scale is that of the whole row, 1 / sqrt(dim). A dot product runs over one head: 1 / "
          "sqrt(head_dim).")
def scale_of_the_whole_row(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / np.sqrt(c.heads * c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("gate and up are swapped: silu is for h W_gate.")
def gate_and_up_swapped(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.up.T, h @ w.gate.T) @ w.down.T


@ex.wrong("The layer moves cache.len. The layers after it would store this step's rows at different positions: len "
          "moves once per step, after all layers.")
def moves_len(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    cache.len += m
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Everything goes into the planes of layer 0. Each layer has planes of its own.")
def always_layer_0(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[0][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[0][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[0], cache.v[0], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("eps is a number of your own. Every model has its own: `c.eps`.")
def eps_of_its_own(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, 1e-5) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, 1e-5) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The angles are made for whole heads. A model may turn only some numbers of a head: `c.rope.dims` says how many.")
def turns_whole_heads(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.head_dim, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The scale of attention is made of the number of turned dims. It is 1 / sqrt(head_dim), however many are turned.")
def scale_of_the_turned(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.rope.dims)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("The position is not handed to attention. Without it, a token looks at all that the cache has room for, also at what "
          "was never written.")
def no_position(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Keys and values are rounded to halves before they are stored. This cache holds float32, so store them as they are.")
def stores_halves(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing).astype(np.float16)
        cache.v[layer][:, position] = v[i].astype(np.float16)
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Writes a token's value to all places from its position on. Each token has one place; those after it were never written.")
def writes_to_the_end(ops, x, layer, w, c, cache):
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        cache.k[layer][:, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        cache.v[layer][:, position:] = v[i][:, None]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


@ex.wrong("Keeps the keys of earlier positions outside of the cache, for all streams alike. A second stream then looks at the keys of "
          "the first: what belongs to a stream is kept in its cache.")
def keys_for_all(ops, x, layer, w, c, cache, known={}):  # noqa: B006
    m = len(x)
    h = np.stack([ops.rms_norm(row, w.attn_norm, c.eps) for row in x])
    q = (h @ w.q.T).reshape(m, c.heads, c.head_dim)
    k = (h @ w.k.T).reshape(m, c.kv_heads, c.head_dim)
    v = (h @ w.v.T).reshape(m, c.kv_heads, c.head_dim)
    seen = []
    if cache.len == 0:
        known.clear()
    for i in range(m):
        position = cache.len + i
        cos, sin = ops.angles(position, c.rope.dims, c.rope.base)
        known[layer, position] = ops.rotate(k[i], cos, sin, c.rope.pairing)
        for earlier in range(position + 1):
            cache.k[layer][:, earlier] = known[layer, earlier]
        cache.v[layer][:, position] = v[i]
        turned = ops.rotate(q[i], cos, sin, c.rope.pairing)
        scale = 1 / math.sqrt(c.head_dim)
        seen.append(ops.attention(turned, cache.k[layer], cache.v[layer], scale, position).reshape(-1))
    x = x + np.stack(seen) @ w.attn_output.T
    h = np.stack([ops.rms_norm(row, w.ffn_norm, c.eps) for row in x])
    return x + ops.swiglu(h @ w.gate.T, h @ w.up.T) @ w.down.T


def toy_ops():
    """The functions of this chapter, for the checks of what is built of them."""
    def rms_norm(x, weight, eps):
        if np.ndim(x) != 1:
            raise ValueError(f"ops.rms_norm takes one row [n], it was given an array {list(np.shape(x))}: norm row by row")
        return norm_by_hand(x, weight, eps).astype(np.float32)

    return SimpleNamespace(
        rms_norm=rms_norm,
        angles=angles_by_hand,
        rotate=lambda x, cos, sin, pairing: turned_by_hand(x, cos, sin, pairing).astype(np.float32),
        attention=lambda q, k, v, scale, position=None: attend_by_hand(
            q, k, v, scale, k.shape[1] - 1 if position is None else position).astype(np.float32),
        swiglu=lambda gate, up: gated_by_hand(gate, up).astype(np.float32),
    )


def toy_sizes(heads, kv_heads, head_dim, pairing="interleaved", dims=None):
    """Sizes of a small model; its eps is so large that no other will do."""
    return SimpleNamespace(heads=heads, kv_heads=kv_heads, head_dim=head_dim, eps=0.25,
                           rope=SimpleNamespace(dims=dims or head_dim, base=100.0, pairing=pairing))


def toy_layer(t, c, dim, ffn_dim):
    """Random weights of one layer."""
    def matrix(outputs, inputs):
        return normal(t, outputs, inputs, size=0.5)

    wide, narrow = c.heads * c.head_dim, c.kv_heads * c.head_dim
    return SimpleNamespace(attn_norm=normal(t, dim), q=matrix(wide, dim), k=matrix(narrow, dim), v=matrix(narrow, dim),
                           attn_output=matrix(dim, wide), ffn_norm=normal(t, dim), gate=matrix(ffn_dim, dim),
                           up=matrix(ffn_dim, dim), down=matrix(dim, ffn_dim))


def layer_by_hand(x, w, c, keys, values):
    """The layer, token by token, for rows after those that `keys` and `values` (lists of [kv_heads, head_dim]) hold."""
    ops, out = toy_ops(), []
    for row in x:
        h = norm_by_hand(row, w.attn_norm, c.eps)
        q, k, v = ((m.astype(np.float64) @ h).reshape(-1, c.head_dim) for m in (w.q, w.k, w.v))
        cos, sin = angles_by_hand(len(keys), c.rope.dims, c.rope.base)
        keys.append(turned_by_hand(k, cos, sin, c.rope.pairing))
        values.append(v)
        looked = attend_by_hand(turned_by_hand(q, cos, sin, c.rope.pairing), np.stack(keys, axis=1),
                                np.stack(values, axis=1), 1 / math.sqrt(c.head_dim), len(keys) - 1)
        row = row + w.attn_output @ looked.reshape(-1)
        h = norm_by_hand(row, w.ffn_norm, c.eps)
        out.append(row + w.down @ ops.swiglu(w.gate @ h, w.up @ h))
    return np.array(out)


def weights_of(w):
    """Copies of a model's arrays, or of a layer's."""
    return {name: value.copy() for name, value in vars(w).items() if isinstance(value, np.ndarray)}


def expect_weights(t, w, before):
    """A forward reads weights and writes none."""
    for name, value in before.items():
        t.holds(np.array_equal(getattr(w, name), value), f"w.{name} has changed")


def runs_layer(run_layer, t, steps, heads, kv_heads, head_dim, dim, ffn_dim, pairing="interleaved", layer=0,
               dims=None, spare=2):
    """Feed `steps` rows at a time; compare every row, and the cache, which has room for `spare` more."""
    c = toy_sizes(heads, kv_heads, head_dim, pairing, dims)
    w, ops = toy_layer(t, c, dim, ffn_dim), toy_ops()
    kept = weights_of(w)
    cache, keys, values = Cache(layer + 1, kv_heads, head_dim, sum(steps) + spare), [], []
    t.case(f"c: heads = {heads}, kv_heads = {kv_heads}, head_dim = {head_dim}, {pairing}"
           + (f", rope.dims = {dims}" if dims else "") + f", eps = {c.eps}; dim = {dim}; w = random",
           f"cache = Cache({layer + 1}, {kv_heads}, {head_dim}, capacity={sum(steps) + spare})")
    for m in steps:
        x = normal(t, m, dim)
        before, start = x.copy(), cache.len
        t.story.append(f"x = random, {x.shape}; cache.len = {cache.len}")
        with np.errstate(all="ignore"):
            got = t.call(run_layer, ops, x, layer, w, c, cache, shown=f"run_layer(ops, x, {layer}, w, c, cache)",
                         changes=True)
        t.holds(np.array_equal(x, before), "x has changed; the result is to be a new array")
        t.close(got, layer_by_hand(before, w, c, keys, values), rtol=2e-3, atol=2e-3)
        t.equal(cache.len, start, "cache.len")
        cache.len = start + m
    expect_weights(t, w, kept)
    return cache, keys, values


@ex.check("the first token of a stream")
def first_token(run_layer, t):
    for heads, kv_heads, head_dim, dim, ffn_dim in ((1, 1, 2, 2, 3), (2, 1, 4, 6, 5), (6, 2, 4, 8, 12)):
        runs_layer(run_layer, t, [1], heads, kv_heads, head_dim, dim, ffn_dim, spare=0 if heads == 1 else 2)


@ex.check("several tokens at once, each sees those before it")
def prompt(run_layer, t):
    for m, pairing in ((2, "interleaved"), (4, "half"), (5, "interleaved")):
        runs_layer(run_layer, t, [m], 4, 2, 4, 6, 7, pairing)
    for m, pairing in ((3, "interleaved"), (3, "half")):
        runs_layer(run_layer, t, [m], 2, 1, 8, 6, 7, pairing, dims=4)


@ex.check("token by token: a step goes on where the last one ended")
def decode(run_layer, t):
    for steps in ([1, 1], [3, 1], [2, 3, 1]):
        runs_layer(run_layer, t, steps, 4, 2, 4, 6, 7)


@ex.check("the cache holds turned keys and plain values, in the planes of this layer")
def stored(run_layer, t):
    for layer, steps in ((0, [2]), (2, [1, 2])):
        cache, keys, values = runs_layer(run_layer, t, steps, 2, 1, 4, 6, 5, layer=layer)
        n = sum(steps)
        t.close(cache.k[layer][:, :n], np.stack(keys, axis=1), f"cache.k[{layer}][:, :{n}]", rtol=1e-4, atol=1e-5)
        t.close(cache.v[layer][:, :n], np.stack(values, axis=1), f"cache.v[{layer}][:, :{n}]", rtol=1e-4, atol=1e-5)
        t.holds(np.isnan(cache.k[layer][:, n:]).all() and np.isnan(cache.v[layer][:, n:]).all(),
                f"cache.k[{layer}] or cache.v[{layer}] was written after position {n - 1}, where no token is yet")


@ex.check("two streams that take turns do not meet")
def take_turns(run_layer, t):
    c = toy_sizes(2, 1, 4)
    w, ops = toy_layer(t, c, 6, 5), toy_ops()
    streams = [(name, Cache(1, 1, 4, 5), [], []) for name in "ab"]
    t.case("a and b: two caches of the same sizes")
    for m in (2, 1, 1):
        for name, cache, keys, values in streams:
            x, start = normal(t, m, 6), cache.len
            with np.errstate(all="ignore"):
                got = t.call(run_layer, ops, x, 0, w, c, cache, changes=True,
                             shown=f"run_layer(ops, x, 0, w, c, {name})      # x = random, {x.shape}; {name}.len = {start}")
            t.close(got, layer_by_hand(x, w, c, keys, values), rtol=2e-3, atol=2e-3)
            cache.len = start + m
    for name, cache, keys, values in streams:
        t.close(cache.k[0][:, :4], np.stack(keys, axis=1), f"{name}.k[0][:, :4]", rtol=1e-4, atol=1e-5)
        t.close(cache.v[0][:, :4], np.stack(values, axis=1), f"{name}.v[0][:, :4]", rtol=1e-4, atol=1e-5)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch03.forward",
    title="The whole forward",
    points=10,
    level="medium",
    section="03.7",
    hints=[
        "Four parts: rows of the embedding, one layer after the other, a last norm, a last product.",
        "`w.embedding[tokens]` takes all rows at once. Layer i gets `w.layers[i]` and the number i.",
        "`cache.len += len(tokens)` when all layers are done, and only then.",
    ],
)


@ex.solution
def forward(ops, tokens, w, c, cache):
    """Run the next tokens of a stream through the model.

    Embedding, all layers, the last norm (`w.output_norm`, row by row), and a product
    with `w.output` that gives one number for each token of the vocabulary.  At the end,
    `cache.len` grows by the number of tokens.

    Parameters
    ----------
    ops : as in `run_layer`, and ops.run_layer(ops, x, layer, w, c, cache) itself
    tokens : list of int
    w : weights of the model
        w.embedding [vocab, dim], w.layers (a list), w.output_norm [dim],
        w.output [vocab, dim].
    c : sizes of the model
    cache : Cache

    Returns
    -------
    float array [len(tokens), vocab]
        The logits after each token.

    Examples
    --------
    The prompt at once, then one more token:

        logits = forward(ops, [5, 2, 7], w, c, cache)     # [3, vocab]; cache.len is 3
        logits = forward(ops, [4], w, c, cache)           # [1, vocab]; cache.len is 4
    """
    x = w.embedding[tokens]
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


@ex.wrong("The last norm is missing: rows leave the layers at any size, and the logits with them.")
def no_last_norm(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    cache.len += len(tokens)
    return x @ w.output.T


@ex.wrong("cache.len moves in every layer. All layers of a step store at the same positions: it moves once, at "
          "the end.")
def moves_in_every_layer(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
        cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


@ex.wrong("cache.len does not move: the next step would overwrite these positions.")
def never_moves(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


@ex.wrong("cache.len moves before the layers run: they would leave a gap that nobody has written.")
def moves_first(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    cache.len += len(tokens)
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


@ex.wrong("Only the logits after the last token come back. Every token has its row.")
def only_the_last_row(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return (x @ w.output.T)[-1:]


@ex.wrong("The embedding serves as output matrix. That is so in models where the two are tied; here `w.output` "
          "says which matrix it is.")
def embedding_as_output(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.embedding.T


@ex.wrong("All layers are run as layer 0, so they share its planes in the cache.")
def one_layer_number(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for weights in w.layers:
        x = ops.run_layer(ops, x, 0, weights, c, cache)
    cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


@ex.wrong("The layers run from the last to the first. They do not commute: layer 0 comes first.")
def last_layer_first(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for i in reversed(range(len(w.layers))):
        x = ops.run_layer(ops, x, i, w.layers[i], c, cache)
    cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


@ex.wrong("The rows of the embedding are multiplied by a number. Models of the Gemma family do that; here they go into the "
          "first layer as they are.")
def scaled_embedding(ops, tokens, w, c, cache):
    x = w.embedding[tokens] * np.float32(math.sqrt(w.embedding.shape[1]))
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


@ex.wrong("eps is a number of your own. Every model has its own: `c.eps`.")
def its_own_eps(ops, tokens, w, c, cache):
    x = w.embedding[tokens]
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    cache.len += len(tokens)
    x = np.stack([ops.rms_norm(row, w.output_norm, 1e-6) for row in x])
    return x @ w.output.T


@ex.wrong("The tokens are used up: the caller's list is empty afterwards. Read them, and leave the list as it is.")
def uses_up_the_tokens(ops, tokens, w, c, cache):
    rows, n = [], len(tokens)
    while tokens:
        rows.append(w.embedding[tokens.pop(0)])
    x = np.stack(rows)
    for i, weights in enumerate(w.layers):
        x = ops.run_layer(ops, x, i, weights, c, cache)
    cache.len += n
    x = np.stack([ops.rms_norm(row, w.output_norm, c.eps) for row in x])
    return x @ w.output.T


def pretend_layer(ops, x, layer, w, c, cache):
    """A layer reduced to what `forward` sees of one: it stores rows after `len`, and depends on those before."""
    m, start = len(x), cache.len
    cache.k[layer][0, start:start + m, 0] = x[:, 0]
    before = np.cumsum(cache.k[layer][0, :start + m, 0])[start:]
    return (x * w.scale + w.shift + before[:, None] * (layer + 1) * 0.1).astype(np.float32)


def forward_by_hand(tokens, w, c, rows):
    """The same with a plain list of rows for each layer."""
    out = []
    for token in tokens:
        x = w.embedding[token].astype(np.float64)
        for i, weights in enumerate(w.layers):
            rows[i].append(x[0])
            x = x * weights.scale + weights.shift + sum(rows[i]) * (i + 1) * 0.1
        out.append(w.output @ norm_by_hand(x, w.output_norm, c.eps))
    return np.array(out)


def runs_forward(forward, t, steps, layers, dim, vocab, tied=False):
    """Feed tokens step by step; compare logits and the cache's length."""
    c = toy_sizes(1, 1, 2)
    embedding = normal(t, vocab, dim)
    w = SimpleNamespace(embedding=embedding, output_norm=normal(t, dim),
                        output=embedding if tied else normal(t, vocab, dim),
                        layers=[SimpleNamespace(scale=np.float32(0.5 + 0.3 * i), shift=normal(t, dim)) for i in range(layers)])
    ops, kept = toy_ops(), weights_of(w)
    ops.run_layer = pretend_layer
    cache, rows, seen = Cache(layers, 1, 2, 64), [[] for _ in range(layers)], 0
    t.case(f"w: {layers} layer(s), vocabulary {vocab}, dim {dim}, random; "
           + ("w.output is w.embedding" if tied else "w.output is another matrix than w.embedding"))
    for m in steps:
        tokens = [int(i) for i in t.rng.integers(0, vocab, m)]
        want = forward_by_hand(tokens, w, c, rows)
        with np.errstate(all="ignore"):
            got = t.call(forward, ops, list(tokens), w, c, cache, shown=f"forward(ops, {tokens}, w, c, cache)", changes=(4,))
        t.close(got, want, rtol=1e-3, atol=1e-3)
        seen += m
        t.equal(cache.len, seen, "cache.len")
        expect_weights(t, w, kept)


@ex.check("one token, one layer: embedding, layer, norm, output")
def smallest(forward, t):
    runs_forward(forward, t, [1], 1, 4, 3, tied=True)
    runs_forward(forward, t, [1], 1, 4, 3)


@ex.check("several layers, several tokens: a row of logits for each")
def larger(forward, t):
    for layers, m in ((2, 1), (2, 3), (5, 4)):
        runs_forward(forward, t, [m], layers, 6, 9)


@ex.check("step by step: the cache counts what was read")
def stepwise(forward, t):
    for steps in ([1, 1], [3, 1, 1], [2, 4]):
        runs_forward(forward, t, steps, 3, 6, 9)
