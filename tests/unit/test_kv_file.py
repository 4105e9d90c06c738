"""A conversation's file: what is appended comes back, and only what is new is written."""

from __future__ import annotations

import pytest

from fucina.cache import KvFile
from fucina.cache.persist import inspect, load, read_header, read_tokens
from tests.kv_files import KINDS, TOKENS, ToyModel, filled
from tests.state_models import check_claims, extend


@pytest.mark.parametrize("dtype", ["f16", "f32"])
@pytest.mark.parametrize("parts", KINDS.values(), ids=KINDS)
def test_what_is_appended_comes_back(parts, dtype, tmp_path):
    model, path = ToyModel(parts, dtype), tmp_path / "chat.kv"
    with KvFile.open(path, model) as file:
        assert file.restore(model.new_cache()) == ([], 0, [], 0, "the file is new")
        state = model.new_cache()
        for end in (1, 40, 41, 90, 150):
            extend(state, TOKENS[:end])
            assert file.append(state, TOKENS[:end]) > 0
            assert file.append(state, TOKENS[:end]) == 0
            assert (file.len, file.tokens) == (end, TOKENS[:end])
            other = model.new_cache()
            assert file.restore(other) == (TOKENS[:end], 0, [], 0, "")
            if dtype == "f32":
                check_claims(other, TOKENS)
                extend(other, TOKENS[: end + 70])
                check_claims(other, TOKENS)
    assert read_tokens(path) == TOKENS[:150]
    assert read_header(path).rows == 150
    assert inspect(path, model)[1:] == (TOKENS[:150], [], 150, path.stat().st_size, "")
    loaded = load(path, model, capacity=200)
    assert loaded is not None
    assert (loaded.state.len, loaded.state.capacity, loaded.tokens) == (150, 200, TOKENS[:150])


def test_the_newest_token_and_the_notes_come_back(tmp_path):
    model = ToyModel()
    state = filled(model, 50)
    with KvFile.open(tmp_path / "chat.kv", model) as file:
        file.append(state, TOKENS[:51], notes=[b"one", b""])
        assert file.tokens == TOKENS[:51]
    with KvFile.open(tmp_path / "chat.kv", model) as file:
        other = model.new_cache()
        assert file.restore(other) == (TOKENS[:51], 0, [b"one", b""], 0, "")
        assert other.len == 50
        check_claims(other, TOKENS)
