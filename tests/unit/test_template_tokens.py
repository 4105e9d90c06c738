"""Which tokens the text of a message may become: never a control token, nor a user-defined one that marks turns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fucina.chat import ChatFormat, ChatTemplate
from fucina.tokenizers import load_tokenizer
from fucina.tokenizers.markers import ASSISTANT, TEMPLATE, USER, MarkerMatcher, barred_writers

from .tokenizer_vocabularies import metadata, small_bpe, small_spm, stand_ins

TURNS = ["<|START_OF_TURN_TOKEN|>", "<|im_start|>", "<|im_sep|>", "<start_of_turn>", "[INST]"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
WORDS = ["<table>", "   ", "\n\n", "<b>", "</b>"]
TOKENS = ["<|im_end|>", *stand_ins(), "hi", *TURNS, *TAGS, *WORDS]
TOKENIZER = load_tokenizer(
    metadata(
        small_bpe(
            tokens=TOKENS, merges=["h i"], token_type=np.array([3] + [1] * 257 + [4] * (len(TOKENS) - 258), np.int32)
        )
    )
)
ID = {text: TOKENS.index(text) for text in TURNS + TAGS + WORDS + ["<|im_end|>"]}
SOURCE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}"
    "{% if x %}<start_of_turn>[INST]<think></think><tool_call>{% endif %}\n\n"
)
EMPTY = ChatTemplate(SOURCE).encode(TOKENIZER, [{"role": "user", "content": ""}])


def special(messages, source=SOURCE):
    return [TOKENS[t] for t in ChatTemplate(source).encode(TOKENIZER, messages) if t == 0 or t > 257]


@pytest.mark.parametrize("marker", [*TURNS, *TAGS, "<|im_end|>"])
def test_markers_in_what_a_user_says_are_text(marker):
    frame = special([{"role": "user", "content": ""}])
    assert special([{"role": "user", "content": f"a{marker}b"}]) == frame
    assert special([{"role": "user", "content": marker[1:]}], SOURCE.replace("m.content", "'<' + m.content")) == frame


@pytest.mark.parametrize("word", WORDS)
def test_words_in_what_a_user_says_are_tokens(word):
    """As everywhere: they mark nothing.  (`<b>` is not written by the template.)"""
    assert word in special([{"role": "user", "content": f"a{word}b"}])


def test_a_reply_may_contain_the_tags_that_it_consists_of():
    said = "<think>hm</think>a<tool_call>b</tool_call>"
    assert [
        t for t in special([{"role": "assistant", "content": said}, {"role": "user", "content": said}]) if t in TAGS
    ] == TAGS
    for marker in (*TURNS, "<|im_end|>"):
        messages = [{"role": "assistant", "content": marker}, {"role": "user", "content": ""}]
        assert special(messages) == special([{**messages[0], "content": ""}, messages[1]])


def test_user_defined_markers_of_a_template_are_tokens():
    text = "{% if true %}<|START_OF_TURN_TOKEN|>{{ '[INS' + 'T]' }}{% set t = '<think>' %}{{ t }}{% endif %}<table>"
    assert special([{"role": "user", "content": ""}], text) == [
        "<|START_OF_TURN_TOKEN|>",
        "[INST]",
        "<think>",
        "<table>",
    ]


def test_user_defined_markers_in_built_in_formats():
    """ChatML's opening marker is user-defined here."""
    frame = ChatFormat.CHATML.encode_turn(TOKENIZER, "", "")
    for text in (*TURNS[:3], "<think>", "<|im_end|>"):
        ids = ChatFormat.CHATML.encode_turn(TOKENIZER, text, text)
        assert [t for t in ids if t == 0 or t > 257] == [t for t in frame if t == 0 or t > 257]
    assert ID["<start_of_turn>"] in ChatFormat.CHATML.encode_turn(TOKENIZER, "<start_of_turn>")  # it marks nothing here
    frame = ChatFormat.GEMMA.encode_turn(TOKENIZER, "")
    ids = ChatFormat.GEMMA.encode_turn(TOKENIZER, "<start_of_turn>")
    assert ids.count(ID["<start_of_turn>"]) == frame.count(ID["<start_of_turn>"]) == 2
    said = "<think>a</think>"
    messages = [
        {"role": "user", "content": said},
        {"role": "assistant", "content": "b" + said},
        {"role": "user", "content": said},
    ]
    ids = ChatFormat.CHATML.encode_messages(TOKENIZER, messages)
    assert ids.count(ID["<think>"]) == 1


@pytest.mark.parametrize(
    "marker, template, writers",
    [
        ("<|x|>", "", [USER, ASSISTANT]),
        ("<|x>", "", [USER, ASSISTANT]),
        ("<x|>", "", [USER, ASSISTANT]),
        ("<｜User｜>", "", [USER, ASSISTANT]),
        ("<x>", "a <x> b", [USER, ASSISTANT]),
        ("<x>", "", []),
        ("[x]", "[x]", [USER, ASSISTANT]),
        ("<user>", "<user></user>", [USER, ASSISTANT]),
        ("<think>", "<think>", [USER]),
        ("</think>", "<think>", [USER]),
        ("<think>", "", []),
        ("x", "x", []),
        ("\n\n", "\n\n", []),
        ("<>", "<>", []),
        ("|>", "|>", []),
    ],
)
def test_who_may_not_write_a_user_defined_token(marker, template, writers):
    assert barred_writers(marker, template) == bytes(writers)


def test_a_user_defined_marker_is_not_reached_by_merging_either():
    """`<t>` is made of `<`, `t>` by merges; the token is user-defined, and the template writes it."""
    tokens = [*stand_ins(), "t>", "<t>", "<|im_end|>"]
    types = np.array([1] * 257 + [4, 3], np.int32)
    values = small_bpe(tokens=tokens, merges=["t >", "< t>"], token_type=types, eos_token_id=258)
    tokenizer = load_tokenizer(metadata(values))
    template = ChatTemplate("<t>{{ messages[0].content }}<|im_end|>")
    ids = template.encode(tokenizer, [{"role": "user", "content": "<t>"}])
    assert ids == [257, *b"\x1b\x53\x1d", 258] or (ids.count(257) == 1 and tokenizer.decode(ids) == "<t><t><|im_end|>")


BITS = st.sampled_from(["<|eot_id|>", "<t>", "  ", "a", "b", " ", "é", "<|eot", "_id|>", "<s>", "</s>"])


@given(parts=st.lists(st.tuples(BITS, st.sampled_from([TEMPLATE, USER, ASSISTANT])), max_size=8), prefix=st.booleans())
def test_text_without_foreign_markers_is_encoded_as_ever(parts, prefix):
    tokenizer = load_tokenizer(metadata(small_spm(add_space_prefix=prefix)))
    barred = tokenizer.barred("")
    text = "".join(part for part, _ in parts)
    writers = b"".join(bytes([who]) * len(part) for part, who in parts)
    ids = tokenizer.encode_rendered(text, writers, barred)
    assert tokenizer.encode_rendered(text, bytes(len(text)), barred) == tokenizer.encode(text)
    assert tokenizer.encode_rendered(text, bytes([USER]) * len(text), barred) == tokenizer.encode(text, special=False)
    own = "".join(part if who == TEMPLATE else "\0" * len(part) for part, who in parts)
    assert [t for t in ids if t in barred] == [t for t in tokenizer.encode(own) if t in barred]


@given(text=st.text("<|a>", max_size=20), split=st.integers(0, 20))
def test_matching_with_writers(text, split):
    """One marker inside another: what is barred does not hide what is not."""
    matcher = MarkerMatcher({"<|a|>": 1, "<|a": 2, "a": 3, "|>": 4})
    writers = bytes(min(split, len(text))) + bytes([USER]) * max(0, len(text) - split)
    barred = {1: bytes([USER]), 2: bytes([USER])}
    parts = matcher.split(text, writers, barred)
    spelled = "".join(
        part if isinstance(part, str) else {1: "<|a|>", 2: "<|a", 3: "a", 4: "|>"}[part] for part in parts
    )
    assert spelled == text
    assert parts.count(1) + parts.count(2) <= text[:split].count("<|a")
    assert matcher.split(text, bytes(len(text)), barred) == matcher.split(text)
