"""Random chat templates over random messages: the text is that of plain Jinja, and no message makes a control token.

`FUCINA_FUZZ=20000` runs longer.
"""

import os

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fucina.chat import ChatTemplate
from fucina.chat.provenance import OWN, origins
from fucina.errors import ChatTemplateError
from fucina.gguf import GgufFile
from fucina.tokenizers import load_tokenizer
from tests import plain_jinja
from tests.chat_model import write_chat_model

fuzz = settings(
    max_examples=int(os.environ.get("FUCINA_FUZZ", "60")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
MARKERS = ("<|im_start|>", "<|im_end|>")
# Pieces of markers, and what becomes one: `<|im_/thinkend|>` without "/think", `>|dne_mi|<` backwards, `<|IM_END|>` in lower case.
FRAGMENTS = [
    *MARKERS, "<|im_", "<|", "<", "|", "im_", "start|>", "end|>", "|>", ">", "<|im_/thinkend|>", ">|dne_mi|<", "<|IM_END|>",
    " <|im_end|> ", "<,|im_end|>", "/think", "</think>", "<think>", "a", "b c", " ", "\n", ",", "é", "%s", "{}", "'",
]  # fmt: skip
SPOKEN = st.lists(st.sampled_from(FRAGMENTS), max_size=6).map("".join)
GREEK = st.text(alphabet="αβγδ ", max_size=8)


def quoted(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def expressions(words):
    """Expressions that give a text.  `c` is a message's content, `v` a variable that has been set, `r` its role."""
    constant = st.sampled_from(words).map(quoted)
    leaf = st.one_of(constant, st.sampled_from(["c", "v", "ns.t", "c", "m['content']", "m.content", "r"]))

    def grown(text):
        number = st.integers(-3, 6).map(str)
        one = {
            "({0} | {1})": [
                "trim",
                "upper",
                "lower",
                "reverse",
                "capitalize",
                "string",
                "safe",
                "first",
                "last",
                "title",
            ],
            "{0}.{1}()": ["strip", "lstrip", "rstrip", "lower", "upper", "capitalize", "swapcase", "title"],
            "({0} {1})": ["if true else 'x'", "or 'y'"],
        }
        shapes = [st.builds(form.format, text, st.sampled_from(names)) for form, names in one.items()]
        pairs = [
            "({0} + {1})",
            "({0} ~ {1})",
            "({0} ~ 1 ~ {1})",
            "('%s%s' % ({0}, {1}))",
            "('{{}}|{{}}'.format({0}, {1}))",
        ]
        pairs += [
            "({0}.split({1}) | join('-'))",
            "({0}.split({1})[-1])",
            "({0}.split({1}) | first)",
            "[{0}, {1}] | join",
        ]
        pairs += [
            "({0}.replace({1}, ''))",
            "({0} | replace({1}, ''))",
            "({1}.join([{0}, 'b', {0}]))",
            "({0}.strip({1}))",
        ]
        pairs += ["({0} if {1} in {0} else {1})", "({0}.partition({1})[0])", "({0}.rsplit({1}, 1)[0])", "mac({0}, {1})"]
        pairs += [
            "({0}.removeprefix({1}))",
            "({0}.removesuffix({1}))",
            "({0} | default({1}, true))",
            "({0} | indent(2))",
        ]
        pairs += ["('%%%s: %s' | format({0}, {1}))", "({0}.rpartition({1})[2])", "({0}.splitlines() | join({1}))"]
        pairs += [
            "([{0}, {1}] | map('trim') | list | last)",
            "({{'k': {0}, 'l': {1}}}.l)",
            "([{0}, {1}] | sort | first)",
        ]
        pairs += ["({0} if {0}.startswith({1}) or {0}.endswith({1}) else {1})", "({0}[{0}.find({1}):])"]
        pairs += ["({0} if {0} | length > {1} | length else {1})", "({0} * ({1} == {0}))", "({0}.split() | join({1}))"]
        shapes += [st.builds(form.format, text, text) for form in pairs]
        shapes.append(st.builds("({}[{}:{}])".format, text, number, number))
        shapes.append(st.builds("({}[::{}])".format, text, st.sampled_from(["-1", "2", "1"])))
        shapes.append(st.builds("({}.replace({}, {}))".format, text, text, text))
        shapes.append(st.builds("({}.replace({}, {}, 1))".format, text, text, constant))
        return st.one_of(shapes)

    return st.recursive(leaf, grown, max_leaves=6)


def statements(words, expression):
    simple = st.one_of(
        st.builds("{{{{ {} }}}}".format, expression),
        st.sampled_from(words),
        st.builds("{{% set v = {} %}}".format, expression),
        st.builds("{{% set ns.t = {} %}}".format, expression),
        st.builds("{{{{ {} | tojson }}}}".format, expression) if "<" not in words else st.nothing(),  # loses origins
    )

    def grown(inner):
        return st.one_of(
            inner,
            st.builds("{}{}".format, inner, inner),
            st.builds("{{% set v %}}{}{{% endset %}}{{{{ v }}}}".format, inner),
            st.builds("{{% if {} == {} %}}{}{{% else %}}{}{{% endif %}}".format, expression, expression, inner, inner),
            st.builds("{{% if {} in {} %}}{}{{% endif %}}".format, expression, expression, inner),
            st.builds(
                "{{% for v in [{}, {}] %}}{}{{{{ loop.index }}}}{{% endfor %}}".format, expression, expression, inner
            ),
            st.builds("{{% for v in {} %}}{{{{ v }}}}{{% endfor %}}".format, expression),
            st.builds(
                "{{% filter {} %}}{}{{% endfilter %}}".format, st.sampled_from(["trim", "upper", "indent"]), inner
            ),
            st.builds("{{% call box({}) %}}{}{{% endcall %}}".format, expression, inner),
            st.builds("{{% generation %}}{}{{% endgeneration %}}".format, inner),
        )

    head = "{% macro mac(x, y='') %}{{ x }}{{ y }}{% endmacro %}{% macro box(x) %}[{{ x }}{{ caller() }}]{% endmacro %}"
    head += "{% set ns = namespace(t='') %}{% set v = '' %}{% for m in messages %}{% set c = m.content %}{% set r = m.role %}"
    return grown(grown(simple)).map(lambda text: head + text + "{% endfor %}{{ v }}{{ ns.t }}")


def conversations(texts):
    """Messages of any role, and one of the user."""
    message = st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "system", "assistant", "tool"]), "content": texts}
    )
    user = st.fixed_dictionaries({"role": st.just("user"), "content": texts})
    return st.builds(lambda earlier, last: [*earlier, last], st.lists(message, max_size=2), user)


def template(words):
    return statements(words, expressions(words))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    file = GgufFile(write_chat_model(tmp_path_factory.mktemp("model") / "chat.gguf"))
    yield load_tokenizer(file.metadata)
    file.close()


def rendered(source, messages):
    """The text that plain Jinja makes, or None if it fails; ours must do the same."""
    try:
        text = plain_jinja.render(source, messages)
    except Exception:
        with pytest.raises(ChatTemplateError):
            ChatTemplate(source).render(messages)
        return None
    assert ChatTemplate(source).render(messages) == text
    return text


HARMLESS = [text for text in FRAGMENTS if "<" not in text] + ["think", "-"]


@fuzz
@given(source=template(HARMLESS), messages=conversations(SPOKEN))
def test_no_message_becomes_a_control_token(tiny, source, messages):
    """The template has no "<", so that it cannot spell a marker; whatever it does with texts that can, none comes out."""
    text = rendered(source, messages)
    assume(text is not None)
    ids = ChatTemplate(source).encode(tiny, messages)
    assert not {256, 257} & set(ids)
    assert tiny.decode(ids) == text


LATIN = [*MARKERS, "<|im_", "end|>", "a", "b c", "Im", "%s", "{}", "|", "<", ">"]


@fuzz
@given(source=template(LATIN), messages=conversations(GREEK))
def test_each_character_knows_where_it_comes_from(tiny, source, messages):
    """Messages are Greek, the template is Latin: the letters tell the truth, and all of the template's markers count."""
    text = rendered(source, messages)
    assume(text is not None)
    made = ChatTemplate(source)._render(messages, True, None, plain_jinja.NOW, {})
    for character, origin in zip(text, origins(made), strict=True):
        if character in "αβγδΑΒΓΔς":
            assert origin != OWN
        elif character not in " \n0123456789":  # spaces may be either's; numbers nobody's
            assert origin == OWN, (source, text)
    assert ChatTemplate(source).encode(tiny, messages) == tiny.encode(text)


@fuzz
@given(source=template([*LATIN, "/think", "</think>"]), messages=conversations(SPOKEN))
def test_templates_see_plain_text(tiny, source, messages):
    text = rendered(source, messages)
    assume(text is not None)
    assert tiny.decode(ChatTemplate(source).encode(tiny, messages)) == text
