"""Files that were changed at random: a named error, nothing, or a true prefix; never rows of something else.

Versions 1 and 2 have no checks, so what they give is only asked to be well formed.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np
import pytest

from fucina.cache import Kv
from fucina.cache.persist import header as headers
from fucina.cache.persist import plain
from fucina.cache.persist.identity import Identity, identity_of
from fucina.cache.persist.kvfile import KvFile
from fucina.cache.persist.restoring import damaged
from fucina.cache.persist.whole import _restore
from fucina.errors import KvFileInvalid
from tests.kv_files import KINDS, MemoryFile, ToyModel
from tests.state_models import check_claims, extend


@dataclass
class Base:
    """A file and all texts that it has held."""

    model: ToyModel
    data: bytes
    texts: list
    notes: list
    prefix: int
    salt: bytes = b""

    @property
    def identity(self):
        return identity_of(self.model, self.salt)


def base(kind, seed, fingerprint=b"toy", salt=b""):
    """A file after some turns, one of them undone."""
    rng = np.random.default_rng(seed)
    model, storage = ToyModel(KINDS[kind], fingerprint=fingerprint), MemoryFile()
    prefix = 2 * (seed % 2)
    file = KvFile(storage, identity_of(model, salt))
    state, tokens, texts, all_notes = model.new_cache(), [5] * prefix, [], []
    extend(state, tokens)
    notes = []
    for end, keep in ((30, 0), (50, 20), (48, 25), (70, 70)):
        tokens = tokens[: state.len]
        if (point := state.rewind_point(max(keep, prefix))) >= prefix:
            state.rewind(point)
            tokens = tokens[:point]
            notes = notes[: keep // 10]
        tokens = [*tokens, *(int(t) for t in rng.integers(0, 1000, end - len(tokens)))]
        extend(state, tokens)
        state.checkpoint()
        notes = [*notes, rng.bytes(int(rng.integers(40)))]
        if rng.random() < 0.5:
            tokens = [*tokens, int(rng.integers(1000))]
        file.append(state, tokens[prefix:], prefix, notes)
        texts.append(tokens)
        all_notes.append(notes)
    return Base(model, bytes(storage.data) + rng.bytes(300), texts, all_notes, prefix, salt)


def old_base(seed, prefix):
    """A file of version 1 or 2."""
    model, storage = ToyModel((Kv(1, 4, 4), Kv(2, 2, 2)), "f16"), MemoryFile()
    rng = np.random.default_rng(seed)
    tokens = [int(t) for t in rng.integers(0, 1000, 30)]
    state = model.new_cache()
    extend(state, tokens)
    plain.append(storage, state, np.array(tokens[prefix:], np.uint32), prefix)
    return Base(model, bytes(storage.data), [tokens], [], prefix)


# --- mutations: each takes the bytes, those of another file, and a random generator ---------------------------------


def flip(data, other, rng):
    for _ in range(int(rng.choice([1, 1, 1, 2, 8]))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))


def near(data, rng):
    """A place: anywhere, or in the header, the counters, the first record."""
    return min(int(rng.choice([rng.integers(len(data)), rng.integers(300), 4096, 8192, 12288])), len(data) - 1)


def overwrite(data, other, rng):
    at = near(data, rng)
    new = [bytes(9), b"\xff" * 9, rng.bytes(int(rng.integers(1, 200)))][int(rng.integers(3))]
    data[at : at + len(new)] = new[: len(data) - at]


def truncate(data, other, rng):
    del data[near(data, rng) :]


def insert(data, other, rng):
    at = near(data, rng)
    data[at:at] = rng.bytes(int(rng.integers(1, 60)))


def delete(data, other, rng):
    at = near(data, rng)
    del data[at : at + int(rng.integers(1, 60))]


def records(data):
    """Where records begin, by their lengths, and where the last one ends."""
    found, at = [], 12288
    while at + 24 <= len(data) and 0 < data[at] <= 4:
        found.append(at)
        at += 24 + int.from_bytes(data[at + 8 : at + 16], "little")
    return [*found, min(at, len(data))]


def swap(data, other, rng):
    """Two records change places, or one takes another's."""
    borders = records(data)
    if len(borders) < 3:
        return flip(data, other, rng)
    i, j = (int(k) for k in rng.integers(len(borders) - 1, size=2))
    a, b = data[borders[i] : borders[i + 1]], data[borders[j] : borders[j + 1]]
    if len(a) == len(b):
        data[borders[i] : borders[i + 1]] = b
        if rng.random() < 0.5:
            data[borders[j] : borders[j + 1]] = a
    return None


def splice(data, other, rng):
    """Part of another file at the same place: a record, records to the end, a page, everything from a place on."""
    mine, theirs = records(data), records(other)
    way = int(rng.integers(4))
    if way == 0 and len(theirs) > 1:
        i = int(rng.integers(len(theirs) - 1))
        data[theirs[i] : theirs[i + 1]] = other[theirs[i] : theirs[i + 1]]
    elif way == 1 and len(mine) > 1 and len(theirs) > 1:
        data[mine[int(rng.integers(len(mine)))] :] = other[theirs[int(rng.integers(len(theirs)))] :]
    elif way == 2:
        at = 4096 * int(rng.integers(max(1, len(data) // 4096)))
        data[at : at + 4096] = other[at : at + 4096]
    else:
        at = near(data, rng)
        data[at:] = other[at:]


def lying_counter(data, other, rng):
    """Counters with right checksums and wrong numbers."""
    _, _, _, of = struct.unpack_from("<QQQI", data, 4096 + 4096 * int(rng.integers(2)))
    numbers = [int(rng.choice([0, 1, len(data), len(data) + 99, 12288, 12300, 1 << 62])) for _ in range(3)]
    body = struct.pack("<QQQI", *numbers, of)
    at = 4096 + 4096 * int(rng.integers(2))
    data[at : at + 32] = body + struct.pack("<I", zlib.crc32(body))


def lying_header(data, other, rng):
    """A header with a right checksum and wrong fields; the counters and the chain may be made to fit it."""
    at, size = [(8, 4), (12, 4), (16, 4), (20, 4), (24, 8), (32, 8), (40, 8), (64, 4), (96, 4), (112, 4), (144, 4)][
        int(rng.integers(11))
    ]
    number = int(rng.choice([0, 1, 2, 3, 40, 4096, 8192, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, 1 << 40]))
    new = (number % (1 << 8 * size)).to_bytes(size, "little")
    data[at : at + len(new)] = new
    data[4092:4096] = struct.pack("<I", zlib.crc32(data[:4092]))


def lying_length(data, other, rng):
    """A record that claims another kind or length, with a chain that fits."""
    borders = records(data)
    if len(borders) < 2:
        return
    i = int(rng.integers(len(borders) - 1))
    at, before = borders[i], borders[i - 1] + 20 if i else 4092
    chain = int.from_bytes(data[before : before + 4], "little")
    if rng.random() < 0.3:
        data[at] = int(rng.integers(256))
    else:
        number = int(rng.choice([0, 1, 23, len(data), 1 << 24, 1 << 31, 1 << 62]))
        data[at + 8 : at + 16] = struct.pack("<Q", number)
    data[at + 20 : at + 24] = struct.pack("<I", zlib.crc32(data[at : at + 20], chain))


def lying_plain(data, other, rng):
    at, size = [(8, 8), (16, 8), (16, 4), (20, 4), (24, 4), (28, 4), (32, 4)][int(rng.integers(7))]
    number = int(rng.choice([0, 1, 2, 31, 300, 301, (1 << 31) - 1, (1 << 32) - 1, 1 << 62]))
    data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")


ANY = [flip, overwrite, truncate, insert, delete]
OF_THREE = [*ANY, swap, splice, lying_counter, lying_header, lying_length]


# --- checks ---------------------------------------------------------------------------------------------------------


def check(b, data, whole=()):
    """What a mutated file of version 3 gives; returns "error", "nothing" or "prefix".

    whole : files that may have taken the place of this one as wholes.
    """
    try:
        file = KvFile(MemoryFile(data), b.identity)
    except KvFileInvalid:
        assert bytes(data[:8]) != b.data[:8]
        return "error"
    state = b.model.new_cache(100)
    restored = file.restore(state)
    assert len(file.tokens) <= len(data) // 24
    if state.len == 0:
        assert restored.tokens == restored.notes == []
        assert restored.why
        return "nothing"
    # The nonce of another file with all that belongs to it is that file.
    b = next((other for other in whole if other.data[48:64] == data[48:64]), b)
    assert restored.prefix_rows == b.prefix
    tokens = [5] * b.prefix + restored.tokens
    assert any(
        text[: len(tokens)] == tokens and notes[: len(restored.notes)] == restored.notes
        for text, notes in zip(b.texts, b.notes)
    ), (restored, b.texts, b.notes)
    check_claims(state, tokens)
    return "prefix"


def check_load(b, data, whole=()):
    """The way of `load` and `inspect`, for any version."""
    file = MemoryFile(data)
    try:
        header = headers.read(file)
        if header.version == 3:
            counter = headers.newest(file, header.size, header.checksum)
            assert counter is None or counter.rows == header.rows
            if counter:
                damaged(file, header, headers_index(file, header, counter))
        if header.differs(b.identity):
            return "nothing"
        state = b.model.new_cache(100)
        restored = _restore(file, header, state)
    except KvFileInvalid:
        return "error"
    assert len(restored.tokens) <= len(data)
    assert file.bytes_read <= 6 * len(data) + (1 << 20)
    if state.len == 0:
        return "nothing"
    b = next((other for other in whole if other.data[48:64] == data[48:64]), b)
    if header.version == 3 and b.data[:8] == b"FUXKV003":
        check_claims(state, [5] * b.prefix + restored.tokens)
    return "prefix"


def headers_index(file, header, counter):
    from fucina.cache.persist.records import scan

    return scan(file, header, counter.end)[0]


def run(count, seed):
    """Mutate `count` files; returns how often each came out."""
    rng = np.random.default_rng(seed)
    bases = [base(kind, i + 2 * seed) for i, kind in enumerate(KINDS)]
    others = [
        base("all", 90 + seed),
        base("full", 91 + seed, b"another"),
        base("full", 92 + seed, salt=b"tenant"),
        base("ring", 93 + seed),
    ]
    old = [old_base(seed, prefix) for prefix in (0, 3)]
    outcomes = {"error": 0, "nothing": 0, "prefix": 0}
    for b in bases:
        assert check(b, b.data) == check_load(b, b.data) == "prefix"
    for i in range(count):
        plain_one = i % 8 == 7
        b = old[i % 16 // 8] if plain_one else bases[int(rng.integers(len(bases)))]
        every = [*others, *bases, *old]
        other = every[int(rng.integers(len(every)))].data
        data = bytearray(b.data)
        ways = [*ANY, lying_plain, splice] if plain_one else OF_THREE
        for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
            if len(data) > 12400 or plain_one:
                ways[int(rng.integers(len(ways)))](data, other, rng)
            if not data:
                break
        if plain_one:
            outcomes[check_load(b, data)] += 1
        else:
            outcomes[check(b, data, every)] += 1
            if i % 4 == 0:
                check_load(b, data, every)
    return outcomes


def test_mutated_files_give_a_true_prefix_or_nothing():
    outcomes = run(4000, 0)
    assert all(n > 40 for n in outcomes.values()), outcomes


@pytest.mark.slow
def test_a_hundred_thousand_mutated_files_give_a_true_prefix_or_nothing():
    total = {"error": 0, "nothing": 0, "prefix": 0}
    for seed in range(1, 11):
        for outcome, n in run(10_000, seed).items():
            total[outcome] += n
    print(total)


def test_identity_is_checked_field_by_field():
    b = base("all", 0)
    right = b.identity
    for field, value in (
        ("fingerprint", b"another"),
        ("fingerprint", b"toy\0"),
        ("tokenizer", b"t" * 16),
        ("salt", b"s" * 16),
        ("dtype", "f16"),
        ("parts", right.parts[:-1]),
        ("parts", (*right.parts[:-1], Kv(1, 2, 2, window=21))),
    ):
        other = right._replace(**{field: value})
        file = KvFile(MemoryFile(b.data), other)
        assert (file.why == "") == (field == "tokenizer"), field  # the file does not state a tokenizer
        assert file.len == (b.texts and 70 if field == "tokenizer" else 0)
    assert isinstance(right, Identity)
