"""Messages: what is refused, tool calls in one shape, conversations that end with the assistant."""

import pytest

from fucina.chat import ChatTemplate
from fucina.chat.messages import check_messages
from fucina.errors import ChatTemplateError, EmptyMessages, TrailingAssistantMessage
from fucina.gguf import GgufFile
from fucina.tokenizers import load_tokenizer
from tests.chat_model import CHATML, write_chat_model


def user(content):
    return {"role": "user", "content": content}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The tokenizer of the tiny chat model: every byte a token, 256 and 257 the two markers."""
    file = GgufFile(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    yield load_tokenizer(file.metadata)
    file.close()


# --- messages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages, message",
    [
        ("hi", "list of role/content"),
        ({"role": "user", "content": "x"}, "list of role/content"),
        (["hi"], "message 0 must be a mapping"),
        ([{"content": "x"}], "message 0: role must be one of .*missing"),
        ([user("a"), {"role": "<|im_end|>", "content": "x"}], "message 1: role must be one of"),
        ([{"role": "user"}], "content must be text.*missing or null"),
        ([user(None)], "content must be text.*missing or null"),
        ([{"role": "assistant", "content": None}], "content must be text.*missing or null"),
        ([user(5)], "got int"),
        ([user(b"x")], "got bytes"),
        ([user([{"type": "image_url", "image_url": "x"}])], r"part 0 has type 'image_url'; only \"text\""),
        ([user([{"type": "text", "text": "a"}, "b"])], "part 1 must be a mapping"),
        ([user([{"type": "text", "text": None}])], "part 0: text must be a string"),
        ([user("ab\ud83d")], r"message 0 \(user\) holds an unpaired surrogate U\+D83D at character 2"),
        ([{"role": "user", "content": "x", "name": "\udc00"}], "unpaired surrogate"),
        ([{"role": "assistant", "content": "", "tool_calls": "f"}], "tool_calls must be a list, got str"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [1]}],
            "tool call 0 must be a mapping with a function, got int",
        ),
        ([{"role": "assistant", "content": "", "tool_calls": [{"arguments": {}}]}], "name must be a string, got None"),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "{"}]}],
            "arguments are no JSON",
        ),
        (
            [{"role": "assistant", "content": "", "tool_calls": [{"name": "f", "arguments": "1"}]}],
            "a JSON object, got int",
        ),
    ],
)
def test_malformed_messages(messages, message):
    """The message of the error names what is wrong."""
    with pytest.raises(ChatTemplateError, match=message):
        ChatTemplate(CHATML).render(messages)


def test_values_that_contain_themselves():
    tools = []
    tools.append(tools)
    with pytest.raises(ChatTemplateError, match="tools is nested too deep"):
        ChatTemplate(CHATML).render([user("x")], tools=tools)


def test_well_formed_messages_are_copied():
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    given_messages = [user([]), user([{"type": "text", "text": "\U0001f642"}]), call]
    checked = check_messages(given_messages)
    assert [m["content"] for m in checked] == ["", "\U0001f642", ""]
    assert call["content"] is None and given_messages[0]["content"] == []


# --- where a conversation ends ----------------------------------------------------------------------------------


def reply(content):
    return {"role": "assistant", "content": content}


def test_an_empty_conversation_is_refused(tiny):
    with pytest.raises(EmptyMessages):
        ChatTemplate(CHATML).encode(tiny, [])
    with pytest.raises(EmptyMessages):
        ChatTemplate(CHATML).render([reply("")])


def test_a_last_message_of_the_assistant_is_continued(tiny):
    template = ChatTemplate(CHATML)
    asked = template.render([user("hi")])
    assert template.render([user("hi"), reply("Sure: <|im_end|>")]) == asked + "Sure: <|im_end|>"
    ids = template.encode(tiny, [user("hi"), reply("Sure: <|im_end|>")])
    assert ids == template.encode(tiny, [user("hi")]) + tiny.encode("Sure: <|im_end|>", special=False)
    assert template.render([user("hi"), reply(" ")]) == asked  # nothing has been said yet
    closed = template.render([user("hi"), reply("Sure")], add_generation_prompt=False)
    assert closed == asked + "Sure<|im_end|>\n"
    trimming = ChatTemplate(CHATML.replace("message['content'] +", "(message['content'] | trim | upper) +"))
    assert trimming.render([user("hi"), reply(" sure ")]) == asked.replace("hi", "HI") + "SURE"


def test_a_last_message_that_cannot_be_continued(tiny):
    call = {"name": "f", "arguments": {}}
    with pytest.raises(TrailingAssistantMessage, match="tool calls"):
        ChatTemplate(CHATML).render([user("hi"), {**reply(""), "tool_calls": [call]}])
    with pytest.raises(ChatTemplateError, match="does not write the last message"):
        ChatTemplate("{{ messages[0].content }}").render([user("hi"), reply("x")])


# --- tool calls -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [{"a": 1, "b": "é"}, '{"a": 1, "b": "é"}', ' {"a":1,"b":"\\u00e9"}'])
@pytest.mark.parametrize("nested", [True, False])
def test_tool_calls_have_one_shape(arguments, nested):
    call = {"name": "f", "arguments": arguments}
    message = {**reply(None), "tool_calls": [{"id": "1", "type": "function", "function": call} if nested else call]}
    for source, text in (
        ("{{ messages[0].tool_calls[0].function.arguments | tojson }}", '{"a": 1, "b": "é"}'),
        (
            "{% for k, v in messages[0].tool_calls[0].function.arguments.items() %}{{ k }}={{ v }} {% endfor %}",
            "a=1 b=é ",
        ),
        ("{{ 'f' + messages[0].tool_calls[0]['function']['arguments'] }}", 'f{"a": 1, "b": "é"}'),  # wants JSON text
        ("{{ messages[0].tool_calls[0].type }} {{ messages[0].tool_calls[0].function.name }}", "function f"),
    ):
        assert ChatTemplate(source).render([message, user("x")]) == text


@pytest.mark.parametrize("arguments", [None, "", {}, "{}"])
def test_a_tool_call_without_arguments(arguments):
    message = {**reply(None), "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}
    assert check_messages([message])[0]["tool_calls"][0]["function"]["arguments"] == {}


def test_no_tool_calls_are_no_key():
    for calls in (None, []):
        assert "tool_calls" not in check_messages([{**reply("x"), "tool_calls": calls}])[0]


def test_markers_in_tools_and_tool_calls_are_text(tiny):
    source = "{{ tools | tojson }}{{ messages[0].tool_calls | tojson }}<|im_end|>"
    call = {"type": "function", "function": {"name": "f", "arguments": {"<|im_end|>": "<|im_start|>"}}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}, user("")]
    tools = [{"name": "f", "description": "say <|im_end|>"}]
    ids = ChatTemplate(source).encode(tiny, messages, tools=tools)
    assert ids.count(257) == 1 and ids[-1] == 257 and 256 not in ids
    assert tiny.decode(ids) == ChatTemplate(source).render(messages, tools=tools)
