"""Chapter 20 - A kernel of your own.

A kernel is the small loop in which a program spends its time. For a language model it is
`linear`: the product of a large matrix with a short row. You write it here by hand, from
loops that a beginner could read to one that keeps up with the memory of your machine.

numba compiles these functions. It does not check indexes: a kernel that writes past the
end of an array destroys something else. The names of shapes are the same everywhere:

    rows     outputs of the matrix         cols    its inputs
    lanes    rows that are computed side by side
    groups   rows / lanes, rounded up      block   32 columns that share a scale

Kernels are plain functions here: numbers, arrays, loops. Whoever uses one compiles it with
`numba.njit(nogil=True)`, the checks as well as the notebook. (`nogil` lets other threads run
meanwhile. It must be plain enough for numba: no dicts of arrays, no classes, no strings.)

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch20`, or in the notebook with a cell that begins
with `%%exercise ch20.pack`. Both are the same file: this one. Stuck?
`python3 -m course hint ch20.pack`.

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
import threading
import numpy as np


def quantise(rows):
    """Rows of numbers in 8 bits: (q int8 [n, cols], d float32 [n, cols / 32]), w is about q * d."""
    blocks = rows.reshape(len(rows), -1, 32)
    d = np.abs(blocks).max(axis=2) / np.float32(127)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, :, None]).astype(np.int8)
    return q.reshape(rows.shape), d


def pack_q8(matrix, lanes):
    """A matrix as `q8_linear` wants it: q int8 [groups, cols, lanes], d float32 [groups, cols / 32, lanes]."""
    n = -(-len(matrix) // lanes) * lanes
    full = np.zeros((n, matrix.shape[1]), np.float32)
    full[:len(matrix)] = matrix
    return [np.ascontiguousarray(a.reshape(n // lanes, lanes, -1).transpose(0, 2, 1)) for a in quantise(full)]


# %% ch20.pack - Rows side by side (5 points, easy, section 20.3)

def pack(matrix, lanes):
    """Lay the rows of a matrix side by side, `lanes` of them at a time.

    In the result the numbers of one column of `lanes` rows are neighbours in memory, so
    that one vector instruction can take them all.

    Parameters
    ----------
    matrix : float32 array [rows, cols]
    lanes : int
        At least 1. Rows that are missing in the last group are zeros.

    Returns
    -------
    float32 array [groups, cols, lanes]
        Contiguous in memory (C order); result[g, c, j] is matrix[g * lanes + j, c].

    Examples
    --------
    >>> pack(np.array([[1, 2], [3, 4], [5, 6]], np.float32), lanes=2).tolist()
    [[[1.0, 3.0], [2.0, 4.0]], [[5.0, 0.0], [6.0, 0.0]]]
    """
    raise NotImplementedError("ch20.pack: your code here")


# %% ch20.lanes - A kernel with lanes (15 points, medium, section 20.3)

def lanes_linear(packed, x, out, lo, hi):
    """The product of packed rows with x, for the groups lo ... hi - 1.

    out[n] = packed row n times x. Each sum starts at 0 and adds its products column by
    column, 0 first, in float32: the same bits as the plain loop has. Only the *rows* are
    computed side by side.

    Parameters
    ----------
    packed : float32 array [groups, cols, lanes]
        As `pack` makes it.
    x : float32 array [cols]
    out : float32 array [rows]
        Receives the results. rows may be smaller than groups * lanes: what has no place is
        not stored. Results of other groups are left alone.
    lo, hi : int
        The groups to compute; other threads may compute the rest at the same time.

    Examples
    --------
    >>> packed = np.array([[[1, 3], [2, 4]], [[5, 0], [6, 0]]], np.float32)
    >>> out = np.zeros(3, np.float32)
    >>> lanes_linear(packed, np.array([1, 10], np.float32), out, 0, 2)
    >>> out.tolist()
    [21.0, 43.0, 65.0]
    """
    raise NotImplementedError("ch20.lanes: your code here")


# %% ch20.nibbles - Two weights per byte (10 points, easy, section 20.5)

def nibbles(packed, out):
    """Unpack the 4-bit weights of Q4_0 and Q4_1 blocks.

    A block of 32 weights is 16 bytes. Byte i holds weight i of the block in its low four
    bits, and weight i + 16 in its high four bits.

    Parameters
    ----------
    packed : uint8 array [16 * blocks]
    out : uint8 array [32 * blocks]
        Receives the weights, numbers from 0 to 15, in their order.

    Examples
    --------
    >>> out = np.zeros(32, np.uint8)
    >>> nibbles(np.arange(16, dtype=np.uint8) * 16 + 3, out)
    >>> out[:4].tolist(), out[16:20].tolist()
    ([3, 3, 3, 3], [0, 1, 2, 3])
    """
    raise NotImplementedError("ch20.nibbles: your code here")


# %% ch20.q8_linear - A quantised dot product (15 points, medium, section 20.4)

def q8_linear(q, d, x, dx, out, lo, hi):
    """The product of packed 8-bit rows with an 8-bit x, for the groups lo ... hi - 1.

    Of each block of 32 columns the products of whole numbers are summed up exactly. Their sum,
    as float32, is multiplied by the two scales of the block:

        out[n] = 0 + (d * dx) * sum of block 0 + (d * dx) * sum of block 1 + ...

    All of it in float32 and in this order, so that a result has the same bits everywhere.

    Parameters
    ----------
    q : int8 array [groups, cols, lanes]
        The weights, from -127 to 127; cols is a multiple of 32.
    d : float32 array [groups, cols / 32, lanes]
        The scales of their blocks.
    x : int8 array [cols]
    dx : float32 array [cols / 32]
    out : float32 array [rows]
        Receives the results; what has no place in it is not stored.
    lo, hi : int

    Examples
    --------
    >>> q, d = np.full((1, 32, 2), 2, np.int8), np.full((1, 1, 2), 0.5, np.float32)
    >>> out = np.zeros(2, np.float32)
    >>> q8_linear(q, d, np.full(32, 3, np.int8), np.array([0.25], np.float32), out, 0, 1)
    >>> out.tolist()
    [24.0, 24.0]
    """
    raise NotImplementedError("ch20.q8_linear: your code here")


# %% ch20.tile - A tile: one weight, many rows (20 points, hard, section 20.6)

def tile_linear(packed, x, out, lo, hi):
    """Packed rows times several rows of x, for the groups lo ... hi - 1.

    Each weight that was read is used for up to four rows of x before the next one is read: that
    is what makes a pass of four rows cheaper than four passes. A row's result has the same
    bits as with `lanes_linear`, alone or in company.

    Parameters
    ----------
    packed : float32 array [groups, cols, lanes]
    x : float32 array [m, cols]
        m rows, 1 or more.
    out : float32 array [m, rows]
        out[r, n] receives packed row n times x[r]; what has no place in it is not stored.
    lo, hi : int

    Examples
    --------
    >>> packed = np.array([[[1, 3], [2, 4]]], np.float32)
    >>> out = np.zeros((2, 2), np.float32)
    >>> tile_linear(packed, np.array([[1, 10], [0, 1]], np.float32), out, 0, 1)
    >>> out.tolist()
    [[21.0, 43.0], [2.0, 4.0]]
    """
    raise NotImplementedError("ch20.tile: your code here")


# %% ch20.linear - Your kernel in the engine (20 points, hard, section 20.8)

class Linear:
    """`linear` with 8-bit weights and several threads, in the form that the engine calls.

    `model.override("linear", Linear(kernel, threads))` puts it into a real model.

    Parameters
    ----------
    kernel : callable
        `kernel(q, d, x, dx, out, lo, hi)`, compiled: what `q8_linear` does. It may run in
        several threads at once, for different groups.
    threads : int
        How many threads work, at least 1.
    pack : callable
        `pack(matrix, lanes)` returns [q, d]. It takes long: a matrix is packed when it is seen
        for the first time, and never again.
    lanes : int

    Examples
    --------
    >>> def kernel(q, d, x, dx, out, lo, hi):
    ...     out[lo * 2:hi * 2] = np.einsum("gcl,c->gl", q[lo:hi] * d[lo:hi], x * dx).reshape(-1)
    >>> linear = Linear(kernel, threads=2, lanes=2)
    >>> linear(np.eye(4, 32, dtype=np.float32), np.full(32, 254, np.float32)).tolist()
    [254.0, 254.0, 254.0, 254.0]
    """

    def __init__(self, kernel, threads, pack=pack_q8, lanes=128):
        self.kernel = kernel
        self.threads = threads
        self.pack = pack
        self.lanes = lanes
        self.known = {}

    def __call__(self, matrix, x):
        """The product of a matrix with one row.

        The groups are cut into at most `threads` parts of neighbouring groups, each for one
        thread (the caller's may be one of them), and they work at the same time. When the call
        returns, all of them have ended. An error in one of them is raised here.

        Parameters
        ----------
        matrix : float32 array [rows, cols]
            cols is a multiple of 32. Its numbers never change. Models have many matrices, often
            of the same shape.
        x : float32 array [cols]

        Returns
        -------
        float32 array [rows]
            A new one for each call. Its bits do not depend on the number of threads.
        """
        raise NotImplementedError("ch20.linear: your code here")
