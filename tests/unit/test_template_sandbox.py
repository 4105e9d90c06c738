"""Templates that would take gigabytes or minutes, and long conversations that do no harm."""

import time
import tracemalloc

import pytest

from fucina.chat import ChatTemplate
from fucina.errors import ChatTemplateError
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


# --- templates that mean harm -----------------------------------------------------------------------------------

GROW = "{% set ns = namespace(x='ab', l=[]) %}{% for i in range(90000) %}BODY{% endfor %}"
NEST = GROW.replace(
    "BODY", "{% set ns.l = [ns.l, ns.l] %}{% if i == 40 %}BODY{% endif %}"
)  # small, but 2**40 long as text

GREEDY = [
    *(
        GROW.replace("BODY", text)
        for text in (
            "{% set ns.x = ns.x + ns.x %}",
            "{% set ns.x = ns.x ~ ns.x %}",
            "{% set ns.x = '%s%s' % (ns.x, ns.x) %}",
            "{% set ns.x = '%s%s' | format(ns.x, ns.x) %}",
            "{% set ns.x = '{0}{0}'.format(ns.x) %}",
            "{% set ns.x = ns.x.replace('a', 'aaaaaaaa') %}",
            "{% set ns.x = ns.x | replace('a', 'aaaaaaaa') %}",
            "{% set ns.x = ns.x.join([ns.x, ns.x, ns.x]) %}",
            "{% set ns.x = [ns.x, ns.x] | join(ns.x) %}",
            "{% set ns.x = dict(a=ns.x, b=ns.x) | tojson %}",
            "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
            "{% macro m(a) %}{{ a }}{{ a }}{% endmacro %}{% set ns.x = m(ns.x) %}",
            "{% set ns.l = ns.l + ['a' * 1000000 ~ i] %}",
            "{% set ns.l = [ns.l, ('a' * 1000000)[1:]] %}",
            "{% set ns.l = ns.l + [ns.l, ns.l] %}",
        )
    ),
    *(
        NEST.replace("BODY", text)
        for text in (
            "{{ ns }}",
            "{{ ns.l ~ '' }}",
            "{{ '%s' % ns.l }}",
            "{{ '{}'.format(ns.l) }}",
            "{{ ns.l | string }}",
            "{{ ns.l | tojson }}",
            "{{ raise_exception(ns.l) }}",
        )
    ),
    "{{ 'a'.ljust(10**10) }}",
    "{{ 'a'.center(10**10) }}",
    "{{ 'a'.zfill(10**10) }}",
    "{{ 'a' | center(9999999999) }}",
    "{{ 'a' | indent(9999999999, true) }}",
    "{{ ('\\n' * 1000000) | indent('a' * 1000000) }}",
    "{{ [1] | batch(10**10, 'x') | list }}",
    "{{ [1] | slice(10**10) | list }}",
    "{{ range(10**10) | list }}",
    "{{ range(10**10) | reverse | list | length }}",
    "{{ '{:{}}'.format(1, 9999999999) }}",
    "{{ ('{0}' * 100000).format('a' * 1000000) | length }}",
    "{{ (('%(x)s' * 100000) % {'x': 'a' * 1000000}) | length }}",
    "{{ 1 | round(10**10, 'ceil') }}",
    "{{ (1).to_bytes(10**10, 'big') }}",
    "{{ ('\\t' * 1000000).expandtabs(1000000) }}",
    "{{ ('a' * 1000000).translate({97: 'a' * 1000000}) }}",
    "{{ strftime_now('%9999999999d' * 1000) }}",
    "{% set x = 'a' * 1000000 %}{% set y %}{% for a in x %}{% for b in x %}c{% endfor %}{% endfor %}{% endset %}",
]


@pytest.mark.parametrize("source", GREEDY)
def test_template_that_would_take_gigabytes(source, monkeypatch):
    monkeypatch.setattr("fucina.chat.budget.MAX_MADE", 1 << 22)  # counting up to the real one takes seconds
    tracemalloc.start()
    try:
        with pytest.raises(ChatTemplateError, match="refuses these messages: SecurityError"):
            ChatTemplate(source).render([user("hi")])
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


SLOW = [
    "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "{% set x = 'a' * 1000000 %}{% set y = x[1:] + 'a' %}{% for i in range(90000) %}{% if x == y %}{% endif %}{% endfor %}",
    (
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}"
        "{% endfor %}{{ ns.x == ns.y }}"
    ),
    "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{{ {ns.x: 1} | length }}",
    "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x == 1 }}",
    "{{ ([[1]] * 1000000) | sum(start=[]) | length }}",
    "{{ (['a' * 1000000] * 1000000) | sort | length }}",
]


@pytest.mark.parametrize("source", SLOW)
def test_template_that_would_take_minutes(source, monkeypatch):
    monkeypatch.setattr("fucina.chat.budget.MAX_SECONDS", 0.3)
    begin = time.thread_time()
    with pytest.raises(ChatTemplateError, match="refuses these messages: SecurityError"):
        ChatTemplate(source).render([user("hi")])
    assert time.thread_time() - begin < 3


def test_template_that_is_longer_than_any(tiny):
    with pytest.raises(ChatTemplateError, match="does not compile.*expected at most"):
        ChatTemplate("x" * 10**6)


@pytest.mark.parametrize(
    "source",
    [
        CHATML,
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.role + m.content + '\n' %}{% endfor %}{{ ns.t }}",
        (
            "{% for m in messages[::-1] %}{% set t = m.content.split('word')[0:] | join('word') | trim %}{{ '<' ~ t.replace(' ', '  ') ~ '>' }}"
            "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ m | tojson }}{% endfor %}"
        ),
    ],
)
@pytest.mark.parametrize("count", [1, 200])
def test_a_long_conversation_is_no_harm(source, count):
    """A megabyte of text, in one message or many."""
    messages = [user("word " * (200_000 // count)) for _ in range(count)]
    assert len(ChatTemplate(source).render(messages)) > 10**6


def test_many_short_messages_are_no_harm():
    source = "{% for m in messages %}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{% endfor %}"
    assert ChatTemplate(source).render([user("hi")] * 700) == "700" * 700
