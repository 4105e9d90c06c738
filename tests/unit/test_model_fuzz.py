"""Damaged models of every family: a named error, or a model that gives finite logits; never anything else.

20,000 files here, a million with `-m slow` (FUCINA_FUZZ_FILES says another number).
"""

from __future__ import annotations

import os
import random
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina.errors import FucinaError, ModelError
from fucina.gguf import GgufFile, write_gguf
from fucina.models import read_family
from fucina.tokenizers import load_tokenizer
from tests.model_mutations import mutated, split_in_two, take_apart, write_parts

MODELS = sorted((Path(__file__).parents[1] / "data" / "models").glob("*.gguf"))
IN_CI = 20_000
SLOW = int(os.environ.get("FUCINA_FUZZ_FILES", 1_000_000))
RUN = 97  # of so many files that are understood, one is run

pytestmark = pytest.mark.filterwarnings("ignore::fucina.tokenizers.UnencodableBytes")


def understood(path: Path, run: bool) -> bool:
    """Whether the file is a model; a FucinaError is the only other end.  With `run`, a forward of three tokens as well."""
    try:
        with GgufFile(path) as file:
            family = read_family(file)
            vocabulary = load_tokenizer(file.metadata)
            assert vocabulary.n_vocab <= family.config.vocab_size
    except FucinaError as error:
        assert 0 < len(str(error)) < 1000
        return False
    if run and family.config.context_length >= 3:
        with np.errstate(all="ignore"):  # a scale of 1e38 is a number as well
            model = fucina.load(path, backend="naive")
            try:
                logits = model.logits([5, 77, 200])
            finally:
                model.close()
        assert logits.shape == (3, model.config.vocab_size) and logits.dtype == np.float32
    return True


def attack(folder: Path, source: Path, files: int, seed: int) -> tuple[int, int]:
    """How many damaged files were understood, and how many refused."""
    rng = random.Random(seed)
    whole = take_apart(source.read_bytes())
    halves = split_in_two(whole)
    path, models = folder / "damaged.gguf", 0
    for i in range(files):
        if i % 8:
            path.write_bytes(mutated(whole, rng))
            opened = path
        elif rng.randrange(2):
            opened = write_parts(folder, mutated(halves[0], rng), halves[1].file())
        else:
            opened = write_parts(folder, halves[0].file(), mutated(halves[1], rng))
        try:
            models += understood(opened, run=models % RUN == 1)
        except BaseException as error:
            error.add_note(f"{source.name}, seed {seed}, file {i}: {opened}")
            raise
    return models, files - models


@pytest.mark.parametrize("source", MODELS, ids=lambda path: path.stem)
def test_damaged_models(tmp_path, source):
    understood, refused = attack(tmp_path, source, IN_CI // len(MODELS) + 1, zlib.crc32(source.name.encode()))
    assert understood > 50 and refused > 500


@pytest.mark.slow
@pytest.mark.parametrize("source", MODELS, ids=lambda path: path.stem)
def test_a_million_damaged_models(tmp_path, source):
    attack(tmp_path, source, SLOW // len(MODELS) + 1, seed=random.SystemRandom().randrange(2**32))


@pytest.mark.parametrize("source", MODELS, ids=lambda path: path.stem)
def test_undamaged_models(tmp_path, source):
    parts = take_apart(source.read_bytes())
    path = tmp_path / "same.gguf"
    path.write_bytes(parts.file())
    assert understood(path, run=True)
    assert understood(write_parts(tmp_path, *(half.file() for half in split_in_two(parts))), run=True)


def test_no_memory_on_the_word_of_a_file(tmp_path):
    """Reading a damaged model takes a small multiple of its file at most, whatever its numbers say."""
    source = next(path for path in MODELS if path.stem == "gemma4_kvshare")
    rng, whole = random.Random(5), take_apart(source.read_bytes())
    path = tmp_path / "damaged.gguf"
    for _ in range(150):
        path.write_bytes(mutated(whole, rng))
        tracemalloc.start()
        try:
            understood(path, run=False)
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("kind, dtype", [("I8", "i1"), ("I32", "i4"), ("F64", "f8")])
def test_weights_of_no_format_are_refused_when_a_file_is_read(tmp_path, kind, dtype):
    name = "blk.1.ffn_up.weight"
    with GgufFile(next(path for path in MODELS if path.stem == "llama")) as file:
        wrong = file.tensors[name].numbers().astype(dtype)
        write_gguf(tmp_path / "x.gguf", file.metadata, {**file.tensors, name: (wrong, kind)})
    with GgufFile(tmp_path / "x.gguf") as file, pytest.raises(ModelError, match=f"{name} is of type {kind}"):
        read_family(file)
