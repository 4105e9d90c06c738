"""Token ids equal those of llama.cpp b11739, on made-up vocabularies that show every word border and on real ones."""

from __future__ import annotations

import numpy as np
import pytest

from fucina.gguf import GgufFile
from fucina.tokenizers import PRE_TOKENIZERS, BytePairTokenizer, Tokenizer, load_tokenizer
from tests.models import need_gemma3, need_smollm2

from .tokenizer_vocabularies import fixture, metadata, pair_vocabulary, small_spm

# SmolLM2 has no token for some bytes; llama.cpp leaves them out as well, without a warning.
pytestmark = pytest.mark.filterwarnings("ignore::fucina.tokenizers.UnencodableBytes")


@pytest.fixture(scope="module")
def smollm2():
    with GgufFile(need_smollm2()) as file:
        yield load_tokenizer(file.metadata), file.metadata


@pytest.fixture(scope="module")
def gemma3():
    with GgufFile(need_gemma3()) as file:
        yield load_tokenizer(file.metadata)


def grouped(name: str, variant: str) -> list[tuple[str, list[int], list[int]]]:
    """Text, plain ids, ids with markers parsed, of one variant in a fixture that groups variants with equal ids."""

    def of(groups):
        return next(ids for names, ids in groups if variant in names.split())

    return [(c["text"], of(c["plain"]), of(c.get("special", c["plain"]))) for c in fixture(name)["cases"]]


def assert_equal(tokenizer: Tokenizer, cases: list[tuple[str, list[int], list[int]]], at_least: int) -> None:
    assert len(cases) >= at_least
    for text, plain, special in cases:
        assert tokenizer.encode(text, special=False) == plain, text
        assert tokenizer.encode(text, special=True) == special, text


RULES = "smollm gpt-2 llama-bpe qwen2 qwen35 glm4 chatglm-bpe joyai-llm gpt-4o tekken"


@pytest.mark.parametrize("pre", RULES.split())
def test_every_rule_cuts_words_as_llama_cpp_does(pre):
    tokenizer = load_tokenizer(metadata(pair_vocabulary(pre)))
    assert_equal(tokenizer, grouped("pair_vocabulary.json", pre), 180)


@pytest.mark.parametrize("variant", ["prefix", "no-prefix"])
def test_sentence_piece_on_a_small_vocabulary(variant):
    tokenizer = load_tokenizer(metadata(small_spm(add_space_prefix=variant == "prefix")))
    assert_equal(tokenizer, grouped("small_spm.json", variant), 150)


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_smollm2_vocabulary_under_four_rules(smollm2, pre):
    own, data = smollm2
    tokenizer = own
    if pre != own.pre:
        tokenizer = BytePairTokenizer(own.vocabulary, data.strings("tokenizer.ggml.merges"), PRE_TOKENIZERS[pre], pre)
    assert_equal(tokenizer, grouped("smollm2_rules.json", pre), 140)


def test_gemma3_on_further_texts(gemma3):
    assert_equal(gemma3, grouped("gemma3.json", "gemma"), 180)


def collection(name: str):
    data = fixture("llama_cpp.json")[name]
    return data, [(c["text"], c["ids_plain"], c["ids_special"]) for c in data["cases"]]


def test_smollm2_equals_llama_cpp(smollm2):
    tokenizer, _ = smollm2
    data, cases = collection("smollm2-135m")
    assert_equal(tokenizer, cases, 77)
    assert (tokenizer.n_vocab, tokenizer.bos, tokenizer.eos, tokenizer.add_bos) == (49152, 1, 2, False)
    assert [tokenizer.token_id(s["piece"]) for s in data["specials_sample"]] == list(range(17))


def test_gemma3_equals_llama_cpp(gemma3):
    data, cases = collection("gemma3-270m")
    assert_equal(gemma3, cases, 77)
    assert (gemma3.n_vocab, gemma3.bos, gemma3.eos, gemma3.add_bos) == (262144, 2, 1, True)
    assert all(gemma3.token_id(s["piece"]) == s["id"] for s in data["specials_sample"])


SMOLLM2 = {
    "2024": [34, 32, 34, 36],
    "1234567": [33, 34, 35, 36, 37, 38, 39],
    "don't": [12420, 982],
    "DON'T": [52, 2154, 23, 68],
    "I'll": [57, 3060],
    "\n\n\n": [16506],
    "\r\n": [2738],
    "  \n  x": [256, 3805, 1792],
    "歪": [34978, 120],
    "世界": [7906, 240, 178, 239, 230],
    "🙂": [10813, 38887],
    "\U0001f469\u200d\U0001f469\u200d\U0001f467": [*[10813, 235, 119, 321, 231] * 2, 10813, 235, 117],
    "\u00e9": [2756],
    "e\u0301": [85, 151, 219],
    "T\u0301": [68, 151, 219],
    "１２３": [8083, 235, 8083, 236, 8083, 237],
    "½²": [16738, 19133],
    "٣٤": [164, 113, 164, 114],
    "   a": [256, 253],
    "a   b": [81, 256, 278],
    " ": [216],
    "\u00a0x": [15442, 104],
    "\0": [190],
    "": [],
    " hello": [33662],
    "hello": [28120],
    "hello world DEFGHIJ": [28120, 905, 44691, 23960, 57, 58],
}


@pytest.mark.parametrize("text", SMOLLM2)
def test_smollm2_ids_of_single_texts(smollm2, text):
    tokenizer, _ = smollm2
    assert tokenizer.encode(text) == SMOLLM2[text]
    assert tokenizer.decode(SMOLLM2[text]) == text


def test_smollm2_marker_as_text_and_as_token(smollm2):
    tokenizer, _ = smollm2
    assert tokenizer.encode("<|im_end|>") == [2]
    assert tokenizer.encode("<|im_end|>", special=False) == [44, 108, 306, 79, 486, 108, 46]
    quoted = '{"a":"<|im_end|>"}'
    assert tokenizer.encode(quoted, special=False) == [39428, 81, 25535, 44, 108, 306, 79, 486, 108, 22875, 109]
    assert tokenizer.encode("<|im_start|>user") == [1, *tokenizer.encode("user")]
    assert tokenizer.eog_ids == {0, 2}
    assert [i for i in range(tokenizer.n_vocab) if tokenizer.is_special(i)] == list(range(17))


def test_smollm2_prompt_has_no_bos(smollm2):
    tokenizer, _ = smollm2
    assert tokenizer.encode_prompt(" hello") == [33662]
    assert tokenizer.encode_prompt("") == []


GEMMA3 = {
    "\n": [107],
    "\n\n": [108],
    "\n\n\n": [109],
    "\t": [255968],
    "\t\t": [255969],
    "a": [236746],
    " ": [236743],
    " hello": [29104],
    "hello": [23391],
    "世界": [12811],
    "歪": [243056],
    "🙂": [240731],
    "1": [236770],
    "a  b": [236746, 138, 236763],
    " " * 31: [167],
    " " * 32: [167, 236743],
    " " * 33: [167, 138],
    "\0": [238],
    "<start_of_turn>": [105],
    "<end_of_turn>": [106],
    "<0x0A>": [236820, 236771, 236781, 236771, 236776, 236813],
    "> </": [107068],
    ">  </": [236813, 138, 954],
    "": [],
}


@pytest.mark.parametrize("text", GEMMA3)
def test_gemma3_ids_of_single_texts(gemma3, text):
    assert gemma3.encode(text) == GEMMA3[text]
    assert gemma3.decode(GEMMA3[text]) == text


def test_gemma3_has_bos_once(gemma3):
    assert gemma3.encode_prompt("hello") == [2, 23391]
    assert gemma3.encode_prompt("<bos>hello") == [2, 23391]
    assert gemma3.encode_prompt("") == [2]
    assert gemma3.encode_prompt("<bos>", special=False)[0] == 2
    assert gemma3.eog_ids == {1, 106}  # `</s>` is an HTML tag here


def test_gemma3_markers_as_text(gemma3):
    assert gemma3.encode("<eos>", special=False) == [236820, 211827, 236813]
    assert gemma3.encode("<table>", special=False) == [168]  # user defined: it controls nothing


# What llama.cpp b11739 makes of the same texts (not parsed for markers): it takes `</s>` for a control token in every
# vocabulary, whatever the file says, so that the text is split.  Here it is what the file calls it, user defined.
STRUCK_OUT = {
    "</s>": ([212], [954, 236751, 236813]),
    "a</s>b": ([236746, 212, 236763], [236746, 954, 236751, 236813, 236763]),
    " a </s>": ([496, 236743, 212], [496, 1454, 236751, 236813]),
    "</s></s>": ([212, 212], [954, 236751, 2588, 236751, 236813]),
}


@pytest.mark.parametrize("text", STRUCK_OUT)
def test_the_one_difference_to_llama_cpp_in_gemma3(gemma3, text):
    ours, theirs = STRUCK_OUT[text]
    assert gemma3.encode(text, special=False) == gemma3.encode(text, special=True) == ours != theirs
    assert gemma3.decode(ours) == gemma3.decode(theirs) == text
    assert not gemma3.is_special(212)


@pytest.mark.parametrize(
    ("text", "ids"),
    [("<s>", [203]), ("a<s>b", [236746, 203, 236763]), ("</b>", [209]), ("<b><s>struck</b>", [200, 203, 105502, 209])],
)
def test_other_tags_equal_llama_cpp(gemma3, text, ids):
    assert gemma3.encode(text, special=False) == gemma3.encode(text, special=True) == ids


def test_invalid_bytes_are_kept(gemma3):
    for raw in (b"\xff", b"a\xc3(", b"\xe2\x82", b"ok \xf0\x9f\x98 cut"):
        assert gemma3.decode_bytes(gemma3.encode(raw)) == raw
    assert gemma3.encode(b"\xfe\xff") == [238 + 0xFE, 238 + 0xFF]


def test_types_of_real_vocabularies(smollm2, gemma3):
    assert np.bincount(smollm2[0].vocabulary.types).tolist() == [0, 49135, 0, 17]
    assert np.bincount(gemma3.vocabulary.types).tolist() == [0, 255474, 0, 6249, 165, 0, 256]
