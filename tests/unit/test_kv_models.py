"""Models that go on from a file compute the same bits as those that never stopped."""

from __future__ import annotations

import numpy as np
import pytest

import fucina
from fucina.cache import KvFile, load, save
from tests.models import TINY, need_smollm2

NAMES = ["llama", "gemma3", "qwen35", "qwen35moe", "gemma4_kvshare", "gemma4_moe", "smollm2"]


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(n, d) for n in NAMES for d in ("f16", "f32", "q8_0") if (n, d) != ("llama", "q8_0")],  # its heads are of 16
)
def test_what_follows_a_file_has_the_same_bits(name, dtype, tmp_path):
    model = fucina.load(need_smollm2() if name == "smollm2" else TINY / f"{name}.gguf", cache_dtype=dtype)
    try:
        rng = np.random.default_rng(1)
        ids = [int(t) for t in rng.integers(3, model.n_tokens, min(model.context, 120))]
        turns = [len(ids) // 3, len(ids) // 3 + 1, len(ids) - 5]
        state, at = model.new_cache(), 0
        for end in turns:
            with KvFile.open(tmp_path / "a", model) as file:
                again = model.new_cache()
                assert file.restore(again).tokens == ids[: at + 1 if at else 0]  # the newest has no row yet
                assert np.array_equal(model.forward(ids[at:end], again), model.forward(ids[at:end], state))
                file.append(again, ids[: end + 1])
            at = end
        versions = [3] if dtype == "f32" or state.layout.recurrent else [1, 3]
        for version in versions:
            save(
                tmp_path / "b", state, ids[:at], version=version, tokenizer=model.tokenizer.fingerprint * (version == 3)
            )
            found = load(tmp_path / "b", model)
            assert found.tokens == ids[:at]
            branch = model.new_cache()
            model.forward(ids[:at], branch)
            assert np.array_equal(model.forward(ids[at:], found.state), model.forward(ids[at:], branch))
        other = load(tmp_path / "a", model, capacity=len(ids))
        assert other.tokens == ids[: at + 1]
        assert np.array_equal(model.forward(ids[at:], other.state), model.forward(ids[at:], state))
    finally:
        model.close()
