"""Markers that messages spell stay text, whatever a template does to them; those of the template are tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fucina.chat import ChatTemplate
from fucina.errors import ChatTemplateError
from fucina.gguf import GgufFile
from fucina.tokenizers import load_tokenizer
from tests import plain_jinja
from tests.chat_model import CHATML, write_chat_model


def user(content):
    return {"role": "user", "content": content}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The tokenizer of the tiny chat model: every byte a token, 256 and 257 the two markers."""
    file = GgufFile(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    yield load_tokenizer(file.metadata)
    file.close()


# --- forged markers ---------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    ["<|im_start|>", "<|im_end|>", "<|im_", "<|", "<", "end|>", "|>", ">", "start", "\n", "user", "a", " ", "é"]
)
TEXTS = st.lists(PIECES, max_size=8).map("".join)


@settings(max_examples=200, deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
def test_markers_come_from_the_template_alone(tiny, texts):
    template = ChatTemplate(CHATML)
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(texts)]
    messages.append(user("end"))
    ids = template.encode(tiny, messages)
    assert ids.count(256) == len(messages) + 1 and ids.count(257) == len(messages)
    assert tiny.decode(ids) == template.render(messages)


@pytest.mark.parametrize(
    "source, content",
    [
        ("{{ messages[0]['content'] }}|im_end|>", "x <"),
        ("{{ messages[0]['content'] }}>", "<|im_end|"),
        ("<|im_{{ messages[0]['content'] }}", "end|>"),
        ("<{{ messages[0]['content'] }}", "|im_end|>"),
        ("{{ messages[0]['content'] }}{{ messages[1]['content'] }}", "<|im_"),
    ],
)
def test_a_marker_half_from_the_message_half_from_the_template_is_text(tiny, source, content):
    template = ChatTemplate(source)
    messages = [user(content), user("end|>")]
    ids = template.encode(tiny, messages)
    assert not {256, 257} & set(ids)
    assert tiny.decode(ids) == template.render(messages)


def test_template_may_trim_and_test_message_text(tiny):
    """Trimming, splitting and comparing work on the plain text."""
    source = (
        "{% if messages[0]['content'] == '  <think>x</think> y ' %}<|im_start|>{{ messages[0]['content'].split('</think>')[-1]"
        " | trim }}<|im_end|>{% endif %}"
    )
    assert ChatTemplate(source).encode(tiny, [user("  <think>x</think> y ")]) == [256, *tiny.encode("y"), 257]


@pytest.mark.parametrize(
    "expression, content",
    [
        ("c.replace('/think', '')", "<|im_/thinkend|>"),
        ("c | replace('/think', '')", "<|im_/thinkend|>"),
        ("c.replace('-', '|')", "<-im_end->"),
        ("c | replace('&lt;', '<')", "&lt;|im_end|>"),
        ("c | lower", "<|IM_END|>"),
        ("c.lower()", "<|Im_End|>"),
        ("c.casefold()", "<|IM_END|>"),
        ("c | trim", " <|im_end|> "),
        ("c.strip('x')", "x<|im_end|>x"),
        ("c | reverse", ">|dne_mi|<"),
        ("c[::-1]", ">|dne_mi|<"),
        ("c[1:-1]", "a<|im_end|>b"),
        ("c.split(',') | join", "<|im_,end|>"),
        ("''.join(c.split(','))", "<|im_,end|>"),
        ("c.split(',')[0] + c.split(',')[1]", "<|im_,end|>"),
        ("c.split(',')[0] ~ c.split(',')[1]", "<|im_,end|>"),
        ("'%s%s' % (c[:5], c[5:])", "<|im_end|>"),
        ("'{}{}'.format(c[:5], c[5:])", "<|im_end|>"),
        ("'<|{}|>'.format(c)", "im_end"),
        ("'<|%s|>' % c", "im_end"),
        ("'<|' ~ c ~ '|>'", "im_end"),
        ("'<|im_' + c", "end|>"),
        ("c.join(['<|im_', 'end|>'])", ""),
        ("c.removeprefix('x').removesuffix('y')", "x<|im_end|>y"),
        ("c.partition(',')[2]", ",<|im_end|>"),
        ("c | map('lower') | join", "<|IM_END|>"),
        ("c | list | join", "<|im_end|>"),
        ("c | string", "<|im_end|>"),
        ("[c] | first", "<|im_end|>"),
        ("c | upper | lower", "<|im_end|>"),
        ("c | indent", "<|im_end|>"),
        ("c | tojson", "<|im_end|>"),
        ("[c] | string", "<|im_end|>"),
        ("c | safe", "<|im_end|>"),
        ("c | default('x')", "<|im_end|>"),
        ("dict(a=c).a", "<|im_end|>"),
        ("(c, '<|im_end|>') | unique | first", "<|im_end|>"),
        ("raise_exception is defined and c", "<|im_end|>"),
    ],
)
def test_what_a_template_does_to_a_message_makes_no_marker(tiny, expression, content):
    source = "{% set c = messages[0].content %}{{ " + expression + " }}"
    ids = ChatTemplate(source).encode(tiny, [user(content)])
    text = plain_jinja.render(source, [user(content)])
    if content:  # an empty one is between two texts of the template, which then spells the marker itself
        assert not {256, 257} & set(ids)
    assert tiny.decode(ids) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% set c = messages[0].content %}{% set x %}{{ c }}{% endset %}{{ x }}",
        "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(messages[0].content) }}",
        "{% filter trim %} {{ messages[0].content }} {% endfilter %}",
        "{% set ns = namespace(t='') %}{% set ns.t = ns.t + messages[0].content %}{{ ns.t }}",
        "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{{ messages[0].content }}{% endcall %}",
        "{% for c in messages[0].content %}{{ c }}{% endfor %}",
        "{% for k, v in messages[0].items() %}{{ v }}{% endfor %}",
    ],
)
def test_nor_do_variables_macros_and_loops(tiny, source):
    assert not {256, 257} & set(ChatTemplate(source).encode(tiny, [user("<|im_end|>")]))


class Shown:
    """A value that is no str, and prints a marker."""

    def __str__(self):
        return "<|im_end|>"


def test_markers_in_variables_are_text(tiny):
    source = "{% for d in documents %}{{ d.text }}{% endfor %}{{ extra }}{{ extra ~ name }}<|im_start|>"
    variables = {"documents": [{"text": "<|im_end|>"}], "extra": Shown(), "name": "<|im_end|>"}
    ids = ChatTemplate(source).encode(tiny, [user("x")], **variables)
    assert ids == [*tiny.encode("<|im_end|>" * 4, special=False), 256]
    with pytest.raises(ChatTemplateError, match="name holds an unpaired surrogate"):
        ChatTemplate(source).encode(tiny, [user("x")], name="\ud800")


@pytest.mark.parametrize(
    "source",
    [
        "{% set im_end = '<|im_end|>' %}{{ im_end }}",
        "{{ '<|' + 'im_end' + '|>' }}",
        "{{ '<|' ~ 'im_' ~ 'end|>' }}",
        "{{ '<|%s|>' % 'im_end' }}{# a format of the template's own words #}",
        "{{ '<|%s|>' | format('im_end') }}",
        "{{ '<|{}|>'.format('im_end') }}",
        "{{ ['<|im_', 'end|>'] | join }}{{ '' }}",
        "{{ 'im_'.join(['<|', 'end|>']) }}",
        "{% set ns = namespace(e='<|im_end|>') %}{{ ns.e }}",
        "{% macro m(e='<|im_end|>') %}{{ e }}{% endmacro %}{{ m() }}",
        "{% macro m() %}<|im_end|>{% endmacro %}{{ m() | trim }}",
        "{% set x %}<|im_{% endset %}{{ x }}end|>",
        "{{ '<|im_end|>' if messages else '' }}",
        "{{ {'user': '<|im_end|>'}[messages[0].role] }}",
        "{{ '<|IM_END|>' | lower }}",
        "{{ 'x<|im_end|>'[1:] }}",
        "{{ 'a,<|im_end|>'.split(',') | last }}",
        "{{ '<|X_end|>'.replace('X', 'im') }}",
        "{{ messages[0].content.replace('hi', '<|im_end|>') }}",
        "{{ eos_token }}",
        "{{ eos_token | trim }}",
        "{% generation %}<|im_end|>{% endgeneration %}",
        "{% filter lower %}<|IM_END|>{% endfilter %}",
        "{{ '<|' + messages[1].role + '|>' }}{{ '<|im_end|>' }}",
        "{% for e in ['<|im_end|>'] %}{{ e }}{% endfor %}",
        "{{ messages[7] | default('<|im_end|>') }}",
        "{% set content = messages[0].content %}{% set content = '<|im_end|>' + content | trim %}{{ content }}",
        "{{ '<|im_end|>' | indent(4, true) }}",
        "{{ cycler('<|im_end|>').next() }}",
        "{{ '<|Im_End|>' | title | lower }}",
        "{% set json = messages | tojson | safe %}{{ json ~ '<|im_end|>' }}",
        "{% set json = 'x' | safe %}{{ 'x' ~ (json + 'y' + json)[1:] | trim }}<|im_end|>",
        "{{ ('<|im_end|>' | safe | trim)[0:] }}",
        "{% set t = ('<|im_end|>' | safe) + 'x' %}{{ 'y' + t }}{{ messages[0].content + (1 | safe) }}",
    ],
)
def test_markers_of_the_template_are_tokens(tiny, source):
    """However the template writes them: the ids are those of the text that plain Jinja makes."""
    messages = [user("hi"), {"role": "system", "content": ""}, user("")]
    text = plain_jinja.render(source, messages, eos_token="<|im_end|>")
    ids = ChatTemplate(source, eos="<|im_end|>").encode(tiny, messages)
    assert ids.count(257) == 1 and ids == tiny.encode(text)


def test_templates_see_plain_text(tiny):
    content = "a<|im_end|>b</think>"
    source = (
        "{% set c = messages[0].content %}{{ c.split('<|im_end|>') | last }} {{ c | length }} {{ '<|im_end|>' in c }} "
        "{{ c.startswith('a<|im') }} {{ c.index('>') }} {{ c | tojson(ensure_ascii=True) }} {{ c == 'a<|im_end|>b</think>' }}"
    )
    text = "b</think> 20 True True 10 " + '"a<|im_end|>b</think>" True'
    assert ChatTemplate(source).render([user(content)]) == text
    ids = ChatTemplate(source).encode(tiny, [user(content)])
    assert tiny.decode(ids) == text and not {256, 257} & set(ids)


# --- real shapes ------------------------------------------------------------------------------------------------

SHAPES = {
    "splits reasoning off": "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}{% if '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}",
    "drops a switch": "{% set s = messages[0].content.replace('/no_think', '').replace('/think', '').rstrip() %}"
    "{{ '<|im_start|>system\n' + s + '<|im_end|>\n' }}",
    "collects content": "{% for m in messages %}{% set content = '<|im_start|>' + m.role + '\n\n' + m.content | trim + "
    "'<|im_end|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}",
    "has macros": "{% macro turn(role, text) %}{{ '<|im_start|>' + role }}\n{{ text }}<|im_end|>{% endmacro %}"
    "{% for m in messages %}{{ turn(m.role, m.content) }}{% endfor %}",
    "joins lines": "{% set ns = namespace(lines=[]) %}{% for m in messages %}{% set ns.lines = ns.lines + ['<|im_start|>' + m.content] %}"
    "{% endfor %}{{ ns.lines | join('<|im_end|>\n') }}",
    "lists tools": "<|im_start|>{% if tools %}{% for t in tools %}{{ t | tojson(indent=2) | indent(4) }}{% endfor %}{% endif %}"
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.content[:5] }}{{ '%-5s|' % m.role }}{% endfor %}<|im_end|>{{ strftime_now('%d %b %Y') }}",
}


@pytest.mark.parametrize("source", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("content", ["hi", "", " \n x /think ", "<think>a</think>b", "é\u2028", "<|im_end|>"])
def test_shapes_of_real_templates(tiny, source, content):
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": "ü"}}}
    calls = {"role": "assistant", "content": "", "tool_calls": [call]}
    messages = [user(content), {"role": "assistant", "content": content}, calls, user("y")]
    tools = [{"name": "f", "description": "<b>"}]
    text = plain_jinja.render(source, messages, tools=tools, bos_token="<s>")
    template = ChatTemplate(source, bos="<s>")
    assert template.render(messages, tools=tools, now=plain_jinja.NOW) == text
    ids = template.encode(tiny, messages, tools=tools, now=plain_jinja.NOW)
    assert tiny.decode(ids) == text
    if content != "<|im_end|>":
        assert ids == tiny.encode(text)
    else:
        harmless = [{**m, "content": "x" if m["content"] == content else m["content"]} for m in messages]
        count = [t for t in template.encode(tiny, harmless, tools=tools) if t >= 256]
        assert [t for t in ids if t >= 256] == count


def test_noncharacters_in_messages(tiny):
    text = "".join(chr(c) for c in range(0xFDD0, 0xFDF0)) + "<|im_end|>"
    assert tiny.decode(ChatTemplate(CHATML).encode(tiny, [user(text)])).count(text) == 1


def test_exactly_one_bos(tiny, monkeypatch):
    """whether the template writes BOS or not."""
    monkeypatch.setattr(tiny, "add_bos", True)
    monkeypatch.setattr(tiny, "bos", 256)
    messages = [user("hi")]
    assert ChatTemplate("{{ bos_token }}x", bos="<|im_start|>").encode(tiny, messages) == [256, *tiny.encode("x")]
    assert ChatTemplate("x", bos="<|im_start|>").encode(tiny, messages) == [256, *tiny.encode("x")]
