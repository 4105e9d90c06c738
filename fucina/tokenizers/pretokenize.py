r"""Pre-tokenizer rules: how a text is cut into words before byte-level BPE looks at each word by itself.

A merge never crosses the border of a word, so these rules decide which tokens are possible at all: whether a space
belongs to the word after it, whether `2024` is one word or four, whether `don't` is `don` + `'t`.  They are part of
what a model was trained with.  A GGUF only *names* its rules (`tokenizer.ggml.pre`); with the wrong ones the ids are
still valid and the text still decodes, but the model sees spellings that it never saw in training.

All rules here cut without loss: the words, put together, are the text.  Each is written as one regular expression whose
alternatives are tried from left to right.  `\p{L}` is any letter, `\p{N}` any number, `\p{M}` any combining mark.  The
rules are those of llama.cpp, which tests compare with.  Which characters are letters is decided by the `regex` module:
letters that Unicode 16 or later added are letters there, and not yet in llama.cpp b11739.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

# White space as Unicode defines it.  Python's own \s also takes U+001C to U+001F, which are not.
_S = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_SPACES = rf"[{_S}]+(?![^{_S}])|[{_S}]+"  # a run leaves its last space to the word after it

_CONTRACTION = r"'(?:s|t|re|ve|m|ll|d)"
_CONTRACTION_ANY_CASE = r"'(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD])"

# GPT-2: words and numbers with one space in front, everything else in runs.
_GPT2 = rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^{_S}\p{{L}}\p{{N}}]+|{_SPACES}"

# SmolLM cuts every digit off first and applies GPT-2's rules to what lies between.  In one expression: numbers stand
# alone, and a number ends a run of spaces just as the end of the text does.
_SMOLLM = (
    rf"{_CONTRACTION}| ?\p{{L}}+|\p{{N}}| ?[^{_S}\p{{L}}\p{{N}}]+"
    rf"|[{_S}]+(?![^{_S}\p{{N}}])|[{_S}]+"
)


def _gpt4_like(numbers: str, marks: str = "") -> str:
    r"""The family that GPT-4 began: any one character may lead a word, line ends stick to what is before them.

    `numbers` is how digits are grouped; `marks` is `\p{M}` where combining marks belong to words.
    """
    return (
        rf"{_CONTRACTION_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+|{numbers}"
        rf"| ?[^{_S}\p{{L}}{marks}\p{{N}}]+[\r\n]*|[{_S}]*[\r\n]+|{_SPACES}"
    )


# The o200k rules (GPT-4o): upper-case letters may only come before lower-case ones, contractions stay with their word.
# llama.cpp knows no case beyond ASCII, so that other letters count as both; files are made and tested with that.
def _o200k_like(numbers: str, contraction: str, marks: str = "") -> str:
    upper, lower, lead = rf"[[\p{{L}}{marks}]--[a-z]]", rf"[[\p{{L}}{marks}]--[A-Z]]", r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"(?V1){lead}{upper}*{lower}+{contraction}|{lead}{upper}+{lower}*{contraction}|{numbers}"
        rf"| ?[^{_S}\p{{L}}\p{{N}}]+[\r\n/]*|[{_S}]*[\r\n]+|{_SPACES}"
    )


# DeepSeek-V3 cuts three times: groups of digits, runs of Chinese and Japanese, then the rest, where one ASCII symbol
# may lead an ASCII word.  Control characters match nothing; what no expression matches is a word as it is.
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\u4e00-\u9fa5\u3040-\u30ff]+",
    (
        r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
        rf"|[{_S}]*[\r\n]+|{_SPACES}"
    ),
)

_LLAMA3 = _gpt4_like(r"\p{N}{1,3}")
_QWEN2 = _gpt4_like(r"\p{N}")
_QWEN35 = _gpt4_like(r"\p{N}", marks=r"\p{M}")


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """Rules of one name.

    Attributes
    ----------
    patterns
        Regular expressions (syntax of the `regex` module) that match one word each.  With more than one, the text is
        cut by the first, the parts by the second, and so on.
    ignore_merges
        A word that is itself a token becomes that token, even if the merges would not lead to it.
    add_bos
        Whether these models want BOS when their file does not say.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    add_bos: bool = False

    def cut(self, text: str) -> list[str]:
        """The words of a text, in order; their concatenation is the text."""
        if len(self.patterns) == 1:  # such a pattern leaves nothing out
            return _compiled(self.patterns[0]).findall(text)
        words = [text] if text else []
        for pattern in self.patterns:
            words = [part for word in words for part in _parts(_compiled(pattern), word)]
        return words


def _parts(pattern: regex.Pattern[str], text: str) -> list[str]:
    """Matches of the pattern and what lies between them, in order."""
    parts, done = [], 0
    for match in pattern.finditer(text):
        start, stop = match.span()
        if start > done:
            parts.append(text[done:start])
        parts.append(text[start:stop])
        done = stop
    return [*parts, text[done:]] if done < len(text) else parts


@cache
def _compiled(pattern: str) -> regex.Pattern[str]:
    import regex  # here, since a tokenizer that never cuts words (SentencePiece) need not wait for it

    return regex.compile(pattern)


_RULES = {
    "smollm": PreTokenizer((_SMOLLM,)),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "deepseek-v3": PreTokenizer(_DEEPSEEK3),
    "gpt-4o": PreTokenizer((_o200k_like(r"\p{N}{1,3}", f"(?:{_CONTRACTION_ANY_CASE})?"),)),
    "inkling": PreTokenizer((_o200k_like(r"\p{N}{1,3}", f"(?:{_CONTRACTION_ANY_CASE})?", marks=r"\p{M}"),)),
    "tekken": PreTokenizer((_o200k_like(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
}

# Names under which files ask for the same rules.  Each was compared with llama.cpp on thousands of texts (all but
# inkling, which llama.cpp b11739 does not know).
_SAME_AS = {
    "smollm": "codeshell command-r exaone minerva-7b refact starcoder",
    "gpt-2": "a.x-4.0 exaone4 gigachat granite-docling mellum mpt olmo phi-2 trillion",
    "llama-bpe": "falcon-h1 falcon3 jina-v5-nano lfm2 llama-v3 llama3 midm-2.0 pixtral",
    "qwen2": "bailingmoe bailingmoe2 deepseek-r1-qwen grok-2 hunyuan megrez solar-open stablelm2",
    "deepseek-v3": "hunyuan-dense joyai-llm",
    "gpt-4o": "llama4 minimax-m2",
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = _RULES | {
    name: _RULES[rules] for rules, names in _SAME_AS.items() for name in names.split()
}
DEFAULT_PRE = "qwen2"  # for a name that is not in the table, with a warning
