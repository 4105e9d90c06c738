"""Reasoning and tool calls in streams: however the text is cut, what is found is the same."""

from __future__ import annotations

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from fucina.serve import Done, GenerateRequest, Job, TextDelta
from fucina.serve.parts import Scan, whole
from fucina.serve.scanners import Call, CallScanner, Reasoning, Text, ThinkScanner, begun, call_of

PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<",
    "tool_",
    "call>",
    "\n",
    " ",
    "a",
    '{"name": "f"}',
    "{",
    "<thi",
]


def scanned(scanner, pieces):
    """What is found, neighbouring texts of one kind joined."""
    found = []
    for part in [p for piece in pieces for p in scanner.push(piece)] + list(scanner.flush()):
        if found and type(found[-1]) is type(part) and not isinstance(part, Call):
            found[-1] = type(part)(found[-1].text + part.text)
        else:
            found.append(part)
    return found


def cuts(text, places):
    places = sorted({p % (len(text) + 1) for p in places})
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)])]


texts = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
places = st.lists(st.integers(0, 1000), max_size=8)


@given(texts, places, st.booleans())
def test_how_a_text_is_cut_changes_nothing(text, where, inside):
    assert scanned(ThinkScanner(inside), cuts(text, where)) == scanned(ThinkScanner(inside), [text])
    assert scanned(CallScanner(), cuts(text, where)) == scanned(CallScanner(), [text])


@given(texts)
def test_without_calls_nothing_is_lost(text):
    found = scanned(CallScanner(), list(text))
    if not any(isinstance(part, Call) for part in found):
        assert "".join(part.text for part in found) == text


@given(st.text(max_size=30))
def test_ordinary_text_is_held_back_only_as_far_as_it_begins_a_marker(text):
    shown = "".join(p.text for p in CallScanner().push(text) if isinstance(p, Text))
    assert "<tool_call>".startswith(text[len(shown) :]) or "<tool_call>" in text


def test_calls_cut_in_two():
    pieces = ["Sure.\n<tool_", 'call>\n{"name": "a"}\n</tool_call>', '\n<tool_call>{"name": "b"}</to', "ol_call>"]
    assert scanned(CallScanner(), pieces) == [Text("Sure.\n"), Call("a", "{}"), Text("\n"), Call("b", "{}")]
    assert scanned(CallScanner(), ["a < b, a <tool", " even"]) == [Text("a < b, a <tool even")]


def test_what_is_no_call_stays_text():
    for region in (
        "x",
        "[]",
        '{"name": 1}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": {"a": NaN}}',
        "[" * 100_000,
    ):
        whole = f"a<tool_call>{region}</tool_call>b"
        assert scanned(CallScanner(), [whole]) == [Text(whole)]
    assert scanned(CallScanner(), ['<tool_call>{"name": "f"}']) == [Text('<tool_call>{"name": "f"}')]
    assert call_of('{"name": "f", "arguments": null}') == Call("f", "{}")
    call = call_of('{"name": "f", "arguments": {"a": "é"}}')
    assert json.loads(call.arguments) == {"a": "é"}


def test_leading_reasoning():
    def think(text, inside=False):
        return scanned(ThinkScanner(inside), list(text))

    assert think("<think>\nhm\n</think>\n\nyes <think>x</think>") == [Reasoning("hm\n"), Text("yes <think>x</think>")]
    assert think(" \n<think>hm") == [Reasoning("hm")]
    assert think("</think>\n\nyes") == [Text("yes")]
    assert think("hm</think> yes", inside=True) == [Reasoning("hm"), Text("yes")]
    assert think("so <think>x") == [Text("so <think>x")]
    assert think("<thin") == [Text("<thin")]
    assert think("<think></think>  ") == []
    assert think("") == []


def test_what_was_held_back_is_told_at_the_end():
    def told(text, scan):
        job = Job(GenerateRequest([1], 1))
        for event in (TextDelta(text, (1,)), Done("stop", 1, 1, 0)):
            job.put(event)
        return asyncio.run(whole(job, scan))

    assert told("a <tool", Scan(tools=True)).text == "a <tool"
    assert told("<thin", Scan(think=True)).text == "<thin"
    both = told('<think>a</think>b<tool_call>{"name": "f"}</tool_call><tool_', Scan(True, False, True))
    assert (both.reasoning, both.text, both.calls, both.end.finish) == ("a", "b<tool_", [Call("f", "{}")], "tool_calls")
    assert told("a</think>b", Scan(True, True)).reasoning == "a"


def test_beginnings_of_markers():
    assert (
        begun("abc<to", "<tool_call>") == 3
        and begun("abc", "<tool_call>") == 0
        and begun("<tool_call>", "<tool_call>") == 0
    )
