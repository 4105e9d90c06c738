"""Chapter 01 - Model files and blocks.

You open a model file byte by byte, and write the code that turns its blocks of
small integers into weights.  Your Q4_1 then runs inside the real model.

Write your code below each docstring, in place of the line that says `your code here`.
Check it with `python3 -m course check ch01`, or in the notebook with a cell that begins
with `%%exercise ch01.read_header`. Both are the same file: this one. Stuck?
`python3 -m course hint ch01.read_header`.

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
import struct
import numpy as np


NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f",
    10: "<Q", 11: "<q", 12: "<d",
}


# %% ch01.read_header - Read the header of a model file (10 points, easy, section 01.1)

def read_value(data, at, kind):
    """Read one metadata value.

    Kinds 0 to 6 and 10 to 12 are numbers, as the table NUMBERS says.  Kind 7 is a bool:
    one byte, 0 or 1.  Kind 8 is a string: its length in bytes as a u64, then the bytes,
    UTF-8.  Kind 9 is an array: the kind of its items as a u32, how many as a u64, then
    the items, one after the other.

    Parameters
    ----------
    data : bytes
    at : int
        Where the value begins.
    kind : int

    Returns
    -------
    (value, int)
        An int, float, bool, str or list; and the place where the next thing begins.

    Examples
    --------
    >>> read_value(struct.pack("<Q", 2) + b"hi", 0, 8)
    ('hi', 10)
    >>> read_value(b"..." + struct.pack("<I", 576), 3, 4)
    (576, 7)
    """
    raise NotImplementedError("ch01.read_header: your code here")


def read_header(data):
    """Read the beginning of a GGUF file: what comes before the table of tensors.

    Four bytes "GGUF"; the version as a u32; the number of tensors and the number of
    metadata entries as a u64 each.  Then the entries: a key (a string, as in kind 8),
    the kind of the value as a u32, and the value.

    Parameters
    ----------
    data : bytes

    Returns
    -------
    (int, int, dict)
        Version, number of tensors, and the metadata.

    Raises
    ------
    ValueError
        When the bytes do not begin with "GGUF".

    Examples
    --------
    >>> read_header(b"GGUF" + struct.pack("<IQQ", 3, 290, 0))
    (3, 290, {})
    """
    raise NotImplementedError("ch01.read_header: your code here")


# %% ch01.dequantize_q8_0 - Blocks of 8 bits (5 points, easy, section 01.2)

def dequantize_q8_0(raw):
    """Turn Q8_0 blocks into weights.

    A block is 34 bytes for 32 weights: a scale d, as a half (IEEE float16,
    little-endian), then 32 signed bytes q.  A weight is d * q, in float32.

    Parameters
    ----------
    raw : uint8 array [rows, 34 * blocks]
        The bytes of some rows of a matrix.

    Returns
    -------
    float32 array [rows, 32 * blocks]

    Examples
    --------
    >>> block = np.array([0, 56] + [1, 255] * 16, np.uint8)  # d 0.5, q 1 and -1
    >>> dequantize_q8_0(block[None])[0, :4].tolist()
    [0.5, -0.5, 0.5, -0.5]
    """
    raise NotImplementedError("ch01.dequantize_q8_0: your code here")


# %% ch01.dequantize_q4_1 - Blocks of 4 bits, with a minimum (10 points, medium, section 01.3)

def dequantize_q4_1(raw):
    """Turn Q4_1 blocks into weights.

    A block is 20 bytes for 32 weights: a scale d and a minimum m, a half each, then 16
    bytes with two quants of 4 bits in each.  Byte j holds q[j] in its low four bits and
    q[j + 16] in its high four.  A weight is d * q + m, in float32.

    Parameters
    ----------
    raw : uint8 array [rows, 20 * blocks]

    Returns
    -------
    float32 array [rows, 32 * blocks]

    Examples
    --------
    >>> block = np.array([0, 56, 0, 60] + [0x21] * 16, np.uint8)  # d 0.5, m 1, q 1, 2
    >>> weights = dequantize_q4_1(block[None])
    >>> weights[0, 0].item(), weights[0, 16].item()
    (1.5, 2.0)
    """
    raise NotImplementedError("ch01.dequantize_q4_1: your code here")


# %% ch01.quantize_row - Quantise a row, and measure the error (10 points, medium, section 01.4)

def quantize_row(x):
    """Store a row in 8 bits per weight, and say how wrong that is.

    Each block of 32 gets a scale: its largest absolute value / 127.  Its quants are x
    divided by that scale, to the nearest integer.  Only then is the scale rounded, to be
    stored as a half: of very small blocks, too, the largest quant is 127 or -127.
    A block of zeros gets scale 0 and quants 0.

    Parameters
    ----------
    x : float32 array [32 * blocks]

    Returns
    -------
    d : float16 array [blocks]
    q : int8 array [blocks, 32]
    error : float
        Root mean square of d * q - x: what a reader of the blocks gets, minus what it was.

    Examples
    --------
    >>> x = np.zeros(64, np.float32)
    >>> x[3] = -127.0
    >>> d, q, error = quantize_row(x)
    >>> d.tolist(), int(q[0, 3]), error
    ([1.0, 0.0], -127, 0.0)
    """
    raise NotImplementedError("ch01.quantize_row: your code here")


# %% ch01.integer_dot - A dot product in integers (15 points, hard, section 01.5)

def integer_dot(d, m, q, dx, qx):
    """Dot product of a Q4_1 row with 8-bit activations, in integers.

    Weight i of block b is d[b] * q[b, i] + m[b].  Activation i of block b is
    dx[b] * qx[b, i].  Inside a block, all sums are sums of integers: no weight and no
    activation becomes a float.  Floats come in once per block.

    Parameters
    ----------
    d, m : float16 arrays [blocks]
    q : uint8 array [blocks, 32]
        0 to 15.
    dx : float32 array [blocks]
    qx : int8 array [blocks, 32]

    Returns
    -------
    float

    Examples
    --------
    >>> one = np.ones(1, np.float16)
    >>> q, qx = np.full((1, 32), 2, np.uint8), np.full((1, 32), 3, np.int8)
    >>> float(integer_dot(one, one, q, np.ones(1, np.float32), qx))  # 32 * (2 + 1) * 3
    288.0
    """
    raise NotImplementedError("ch01.integer_dot: your code here")


# %% ch01.dequantize_q4_k - Blocks of blocks (20 bonus points, hard, section 01.7)

def dequantize_q4_k(raw):
    """Turn Q4_K blocks into weights.

    A block is 144 bytes for 256 weights: halves d and dmin, 12 bytes of scales, 128
    bytes of quants.  The 256 weights are 8 sub-blocks of 32.  Sub-block s has a scale
    and a minimum of 6 bits each:

        weight = (d * scale[s]) * q - (dmin * minimum[s])

    The twelve bytes, with i from 0 to 3:

        byte i      bits 0-5: scale[i].     bits 6-7: bits 4-5 of scale[i + 4].
        byte i + 4  bits 0-5: minimum[i].   bits 6-7: bits 4-5 of minimum[i + 4].
        byte i + 8  bits 0-3: bits 0-3 of scale[i + 4].
                    bits 4-7: bits 0-3 of minimum[i + 4].

    The quants: byte 32 k + i, with k from 0 to 3 and i from 0 to 31, holds weight i of
    sub-block 2k in its low four bits, and weight i of sub-block 2k + 1 in its high.

    Parameters
    ----------
    raw : uint8 array [rows, 144 * blocks]

    Returns
    -------
    float32 array [rows, 256 * blocks]

    Examples
    --------
    >>> block = np.zeros(144, np.uint8)
    >>> block[1], block[4], block[16] = 60, 3, 0x05     # d 1.0, scale[0] 3, q[0] 5
    >>> dequantize_q4_k(block[None])[0, 0].item()
    15.0
    """
    raise NotImplementedError("ch01.dequantize_q4_k: your code here")
