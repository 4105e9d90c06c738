"""Building tokenizers from metadata: errors name what is missing, empty, contradictory or unknown."""

from __future__ import annotations

import numpy as np
import pytest

from fucina.errors import GgufError, NoTokenizerVocab, UnsupportedTokenizerFormat
from fucina.gguf import Typed
from fucina.gguf.types import ValueType
from fucina.tokenizers import PRE_TOKENIZERS, load_tokenizer

from .tokenizer_vocabularies import metadata, small_bpe, small_spm, stand_ins

NO_STRINGS = Typed([], ValueType.ARRAY, ValueType.STRING)


def load(values):
    return load_tokenizer(metadata(values))


@pytest.mark.parametrize("make", [small_bpe, small_spm])
def test_no_tokens(make):
    with pytest.raises(NoTokenizerVocab, match="tokens is missing"):
        load(make(tokens=None))
    with pytest.raises(NoTokenizerVocab, match="tokens is empty"):
        load(make(tokens=NO_STRINGS))
    with pytest.raises(UnsupportedTokenizerFormat):  # its base
        load({"general.architecture": "llama"})


def test_merges_are_needed_by_bpe_only():
    with pytest.raises(UnsupportedTokenizerFormat, match="merges is missing"):
        load(small_bpe(merges=None))
    with pytest.raises(UnsupportedTokenizerFormat, match="merges is empty"):
        load(small_bpe(merges=NO_STRINGS))
    with pytest.raises(UnsupportedTokenizerFormat, match=r"merge 1 .* b'hi'; expected two symbols"):
        load(small_bpe(merges=["h i", "hi"]))
    assert load(small_spm(merges=NO_STRINGS)).encode("a")


def test_scores_belong_to_sentence_piece():
    with pytest.raises(UnsupportedTokenizerFormat, match="no scores"):
        load(small_bpe(scores=np.zeros(258, np.float32)))
    with pytest.raises(UnsupportedTokenizerFormat, match="scores, which is missing"):
        load(small_spm(scores=None))


@pytest.mark.parametrize("make", [small_bpe, small_spm])
def test_other_kinds(make):
    kinds = {
        "bert": "WPM",
        "t5": "UGM",
        "rwkv": "RWKV",
        "plamo2": "PLaMo",
        "hybriddna": "DNA",
        "whitespace": "white space",
    }
    for kind, what in kinds.items():
        with pytest.raises(
            UnsupportedTokenizerFormat, match=f"model is '{kind}', .*{what}.* not implemented; expected 'gpt2'"
        ):
            load(make(model=kind))
    with pytest.raises(UnsupportedTokenizerFormat, match="model is 'other'; expected 'gpt2'"):
        load(make(model="other"))
    with pytest.raises(UnsupportedTokenizerFormat, match="model is missing; expected 'gpt2'"):
        load(make(model=None))


@pytest.mark.parametrize("kind", [-1, 7, 2**31 - 1, 2**32 + 1])
@pytest.mark.parametrize("make", [small_bpe, small_spm])
def test_types_that_there_are_not(make, kind):
    types = load(make()).vocabulary.types.astype(np.int64)
    types[5] = kind
    with pytest.raises(UnsupportedTokenizerFormat, match=f"token_type holds {kind}; expected 0 to 6"):
        load(make(token_type=types))


@pytest.mark.parametrize("make", [small_bpe, small_spm])
def test_types_of_the_wrong_length(make):
    with pytest.raises(UnsupportedTokenizerFormat, match="token_type has 3 entries; expected"):
        load(make(token_type=np.ones(3, np.int32)))


@pytest.mark.parametrize("key", ["bos_token_id", "eos_token_id", "eot_token_id"])
def test_ids_outside_the_vocabulary(key):
    with pytest.raises(UnsupportedTokenizerFormat, match=rf"{key} is 258; expected an id in \[0, 258\)"):
        load(small_bpe(**{key: 258}))


def test_wrong_types_of_values():
    with pytest.raises(GgufError, match="tokens"):
        load(small_bpe(tokens=np.arange(4, dtype=np.int32)))
    with pytest.raises(GgufError, match="token_type"):
        load(small_bpe(token_type=np.ones(258, np.float32)))
    with pytest.raises(GgufError, match="eos_token_id"):
        load(small_bpe(eos_token_id="2"))
    with pytest.raises(GgufError, match="scores"):
        load(small_spm(scores=np.zeros(3, np.int32)))


@pytest.mark.parametrize("name", ["nope", "", "superbpe", None])
def test_unknown_rules_are_refused(name):
    with pytest.raises(UnsupportedTokenizerFormat) as caught:
        load(small_bpe(pre=name))
    message = str(caught.value)
    assert ("tokenizer.ggml.pre is missing" if name is None else repr(name)) in message
    assert all(known in message for known in PRE_TOKENIZERS)


def test_the_caller_can_say_which_rules():
    named = load(small_bpe(pre="qwen2"))
    for name in ("nope", None, "gpt-2"):
        tokenizer = load_tokenizer(metadata(small_bpe(pre=name)), pre="qwen2")
        assert tokenizer.pre == "qwen2"
        assert tokenizer.encode("DON'T") == named.encode("DON'T")
    with pytest.raises(UnsupportedTokenizerFormat, match="'nope', which is unknown"):
        load_tokenizer(metadata(small_bpe()), pre="nope")


@pytest.mark.parametrize("name", sorted(PRE_TOKENIZERS))
def test_known_rules(name):
    assert load(small_bpe(pre=name)).pre == name


def test_bos_policy():
    assert not load(small_bpe()).add_bos
    assert not load(small_bpe(pre="llama-bpe")).add_bos  # there is no bos
    llama3 = load(small_bpe(pre="llama-bpe", bos_token_id=0))
    assert llama3.add_bos
    assert llama3.encode_prompt("hi") == [0, 257]
    assert llama3.encode_prompt("<|im_end|>hi") == [0, 257]
    assert not load(small_bpe(pre="llama-bpe", bos_token_id=0, add_bos_token=False)).add_bos
    with pytest.raises(UnsupportedTokenizerFormat, match="bos_token_id, which is missing"):
        load(small_bpe(add_bos_token=True))
    with pytest.raises(UnsupportedTokenizerFormat, match="eos_token_id, which is missing"):
        load(small_bpe(add_eos_token=True, eos_token_id=None))
    assert load(small_bpe(add_eos_token=True)).add_eos


def test_without_token_types_bpe_takes_bars_for_markers():
    tokenizer = load(small_bpe(token_type=None))
    assert tokenizer.encode("hi<|im_end|>") == [257, 0]
    assert tokenizer.decode(tokenizer.encode("<|nobody|> <|")) == "<|nobody|> <|"
    assert 0 not in tokenizer.encode("<|im_end|>", special=False)


def test_without_token_types_spm_knows_bytes_and_markers():
    given, inferred = load(small_spm()), load(small_spm(token_type=None))
    for text in ("a b", "世", "<s>a</s>", "<0x41>"):
        assert inferred.encode(text) == given.encode(text)
        assert inferred.decode(inferred.encode(text)) == given.decode(given.encode(text))
    assert inferred.decode([1, 0, 2], special=False) == ""


def test_ends_of_a_generation():
    tokens = ["<|im_end|>", *stand_ins(), "hi", "<end_of_turn>", "</s>", "<|eot_id|>", "<|endoftext|>"]
    types = [3] + [1] * 257 + [3, 4, 4, 1]
    tokenizer = load(small_bpe(tokens=tokens, token_type=np.array(types, np.int32), eot_token_id=5, eos_token_id=None))
    # 259 is a user-defined </s>, which can be an HTML tag; the <|…|> are unmistakable whatever their type
    assert tokenizer.eog_ids == {0, 5, 258, 260, 261}
    assert tokenizer.is_special(261)
    assert not tokenizer.is_special(259)
    assert tokenizer.control_markers.keys() == {"<|im_end|>", "<end_of_turn>", "<|eot_id|>", "<|endoftext|>"}


def test_unused_tokens_print_only_when_asked():
    types = np.array([3] + [1] * 256 + [5], np.int32)
    tokenizer = load(small_bpe(tokens=["<|im_end|>", *stand_ins(), "[PAD7]"], token_type=types))
    assert tokenizer.decode([257], special=False) == ""
    assert tokenizer.decode([257]) == "[PAD7]"


def test_an_added_token_spelt_as_plain_text():
    values = small_bpe(tokens=["<|im_end|>", *stand_ins(), "日 本"], token_type=np.array([3] + [1] * 257, np.int32))
    assert load(values).decode([257]) == "日 本"


def test_empty_tokens_do_no_harm():
    values = small_bpe(tokens=["", *stand_ins(), "hi"], eos_token_id=None)
    tokenizer = load(values)
    assert tokenizer.encode("a hi") == [0x61 + 1, 0x20 + 1, 257]
    assert tokenizer.piece(0) == b""
