"""Chapter 03 - A transformer step.

You write the pieces of a language model one by one: norm, rotation, attention, the
gated feed-forward, a layer, and the whole forward.  With the weights of a real model,
your forward then gives the real model's logits.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch03`, or in the notebook with a cell that begins
with `%%exercise ch03.rms_norm`. Both are the same file: this one. Stuck?
`python3 -m course hint ch03.rms_norm`.

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


# %% ch03.rms_norm - RMSNorm (1 point, easy, section 03.2)

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
    raise NotImplementedError("ch03.rms_norm: your code here")


# %% ch03.rope - RoPE: position as rotation (10 points, medium, section 03.3)

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
    raise NotImplementedError("ch03.rope: your code here")


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
    raise NotImplementedError("ch03.rope: your code here")


# %% ch03.attention - Attention, with shared keys (15 points, hard, section 03.4)

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
    raise NotImplementedError("ch03.attention: your code here")


# %% ch03.swiglu - SwiGLU, the gated activation (1 point, easy, section 03.5)

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
    raise NotImplementedError("ch03.swiglu: your code here")


# %% ch03.layer - A whole layer (20 points, hard, section 03.6)

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
    raise NotImplementedError("ch03.layer: your code here")


# %% ch03.forward - The whole forward (10 points, medium, section 03.7)

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
    raise NotImplementedError("ch03.forward: your code here")
