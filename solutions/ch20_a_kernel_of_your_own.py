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
"""

import threading
import time
import types
import weakref

import numba
import numpy as np

from course.exercises import Exercise, given


@given
def quantise(rows):
    """Rows of numbers in 8 bits: (q int8 [n, cols], d float32 [n, cols / 32]), w is about q * d."""
    blocks = rows.reshape(len(rows), -1, 32)
    d = np.abs(blocks).max(axis=2) / np.float32(127)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, :, None]).astype(np.int8)
    return q.reshape(rows.shape), d


@given
def pack_q8(matrix, lanes):
    """A matrix as `q8_linear` wants it: q int8 [groups, cols, lanes], d float32 [groups, cols / 32, lanes]."""
    n = -(-len(matrix) // lanes) * lanes
    full = np.zeros((n, matrix.shape[1]), np.float32)
    full[:len(matrix)] = matrix
    return [np.ascontiguousarray(a.reshape(n // lanes, lanes, -1).transpose(0, 2, 1)) for a in quantise(full)]


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch20.pack",
    title="Rows side by side",
    points=5,
    level="easy",
    section="20.3",
    cpu_seconds=20.0,
    memory_mb=1024,
    hints=[
        "How many groups are there? Enough for all rows: the last one may be filled up with rows of zeros.",
        "Cut the rows into groups first, [groups, lanes, cols]. Then swap the last two axes.",
        "`.transpose(0, 2, 1)` only looks at the same memory in another order. np.ascontiguousarray moves the numbers.",
    ],
)


@ex.solution
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
    rows, cols = matrix.shape
    groups = -(-rows // lanes)
    full = np.zeros((groups * lanes, cols), np.float32)
    full[:rows] = matrix
    return np.ascontiguousarray(full.reshape(groups, lanes, cols).transpose(0, 2, 1))


@ex.wrong("Loses the rows that do not fill a group. Round the number of groups up, and fill the last one with zeros.")
def loses_the_tail(matrix, lanes):
    rows, cols = matrix.shape
    groups = rows // lanes
    return np.ascontiguousarray(matrix[:groups * lanes].reshape(groups, lanes, cols).transpose(0, 2, 1))


@ex.wrong("Reshapes where it should transpose: the shape is right, and the numbers stand at other places. A reshape never "
          "changes the order in memory.")
def only_reshapes(matrix, lanes):
    rows, cols = matrix.shape
    groups = -(-rows // lanes)
    full = np.zeros((groups * lanes, cols), np.float32)
    full[:rows] = matrix
    return full.reshape(groups, cols, lanes)


@ex.wrong("Nothing has moved: `transpose` alone looks at the old memory in another order. The kernel would still find the "
          "lanes far apart. np.ascontiguousarray puts them in place.")
def only_a_view(matrix, lanes):
    rows, cols = matrix.shape
    groups = -(-rows // lanes)
    full = np.zeros((groups * lanes, cols), np.float32)
    full[:rows] = matrix
    return full.reshape(groups, lanes, cols).transpose(0, 2, 1)


@ex.wrong("Deals rows out like cards: lane j of group g is row j * groups + g. Neighbouring rows belong together, so that "
          "the results of a group are neighbours as well.")
def deals_out(matrix, lanes):
    rows, cols = matrix.shape
    groups = -(-rows // lanes)
    full = np.zeros((groups * lanes, cols), np.float32)
    full[:rows] = matrix
    return np.ascontiguousarray(full.reshape(lanes, groups, cols).transpose(1, 2, 0))


def some_matrix(t, rows, cols):
    """A matrix of random numbers."""
    return t.rng.standard_normal((rows, cols)).astype(np.float32)


def packed_by_hand(matrix, lanes):
    """The packed matrix, number by number."""
    rows, cols = matrix.shape
    out = np.zeros((-(-rows // lanes), cols, lanes), np.float32)
    for n in range(rows):
        out[n // lanes, :, n % lanes] = matrix[n]
    return out


@ex.check("every number at its place, where the rows fill the groups")
def places(pack, t):
    for rows, cols, lanes in ((4, 3, 2), (8, 5, 4), (6, 7, 1), (16, 2, 8)):
        matrix = some_matrix(t, rows, cols)
        t.case(f"matrix: float32 [{rows}, {cols}]")
        t.equal(t.call(pack, matrix, lanes, shown=f"pack(matrix, {lanes})"), packed_by_hand(matrix, lanes))


@ex.check("the last group is filled up with zeros")
def tails(pack, t):
    for rows, cols, lanes in ((5, 3, 4), (1, 6, 8), (9, 2, 4), (7, 1, 3)):
        matrix = some_matrix(t, rows, cols)
        t.case(f"matrix: float32 [{rows}, {cols}]")
        t.equal(t.call(pack, matrix, lanes, shown=f"pack(matrix, {lanes})"), packed_by_hand(matrix, lanes))


@ex.check("neighbours in the result are neighbours in memory")
def contiguous(pack, t):
    matrix = some_matrix(t, 8, 6)
    t.case("matrix: float32 [8, 6]")
    got = t.call(pack, matrix, 4, shown="pack(matrix, 4)")
    t.holds(getattr(got, "dtype", None) == np.float32, f"the result is {getattr(got, 'dtype', type(got))}, expected float32")
    t.holds(got.flags.c_contiguous, f"the strides are {got.strides} bytes: the lanes of a column are not neighbours")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch20.lanes",
    title="A kernel with lanes",
    points=15,
    level="medium",
    section="20.3",
    cpu_seconds=30.0,
    memory_mb=1024,
    hints=[
        "One loop over groups, inside it one over columns, inside it one over lanes. The innermost loop has no sum that "
        "depends on itself: each lane has a sum of its own. This is what the compiler can turn into vectors.",
        "The sums of a group: a small float32 array of `lanes` numbers, made once (np.zeros) and set to 0 for each group. "
        "Keep x[c] in a variable before the innermost loop.",
        "At the end of a group: row = g * lanes + j. Store it only where row < out.size.",
    ],
)


@ex.solution
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
    lanes = packed.shape[2]
    sums = np.zeros(lanes, np.float32)
    for g in range(lo, hi):
        for j in range(lanes):
            sums[j] = 0
        for c in range(x.size):
            v = x[c]
            for j in range(lanes):
                sums[j] += packed[g, c, j] * v
        for j in range(lanes):
            if g * lanes + j < out.size:
                out[g * lanes + j] = sums[j]


@ex.wrong("Stores all lanes of the last group, also those that have no row: it writes past the end of `out`. numba does not "
          "check indexes, so nobody tells you. Whatever lies there is destroyed.")
def past_the_end(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    sums = np.zeros(lanes, np.float32)
    for g in range(lo, hi):
        sums[:] = 0
        for c in range(x.size):
            for j in range(lanes):
                sums[j] += packed[g, c, j] * x[c]
        for j in range(lanes):
            out[g * lanes + j] = sums[j]


@ex.wrong("Forgets the sums of the group before. They must be 0 at the beginning of each group, and not only once.")
def never_cleared(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    sums = np.zeros(lanes, np.float32)
    for g in range(lo, hi):
        for c in range(x.size):
            for j in range(lanes):
                sums[j] += packed[g, c, j] * x[c]
        for j in range(lanes):
            if g * lanes + j < out.size:
                out[g * lanes + j] = sums[j]


@ex.wrong("Adds to what stands in `out` instead of storing. The array of the caller holds something old.")
def adds_to_out(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    for g in range(lo, hi):
        for c in range(x.size):
            for j in range(lanes):
                if g * lanes + j < out.size:
                    out[g * lanes + j] += packed[g, c, j] * x[c]


@ex.wrong("Adds in float64. The result is more accurate, and it is not the promised one: other bits than the plain float32 loop, "
          "and half as many lanes in a vector. In numba 0.0 is a float64, and so is what you add to it.")
def in_float64(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            total = 0.0
            for c in range(x.size):
                total += packed[g, c, j] * x[c]
            if g * lanes + j < out.size:
                out[g * lanes + j] = total


@ex.wrong("Adds in another order: two sums, of the even and the odd columns, joined at the end. Float sums depend on the order, so "
          "the bits differ from the plain loop. With lanes there is no need for it.")
def even_and_odd(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            even = odd = np.float32(0)
            for c in range(0, x.size - 1, 2):
                even += packed[g, c, j] * x[c]
                odd += packed[g, c + 1, j] * x[c + 1]
            if x.size % 2:
                even += packed[g, x.size - 1, j] * x[x.size - 1]
            if g * lanes + j < out.size:
                out[g * lanes + j] = even + odd


@ex.wrong("Computes all groups, whatever lo and hi are. Where threads share the work, each of them then does everything, and they "
          "write over one another.")
def all_groups(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    sums = np.zeros(lanes, np.float32)
    for g in range(packed.shape[0]):
        sums[:] = 0
        for c in range(x.size):
            for j in range(lanes):
                sums[j] += packed[g, c, j] * x[c]
        for j in range(lanes):
            if g * lanes + j < out.size:
                out[g * lanes + j] = sums[j]


_compiled = weakref.WeakKeyDictionary()


def compiled(kernel):
    """A kernel as numba compiles it; once for all checks."""
    plain = getattr(kernel, "py_func", kernel)
    if plain not in _compiled:
        code = plain.__code__.replace(co_filename="<kernel>")  # numba looks for the source, which nobody needs here
        twin = types.FunctionType(code, plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__)
        _compiled[plain] = numba.njit(nogil=True)(twin)
    return _compiled[plain]


compiled(lambda a: a[0] + np.float32(1))(np.zeros(1, np.float32))  # what numba sets up for its first function


@ex.wrong("Computes eight rows of a group, whatever their number is. How many rows lie side by side is the last number of "
          "`packed.shape`.")
def eight_lanes(packed, x, out, lo, hi):
    lanes = min(8, packed.shape[2])
    for g in range(lo, hi):
        for j in range(lanes):
            total = np.float32(0)
            for c in range(packed.shape[1]):
                total += packed[g, c, j] * x[c]
            if g * packed.shape[2] + j < len(out):
                out[g * packed.shape[2] + j] = total


def in_order(matrix, x):
    """Products with x, added column by column in float32."""
    sums = np.zeros(len(matrix), np.float32)
    for c in range(matrix.shape[1]):
        sums += matrix[:, c] * x[c]
    return sums


GUARD = np.float32(-77)


def guarded(rows):
    """An array of old numbers, and the larger one in which it lies: nobody may write around it."""
    whole = np.full(rows + 64, GUARD)
    return whole[32:32 + rows], whole


def run_lanes(kernel, t, rows, cols, lanes, lo=0, hi=None):
    """One call of a kernel; returns what it should have stored, what it did, and what lies around."""
    matrix, x = some_matrix(t, rows, cols), some_matrix(t, 1, cols)[0]
    packed = packed_by_hand(matrix, lanes)
    hi = len(packed) if hi is None else hi
    out, whole = guarded(rows)
    t.case(f"packed: float32 {list(packed.shape)}, x: float32 [{cols}], out: float32 [{rows}], holding {GUARD:g}")
    t.call(compiled(kernel), packed, x, out, lo, hi, changes=True, shown=f"lanes_linear(packed, x, out, {lo}, {hi})")
    want = np.full(rows, GUARD)
    want[lo * lanes:hi * lanes] = in_order(matrix, x)[lo * lanes:hi * lanes]
    return want, out, whole


def expect_guards(t, whole, rows):
    """Nothing around `out` has changed."""
    touched = np.flatnonzero(whole[32 + rows:] != GUARD)
    t.holds(not touched.size and bool((whole[:32] == GUARD).all()),
            f"it wrote to out[{rows + int(touched[0]) if touched.size else -1}], which does not exist")


@ex.check("the products, where the rows fill the groups")
def products(lanes_linear, t):
    for shape in ((8, 5, 4), (16, 1, 8), (4, 33, 4)):
        want, out, _ = run_lanes(lanes_linear, t, *shape)
        t.close(out, want, "out", rtol=1e-4, atol=1e-5)


@ex.check("a last group that is not full: nothing is written past the end")
def no_overrun(lanes_linear, t):
    for shape in ((5, 4, 4), (1, 9, 8), (13, 6, 8)):
        want, out, whole = run_lanes(lanes_linear, t, *shape)
        expect_guards(t, whole, shape[0])
        t.close(out, want, "out", rtol=1e-4, atol=1e-5)


@ex.check("only the groups lo ... hi - 1 are computed")
def parts(lanes_linear, t):
    for lo, hi in ((1, 3), (0, 1), (2, 2), (3, 4)):
        want, out, _ = run_lanes(lanes_linear, t, 15, 7, 4, lo, hi)
        t.close(out, want, "out", rtol=1e-4, atol=1e-5)


@ex.check("the bits of the plain float32 loop, column by column")
def plain_bits(lanes_linear, t):
    for shape in ((32, 96, 8), (24, 61, 4), (7, 300, 16), (45, 40, 32)):
        want, out, _ = run_lanes(lanes_linear, t, *shape)
        t.equal(out, want, "out")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch20.nibbles",
    title="Two weights per byte",
    points=10,
    level="easy",
    section="20.5",
    cpu_seconds=20.0,
    memory_mb=1024,
    hints=[
        "byte & 15 is the low half, byte >> 4 the high half of a byte that is an unsigned number.",
        "Where do the halves go? Byte i of a block holds weight i in its low half, and weight i + 16 in its high half.",
        "Two loops: over the blocks and over 16 bytes. out[32 * b + i] and out[32 * b + i + 16].",
    ],
)


@ex.solution
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
    for b in range(packed.size // 16):
        for i in range(16):
            byte = packed[16 * b + i]
            out[32 * b + i] = byte & 15
            out[32 * b + i + 16] = byte >> 4


@ex.wrong("Swaps the halves: the low four bits are the first 16 weights of a block, the high four bits the others.")
def swapped(packed, out):
    for b in range(packed.size // 16):
        for i in range(16):
            out[32 * b + i] = packed[16 * b + i] >> 4
            out[32 * b + i + 16] = packed[16 * b + i] & 15


@ex.wrong("Puts the two weights of a byte side by side. That is another common layout, but not this one: they stand 16 "
          "places apart.")
def side_by_side(packed, out):
    for i in range(packed.size):
        out[2 * i] = packed[i] & 15
        out[2 * i + 1] = packed[i] >> 4


@ex.wrong("Leaves the high half where it is: byte & 0xF0 is 16 times the weight. Shift it down.")
def not_shifted(packed, out):
    for b in range(packed.size // 16):
        for i in range(16):
            out[32 * b + i] = packed[16 * b + i] & 15
            out[32 * b + i + 16] = packed[16 * b + i] & 240


@ex.wrong("Takes the whole array for one block. The halves are 16 places apart inside *each* block of 32.")
def one_large_block(packed, out):
    n = packed.size
    for i in range(n):
        out[i] = packed[i] & 15
        out[i + n] = packed[i] >> 4


@ex.wrong("Takes the byte for a signed number: from 128 on it is negative, its shift brings ones in from the left, and the "
          "weight is not 0 to 15 any more.")
def signed(packed, out):
    for b in range(packed.size // 16):
        for i in range(16):
            byte = np.int8(packed[16 * b + i])
            out[32 * b + i] = byte & 15
            out[32 * b + i + 16] = np.uint8(byte >> 4)


@ex.wrong("Shifts the bytes in place: `packed` holds only their high halves afterwards. The weights of the model are read again in "
          "the next step; write to `out` alone.")
def shifts_in_place(packed, out):
    for b in range(packed.size // 16):
        for i in range(16):
            out[32 * b + i] = packed[16 * b + i] & 15
            packed[16 * b + i] >>= 4
            out[32 * b + i + 16] = packed[16 * b + i]


def unpacked(packed):
    """The weights by NumPy."""
    blocks = packed.reshape(-1, 16)
    return np.concatenate([blocks & 15, blocks >> 4], axis=1).reshape(-1)


def run_nibbles(nibbles, t, packed, what):
    """Unpack and compare."""
    whole, longer = np.full(2 * packed.size + 64, 99, np.uint8), np.append(packed, np.full(64, 17, np.uint8))
    out = whole[:2 * packed.size]
    t.case(f"packed: {what}")
    t.call(compiled(nibbles), longer[:packed.size], out, changes=True, shown="nibbles(packed, out)")
    t.equal(out, unpacked(packed), "out")
    t.equal(longer[:packed.size], packed, "packed afterwards")
    t.holds(bool((whole[out.size:] == 99).all()), "it wrote past the end of out")


@ex.check("the low halves are the first 16 weights of a block")
def low_halves(nibbles, t):
    run_nibbles(nibbles, t, np.arange(16, dtype=np.uint8), "the bytes 0 to 15")


@ex.check("the high halves are the other 16")
def high_halves(nibbles, t):
    run_nibbles(nibbles, t, np.arange(8, dtype=np.uint8).repeat(2) * 16 + 5, "5, 5, 21, 21, 37, 37, ... 117, 117")


@ex.check("bytes from 128 on")
def large_bytes(nibbles, t):
    run_nibbles(nibbles, t, np.arange(240, 256, dtype=np.uint8), "the bytes 240 to 255")


@ex.check("several blocks, one after the other")
def many_blocks(nibbles, t):
    for blocks in (2, 20):
        run_nibbles(nibbles, t, t.rng.integers(0, 256, 16 * blocks).astype(np.uint8), f"{blocks} blocks of random bytes")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch20.q8_linear",
    title="A quantised dot product",
    points=15,
    level="medium",
    section="20.4",
    cpu_seconds=30.0,
    memory_mb=1024,
    hints=[
        "Two kinds of sums: whole numbers inside a block, exact in any order; floats from block to block, in order.",
        "One array of int32 for the sums of a block, set to 0 for each block, and one of float32 for the results, set to 0 for "
        "each group. 32 products of up to 127 * 127 need more than 16 bits.",
        "numba makes int32 + int32 an int64. `whole[j] = np.int32(whole[j] + np.int32(q[g, c, j]) * v)` keeps it small, and "
        "then more lanes fit into a vector. v = np.int32(x[c]), outside of the innermost loop.",
        "At the end of block b: sums[j] += d[g, b, j] * dx[b] * np.float32(whole[j]).",
    ],
)


@ex.solution
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
    lanes = q.shape[2]
    whole = np.zeros(lanes, np.int32)
    sums = np.zeros(lanes, np.float32)
    for g in range(lo, hi):
        for j in range(lanes):
            sums[j] = 0
        for b in range(dx.size):
            for j in range(lanes):
                whole[j] = 0
            for c in range(32 * b, 32 * b + 32):
                v = np.int32(x[c])
                for j in range(lanes):
                    whole[j] = np.int32(whole[j] + np.int32(q[g, c, j]) * v)
            for j in range(lanes):
                sums[j] += d[g, b, j] * dx[b] * np.float32(whole[j])
        for j in range(lanes):
            if g * lanes + j < out.size:
                out[g * lanes + j] = sums[j]


@ex.wrong("The sums of a block do not fit into 16 bits: 32 products of up to 127 * 127 come to half a million. What does not fit "
          "comes round again from the other end.")
def sixteen_bits(q, d, x, dx, out, lo, hi):
    lanes = q.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            total = np.float32(0)
            for b in range(dx.size):
                whole = np.int16(0)
                for c in range(32 * b, 32 * b + 32):
                    whole = np.int16(whole + np.int16(q[g, c, j]) * np.int16(x[c]))
                total += d[g, b, j] * dx[b] * np.float32(whole)
            if g * lanes + j < out.size:
                out[g * lanes + j] = total


@ex.wrong("Forgets the scales of x. Its numbers were divided by them when it was quantised; the product must be multiplied by "
          "both scales of a block.")
def one_scale(q, d, x, dx, out, lo, hi):
    lanes = q.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            total = np.float32(0)
            for b in range(dx.size):
                whole = 0
                for c in range(32 * b, 32 * b + 32):
                    whole += np.int32(q[g, c, j]) * np.int32(x[c])
                total += d[g, b, j] * np.float32(whole)
            if g * lanes + j < out.size:
                out[g * lanes + j] = total


@ex.wrong("Takes the scale of the first block for all of them. Each block of 32 columns has its own, in the weights and in x.")
def first_scale(q, d, x, dx, out, lo, hi):
    lanes = q.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            total = np.float32(0)
            for b in range(dx.size):
                whole = 0
                for c in range(32 * b, 32 * b + 32):
                    whole += np.int32(q[g, c, j]) * np.int32(x[c])
                total += d[g, 0, j] * dx[0] * np.float32(whole)
            if g * lanes + j < out.size:
                out[g * lanes + j] = total


@ex.wrong("Adds the blocks from the last to the first. The numbers are nearly the same and the bits are not: floats are added "
          "in the promised order.")
def last_block_first(q, d, x, dx, out, lo, hi):
    lanes = q.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            total = np.float32(0)
            for b in range(dx.size - 1, -1, -1):
                whole = 0
                for c in range(32 * b, 32 * b + 32):
                    whole += np.int32(q[g, c, j]) * np.int32(x[c])
                total += d[g, b, j] * dx[b] * np.float32(whole)
            if g * lanes + j < out.size:
                out[g * lanes + j] = total


@ex.wrong("Multiplies floats inside the block: each weight is decoded before it is used. That rounds at every step, has different bits, "
          "and gives away what whole numbers are good for: exact in any order, and four times as many in a vector.")
def decodes_first(q, d, x, dx, out, lo, hi):
    lanes = q.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            total = np.float32(0)
            for b in range(dx.size):
                for c in range(32 * b, 32 * b + 32):
                    w = d[g, b, j] * np.float32(q[g, c, j])
                    total += w * (dx[b] * np.float32(x[c]))
            if g * lanes + j < out.size:
                out[g * lanes + j] = total


@ex.wrong("Stores all lanes of the last group, also those that have no row: it writes past the end of `out`.")
def q8_past_the_end(q, d, x, dx, out, lo, hi):
    lanes = q.shape[2]
    for g in range(lo, hi):
        for j in range(lanes):
            total = np.float32(0)
            for b in range(dx.size):
                whole = 0
                for c in range(32 * b, 32 * b + 32):
                    whole += np.int32(q[g, c, j]) * np.int32(x[c])
                total += d[g, b, j] * dx[b] * np.float32(whole)
            out[g * lanes + j] = total


def q8_by_hand(q, d, x, dx, rows):
    """The products by NumPy, block by block."""
    groups, cols, lanes = q.shape
    sums = np.zeros((groups, lanes), np.float32)
    for b in range(cols // 32):
        part = slice(32 * b, 32 * b + 32)
        whole = (q[:, part].astype(np.int32) * x[part].astype(np.int32)[None, :, None]).sum(axis=1)
        sums += d[:, b] * dx[b] * whole.astype(np.float32)
    return sums.reshape(-1)[:rows]


def run_q8(q8_linear, t, rows, blocks, lanes, lo=0, hi=None, large=False):
    """One call; returns what it should have stored, what it did, and what lies around."""
    groups = -(-rows // lanes)
    q = t.rng.integers(-127, 128, (groups, 32 * blocks, lanes)).astype(np.int8)
    x = t.rng.integers(-127, 128, 32 * blocks).astype(np.int8)
    if large:
        q, x = np.where(q > 0, 127, 120).astype(np.int8), np.full(32 * blocks, 126, np.int8)
    d = t.rng.uniform(0.01, 0.1, (groups, blocks, lanes)).astype(np.float32)
    dx = t.rng.uniform(0.01, 0.1, blocks).astype(np.float32)
    hi = groups if hi is None else hi
    out, whole = guarded(rows)
    t.case(f"q: int8 {list(q.shape)}, d: float32 {list(d.shape)}, out: float32 [{rows}], holding {GUARD:g}"
           + ("; all weights are near 127" if large else ""))
    t.call(compiled(q8_linear), q, d, x, dx, out, lo, hi, changes=True, shown=f"q8_linear(q, d, x, dx, out, {lo}, {hi})")
    want = np.full(rows, GUARD)
    want[lo * lanes:hi * lanes] = q8_by_hand(q, d, x, dx, rows)[lo * lanes:hi * lanes]
    return want, out, whole


@ex.check("one block: the sum of the products times both scales")
def one_block(q8_linear, t):
    for rows, lanes in ((4, 4), (16, 8)):
        want, out, _ = run_q8(q8_linear, t, rows, 1, lanes)
        t.close(out, want, "out", rtol=1e-3, atol=1e-2)


@ex.check("the largest weights: the sums of a block are exact")
def largest(q8_linear, t):
    want, out, _ = run_q8(q8_linear, t, 8, 2, 8, large=True)
    t.close(out, want, "out", rtol=1e-3, atol=1e-2)


@ex.check("several blocks, each with scales of its own")
def own_scales(q8_linear, t):
    want, out, _ = run_q8(q8_linear, t, 16, 5, 8)
    t.close(out, want, "out", rtol=1e-3, atol=1e-2)


@ex.check("a last group that is not full, and a part of the groups")
def q8_parts(q8_linear, t):
    for rows, lo, hi in ((13, 0, 2), (5, 0, 1), (30, 1, 3)):
        want, out, whole = run_q8(q8_linear, t, rows, 2, 8, lo, hi)
        expect_guards(t, whole, rows)
        t.close(out, want, "out", rtol=1e-3, atol=1e-2)


@ex.check("the promised bits: exact inside a block, float32 from block to block")
def q8_bits(q8_linear, t):
    for rows, blocks, lanes in ((64, 18, 16), (40, 7, 32)):
        want, out, _ = run_q8(q8_linear, t, rows, blocks, lanes)
        t.equal(out, want, "out")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch20.tile",
    title="A tile: one weight, many rows",
    points=20,
    level="hard",
    section="20.6",
    cpu_seconds=40.0,
    memory_mb=1024,
    hints=[
        "Rows of x are taken four at a time; the last ones may be three, two or one. For each tile of rows, go through the "
        "groups, the columns and the lanes as before.",
        "Each row of the tile has sums of its own: a float32 array [4, lanes]. Read packed[g, c, j] into a variable, and use "
        "it for the rows of the tile one after the other.",
        "The innermost loop over j, with four lines in it (one for each row of the tile), is the fastest form. Rows that are missing "
        "in the last tile can take part with zeros, as long as nobody stores them; a single row deserves a loop of its own.",
        "A row's sum adds the same products in the same order, whoever is in the tile: column 0 first.",
    ],
)


@ex.solution
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
    m, cols = x.shape
    lanes = packed.shape[2]
    sums = np.zeros((4, lanes), np.float32)
    for g in range(lo, hi):
        for first in range(0, m, 4):
            n = min(4, m - first)
            for i in range(4):
                for j in range(lanes):
                    sums[i, j] = 0
            for c in range(cols):
                v0 = x[first, c]
                if n == 1:
                    for j in range(lanes):
                        sums[0, j] += packed[g, c, j] * v0
                    continue
                v1 = x[first + 1, c]
                v2 = x[first + 2, c] if n > 2 else np.float32(0)
                v3 = x[first + 3, c] if n > 3 else np.float32(0)
                for j in range(lanes):
                    w = packed[g, c, j]
                    sums[0, j] += w * v0
                    sums[1, j] += w * v1
                    sums[2, j] += w * v2
                    sums[3, j] += w * v3
            for i in range(n):
                for j in range(lanes):
                    if g * lanes + j < out.shape[1]:
                        out[first + i, g * lanes + j] = sums[i, j]


@ex.wrong("Reads the weights once for each row of x: four rows cost four times one row. Turn the loops: a weight is read, then used "
          "for all rows of the tile.")
def row_by_row(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    for r in range(x.shape[0]):
        for g in range(lo, hi):
            for j in range(lanes):
                total = np.float32(0)
                for c in range(x.shape[1]):
                    total += packed[g, c, j] * x[r, c]
                if g * lanes + j < out.shape[1]:
                    out[r, g * lanes + j] = total


@ex.wrong("Forgets the rows that do not fill a tile: with 5 rows the fifth is never computed. The last tile may have one, two or three "
          "rows.")
def full_tiles_only(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    sums = np.zeros((4, lanes), np.float32)
    for first in range(0, x.shape[0] // 4 * 4, 4):
        for g in range(lo, hi):
            sums[:] = 0
            for c in range(x.shape[1]):
                for j in range(lanes):
                    w = packed[g, c, j]
                    for i in range(4):
                        sums[i, j] += w * x[first + i, c]
            for i in range(4):
                for j in range(lanes):
                    if g * lanes + j < out.shape[1]:
                        out[first + i, g * lanes + j] = sums[i, j]


@ex.wrong("A full tile adds up in another order than a single row: two sums, joined at the end. So a row changes its bits with the company "
          "that it is in. Then a verified draft is not what plain decoding says. One order for each row, whatever runs beside it.")
def other_order_in_company(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    sums = np.zeros((2, 4, lanes), np.float32)
    for first in range(0, x.shape[0], 4):
        n = min(4, x.shape[0] - first)
        for g in range(lo, hi):
            sums[:] = 0
            for c in range(x.shape[1]):
                half = c % 2 if n == 4 else 0
                for j in range(lanes):
                    w = packed[g, c, j]
                    for i in range(n):
                        sums[half, i, j] += w * x[first + i, c]
            for i in range(n):
                for j in range(lanes):
                    if g * lanes + j < out.shape[1]:
                        out[first + i, g * lanes + j] = sums[0, i, j] + sums[1, i, j]


@ex.wrong("The rows of a tile share one sum. Each row of x has a result of its own, and so each needs sums of its own.")
def shared_sums(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    sums = np.zeros(lanes, np.float32)
    for first in range(0, x.shape[0], 4):
        n = min(4, x.shape[0] - first)
        for g in range(lo, hi):
            sums[:] = 0
            for c in range(x.shape[1]):
                for j in range(lanes):
                    w = packed[g, c, j]
                    for i in range(n):
                        sums[j] += w * x[first + i, c]
            for i in range(n):
                for j in range(lanes):
                    if g * lanes + j < out.shape[1]:
                        out[first + i, g * lanes + j] = sums[j]


@ex.wrong("Takes four rows, though fewer are left: it reads and writes rows that do not exist. numba does not check indexes.")
def always_four(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    m = x.shape[0]
    sums = np.zeros((4, lanes), np.float32)
    for first in range(0, m, 4):
        for g in range(lo, hi):
            sums[:] = 0
            for c in range(x.shape[1]):
                for j in range(lanes):
                    w = packed[g, c, j]
                    for i in range(4):
                        sums[i, j] += w * (x[first + i, c] if first + i < m else np.float32(0))
            for i in range(4):
                for j in range(lanes):
                    if g * lanes + j < out.shape[1]:
                        out[first + i, g * lanes + j] = sums[i, j]


@ex.wrong("Does not store what fills the last group only in part, or stores too much of it: rows that have a place in `out` are stored, all "
          "of them, and no others.")
def tile_full_groups_only(packed, x, out, lo, hi):
    lanes = packed.shape[2]
    sums = np.zeros((4, lanes), np.float32)
    for first in range(0, x.shape[0], 4):
        n = min(4, x.shape[0] - first)
        for g in range(lo, min(hi, out.shape[1] // lanes)):
            sums[:] = 0
            for c in range(x.shape[1]):
                for j in range(lanes):
                    w = packed[g, c, j]
                    for i in range(n):
                        sums[i, j] += w * x[first + i, c]
            for i in range(n):
                for j in range(lanes):
                    out[first + i, g * lanes + j] = sums[i, j]


def run_tile(tile_linear, t, m, rows, cols, lanes, lo=0, hi=None):
    """One call; returns what it should have stored, what it did, and the rows around."""
    matrix, x = some_matrix(t, rows, cols), some_matrix(t, m, cols)
    packed = packed_by_hand(matrix, lanes)
    hi = len(packed) if hi is None else hi
    whole = np.full((m + 8, rows), GUARD)
    out = whole[4:4 + m]
    t.case(f"packed: float32 {list(packed.shape)}, x: float32 [{m}, {cols}], out: float32 [{m}, {rows}], holding {GUARD:g}")
    t.call(compiled(tile_linear), packed, x, out, lo, hi, changes=True, shown=f"tile_linear(packed, x, out, {lo}, {hi})")
    want = np.full((m, rows), GUARD)
    for r in range(m):
        want[r, lo * lanes:hi * lanes] = in_order(matrix, x[r])[lo * lanes:hi * lanes]
    return want, out, whole


READS = [0]


class Counted(np.ndarray):
    """An array that counts how many of its numbers are asked for, one by one."""

    def __getitem__(self, key):
        got = super().__getitem__(key)
        if not isinstance(got, np.ndarray):
            READS[0] += 1
        return got


@ex.check("one row, and four")
def one_and_four(tile_linear, t):
    for m in (1, 4):
        want, out, _ = run_tile(tile_linear, t, m, 16, 9, 8)
        t.close(out, want, "out", rtol=1e-4, atol=1e-4)


@ex.check("rows that do not fill a tile, and a part of the groups")
def odd_numbers(tile_linear, t):
    for m, lo, hi in ((5, 0, 3), (3, 1, 3), (7, 0, 1), (2, 0, 3)):
        want, out, whole = run_tile(tile_linear, t, m, 24, 6, 8, lo, hi)
        t.holds(bool((whole[:4] == GUARD).all() and (whole[4 + m:] == GUARD).all()), f"it wrote to out[{m}], which does not exist")
        t.close(out, want, "out", rtol=1e-4, atol=1e-4)


@ex.check("a last group that is not full")
def tile_tails(tile_linear, t):
    for m, rows in ((4, 5), (1, 13), (6, 9)):
        want, out, _ = run_tile(tile_linear, t, m, rows, 7, 4)
        t.close(out, want, "out", rtol=1e-4, atol=1e-4)


@ex.check("a row has the same bits in any company")
def same_bits(tile_linear, t):
    for m in (1, 2, 4, 5, 8):
        want, out, _ = run_tile(tile_linear, t, m, 32, 150, 16)
        t.equal(out, want, "out")


@ex.check("a weight that was read serves up to four rows")
def reads_once(tile_linear, t):
    plain = getattr(tile_linear, "py_func", tile_linear)
    for m, times in ((4, 1), (8, 2), (6, 2), (1, 1), (3, 1), (5, 2)):
        packed = packed_by_hand(some_matrix(t, 6, 5), 3).view(Counted)
        x, out = some_matrix(t, m, 5), np.zeros((m, 6), np.float32)
        t.case(f"packed: float32 {list(packed.shape)}, x: float32 [{m}, 5]; run as plain Python, and counted")
        READS[0] = 0
        t.call(plain, packed, x, out, 0, len(packed), changes=True, shown="tile_linear(packed, x, out, 0, 2)")
        most = times * packed.size
        t.holds(READS[0] <= most, f"{READS[0]} weights were read, {packed.size} are there; for {m} rows {most} is enough")


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch20.linear",
    title="Your kernel in the engine",
    points=20,
    level="hard",
    section="20.8",
    cpu_seconds=20.0,
    memory_mb=1024,
    hints=[
        "The engine hands over the same matrix again and again. Its place in memory tells it apart from others: "
        "`matrix.ctypes.data`. Keep the matrix itself as well: as long as you hold it, nobody else gets its place.",
        "Cut the groups into as many parts as there are threads: part i goes from groups * i // threads to "
        "groups * (i + 1) // threads. No group is lost and none is done twice.",
        "One threading.Thread for each part; start all of them, then join all of them. An error inside a thread does not reach "
        "you by itself: catch it there (BaseException), put it into a list, and raise it after the joins.",
        "A new `out` for each call (np.zeros): the last result may still be in use.",
    ],
)


@ex.solution
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

    @given
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
        key = matrix.ctypes.data, matrix.shape
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        edges = [len(q) * i // self.threads for i in range(self.threads + 1)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in zip(edges[1:], edges[2:])]
        for thread in team:
            thread.start()
        work(edges[0], edges[1])
        for thread in team:
            thread.join()
        if errors:
            raise errors.pop()
        return out


@ex.wrong("Groups that cannot be shared out evenly are lost: 10 groups for 3 threads are not three times 3. "
          "Count the edges from the whole, groups * i // threads.")
class LosesTheRest(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        parts = [(n // k * i, n // k * (i + 1)) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("Neighbouring parts share a group: two threads compute it and write to the same place at the same "
          "time. That is a race. It goes well as long as both write the same numbers, and it is work done "
          "twice.")
class Overlaps(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        parts = [(n * i // k, min(n, n * (i + 1) // k + 1)) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("Waits for each thread before it starts the next one, so that nothing runs at the same time. Start "
          "all of them, then join all of them.")
class OneByOne(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        parts = [(n * i // k, n * (i + 1) // k) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("An error in a thread ends that thread, and nobody else hears of it: the result has a hole of zeros. "
          "Keep the error, and raise it after the joins.")
class SwallowsErrors(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        parts = [(n * i // k, n * (i + 1) // k) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        return out


@ex.wrong("Tells matrices apart by their shape. Models have many of the same shape, and each then gets the "
          "first one's weights: no error, another text.")
class ByShape(Linear):
    def __call__(self, matrix, x):
        key = matrix.shape
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        parts = [(n * i // k, n * (i + 1) // k) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("Remembers where a matrix was, and lets the matrix go. When it dies, the next one may get its place "
          "in memory and be taken for it. Keep the matrix beside its packed form.")
class LetsGo(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = None, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        parts = [(n * i // k, n * (i + 1) // k) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("Packs the matrix at every call. That reads all of it in float32 and costs far more than the product: "
          "pack once, when it is seen for the first time.")
class PacksEachTime(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        parts = [(n * i // k, n * (i + 1) // k) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("Uses one buffer for all results of a size: the last result changes while its reader still holds it. "
          "Make a new array for each call.")
class OneBuffer(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = self.known.setdefault(len(matrix), np.zeros(len(matrix), np.float32))
        n, k = len(q), self.threads
        parts = [(n * i // k, n * (i + 1) // k) for i in range(k)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("Starts a thread for every group. Starting one costs more than a group takes, and they stand in one "
          "another's way: one part for each of `threads` threads.")
class AThreadAGroup(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n = len(q)
        parts = [(i, i + 1) for i in range(n)]
        errors = []

        def work(lo, hi):
            try:
                self.kernel(q, d, xq, dx, out, lo, hi)
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        return out


@ex.wrong("Splits the columns among the threads and adds up what they bring. Each part is another sum, so the "
          "bits depend on the number of threads. Split the rows: then each result is made by one thread.")
class SplitsColumns(Linear):
    def __call__(self, matrix, x):
        key = matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, *self.pack(matrix, self.lanes)
        _, q, d = self.known[key]
        (xq,), (dx,) = quantise(x[None])
        out = np.zeros(len(matrix), np.float32)
        n, k = len(q), self.threads
        b = len(dx)
        parts = [(b * i // k, b * (i + 1) // k) for i in range(k)]
        errors, sums = [], {}

        def work(lo, hi):
            try:
                part = np.zeros_like(out)
                cols = slice(32 * lo, 32 * hi)
                self.kernel(np.ascontiguousarray(q[:, cols]), d[:, lo:hi], xq[cols], dx[lo:hi], part, 0, n)
                sums[lo] = part
            except BaseException as error:
                errors.append(error)

        team = [threading.Thread(target=work, args=part) for part in parts if part[0] < part[1]]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
        if errors:
            raise errors[0]
        for lo in sorted(sums):
            out += sums[lo]
        return out


@ex.wrong("Remembers the product of a matrix and returns it the next time. What is remembered is how the matrix is packed; x is "
          "another one for each token.")
class RemembersResults(Linear):
    def __call__(self, matrix, x):
        key = "product", matrix.ctypes.data
        if key not in self.known:
            self.known[key] = matrix, super().__call__(matrix, x)
        return self.known[key][1].copy()


@ex.wrong("Takes matrices of the same shape, the same first row and the same sum for one. Part of the numbers does not say which "
          "matrix it is: it is known by where it lies, as long as nobody can take its place.")
class KnowsThemByASum(Linear):
    def __call__(self, matrix, x):
        key = matrix.shape, matrix[0].tobytes(), float(matrix.sum())
        if key not in self.known:
            self.known[key] = matrix
        return super().__call__(self.known[key], x)


@ex.wrong("All objects share what was packed. Each has `lanes` and `pack` of its own: keep it in `self`.")
class SharesWhatWasPacked(Linear):
    shared = {}

    def __init__(self, kernel, threads, pack=pack_q8, lanes=128):
        super().__init__(kernel, threads, pack, lanes)
        self.known = self.shared


class Kernel:
    """A kernel that notes who called it for what; it may meet others, or raise.

    It takes its time, and it is not heard any more once the call that it belongs to has returned.
    """

    def __init__(self, sleep=0.004, meet=None, fails_at=None):
        self.calls, self.threads, self.sleep, self.meet, self.fails_at = [], set(), sleep, meet, fails_at
        self.heard = True

    def __call__(self, q, d, x, dx, out, lo, hi):
        self.calls.append((int(lo), int(hi)))
        self.threads.add(threading.current_thread())
        if self.meet is not None:
            self.meet.wait(1.0)
        time.sleep(self.sleep)
        if not self.heard:
            return
        if self.fails_at is not None and lo <= self.fails_at < hi:
            raise OSError("a thread stumbled")
        lanes = q.shape[2]
        want = q8_by_hand(q[lo:hi], d[lo:hi], x, dx, len(out) - lo * lanes)
        out[lo * lanes:lo * lanes + len(want)] = want


def exactly(matrix, x, lanes=8):
    """What the product must be."""
    q, d = packed_q8(matrix, lanes)
    xq, dx = (a[0] for a in by_blocks(x[None]))
    return q8_by_hand(q, d, xq, dx, len(matrix))


def by_blocks(rows):
    """Rows in 8 bits, as `quantise` makes them."""
    blocks = rows.reshape(len(rows), -1, 32)
    d = np.abs(blocks).max(axis=2) / np.float32(127)
    return np.rint(blocks / np.where(d > 0, d, 1)[:, :, None]).astype(np.int8).reshape(rows.shape), d


def packed_q8(matrix, lanes):
    """A matrix in groups, as `pack_q8` makes it."""
    n = -(-len(matrix) // lanes) * lanes
    full = np.zeros((n, matrix.shape[1]), np.float32)
    full[:len(matrix)] = matrix
    return [np.ascontiguousarray(a.reshape(n // lanes, lanes, -1).transpose(0, 2, 1)) for a in by_blocks(full)]


def product(t, linear, matrix, x, name="matrix"):
    """One call of a Linear."""
    t.kernel.heard = True
    try:
        return t.call(linear, matrix, x, shown=f"linear({name}, x)")
    finally:
        t.kernel.heard = False
        time.sleep(0.002)


def made(t, Linear, kernel, threads, pack=packed_q8):
    """A Linear with eight lanes."""
    t.kernel = kernel
    t.case(f"linear = Linear(kernel, threads={threads}, pack=pack_q8, lanes=8)")
    return t.call(Linear, kernel, threads, pack, 8, shown=None, changes=True)


@ex.check("the product, for any number of threads, with the same bits")
def right_product(Linear, t):
    for rows, threads in ((24, 1), (24, 3), (21, 2), (40, 7), (8, 4)):
        matrix, x = some_matrix(t, rows, 160), some_matrix(t, 1, 160)[0]
        got = product(t, made(t, Linear, Kernel(), threads), matrix, x, f"matrix [{rows}, 160]")
        t.equal(got, exactly(matrix, x))
        t.holds(got.dtype == np.float32, f"the result is {got.dtype}, expected float32")


@ex.check("a result stays what it is when the next one is computed")
def own_results(Linear, t):
    matrix, linear = some_matrix(t, 16, 32), made(t, Linear, Kernel(), 2)
    first = product(t, linear, matrix, np.ones(32, np.float32))
    copy = np.array(first)
    t.story.append("x = -2 * np.arange(32, dtype=np.float32)")
    x = -2 * np.arange(32, dtype=np.float32)
    t.equal(product(t, linear, matrix, x), exactly(matrix, x), "the second result")
    t.equal(first, copy, "the first result, after a second call,")


@ex.check("a matrix is packed once, and never taken for another one")
def packed_once(Linear, t):
    seen = []

    def pack(matrix, lanes):
        seen.append(lanes)
        return packed_q8(matrix, lanes)

    linear, x = made(t, Linear, Kernel(), 2, pack), some_matrix(t, 1, 32)[0]
    matrices = [some_matrix(t, 16, 32) for _ in range(2)]
    matrices.append(np.rint(4 * some_matrix(t, 16, 32)))  # whole numbers: their sum is exact in any order
    matrices.append(matrices[-1][[0, *range(15, 0, -1)]])
    for round_number in range(2):
        for i, matrix in enumerate(matrices):
            t.equal(product(t, linear, matrix, x, f"matrices[{i}]"), exactly(matrix, x))
        t.holds(len(seen) == 4, f"pack was called {len(seen)} times for 4 matrices, all of shape [16, 32]")
    t.story.append("other = Linear(kernel, threads=2, pack=pack_q8, lanes=4)")
    other = t.call(Linear, t.kernel, 2, pack, 4, shown=None, changes=True)
    t.equal(product(t, other, matrices[0], x, "matrices[0]").tolist(), exactly(matrices[0], x, 4).tolist())
    t.holds(seen[4:] == [4], "the other one has lanes of its own, but did not pack the matrix for them")
    before = list(t.story)
    for number in range(60):  # each dies before the next is made: sooner or later one gets the place of another
        matrix = some_matrix(t, 16, 32)
        t.story[:] = [*before, f"matrix = another one, number {number + 1}; nobody else keeps it"]
        t.equal(product(t, linear, matrix, x), exactly(matrix, x))
        del matrix


@ex.check("each group is computed once, by at most `threads` threads, in parts of neighbours")
def fair_parts(Linear, t):
    for rows, threads in ((80, 3), (88, 4), (16, 5), (8, 1), (72, 8)):
        kernel = Kernel()
        product(t, made(t, Linear, kernel, threads), some_matrix(t, rows, 32), np.ones(32, np.float32), f"matrix [{rows}, 32]")
        done = sorted(g for lo, hi in kernel.calls for g in range(lo, hi))
        t.holds(done == list(range(rows // 8)), f"groups {done} were computed, expected 0 to {rows // 8 - 1} once each")
        t.holds(len(kernel.calls) <= threads, f"the kernel was called {len(kernel.calls)} times for {threads} threads")


@ex.check("the threads work at the same time, and all have ended when the call returns")
def together(Linear, t):
    for threads in (2, 3):
        kernel = Kernel(meet=threading.Barrier(threads))
        linear, matrix = made(t, Linear, kernel, threads), some_matrix(t, 48, 32)
        t.story.append(f"the kernel waits until {threads} threads are in it")
        try:
            product(t, linear, matrix, np.ones(32, np.float32))
        except Exception as error:
            t.fail(f"they do not come together: {type(getattr(error, 'error', error)).__name__}")
        t.holds(len(kernel.threads) == threads, f"{len(kernel.threads)} threads were in the kernel, expected {threads}")
    linear, matrix, x = made(t, Linear, Kernel(sleep=0.03), 3), some_matrix(t, 48, 32), np.ones(32, np.float32)
    t.story.append("the kernel takes its time")
    t.equal(np.array(product(t, linear, matrix, x)), exactly(matrix, x))


@ex.check("an error in any of the threads reaches the caller")
def errors_are_told(Linear, t):
    for fails_at in (0, 3, 5):
        linear, matrix = made(t, Linear, Kernel(fails_at=fails_at), 3), some_matrix(t, 48, 32)
        t.story.append(f"the kernel raises an OSError for group {fails_at}")
        error = t.raises("OSError", linear, matrix, np.ones(32, np.float32), shown="linear(matrix, x)")
        t.holds(str(error) == "a thread stumbled", f"the error says {str(error)!r}, but the kernel's said 'a thread stumbled'")
