"""The fingerprint of a model: everything that changes a row changes it, nothing else does."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fucina
from fucina.cache import load, save
from fucina.errors import GgufError
from fucina.gguf import GgufFile, write_gguf
from fucina.gguf import fingerprint as module
from fucina.gguf.fingerprint import fingerprint
from tests.gguf_files import write_split
from tests.models import TINY, need_smollm2

ROW = module._ROW * 8  # bytes that are condensed to one sum
METADATA = {
    "general.architecture": "llama",
    "general.name": "one",
    "llama.rope.freq_base": np.float32(10000.0),
    "llama.attention.head_count": np.uint32(4),
    "llama.layers": np.array([1, 2, 3], np.int32),
    "llama.labels": ["a", "bc"],
    "tokenizer.chat_template": "{{ messages }}",
    "tokenizer.ggml.tokens": ["a", "b"],
    "quantize.imatrix.file": "calibration.dat",
}


@pytest.fixture(scope="module")
def tensors():
    rng = np.random.default_rng(0)
    return {
        "big": (rng.integers(0, 256, (5, 2 * ROW // 5 + 40), np.uint8).view(np.int8), "I8"),  # two rows and a rest
        "small": (rng.standard_normal(33).astype(np.float32), "F32"),
        "twin": (rng.standard_normal(33).astype(np.float32), "F32"),
        "long": (rng.standard_normal((70, ROW // 8)).astype(np.float32), "F32"),  # more than one block of rows
    }


@pytest.fixture
def of(tmp_path):
    """The fingerprint of a file with this metadata and these tensors."""

    def of(tensors, metadata=METADATA):
        path = tmp_path / "model.gguf"
        write_gguf(path, metadata, tensors)
        with GgufFile(path) as file:
            return fingerprint(file)

    return of


def changed(tensors, name, change):
    array = tensors[name][0].copy()
    change(array.reshape(-1).view(np.uint8))
    return {**tensors, name: (array, tensors[name][1])}


def test_it_is_the_same_for_the_same_file(tensors, of):
    assert len(of(tensors)) == 16 and of(tensors) == of(tensors)


def test_threads_and_blocks_make_no_difference(tensors, of, monkeypatch):
    whole = of(tensors)
    monkeypatch.setattr(module, "_THREADS", 1)
    monkeypatch.setattr(module, "_BLOCK", 3)
    assert of(tensors) == whole


@pytest.mark.parametrize("span", [1, 2, 512])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_changed_byte_changes_it(span, data, tmp_path_factory):
    rng = np.random.default_rng(1)
    tensors = {"a": (rng.integers(-128, 128, 3 * ROW + 77, np.int8), "I8"), "b": (np.zeros(9, np.float32), "F32")}
    path = tmp_path_factory.mktemp("fp") / "model.gguf"
    write_gguf(path, METADATA, tensors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SPAN", span * ROW)
        with GgufFile(path) as file:
            before = fingerprint(file)
            info = data.draw(st.sampled_from([file.tensor("a"), file.tensor("b")]))
            at, start = data.draw(st.integers(0, info.nbytes - 1)), info.start
        raw = bytearray(path.read_bytes())
        raw[start + at] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(raw)
        with GgufFile(path) as file:
            assert fingerprint(file) != before


def test_two_changed_signs_do_not_cancel_out(tensors, of):
    """Top bits of two words: without the shift their products would add up to 0 modulo 2**64."""
    before = of(tensors)

    def negate(step):
        def change(raw):
            raw.view(np.float32)[1 : 4 * step : step] *= -1

        return change

    for step in (2, 4, 64, 2048):
        assert of(changed(tensors, "long", negate(step))) != before


def test_swapped_parts_change_it(tensors, of, monkeypatch):
    monkeypatch.setattr(module, "_SPAN", 2 * ROW)
    before = of(tensors)
    for size in (8, 16, ROW, 2 * ROW):  # words, pairs of them, rows, spans

        def swap(raw, size=size):
            raw[:size], raw[2 * size : 3 * size] = raw[2 * size : 3 * size].copy(), raw[:size].copy()

        assert of(changed(tensors, "long", swap)) != before
    assert of({**tensors, "small": tensors["twin"], "twin": tensors["small"]}) != before


def test_names_shapes_and_formats_count(tensors, of):
    before = of(tensors)
    array, kind = tensors["small"]
    assert of({**{k: v for k, v in tensors.items() if k != "small"}, "other": tensors["small"]}) != before
    assert of({**tensors, "small": (array.reshape(3, 11), kind)}) != before
    assert of({**tensors, "small": (array.view(np.int32), "I32")}) != before
    assert of({**tensors, "more": tensors["small"]}) != before


@pytest.mark.parametrize(
    "change",
    [
        {"llama.rope.freq_base": np.float32(10000.001)},
        {"llama.attention.head_count": np.uint32(8)},
        {"llama.layers": np.array([1, 3, 2], np.int32)},
        {"llama.labels": ["ab", "c"]},
        {"llama.labels": ["a", "bc", ""]},
        {"llama.new": True},
        {"general.architecture": "gemma3"},
    ],
    ids=str,
)
def test_metadata_that_changes_rows_counts(tensors, of, change):
    assert of(tensors, {**METADATA, **change}) != of(tensors)


def test_metadata_that_changes_no_row_does_not_count(tensors, of):
    plain = {k: v for k, v in METADATA.items() if k.startswith("llama") or k == "general.architecture"}
    other = {**METADATA, "general.name": "two", "general.license": "mit", "tokenizer.chat_template": "{{ x }}"}
    assert of(tensors) == of(tensors, plain) == of(tensors, other) == of(tensors, dict(reversed(other.items())))


def test_order_and_split_make_no_difference(tensors, of, tmp_path):
    whole = of(tensors)
    assert of(dict(reversed(tensors.items()))) == whole
    paths = write_split(tmp_path, "split", METADATA, tensors, 3)
    with GgufFile(paths[1]) as file:
        assert fingerprint(file) == whole


def test_a_closed_file_is_refused(tensors, tmp_path):
    write_gguf(tmp_path / "m.gguf", METADATA, tensors)
    file = GgufFile(tmp_path / "m.gguf")
    file.close()
    with pytest.raises(GgufError, match="closed"):
        fingerprint(file)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_page_of_the_file_stays_resident():
    def resident():
        with open("/proc/self/status") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("RssFile")) * 1024

    with GgufFile(need_smollm2()) as file:
        file.release_pages()
        before = resident()
        fingerprint(file)
        assert resident() - before < 1 << 20
        assert sum(int(t.data[0]) for t in file.tensors.values()) > 0  # and it can still be read


def test_states_of_other_arithmetic_are_those_of_another_model(tmp_path):
    path = TINY / "llama.gguf"
    native = fucina.load(path)
    names = {native.fingerprint}
    cache = native.new_cache(8)
    native.forward([1, 2, 3], cache)
    save(tmp_path / "a", cache, [1, 2, 3])
    for options, same in (
        ({"activations": "q8"}, True),
        ({}, False),
        ({"dequantize": {"Q4_1": lambda raw: raw}}, False),
        ({"activations": "q8", "dequantize": {"Q4_1": lambda raw: raw}}, False),
    ):
        other, said = fucina.load(path, backend="naive", **options), []
        assert (other.fingerprint == native.fingerprint) == same
        names.add(other.fingerprint)
        assert (load(tmp_path / "a", other, explain=said) is not None) == same
        assert same or "of another model" in said[0]
    assert len(names) == 4
