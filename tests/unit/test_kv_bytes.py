"""FUXKV003, byte for byte, put together here from the tables in docs/kv-files.md."""

from __future__ import annotations

import re
import secrets
import struct
import zlib

import pytest

from course.source import ROOT
from fucina.cache import Kv, Latent, Recurrent, load, save
from fucina.cache.persist import read_header, salt_hash
from fucina.errors import KvFileInvalid
from tests.kv_files import TOKENS, ToyModel
from tests.state_models import expected_array, expected_rows, extend

NONCE = bytes(range(16))
PARTS = (Kv(2, 3, 2), Latent(5, 3, 1), Kv(1, 2, 2, window=3), Recurrent((2, 3)), Recurrent((4,)))
MODEL = ToyModel(PARTS, fingerprint=b"fingerprint", tokenizer=b"0123456789abcdef")


def crc(data, before=0):
    return struct.pack("<I", zlib.crc32(data, int.from_bytes(before, "little") if before else 0))


class Log:
    """Records as the tables say."""

    def __init__(self, chain):
        self.bytes, self.chain = b"", chain

    def add(self, kind, flags, value, payload):
        head = bytes([kind, flags, 0, 0]) + struct.pack("<IQ", value, len(payload)) + crc(payload)
        self.chain = crc(head, self.chain)
        self.bytes += head + self.chain + payload


def by_hand(state, tokens, prefix, notes, salt):
    bank_numbers = 16 + 16  # each recurrent part begins on a line of 64 bytes
    row_numbers = 2 * (3 + 2) + 5 + 1 * (2 + 2)
    header = b"FUXKV003" + struct.pack("<IIII", 4096, 5, 2, 11)
    header += struct.pack("<QQQ", 4 * row_numbers, 4 * bank_numbers, prefix) + NONCE
    header += b"fingerprint".ljust(32, b"\0") + b"0123456789abcdef" + salt_hash(salt)
    header += struct.pack("<6I", 1, 4, 2, 3, 2, 0) + struct.pack("<5I", 2, 3, 5, 3, 1)
    header += struct.pack("<6I", 1, 4, 1, 2, 2, 3) + struct.pack("<4I", 3, 2, 2, 3) + struct.pack("<3I", 3, 1, 4)
    header = header.ljust(4092, b"\0")
    header += crc(header)
    log = Log(header[-4:])
    every = [*tokens[: state.len]]
    for at, token in enumerate(every):
        row = b""
        for slot in (0, 1, 2):
            k, v = expected_rows(state, slot, every, at, at + 1)
            row += k.astype("<f4").tobytes() + (v.astype("<f4").tobytes() if slot != 1 else b"")
        log.add(1, 0b11, 0 if at < prefix else token, row)
    bank = expected_array((2, 3), every).astype("<f4").tobytes().ljust(64, b"\0")
    log.add(2, 0, len(every), bank + expected_array((4,), every).astype("<f4").tobytes().ljust(64, b"\0"))
    log.add(4, 0, tokens[len(every)], b"")
    for i, note in enumerate(notes):
        log.add(3, 0, i, note)
    counter = struct.pack("<QQQ", 1, 12288 + len(log.bytes), len(every)) + header[-4:]
    return header + bytes(4096) + (counter + crc(counter)).ljust(4096, b"\0") + log.bytes


@pytest.mark.parametrize(("prefix", "salt"), [(0, b""), (2, b"tenant")])
def test_the_bytes_are_those_of_the_tables(prefix, salt, tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "token_bytes", lambda n: NONCE)
    path, state = tmp_path / "a", MODEL.new_cache()
    extend(state, TOKENS[:9])
    size = save(
        path, state, TOKENS[prefix:10], prefix_rows=prefix, notes=[b"one", b""], salt=salt,
        tokenizer=b"0123456789abcdef",
    )  # fmt: skip
    assert path.read_bytes() == by_hand(state, TOKENS[:10], prefix, [b"one", b""], salt)
    assert size == path.stat().st_size
    loaded = load(path, MODEL, salt=salt)
    restored, tokens = loaded  # a pair, with more beside it
    assert (restored.len, tokens, loaded.prefix_rows) == (9, TOKENS[prefix:10], prefix)
    assert (loaded.state, loaded.tokens, loaded.notes) == (restored, tokens, [b"one", b""])
    header = read_header(path)
    assert (header.parts, header.dtype, header.prefix_rows, header.rows) == (PARTS, "f32", prefix, 9)
    assert (header.fingerprint, header.tokenizer) == (b"fingerprint", b"0123456789abcdef")
    assert (header.salt, header.nonce) == (salt_hash(salt), NONCE)


def test_what_differs_is_named(tmp_path):
    path, state = tmp_path / "a", MODEL.new_cache()
    extend(state, TOKENS[:9])
    save(path, state, TOKENS[:9], tokenizer=b"0123456789abcdef", salt=b"me")
    for model, salt, why in (
        (
            ToyModel(PARTS, fingerprint=b"other", tokenizer=b"0123456789abcdef"),
            b"me",
            "of another model: 66696e67657270",
        ),
        (ToyModel(PARTS, fingerprint=b"fingerprint", tokenizer=b"another"), b"me", "of another tokenizer"),
        (MODEL, b"you", "of another tenant"),
        (MODEL, b"", "of another tenant"),
        (ToyModel(PARTS, "f16", b"fingerprint"), b"me", "its rows are f32, those of the cache f16"),
        (ToyModel(PARTS[:4], fingerprint=b"fingerprint"), b"me", "5 parts, expected 4"),
        (ToyModel((*PARTS[:2], Kv(1, 2, 2), *PARTS[3:]), fingerprint=b"fingerprint"), b"me", "part 2 is Kv.*window=3"),
    ):
        said = []
        assert load(path, model, salt=salt, explain=said) is None
        assert re.search(why, said[0]), said
    # A tokenizer that is not stated is not compared.
    assert load(path, ToyModel(PARTS, fingerprint=b"fingerprint"), salt=b"me") is not None


def test_every_byte_of_the_header_is_checked(tmp_path):
    path, state = tmp_path / "a", MODEL.new_cache()
    extend(state, TOKENS[:3])
    save(path, state, TOKENS[:3])
    whole = path.read_bytes()
    for at in (*range(300), 2000, 4091, 4092, 4095):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        with pytest.raises(KvFileInvalid):
            read_header(path)
        assert load(path, MODEL) is None


def test_many_parts_take_a_longer_header(tmp_path):
    model = ToyModel((Kv(1, 1, 1),) * 500)
    state = model.new_cache(10)
    extend(state, TOKENS[:3])
    save(tmp_path / "a", state, TOKENS[:3])
    header = read_header(tmp_path / "a")
    assert (header.size, header.start, len(header.parts)) == (12288, 20480, 500)
    assert load(tmp_path / "a", model).tokens == TOKENS[:3]
    with pytest.raises(KvFileInvalid, match="a fingerprint of 33 bytes"):
        save(tmp_path / "b", ToyModel(fingerprint=b"x" * 33).new_cache(), [])
    assert not (tmp_path / "b").exists()


def tables():
    """The tables of docs/kv-files.md by their heading: rows of cells."""
    found, heading = {}, ""
    for line in (ROOT / "docs" / "kv-files.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith("|---"):
            found.setdefault(heading, []).append([cell.strip(" `") for cell in line.strip("|").split("|")])
    return found


def fields(rows, data):
    """The fields of a table with the columns offset, size, type, field, as they are in these bytes."""
    out = {}
    for offset, size, kind, field in (row for row in rows if len(row) == 4):
        if offset.isdigit() and size.isdigit():
            raw = data[int(offset) : int(offset) + int(size)]
            out[field.split(",")[0].split(":")[0].split(";")[0]] = (
                raw if kind == "bytes" else int.from_bytes(raw, "little")
            )
    return out


def test_the_tables_of_the_page_read_a_file(tmp_path):
    state = MODEL.new_cache()
    extend(state, TOKENS[:9])
    save(tmp_path / "a", state, TOKENS[2:9], prefix_rows=2, salt=b"me", tokenizer=b"0123456789abcdef")
    data, header, found = (tmp_path / "a").read_bytes(), read_header(tmp_path / "a"), tables()
    assert fields(found["Version 3: header"], data) == {
        "magic": b"FUXKV003",
        "H": 4096,
        "number of parts": 5,
        "dtype": 2,
        "size of the fingerprint": 11,
        "size of one position's rows": header.row_bytes,
        "size of all recurrent parts": header.bank_bytes,
        "rows of the prefix": 2,
        "nonce": header.nonce,
        "fingerprint of the model": b"fingerprint".ljust(32, b"\0"),
        "fingerprint of the tokenizer": b"0123456789abcdef",
        "BLAKE2b of the tenant's salt": salt_hash(b"me"),
    }
    assert fields(found["Version 3: counters"], data[2 * 4096 :]) == {
        "number of this counter": 1,
        "where the records end": len(data),
        "positions": 9,
        "the header's CRC-32": header.checksum,
        "CRC-32 of the 28 bytes before": zlib.crc32(data[2 * 4096 : 2 * 4096 + 28]),
    }
    record = fields(found["Version 3: records"], data[header.start :])
    payload = data[header.start + 24 :][: header.row_bytes]
    assert record == {
        "kind": 1,
        "flags": 3,
        "0": 0,
        "value": 0,
        "size of the payload": header.row_bytes,
        "CRC-32 of the payload": zlib.crc32(payload),
        "chain": zlib.crc32(data[header.start : header.start + 20], header.checksum),
    }
