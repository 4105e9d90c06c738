"""Chapter 01 - Model files and blocks.

You open a model file byte by byte, and write the code that turns its blocks of
small integers into weights.  Your Q4_1 then runs inside the real model.
"""

import contextlib
import math
import struct
import warnings

import numpy as np

from course.exercises import Exercise, given
from course.grading import proving

NUMBERS = given({
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f",
    10: "<Q", 11: "<q", 12: "<d",
})
BOOL, STRING, ARRAY = 7, 8, 9

# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch01.read_header",
    title="Read the header of a model file",
    points=10,
    level="easy",
    section="01.1",
    hints=[
        "Keep one number: the place in the bytes where you are. Everything that is read moves it on.",
        "`struct.unpack_from(format, data, at)` gives a tuple; `struct.calcsize(format)` says how many bytes it took. "
        "`<` means little-endian, I is a u32, Q a u64.",
        "An array: item kind (u32) and count (u64), 12 bytes together. Then call `read_value` for each item, and go on "
        "where it ended.",
        "A header entry: a key, `read_value(data, at, 8)`; then the kind of its value as a u32; then the value, "
        "`read_value(data, at, kind)`.",
    ],
)


@ex.solution
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
    if kind in NUMBERS:
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
    if kind == 7:
        return data[at] == 1, at + 1
    if kind == 8:
        (length,) = struct.unpack_from("<Q", data, at)
        end = at + 8 + length
        return bytes(data[at + 8:end]).decode("utf-8"), end
    item_kind, count = struct.unpack_from("<IQ", data, at)
    at += 12
    items = []
    for _ in range(count):
        item, at = read_value(data, at, item_kind)
        items.append(item)
    return items, at


@ex.solution
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
    if data[:4] != b"GGUF":
        raise ValueError(f"this is no GGUF file: it begins with {bytes(data[:4])!r}")
    version, n_tensors, n_entries = struct.unpack_from("<IQQ", data, 4)
    at, metadata = 24, {}
    for _ in range(n_entries):
        key, at = read_value(data, at, 8)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = read_value(data, at + 4, kind)
    return version, n_tensors, metadata


@ex.wrong("The length of a string counts bytes, not characters: cut the bytes first, then decode them.")
def counts_characters(data, at, kind):
    if kind != 8:
        if kind in NUMBERS:
            return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
        if kind == 7:
            return data[at] == 1, at + 1
        item_kind, count = struct.unpack_from("<IQ", data, at)
        at, items = at + 12, []
        for _ in range(count):
            item, at = read_value(data, at, item_kind)
            items.append(item)
        return items, at
    (length,) = struct.unpack_from("<Q", data, at)
    text = bytes(data[at + 8:]).decode("utf-8", "replace")[:length]
    return text, at + 8 + length


@ex.wrong("After a string, the place is too early by 8: the length itself takes 8 bytes too.")
def forgets_the_length_field(data, at, kind):
    if kind in NUMBERS:
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
    if kind == 7:
        return data[at] == 1, at + 1
    if kind == 8:
        (length,) = struct.unpack_from("<Q", data, at)
        return bytes(data[at + 8:at + 8 + length]).decode("utf-8"), at + length
    item_kind, count = struct.unpack_from("<IQ", data, at)
    at, items = at + 12, []
    for _ in range(count):
        item, at = read_value(data, at, item_kind)
        items.append(item)
    return items, at


@ex.wrong("All items of an array are read at the same place. Each begins where the one before it ended.")
def stays_at_the_first_item(data, at, kind):
    if kind in NUMBERS:
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
    if kind == 7:
        return data[at] == 1, at + 1
    if kind == 8:
        (length,) = struct.unpack_from("<Q", data, at)
        return bytes(data[at + 8:at + 8 + length]).decode("utf-8"), at + 8 + length
    item_kind, count = struct.unpack_from("<IQ", data, at)
    found = [read_value(data, at + 12, item_kind) for _ in range(count)]
    return [item for item, _ in found], at + 12 + sum(end - at - 12 for _, end in found)


@ex.wrong("Numbers are read with the big end first. GGUF is little-endian: the lowest byte comes first.")
def big_endian(data, at, kind):
    if kind in NUMBERS:
        layout = NUMBERS[kind].replace("<", ">")
        return struct.unpack_from(layout, data, at)[0], at + struct.calcsize(layout)
    if kind == 7:
        return data[at] == 1, at + 1
    if kind == 8:
        (length,) = struct.unpack_from("<Q", data, at)
        return bytes(data[at + 8:at + 8 + length]).decode("utf-8"), at + 8 + length
    item_kind, count = struct.unpack_from("<IQ", data, at)
    at, items = at + 12, []
    for _ in range(count):
        item, at = read_value(data, at, item_kind)
        items.append(item)
    return items, at


@ex.wrong("A bool comes back as a number. Kind 7 is True or False.")
def bools_are_numbers(data, at, kind):
    if kind == 7:
        return data[at], at + 1
    if kind in NUMBERS:
        return struct.unpack_from(NUMBERS[kind], data, at)[0], at + struct.calcsize(NUMBERS[kind])
    if kind == 8:
        (length,) = struct.unpack_from("<Q", data, at)
        return bytes(data[at + 8:at + 8 + length]).decode("utf-8"), at + 8 + length
    item_kind, count = struct.unpack_from("<IQ", data, at)
    at, items = at + 12, []
    for _ in range(count):
        item, at = read_value(data, at, item_kind)
        items.append(item)
    return items, at


@ex.wrong("The two counts are swapped: first the tensors, then the metadata entries.", replaces="read_header")
def swaps_the_counts(data):
    if data[:4] != b"GGUF":
        raise ValueError("magic")
    version, n_entries, n_tensors = struct.unpack_from("<IQQ", data, 4)
    at, metadata = 24, {}
    for _ in range(min(n_entries, 8)):
        if at + 8 > len(data):
            break
        key, at = read_value(data, at, 8)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = read_value(data, at + 4, kind)
    return version, n_tensors, metadata


@ex.wrong("Any bytes are taken for a model. Look at the first four before you believe the rest.", replaces="read_header")
def believes_anything(data):
    version, n_tensors, n_entries = struct.unpack_from("<IQQ", data, 4)
    at, metadata = 24, {}
    for _ in range(n_entries):
        key, at = read_value(data, at, 8)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = read_value(data, at + 4, kind)
    return version, n_tensors, metadata


@ex.wrong("The four bytes are looked for anywhere. A model file begins with them.", replaces="read_header")
def finds_them_anywhere(data):
    if b"GGUF" not in data:
        raise ValueError("magic")
    version, n_tensors, n_entries = struct.unpack_from("<IQQ", data, 4)
    at, metadata = 24, {}
    for _ in range(n_entries):
        key, at = read_value(data, at, 8)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = read_value(data, at + 4, kind)
    return version, n_tensors, metadata


@ex.wrong("The first four bytes are unpacked before anyone knows that there are four: a shorter file raises struct.error. It "
          "does not begin with \"GGUF\" either, so it is a ValueError: compare a slice, `data[:4]`.", replaces="read_header")
def unpacks_what_is_not_there(data):
    if struct.unpack_from("<4s", data, 0)[0] != b"GGUF":
        raise ValueError("magic")
    version, n_tensors, n_entries = struct.unpack_from("<IQQ", data, 4)
    at, metadata = 24, {}
    for _ in range(n_entries):
        key, at = read_value(data, at, 8)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = read_value(data, at + 4, kind)
    return version, n_tensors, metadata


@ex.wrong("Reads entries until the bytes end. After the last of them comes the table of tensors, which is something else: read "
          "as many entries as the header says.", replaces="read_header")
def reads_to_the_end(data):
    if data[:4] != b"GGUF":
        raise ValueError("magic")
    version, n_tensors, _ = struct.unpack_from("<IQQ", data, 4)
    at, metadata = 24, {}
    while at < len(data):
        key, at = read_value(data, at, 8)
        (kind,) = struct.unpack_from("<I", data, at)
        metadata[key], at = read_value(data, at + 4, kind)
    return version, n_tensors, metadata


def packed(kind, value):
    """The bytes of a value; arrays are (kind of items, list)."""
    if kind == STRING:
        raw = value.encode("utf-8")
        return struct.pack("<Q", len(raw)) + raw
    if kind == BOOL:
        return bytes([value])
    if kind == ARRAY:
        return struct.pack("<IQ", value[0], len(value[1])) + b"".join(packed(value[0], item) for item in value[1])
    return struct.pack(NUMBERS[kind], value)


def unpacked(kind, value):
    """What `read_value` gives for it: arrays are plain lists, also inside one another."""
    return [unpacked(value[0], item) for item in value[1]] if kind == ARRAY else value


def typed(value):
    """A value with the types of all that is in it: in Python, 1 == True."""
    return [typed(item) for item in value] if isinstance(value, list) else (type(value).__name__, value)


def expect_value(t, mine, kind, value, before):
    """`read_value` after `before` other bytes gives the value and the place after it."""
    raw = packed(kind, value)
    data = bytes(before) + raw + b"\x07\x00\x01"
    t.case(f"data = {data!r}")
    got = t.call(mine.read_value, data, before, kind, shown=f"read_value(data, {before}, {kind})")
    t.holds(isinstance(got, tuple) and len(got) == 2, f"the result is {got!r}, expected (value, place)")
    want = unpacked(kind, value)
    t.holds(type(got[0]) is type(want), f"the value is {got[0]!r}, expected {want!r}, of type {type(want).__name__}")
    t.equal(got[0], want, "the value")
    t.holds(typed(got[0]) == typed(want), f"the value is {got[0]!r}, expected {want!r}")
    t.equal(got[1], before + len(raw), "the place after it")


@ex.check("numbers, one kind after the other")
def numbers(mine, t):
    for kind, value in ((0, 200), (4, 576), (1, -3), (2, 1000), (5, -70000), (6, 0.5), (10, 2**40), (11, -(2**40)),
                        (12, 0.1), (3, -300), (10, 2**64 - 5)):
        expect_value(t, mine, kind, value, before=int(t.rng.integers(0, 5)))


@ex.check("bools and strings, also strings that are not ASCII")
def strings(mine, t):
    for value in (True, False):
        expect_value(t, mine, BOOL, value, before=2)
    for text in ("", "a", "llama", "caffè", "été — ça va", " two words\n"):
        expect_value(t, mine, STRING, text, before=3)


@ex.check("arrays, also of strings")
def arrays(mine, t):
    for items in ((4, []), (4, [7]), (5, [-1, 500, 3]), (0, [9, 8, 7, 6]), (STRING, ["a", "", "bcd"]), (6, [0.5, 2.0]),
                  (BOOL, [True, False]), (ARRAY, [(4, [1, 2]), (STRING, ["x"]), (4, [])])):
        expect_value(t, mine, ARRAY, items, before=1)


TENSORS = struct.pack("<Q", 5) + b"w.row" + struct.pack("<IQIQ", 1, 64, 8, 0)  # how a table of tensors begins


@ex.check("a header: version, number of tensors, all entries, and no more")
def whole(mine, t):
    entries = [("general.name", STRING, "toy"), ("a.count", 4, 12), ("tokens", ARRAY, (STRING, ["<s>", "è"])),
               ("b", BOOL, True), ("eps", 6, 0.25)]
    for n in range(len(entries) + 1):
        data = b"GGUF" + struct.pack("<IQQ", 3, 7 + 2 * n, n)
        for key, kind, value in entries[:n]:
            data += packed(STRING, key) + struct.pack("<I", kind) + packed(kind, value)
        if n % 2:
            data += TENSORS
        t.case(f"data = {data!r}")
        got = t.call(mine.read_header, data, shown="read_header(data)")
        want = {key: unpacked(kind, value) for key, kind, value in entries[:n]}
        t.equal(got, (3, 7 + 2 * n, want))


@ex.check("what does not begin with GGUF is a ValueError")
def magic(mine, t):
    for start in (b"GGML", b"PK\x03\x04", b"gguf"):
        t.case()
        t.raises("ValueError", mine.read_header, start + struct.pack("<IQQ", 3, 0, 0))
    for data in (b"", b"GG", b"\x00GGUF" + struct.pack("<IQQ", 3, 0, 0)):
        t.case()
        t.raises("ValueError", mine.read_header, data)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch01.dequantize_q8_0",
    title="Blocks of 8 bits",
    points=5,
    level="easy",
    section="01.2",
    hints=[
        "Cut the bytes into blocks first: `raw.reshape(rows, -1, 34)` is [rows, blocks, 34].",
        "Bytes 0 and 1 of each block are one half: `.view(np.float16)` of a contiguous copy reads them. The other 32 "
        "are int8: `.view(np.int8)`.",
        "A structured dtype does all of it at once: `np.dtype([('d', '<f2'), ('q', 'i1', 32)])` and `raw.view(...)`. "
        "Then d has shape [rows, blocks] and needs a last axis to be multiplied with q.",
    ],
)


@ex.solution
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
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    weights = blocks["d"].astype(np.float32)[..., None] * blocks["q"]
    return weights.reshape(len(raw), -1)


@ex.wrong("Quants are read as 0 to 255. They are signed bytes, -128 to 127: view them as int8.")
def unsigned(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("q", "u1", 32)]))
    return (blocks["d"].astype(np.float32)[..., None] * blocks["q"]).reshape(len(raw), -1)


@ex.wrong("The first scale of a row serves the whole row. Every block has its own: that is what blocks are for.")
def one_scale_a_row(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    return (blocks["d"][:, :1].astype(np.float32)[..., None] * blocks["q"]).reshape(len(raw), -1)


@ex.wrong("The product is rounded to half precision: float16 times int8 stays float16. Widen d to float32 first.")
def half_product(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("q", "i1", 32)]))
    with np.errstate(over="ignore"):
        return (blocks["d"][..., None] * blocks["q"]).reshape(len(raw), -1).astype(np.float32)


@ex.wrong("The two bytes of the scale are read as an integer. They are a half: view them as float16.")
def scale_is_an_integer(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<u2"), ("q", "i1", 32)]))
    return (blocks["d"].astype(np.float32)[..., None] * blocks["q"]).reshape(len(raw), -1)


@ex.wrong("The scale is read after the quants. It comes first: 2 bytes of scale, then 32 of quants.")
def scale_last(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("q", "i1", 32), ("d", "<f2")]))
    with np.errstate(all="ignore"):
        weights = blocks["d"].astype(np.float32)[..., None] * blocks["q"]
    return weights.reshape(len(raw), -1)


def halves(t, *shape):
    """Random scales of very different sizes, as halves."""
    return (10.0 ** t.rng.uniform(-3, 0.5, shape)).astype(np.float16)


def told(raw, name="raw"):
    """How an array of blocks reads in a counterexample: short ones with all their bytes."""
    if raw.size <= 40:
        return f"{name} = np.array({raw.tolist()}, np.uint8)"
    return f"{name} = blocks of random bytes, shape {raw.shape}"


def expect_weights(t, got, want, what="the result"):
    """float32 weights, [rows, cols]."""
    t.close(got, want, what, rtol=1e-6, atol=1e-9)
    t.holds(getattr(got, "dtype", None) == np.float32, f"{what} is of {getattr(got, 'dtype', type(got))}, expected "
                                                       "float32")


def q8_0_case(t, d, q):
    """Bytes of Q8_0 blocks d [rows, blocks], q [rows, blocks, 32], and their weights, worked out one by one."""
    rows, blocks = d.shape
    data = b"".join(d[r, b].tobytes() + q[r, b].tobytes() for r in range(rows) for b in range(blocks))
    raw = np.frombuffer(data, np.uint8).reshape(rows, -1)
    want = [[float(d[r, b]) * int(v) for b in range(blocks) for v in q[r, b]] for r in range(rows)]
    return raw, np.array(want, np.float32)


@ex.check("one block: every weight is d * q")
def one_block(dequantize_q8_0, t):
    for values in ([1] * 32, list(range(32)), [-1] * 32, [-128, 127] * 16):
        raw, want = q8_0_case(t, np.array([[0.25]], np.float16), np.array([[values]], np.int8))
        t.case(told(raw))
        expect_weights(t, t.call(dequantize_q8_0, raw, shown="dequantize_q8_0(raw)"), want)


@ex.check("rows of several blocks: each block with its own scale")
def several(dequantize_q8_0, t):
    for rows, blocks in ((1, 2), (3, 1), (2, 3), (5, 7)):
        raw, want = q8_0_case(t, halves(t, rows, blocks), t.rng.integers(-128, 128, (rows, blocks, 32)).astype(np.int8))
        t.case(told(raw))
        expect_weights(t, t.call(dequantize_q8_0, raw, shown="dequantize_q8_0(raw)"), want)


@ex.check("weights keep all their digits, and large ones do not overflow")
def precise(dequantize_q8_0, t):
    for d in (0.333, 1000.0, 6e-8):
        raw, want = q8_0_case(t, np.full((1, 1), d, np.float16), np.array([[range(96, 128)]], np.int8))
        t.case(f"raw: one block, d = {d}, q = 96 to 127")
        expect_weights(t, t.call(dequantize_q8_0, raw, shown="dequantize_q8_0(raw)"), want)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch01.dequantize_q4_1",
    title="Blocks of 4 bits, with a minimum",
    points=10,
    level="medium",
    section="01.3",
    hints=[
        "As Q8_0, with two halves in front and two weights in each byte. `q & 15` are the low four bits, `q >> 4` the "
        "high four.",
        "The 16 low halves are weights 0 to 15 and the 16 high halves are weights 16 to 31: put all of "
        "the low ones first, then all of the high ones.",
        "`np.concatenate([q & 15, q >> 4], axis=-1)` turns [rows, blocks, 16] into [rows, blocks, 32], in order.",
        "Then `d[..., None] * q + m[..., None]`, with d and m widened to float32.",
    ],
)


@ex.solution
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
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1)
    weights = blocks["d"].astype(np.float32)[..., None] * q + blocks["m"].astype(np.float32)[..., None]
    return weights.reshape(len(raw), -1)


@ex.wrong("Nibbles are taken as neighbours: byte j as weights 2j and 2j + 1. Byte j holds weights j and j + 16.")
def neighbours(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-1).reshape(*blocks.shape, 32)
    weights = blocks["d"].astype(np.float32)[..., None] * q + blocks["m"].astype(np.float32)[..., None]
    return weights.reshape(len(raw), -1)


@ex.wrong("The high nibbles come first. The low four bits are weights 0 to 15.")
def high_first(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] >> 4, blocks["q"] & 15], axis=-1)
    weights = blocks["d"].astype(np.float32)[..., None] * q + blocks["m"].astype(np.float32)[..., None]
    return weights.reshape(len(raw), -1)


@ex.wrong("The minimum is missing: q counts from 0 upwards, so without m no weight is ever negative.")
def no_minimum(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1)
    return (blocks["d"].astype(np.float32)[..., None] * q).reshape(len(raw), -1)


@ex.wrong("One scale and one minimum serve the whole row. Every block of 32 has its own pair.")
def one_pair_a_row(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1)
    d, m = blocks["d"][:, :1].astype(np.float32), blocks["m"][:, :1].astype(np.float32)
    return (d[..., None] * q + m[..., None]).reshape(len(raw), -1)


@ex.wrong("8 is subtracted from each quant, as in Q4_0. Q4_1 has a minimum instead: q stays 0 to 15.")
def takes_off_eight(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1).astype(np.float32) - 8
    weights = blocks["d"].astype(np.float32)[..., None] * q + blocks["m"].astype(np.float32)[..., None]
    return weights.reshape(len(raw), -1)


@ex.wrong("The minimum is scaled too: d * (q + m). It is added as it stands, after the product: d * q + m.")
def scales_the_minimum(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1)
    weights = blocks["d"].astype(np.float32)[..., None] * (q + blocks["m"].astype(np.float32)[..., None])
    return weights.reshape(len(raw), -1)


@ex.wrong("Scale and minimum are swapped: bytes 0 and 1 are d, bytes 2 and 3 are m.")
def swapped(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("m", "<f2"), ("d", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1)
    weights = blocks["d"].astype(np.float32)[..., None] * q + blocks["m"].astype(np.float32)[..., None]
    return weights.reshape(len(raw), -1)


@ex.wrong("Rounded to half precision on the way: float16 times a small integer stays float16. Widen d and m to float32 "
          "first.")
def in_halves(raw):
    blocks = np.ascontiguousarray(raw).view(np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]))
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1)
    return (blocks["d"][..., None] * q + blocks["m"][..., None]).reshape(len(raw), -1).astype(np.float32)


def q4_1_case(d, m, q):
    """Bytes of Q4_1 blocks d, m [rows, blocks], q [rows, blocks, 32], and their weights, worked out one by one."""
    rows, blocks = d.shape
    data, want = b"", []
    for r in range(rows):
        for b in range(blocks):
            nibbles = [int(v) for v in q[r, b]]
            data += d[r, b].tobytes() + m[r, b].tobytes()
            data += bytes(nibbles[j] + 16 * nibbles[j + 16] for j in range(16))
            want += [np.float32(float(d[r, b]) * v + float(m[r, b])) for v in nibbles]
    return np.frombuffer(data, np.uint8).reshape(rows, -1), np.array(want, np.float32).reshape(rows, -1)


@ex.check("one block: the nibbles in their order")
def nibble_order(dequantize_q4_1, t):
    for values in ([3] * 32, list(range(16)) + [0] * 16, list(range(16)) + list(range(15, -1, -1))):
        raw, want = q4_1_case(np.ones((1, 1), np.float16), np.zeros((1, 1), np.float16), np.array([[values]]))
        t.case(told(raw))
        expect_weights(t, t.call(dequantize_q4_1, raw, shown="dequantize_q4_1(raw)"), want)


@ex.check("one block: d * q + m")
def scale_and_minimum(dequantize_q4_1, t):
    for d, m in ((0.5, 1.0), (0.25, -2.0), (0.1, -0.7)):
        q = t.rng.integers(0, 16, (1, 1, 32))
        raw, want = q4_1_case(np.full((1, 1), d, np.float16), np.full((1, 1), m, np.float16), q)
        t.case(told(raw))
        expect_weights(t, t.call(dequantize_q4_1, raw, shown="dequantize_q4_1(raw)"), want)


@ex.check("rows of several blocks: each with its own scale and minimum")
def several_q4_1(dequantize_q4_1, t):
    for rows, blocks in ((1, 2), (3, 1), (2, 3), (5, 7)):
        q = t.rng.integers(0, 16, (rows, blocks, 32))
        raw, want = q4_1_case(halves(t, rows, blocks), -8 * halves(t, rows, blocks), q)
        t.case(told(raw))
        expect_weights(t, t.call(dequantize_q4_1, raw, shown="dequantize_q4_1(raw)"), want)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch01.quantize_row",
    title="Quantise a row, and measure the error",
    points=10,
    level="medium",
    section="01.4",
    hints=[
        "Cut the row into blocks, `x.reshape(-1, 32)`. The weight farthest from zero, on either side, becomes 127 or "
        "-127.",
        "d = largest absolute value / 127; q = x / d, rounded with `np.rint`. A block of zeros has d = 0: do not divide "
        "by it.",
        "The error is that of what is *stored*: round d to float16, turn it into float32 again, and compare d * q with x. "
        "(NumPy keeps float16 times int8 in float16, which rounds once more.)",
        "RMS: square the differences, take the mean over the whole row, then the root.",
    ],
)


@ex.solution
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
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int8)
    stored = d.astype(np.float16)
    difference = stored.astype(np.float32)[:, None] * q - blocks
    return stored, q, float(np.sqrt(np.mean(difference**2)))


@ex.wrong("Quants are cut off towards zero (`astype(int)`), not rounded: the error doubles. Round first, `np.rint`.")
def truncates(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = (blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int8)
    stored = d.astype(np.float16)
    return stored, q, float(np.sqrt(np.mean((stored.astype(np.float32)[:, None] * q - blocks) ** 2)))


@ex.wrong("One scale serves the whole row: a single large weight then spoils all blocks, not only its own.")
def one_scale(x):
    blocks = x.reshape(-1, 32)
    d = np.full(len(blocks), np.abs(x).max() / np.float32(127))
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int8)
    stored = d.astype(np.float16)
    return stored, q, float(np.sqrt(np.mean((stored.astype(np.float32)[:, None] * q - blocks) ** 2)))


@ex.wrong("Divides by 128: the largest weight becomes 128, which an int8 does not hold: it wraps around to -128.")
def wraps_around(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(128)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int32).astype(np.int8)
    stored = d.astype(np.float16)
    return stored, q, float(np.sqrt(np.mean((stored.astype(np.float32)[:, None] * q - blocks) ** 2)))


@ex.wrong("The largest weight is taken with its sign: a block of negative weights gets a scale far too small, or "
          "a negative one. Take absolute values first.")
def forgets_the_sign(x):
    blocks = x.reshape(-1, 32)
    d = blocks.max(axis=1) / np.float32(127)
    q = np.clip(np.rint(blocks / np.where(d != 0, d, 1)[:, None]), -127, 127).astype(np.int8)
    stored = d.astype(np.float16)
    return stored, q, float(np.sqrt(np.mean((stored.astype(np.float32)[:, None] * q - blocks) ** 2)))


@ex.wrong("Divides by a scale of 0: a block of zeros becomes NaN.")
def divides_by_zero(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    with np.errstate(all="ignore"):
        ratio = np.rint(blocks / d[:, None])
        q = ratio.astype(np.int8)
        return d.astype(np.float16), q, float(np.sqrt(np.mean((d[:, None] * ratio - blocks) ** 2)))


@ex.wrong("The error is measured with the scale before it was rounded to a half. A reader only ever sees the half.")
def flatters_itself(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int8)
    return d.astype(np.float16), q, float(np.sqrt(np.mean((d[:, None] * q - blocks) ** 2)))


@ex.wrong("The error is the mean of the absolute differences. RMS squares them first: large ones weigh more.")
def mean_absolute(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int8)
    stored = d.astype(np.float16)
    return stored, q, float(np.mean(np.abs(stored.astype(np.float32)[:, None] * q - blocks)))


@ex.wrong("The scale is rounded to a half before x is divided by it. Halves are coarse near 0, so the quants of a very "
          "small block come out wrong, or do not even fit. Divide first, round the scale afterwards.")
def rounds_the_scale_first(x):
    blocks = x.reshape(-1, 32)
    stored = (np.abs(blocks).max(axis=1) / np.float32(127)).astype(np.float16)
    d = stored.astype(np.float32)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int32).astype(np.int8)
    return stored, q, float(np.sqrt(np.mean((d[:, None] * q - blocks) ** 2)))


@ex.wrong("A block of zeros is divided by its scale, 0. That is NaN, and which integer a NaN becomes depends on the machine.")
def casts_nan(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = np.rint(blocks / d[:, None]).astype(np.int8)
    stored = d.astype(np.float16)
    return stored, q, float(np.sqrt(np.mean((stored.astype(np.float32)[:, None] * q - blocks) ** 2)))


@ex.wrong("The weights are cut off at 127 before they are divided. They may be of any size; what must fit into 8 bits is x "
          "divided by the scale.")
def cuts_large_weights(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = np.rint(np.clip(blocks, -127, 127) / np.where(d > 0, d, 1)[:, None]).astype(np.int8)
    stored = d.astype(np.float16)
    return stored, q, float(np.sqrt(np.mean((stored.astype(np.float32)[:, None] * q - blocks) ** 2)))


@ex.wrong("Scales below 6.1e-5 become 0, and whole blocks with them. A half holds numbers down to 6e-8, with fewer digits: let "
          "`astype` round them.")
def drops_small_scales(x):
    blocks = x.reshape(-1, 32)
    d = np.abs(blocks).max(axis=1) / np.float32(127)
    q = np.rint(blocks / np.where(d > 0, d, 1)[:, None]).astype(np.int8)
    stored = np.where(d < 6.1e-5, 0, d).astype(np.float16)
    return stored, q, float(np.sqrt(np.mean((stored.astype(np.float32)[:, None] * q - blocks) ** 2)))


def quantised(t, quantize_row, x, name):
    """Call, and check types and shapes: (d, q, error) with d and q as float64."""
    t.story.append(name)
    got = t.call(quantize_row, x, shown="d, q, error = quantize_row(x)")
    t.holds(isinstance(got, tuple) and len(got) == 3, f"the result is {got!r}, expected (d, q, error)")
    d, q, error = got
    blocks = len(x) // 32
    for what, array, dtype, shape in (("d", d, np.float16, (blocks,)), ("q", q, np.int8, (blocks, 32))):
        t.holds(isinstance(array, np.ndarray) and array.dtype == dtype and array.shape == shape,
                f"{what} is {getattr(array, 'dtype', type(array).__name__)} {getattr(array, 'shape', '')}, expected "
                f"{np.dtype(dtype)} {shape}")
    return d.astype(np.float64), q.astype(np.float64), error


def row_of(t, blocks, size=1.0):
    """A random row whose blocks have different sizes."""
    x = t.rng.standard_normal((blocks, 32)) * size * t.rng.uniform(0.2, 3.0, (blocks, 1))
    return x.reshape(-1).astype(np.float32)


@ex.check("the scale of each block: largest absolute value / 127, as a half")
def scales(quantize_row, t):
    rows = [("x = np.arange(32), float32", np.arange(32, dtype=np.float32)),
            ("x = -np.arange(32), float32", -np.arange(32, dtype=np.float32))]
    rows += [(f"x = a random row of {n} blocks", row_of(t, n)) for n in (1, 2, 5)]
    rows += [("x = a random row of 2 blocks, numbers of about 0.001", row_of(t, 2, 1e-3))]
    for name, x in rows:
        t.case()
        d, _, _ = quantised(t, quantize_row, x, name)
        want = np.abs(x.reshape(-1, 32)).max(axis=1) / np.float32(127)
        t.close(d, want.astype(np.float16).astype(np.float64), "d", rtol=1e-3, atol=6e-8)


@ex.check("quants are the nearest integers")
def nearest(quantize_row, t):
    ramp = np.zeros(32, np.float32)
    ramp[:6] = [127.0, 0.9, -0.9, 2.6, -127.0, 1.2]
    rows = [("x = [127.0, 0.9, -0.9, 2.6, -127.0, 1.2, 0.0, ...]", ramp)]
    rows += [(f"x = a random row of {n} blocks", row_of(t, n)) for n in (1, 2, 7)]
    rows += [("x = a random row of 2 blocks, numbers of about 500", row_of(t, 2, 500.0))]
    rows += [(f"x = np.full(32, {v}, np.float32)", np.full(32, v, np.float32)) for v in (1.1e-5, -3e-8)]
    for name, x in rows:
        t.case()
        _, q, _ = quantised(t, quantize_row, x, name)
        blocks = x.reshape(-1, 32).astype(np.float64)
        exact = np.abs(blocks).max(axis=1, keepdims=True) / 127
        ratio = blocks / exact
        bad = np.argwhere(np.abs(q - ratio) > 0.501)
        if len(bad):
            b, i = (int(v) for v in bad[0])
            t.fail(f"q[{b}, {i}] is {q[b, i]:g}; the weight is {blocks[b, i]:.6g} and the scale, before it is rounded, "
                   f"{exact[b, 0]:.6g}: expected {round(ratio[b, i])}")


@ex.check("a block of zeros is no trouble")
def zeros(quantize_row, t):
    for blocks in (1, 3):
        t.case()
        x = np.zeros(32 * blocks, np.float32)
        if blocks > 1:
            x[40] = 12.7
        name = f"x = zeros, {blocks} block(s)" + (", x[40] = 12.7" if blocks > 1 else "")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            d, q, error = quantised(t, quantize_row, x, name)
        t.equal(d[0].item(), 0.0, "d[0]")
        t.equal(q[0].astype(int).tolist(), [0] * 32, "q[0]")
        t.holds(math.isfinite(error), f"error is {error}")
        t.holds(not any("in cast" in str(w.message) for w in caught), "a NaN is turned into an integer")


@ex.check("the error is the RMS of what a reader gets, scales rounded to halves")
def honest(quantize_row, t):
    for blocks, size in ((1, 1.0), (3, 1.0), (1, 1e-5), (4, 3e-5)):
        t.case()
        x = row_of(t, blocks, size)
        d, q, error = quantised(t, quantize_row, x, f"x = a random row of {blocks} block(s), numbers of about {size:g}")
        want = float(np.sqrt(np.mean((d[:, None] * q - x.reshape(-1, 32)) ** 2)))
        t.close(error, want, "error", rtol=1e-3, atol=1e-12)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch01.integer_dot",
    title="A dot product in integers",
    points=15,
    level="hard",
    section="01.5",
    hints=[
        "Write out one block: sum of (d q[i] + m) * (dx qx[i]). Which factors are the same for all i?",
        "They come in front of the sum: d * dx * sum(q[i] * qx[i]) + m * dx * sum(qx[i]). Both sums are over integers.",
        "Widen q and qx before you multiply, `.astype(np.int32)`: 15 * 127 does not fit in an int8.",
        "`(q * qx).sum(axis=1)` is one integer per block, and so is `qx.sum(axis=1)`; then add up the blocks.",
    ],
)


@ex.solution
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
    qx = qx.astype(np.int32)
    products = (q.astype(np.int32) * qx).sum(axis=1)
    scale, minimum = d.astype(np.float32) * dx, m.astype(np.float32) * dx
    return float((scale * products + minimum * qx.sum(axis=1)).sum())


@ex.wrong("The minimum is missing. It meets every activation of the block: m * dx * sum(qx).")
def without_minimum(d, m, q, dx, qx):
    products = (q.astype(np.int32) * qx.astype(np.int32)).sum(axis=1)
    return float((d.astype(np.float32) * dx * products).sum())


@ex.wrong("The minimum is counted 32 times, once per weight, whatever the activations are. It is multiplied by each "
          "of them: m * dx * sum(qx).")
def minimum_times_32(d, m, q, dx, qx):
    products = (q.astype(np.int32) * qx.astype(np.int32)).sum(axis=1)
    return float((d.astype(np.float32) * dx * products + 32 * m.astype(np.float32) * dx).sum())


@ex.wrong("Products are kept in 8 bits and wrap around: 15 * 127 is 1905, an int8 ends at 127. Widen before you "
          "multiply.")
def eight_bit_products(d, m, q, dx, qx):
    products = (q.astype(np.int8) * qx).astype(np.int32).sum(axis=1)
    scale, minimum = d.astype(np.float32) * dx, m.astype(np.float32) * dx
    return float((scale * products + minimum * qx.astype(np.int32).sum(axis=1)).sum())


@ex.wrong("The sum of a block is kept in 16 bits. 32 products of up to 1905 make up to 60960, but an int16 ends at "
          "32767.")
def sixteen_bit_sums(d, m, q, dx, qx):
    products = np.einsum("bi,bi->b", q.astype(np.int16), qx.astype(np.int16))
    scale, minimum = d.astype(np.float32) * dx, m.astype(np.float32) * dx
    return float((scale * products + minimum * qx.astype(np.int32).sum(axis=1)).sum())


@ex.wrong("All blocks are added up before the scales come in. Every block has scales of its own.")
def scales_at_the_end(d, m, q, dx, qx):
    qx = qx.astype(np.int32)
    products = (q.astype(np.int32) * qx).sum()
    return float(d[0].astype(np.float32) * dx[0] * products + m[0].astype(np.float32) * dx[0] * qx.sum())


@ex.wrong("The scale of the activations is missing in the term of the minimum: m meets dx * qx, not qx.")
def unscaled_minimum(d, m, q, dx, qx):
    qx = qx.astype(np.int32)
    products = (q.astype(np.int32) * qx).sum(axis=1)
    return float((d.astype(np.float32) * dx * products + m.astype(np.float32) * qx.sum(axis=1)).sum())


@ex.wrong("The scale of the activations is missing: the result is that of qx, not of dx * qx.")
def forgets_the_activations_scale(d, m, q, dx, qx):
    qx = qx.astype(np.int32)
    products = (q.astype(np.int32) * qx).sum(axis=1)
    return float((d.astype(np.float32) * products + m.astype(np.float32) * qx.sum(axis=1)).sum())


@ex.wrong("The activations of a block are summed in 8 bits, and wrap around: 32 * 127 is 4064, an int8 ends at 127. Widen "
          "before you sum.")
def eight_bit_sum_of_activations(d, m, q, dx, qx):
    products = (q.astype(np.int32) * qx.astype(np.int32)).sum(axis=1)
    scale, minimum = d.astype(np.float32) * dx, m.astype(np.float32) * dx
    return float((scale * products + minimum * qx.sum(axis=1, dtype=np.int8)).sum())


@ex.wrong("The scales are multiplied in half precision, which has three digits. Widen d and m to float32 first.")
def half_scales(d, m, q, dx, qx):
    qx = qx.astype(np.int32)
    products = (q.astype(np.int32) * qx).sum(axis=1)
    scale, minimum = d * dx.astype(np.float16), m * dx.astype(np.float16)
    return float((scale.astype(np.float32) * products + minimum.astype(np.float32) * qx.sum(axis=1)).sum())


@ex.wrong("The number is right, but every weight becomes a float. The point is to do without: sum q * qx and qx as "
          "integers, and bring in the scales once per block.")
def weights_as_floats(d, m, q, dx, qx):
    weights = d[:, None].astype(np.float32) * q + m[:, None].astype(np.float32)
    return float((weights * (dx[:, None] * qx)).sum(dtype=np.float64))


@ex.wrong("q and qx are turned into floats before they are summed. The sums come out right, since floats hold small integers. But "
          "a kernel would pay for wide numbers, where integers of 8 bits do.")
def sums_of_floats(d, m, q, dx, qx):
    q, qx = np.asarray(q, np.float64), np.asarray(qx, np.float64)
    scale, minimum = d.astype(np.float64) * dx, m.astype(np.float64) * dx
    return float((scale * (q * qx).sum(axis=1) + minimum * qx.sum(axis=1)).sum())


@ex.wrong("Each quant becomes a float, one by one, before it is multiplied. Multiply and add whole numbers, and make one float of the sum "
          "of a block.")
def floats_of_quants(d, m, q, dx, qx):
    total = 0.0
    for a, b, weights, c, activations in zip(d, m, q, dx, qx):
        dot = sum(float(w) * float(x) for w, x in zip(weights, activations))
        total += float(c) * (float(a) * dot + float(b) * sum(float(x) for x in activations))
    return total


@ex.wrong("Each weight is worked out as a float, one by one, and then multiplied by its activation. Sum q * qx and qx as integers "
          "first, and bring in the scales once per block.")
def one_float_after_the_other(d, m, q, dx, qx):
    total = 0.0
    for b in range(len(d)):
        for i in range(32):
            total += (float(d[b]) * int(q[b, i]) + float(m[b])) * (float(dx[b]) * int(qx[b, i]))
    return total


def dot_one_by_one(d, m, q, dx, qx):
    """The dot product, weight by weight, in Python's floats."""
    return math.fsum((float(d[b]) * int(q[b, i]) + float(m[b])) * float(dx[b]) * int(qx[b, i])
                     for b in range(len(d)) for i in range(q.shape[1]))


def expect_dot(t, integer_dot, d, m, q, dx, qx):
    """The result, compared with the float64 one; the tolerance is that of float32 sums."""
    got = t.call(integer_dot, d, m, q, dx, qx, shown="integer_dot(d, m, q, dx, qx)")
    size = math.fsum((abs(float(d[b])) * float(q[b].sum()) + 32 * abs(float(m[b]))) * float(dx[b])
                     * float(np.abs(qx[b].astype(int)).max()) for b in range(len(d)))
    t.close(got, dot_one_by_one(d, m, q, dx, qx), rtol=1e-5, atol=1e-6 * size + 1e-12)


@ex.check("one block without a minimum")
def plain_block(integer_dot, t):
    for q_value, x_value, d_value, dx_value in ((1, 1, 1.0, 1.0), (2, -3, 0.5, 1.0), (3, 4, 1.0, 0.25)):
        d, dx = np.full(1, d_value, np.float16), np.full(1, dx_value, np.float32)
        q, qx = np.full((1, 32), q_value, np.uint8), np.full((1, 32), x_value, np.int8)
        t.case(f"d = [{d_value}], m = [0.0], all q = {q_value}, dx = [{dx_value}], all qx = {x_value}")
        expect_dot(t, integer_dot, d, np.zeros(1, np.float16), q, dx, qx)


@ex.check("the minimum meets every activation")
def minimum(integer_dot, t):
    for m_value, dx_value in ((1.0, 1.0), (-2.0, 0.5)):
        q = t.rng.integers(0, 4, (1, 32)).astype(np.uint8)
        qx = t.rng.integers(-5, 6, (1, 32)).astype(np.int8)
        t.case(f"d = [1.0], m = [{m_value}], q = {q[0].tolist()}", f"dx = [{dx_value}], qx = {qx[0].tolist()}")
        expect_dot(t, integer_dot, np.ones(1, np.float16), np.full(1, m_value, np.float16), q,
                   np.full(1, dx_value, np.float32), qx)


@ex.check("the largest integers do not overflow")
def extremes(integer_dot, t):
    for x_value, m_value in ((40, 0.0), (127, 0.0), (-127, 0.0), (-128, 0.0), (127, 2.0), (-128, 2.0)):
        d, dx = np.ones(1, np.float16), np.ones(1, np.float32)
        t.case(f"d = [1.0], m = [{m_value}], all q = 15, dx = [1.0], all qx = {x_value}")
        expect_dot(t, integer_dot, d, np.full(1, m_value, np.float16), np.full((1, 32), 15, np.uint8), dx,
                   np.full((1, 32), x_value, np.int8))


@ex.check("rows of several blocks, each with its own scales")
def many_blocks(integer_dot, t):
    for blocks in (2, 3, 18):
        q = t.rng.integers(0, 16, (blocks, 32)).astype(np.uint8)
        qx = t.rng.integers(-127, 128, (blocks, 32)).astype(np.int8)
        t.case(f"random blocks: {blocks}")
        expect_dot(t, integer_dot, halves(t, blocks), -8 * halves(t, blocks), q,
                   halves(t, blocks).astype(np.float32), qx)


def watched_integers(seen):
    """A class of arrays of integers: what meets a float while it still has all 32 numbers of a block is told to `seen`."""
    class Watched(np.ndarray):
        def told(self, what):
            if self.shape[-1:] == (32,) and self.dtype.kind in "iu":
                seen.append(f"an array of {self.dtype}, shape {self.shape}, {what}")

        def astype(self, dtype, *args, **kwargs):
            if np.dtype(dtype).kind == "f":
                self.told(f"becomes {np.dtype(dtype)}")
            return super().astype(dtype, *args, **kwargs)

        def __array_ufunc__(self, ufunc, method, *inputs, out=None, **kwargs):
            given_kinds = {getattr(np.asarray(a), "dtype", np.dtype(object)).kind for a in inputs}
            if "f" in given_kinds or (kwargs.get("dtype") is not None and np.dtype(kwargs["dtype"]).kind == "f"):
                for a in inputs:
                    if isinstance(a, Watched):
                        a.told("meets floats")
            if out is not None:
                kwargs["out"] = tuple(a.view(np.ndarray) if isinstance(a, Watched) else a for a in out)
            plain = [a.view(np.ndarray) if isinstance(a, Watched) else a for a in inputs]
            got = getattr(ufunc, method)(*plain, **kwargs)
            return got.view(Watched) if isinstance(got, np.ndarray) and got.dtype.kind in "iu" else got

        def __array_function__(self, function, kinds, args, kwargs):
            arrays = [a for a in args if isinstance(a, np.ndarray)]
            if any(a.dtype.kind == "f" for a in arrays):
                for a in arrays:
                    if isinstance(a, Watched):
                        a.told("meets floats")
            return super().__array_function__(function, kinds, args, kwargs)

    return Watched


@contextlib.contextmanager
def watched_conversions(Watched):
    """NumPy's functions that make an array of another one, which ask no subclass: `Watched` hears of theirs as well."""
    names = ("array", "asarray", "asanyarray", "ascontiguousarray")
    kept = {name: getattr(np, name) for name in names}

    def watching(name):
        def convert(a, *args, **kwargs):
            got = kept[name](a, *args, **kwargs)
            if not isinstance(a, Watched) or got.dtype.kind not in "iuf":
                return got
            if got.dtype.kind == "f":
                a.told(f"becomes {got.dtype}")
                return got
            return got.view(Watched)  # still integers: what becomes of them is told as well
        return convert

    try:
        for name in names:
            setattr(np, name, watching(name))
        yield
    finally:
        for name in names:
            setattr(np, name, kept[name])


@contextlib.contextmanager
def counted_floats(names, calls):
    """The name `float` among a learner's names, which counts how often it makes a number, and is else what it was."""
    class Counting(type):
        def __call__(cls, *args):
            calls[0] += 1
            return float(*args)

        def __instancecheck__(cls, value):
            return isinstance(value, float)

    class Float(float, metaclass=Counting):
        dtype = np.dtype(float)  # as NumPy reads the name

    before = names.get("float")
    names["float"] = Float
    try:
        yield
    finally:
        del names["float"]
        if before is not None:
            names["float"] = before


@ex.check("inside a block no weight and no activation becomes a float")
def integers_only(integer_dot, t):
    for blocks in (1, 3):
        seen = []
        Watched = watched_integers(seen)
        q = t.rng.integers(0, 16, (blocks, 32)).astype(np.uint8)
        qx = t.rng.integers(-127, 128, (blocks, 32)).astype(np.int8)
        t.case(f"random blocks: {blocks}")
        calls = [0]
        with watched_conversions(Watched), counted_floats(proving.home(integer_dot), calls):
            expect_dot(t, integer_dot, halves(t, blocks), -8 * halves(t, blocks), q.view(Watched),
                       halves(t, blocks).astype(np.float32), qx.view(Watched))
        t.holds(not seen, f"{(seen or [''])[0]}. Floats come in once per block, when its integers are summed")
        t.holds(calls[0] <= 16 * blocks + 16, f"float() is called {calls[0]} times for {blocks} block(s) of 32 weights. Floats come "
                                              "in once per block, when its integers are summed")


@ex.check("a minimum whose activations sum to 0 leaves no trace, however large it is")
def sum_of_nothing(integer_dot, t):
    for d_value, dx_value in ((2.0**-24, 0.7), (-(2.0**-23), 1.3)):
        q, qx = np.arange(32, dtype=np.uint8)[None] % 16, np.arange(97, 129, dtype=np.int16)[None]
        q[0, [3, 20]] += 1  # one more at 100 and at -101: the products sum to -1
        qx[0, 16:] = -qx[0, :16]
        qx = qx.astype(np.int8)
        d, m, dx = np.full(1, d_value, np.float16), np.full(1, 65504.0, np.float16), np.full(1, dx_value, np.float32)
        t.case(f"d = [{d_value:.4g}], m = [65504.0], q = {q[0].tolist()}", f"dx = [{dx_value}], qx = {qx[0].tolist()}, which sum to 0")
        got = t.call(integer_dot, d, m, q, dx, qx, shown="integer_dot(d, m, q, dx, qx)")
        t.close(got, d_value * float(dx[0]) * int((q.astype(int) * qx).sum()), rtol=1e-4)


# --------------------------------------------------------------------------------------------------------------------

ex = Exercise(
    "ch01.dequantize_q4_k",
    title="Blocks of blocks",
    bonus=True,
    points=20,
    level="hard",
    section="01.7",
    hints=[
        "Three parts: unpack 8 scales and 8 minimums of 6 bits; put the 256 nibbles in order; one line of arithmetic.",
        "With a, b, c as bytes 0-3, 4-7 and 8-11 of the twelve: scales 0-3 are `a & 63`, minimums 0-3 are `b & 63`. "
        "Scales 4-7 have their low four bits in c and their upper two in the top of a.",
        "scales 4-7: `(c & 15) | (a >> 6 << 4)`; minimums 4-7: `(c >> 4) | (b >> 6 << 4)`.",
        "Quants: reshape the 128 bytes to [4, 32]. Row k gives sub-block 2k (`& 15`) and sub-block 2k + 1 (`>> 4`): "
        "`np.stack([...], axis=-2).reshape(rows, blocks, 8, 32)`.",
    ],
)


@ex.solution
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
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("q", "u1", (4, 32))])
    blocks = np.ascontiguousarray(raw).view(layout)
    a, b, c = blocks["packed"][..., 0:4], blocks["packed"][..., 4:8], blocks["packed"][..., 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    minimum = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)
    q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-2).reshape(*blocks.shape, 8, 32)
    step = blocks["d"].astype(np.float32)[..., None] * scale
    drop = blocks["dmin"].astype(np.float32)[..., None] * minimum
    return (step[..., None] * q - drop[..., None]).reshape(len(raw), -1)


@ex.wrong("Scales and minimums 4 to 7 lack their upper two bits. They are in bits 6 and 7 of the first eight bytes.")
def without_upper_bits(raw):
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("q", "u1", (4, 32))])
    blocks = np.ascontiguousarray(raw).view(layout)
    a, b, c = blocks["packed"][..., 0:4], blocks["packed"][..., 4:8], blocks["packed"][..., 8:12]
    scale = np.concatenate([a & 63, c & 15], axis=-1)
    minimum = np.concatenate([b & 63, c >> 4], axis=-1)
    q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-2).reshape(*blocks.shape, 8, 32)
    step = blocks["d"].astype(np.float32)[..., None] * scale
    drop = blocks["dmin"].astype(np.float32)[..., None] * minimum
    return (step[..., None] * q - drop[..., None]).reshape(len(raw), -1)


@ex.wrong("Scales and minimums 0 to 3 take their whole byte. Only six bits are theirs: `& 63`.")
def whole_bytes(raw):
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("q", "u1", (4, 32))])
    blocks = np.ascontiguousarray(raw).view(layout)
    a, b, c = blocks["packed"][..., 0:4], blocks["packed"][..., 4:8], blocks["packed"][..., 8:12]
    scale = np.concatenate([a, (c & 15) | (a >> 6 << 4)], axis=-1)
    minimum = np.concatenate([b, (c >> 4) | (b >> 6 << 4)], axis=-1)
    q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-2).reshape(*blocks.shape, 8, 32)
    step = blocks["d"].astype(np.float32)[..., None] * scale
    drop = blocks["dmin"].astype(np.float32)[..., None] * minimum
    return (step[..., None] * q - drop[..., None]).reshape(len(raw), -1)


@ex.wrong("The minimum is added. In Q4_K it is a positive number that is taken away (in Q4_1 m is added).")
def adds_the_minimum(raw):
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("q", "u1", (4, 32))])
    blocks = np.ascontiguousarray(raw).view(layout)
    a, b, c = blocks["packed"][..., 0:4], blocks["packed"][..., 4:8], blocks["packed"][..., 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    minimum = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)
    q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-2).reshape(*blocks.shape, 8, 32)
    step = blocks["d"].astype(np.float32)[..., None] * scale
    drop = blocks["dmin"].astype(np.float32)[..., None] * minimum
    return (step[..., None] * q + drop[..., None]).reshape(len(raw), -1)


@ex.wrong("All low nibbles come first, then all high ones. They take turns: 32 low, then 32 high, of each run of 32 "
          "bytes.")
def low_then_high(raw):
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("q", "u1", 128)])
    blocks = np.ascontiguousarray(raw).view(layout)
    a, b, c = blocks["packed"][..., 0:4], blocks["packed"][..., 4:8], blocks["packed"][..., 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    minimum = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)
    q = np.concatenate([blocks["q"] & 15, blocks["q"] >> 4], axis=-1).reshape(*blocks.shape, 8, 32)
    step = blocks["d"].astype(np.float32)[..., None] * scale
    drop = blocks["dmin"].astype(np.float32)[..., None] * minimum
    return (step[..., None] * q - drop[..., None]).reshape(len(raw), -1)


@ex.wrong("d scales the minimums as well. They have a scale of their own, dmin.")
def d_for_both(raw):
    layout = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("packed", "u1", 12), ("q", "u1", (4, 32))])
    blocks = np.ascontiguousarray(raw).view(layout)
    a, b, c = blocks["packed"][..., 0:4], blocks["packed"][..., 4:8], blocks["packed"][..., 8:12]
    scale = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=-1)
    minimum = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=-1)
    q = np.stack([blocks["q"] & 15, blocks["q"] >> 4], axis=-2).reshape(*blocks.shape, 8, 32)
    d = blocks["d"].astype(np.float32)[..., None]
    return ((d * scale)[..., None] * q - (d * minimum)[..., None]).reshape(len(raw), -1)


# One block of a real quantiser, with some of its weights.
FIXTURE = bytes.fromhex(
    "64170122aaecffedadecf8ffc6f57195c6a57027896d677654f8966f845c464389b8cd8a88160557a8c4642964673664f894a64b87775518"
    "e2a946b4b445d005c552a62891d3d79b9466749647a477aefa068279d4677782aab2a71b6aa9afb8697d81b7cc8ac69aab485dc36bd7c740"
    "6748764098672296458e7884175169f7ab87bc7c7356880715a7a78a67c8ac49"
)
FIXTURE_WEIGHTS = {
    0: -0.07299041748046875, 31: -0.22455596923828125, 32: 0.436737060546875, 33: 0.2779541015625,
    128: 0.1696929931640625, 160: 0.6956977844238281, 200: -0.20288467407226562, 255: -0.28588104248046875,
}


def q4_k_case(d, dmin, scale, floor, q):
    """Bytes of Q4_K blocks and their weights, one by one: d, dmin [n]; scale, floor [n, 8]; q [n, 8, 32]."""
    data, want = b"", []
    for n in range(len(d)):
        s, f = [int(v) for v in scale[n]], [int(v) for v in floor[n]]
        twelve = [s[i] + (s[i + 4] // 16) * 64 for i in range(4)]
        twelve += [f[i] + (f[i + 4] // 16) * 64 for i in range(4)]
        twelve += [s[i + 4] % 16 + (f[i + 4] % 16) * 16 for i in range(4)]
        quants = [int(q[n, 2 * k, i]) + 16 * int(q[n, 2 * k + 1, i]) for k in range(4) for i in range(32)]
        data += d[n].tobytes() + dmin[n].tobytes() + bytes(twelve) + bytes(quants)
        want += [float(d[n]) * s[b] * int(q[n, b, i]) - float(dmin[n]) * f[b] for b in range(8) for i in range(32)]
    return np.frombuffer(data, np.uint8), np.array(want, np.float32)


def expect_q4_k(t, dequantize_q4_k, raw, want, *story):
    """Compare; the tolerance is that of float32 sums of the block's size."""
    t.case(*story)
    got = t.call(dequantize_q4_k, raw, shown="dequantize_q4_k(raw)")
    t.close(got, want, rtol=1e-5, atol=1e-5)
    t.holds(getattr(got, "dtype", None) == np.float32, f"the result is of {getattr(got, 'dtype', type(got))}, expected "
                                                       "float32")


@ex.check("quants in their order: all scales 1, all minimums 0")
def quants_in_order(dequantize_q4_k, t):
    for what in ("one", "random"):
        q = np.zeros((1, 8, 32), int)
        if what == "one":
            q[0, 1, 2] = 7
        else:
            q = t.rng.integers(0, 16, (1, 8, 32))
        one, zero = np.ones((1, 8), int), np.zeros((1, 8), int)
        raw, want = q4_k_case(np.ones(1, np.float16), np.ones(1, np.float16), one, zero, q)
        expect_q4_k(t, dequantize_q4_k, raw[None], want[None],
                    "raw: one block, d = 1, all scales 1, minimums 0, "
                    + ("q = 0 but for weight 2 of sub-block 1, which is 7" if what == "one" else "q random"))


@ex.check("scales and minimums below 16 (four bits)")
def small_scales(dequantize_q4_k, t):
    for _ in range(2):
        s, f = t.rng.integers(1, 16, (1, 8)), t.rng.integers(1, 16, (1, 8))
        raw, want = q4_k_case(halves(t, 1), halves(t, 1), s, f, t.rng.integers(0, 16, (1, 8, 32)))
        expect_q4_k(t, dequantize_q4_k, raw[None], want[None], f"raw: one block, scales {s[0].tolist()}, "
                                                               f"minimums {f[0].tolist()}, q random")


@ex.check("scales and minimums of six bits, several rows and blocks")
def large_scales(dequantize_q4_k, t):
    for rows, blocks in ((1, 1), (2, 1), (3, 2)):
        n = rows * blocks
        s, f = t.rng.integers(0, 64, (n, 8)), t.rng.integers(0, 64, (n, 8))
        raw, want = q4_k_case(halves(t, n), halves(t, n), s, f, t.rng.integers(0, 16, (n, 8, 32)))
        name = f", scales {s[0].tolist()}, minimums {f[0].tolist()}" if n == 1 else ""
        expect_q4_k(t, dequantize_q4_k, raw.reshape(rows, -1), want.reshape(rows, -1),
                    f"raw: {rows} row(s) of {blocks} block(s){name}, q random")


@ex.check("a block from a real quantiser")
def fixture(dequantize_q4_k, t):
    t.case("raw = a block of a real Q4_K file")
    got = t.call(dequantize_q4_k, np.frombuffer(FIXTURE, np.uint8)[None], shown="weights = dequantize_q4_k(raw)")
    t.holds(np.shape(got) == (1, 256), f"the result has shape {np.shape(got)}, expected (1, 256)")
    for i, want in FIXTURE_WEIGHTS.items():
        t.close(got[0, i], want, f"weights[0, {i}]", rtol=1e-5, atol=1e-6)
