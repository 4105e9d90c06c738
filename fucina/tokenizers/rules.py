r"""The table of pre-tokenizer rules, by the names that GGUF files use for them (`tokenizer.ggml.pre`).

Each is written as regular expressions whose alternatives are tried from left to right.  `\p{L}` is any letter, `\p{N}`
any number, `\p{M}` any combining mark, `\p{P}` punctuation, `\p{S}` symbols.  The rules are those of llama.cpp, which
tests compare with, for every name here.  Which characters are letters is decided by the `regex` module: letters that
Unicode 16 or later added are letters there, and not yet in llama.cpp b11739.

Every expression must need time in proportion to the text, whatever the text: a run of white space or letters may be looked
at a few times, but not once for each place in it.
"""

from __future__ import annotations

from .pretokenize import PreTokenizer

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

    `numbers` is how digits are grouped; `marks` is `\p{M}` where combining marks belong to words.  Nothing else begins with
    a number, so numbers can come first, and single ASCII digits before all: a third less time for a page of them.
    """
    if numbers == r"\p{N}":
        numbers = rf"[0-9]|{numbers}"
    return (
        rf"{numbers}|{_CONTRACTION_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}{marks}]+"
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


# DeepSeek cuts several times; what no expression matches is a word as it is.  V3: groups of digits, runs of Chinese and
# Japanese, then the rest, where one ASCII symbol may lead an ASCII word.
_CJK = r"[\u4e00-\u9fa5\u3040-\u30ff]+"
_ASCII_LED = r"[!-/:-@\[-`{-~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    _CJK,
    rf"{_ASCII_LED}| ?[\p{{P}}\p{{S}}]+[\r\n]*|[{_S}]*[\r\n]+|{_SPACES}",
)
# The older ones.  Their list of letters with case is that of an early Unicode, of which some blocks were left out.
_CASED = (
    r"[[\p{Lu}\p{Ll}\p{Lt}\u0295]--[\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2f\ua78f-\ua7ff\uab30-\uab6f"
    r"\U00010570-\U000105bf\U00010d50-\U00010d8f\U00016e40-\U0001df9f]]"
)
_ASIAN = rf"(?V1)[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]--[{_S}]]+"
_DEEPSEEK_LLM = (
    r"[\r\n]",
    rf"(?V1)[{_S}]?{_CASED}+",
    rf"[{_S}]?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
    rf"(?<![{_S}])[{_S}]++\Z",  # only a run that ends the part; looked at once, from its beginning
    _ASIAN,
    r"\p{N}+",
)
_DEEPSEEK_CODER = (r"[\r\n]", rf"[{_S}]?\p{{L}}+", rf"[{_S}]?\p{{P}}+", _ASIAN, r"\p{N}")

# Kimi: runs of Chinese, other letters in words whose contraction stays with them.
_HAN = (
    r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f"
    r"\U0002b820-\U0002ceaf\U0002ceb0-\U0002ebef\U0002f800-\U0002fa1f]"
)
_KIMI = (
    rf"(?V1){_HAN}+|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}--{_HAN}]+(?:{_CONTRACTION_ANY_CASE})?|\p{{N}}{{1,3}}"
    rf"| ?[^{_S}\p{{L}}\p{{N}}]+[\r\n]*|[{_S}]*[\r\n]+|{_SPACES}"
)

# Falcon and the rules of files that name none: punctuation in runs, long numbers in threes.
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2, r"[0-9]{3}")
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9]{3}")

# BLOOM: everything but white space and some marks of punctuation, also those of Chinese, Hindi, Urdu and Arabic.
_BLOOM = rf" ?[^(){_S}|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c]+"

_YOUTU = (
    (
        r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f"
        r"\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u30ff]+"
    ),
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+(?:{_CONTRACTION_ANY_CASE})?|\p{{N}}"
        rf"| ?[^{_S}\p{{L}}\p{{N}}]+[\r\n/]*|[{_S}]*[\r\n]+|{_SPACES}"
    ),
)

# Seed: line ends never stick to symbols.  EXAONE: one word may hold several, with single spaces between.
_SEED_CODER = (
    rf"{_CONTRACTION_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^{_S}\r\n\p{{L}}\p{{N}}]+"
    rf"|[{_S}]*[\r\n]+|{_SPACES}"
)
_EXAONE_MOE = (
    rf"{_CONTRACTION_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}(?: ?\p{{L}}|\p{{M}})*+|\p{{N}}"
    rf"| ?[^{_S}\p{{L}}\p{{N}}]+[\r\n/]?|[{_S}]*[\r\n]|{_SPACES}"
)

_LLAMA3 = _gpt4_like(r"\p{N}{1,3}")
_QWEN2 = _gpt4_like(r"\p{N}")
_QWEN35 = _gpt4_like(r"\p{N}", marks=r"\p{M}")
_LINES = r"\n+|[^\n]+"
_ANY_CONTRACTION = f"(?:{_CONTRACTION_ANY_CASE})?"

_RULES = {
    "smollm": PreTokenizer((_SMOLLM,)),
    "gpt-2": PreTokenizer((_GPT2,)),
    "llama-bpe": PreTokenizer((_LLAMA3,), ignore_merges=True, add_bos=True),
    "qwen2": PreTokenizer((_QWEN2,)),
    "qwen35": PreTokenizer((_QWEN35,)),
    "chatglm-bpe": PreTokenizer((_LLAMA3,)),
    "glm4": PreTokenizer((_LLAMA3,), ignore_merges=True),
    "deepseek-v3": PreTokenizer(_DEEPSEEK3),
    "deepseek-llm": PreTokenizer(_DEEPSEEK_LLM),
    "deepseek-coder": PreTokenizer(_DEEPSEEK_CODER),
    "gpt-4o": PreTokenizer((_o200k_like(r"\p{N}{1,3}", _ANY_CONTRACTION),)),
    "inkling": PreTokenizer((_o200k_like(r"\p{N}{1,3}", _ANY_CONTRACTION, marks=r"\p{M}"),)),
    "granite-embed-multi-97m": PreTokenizer(
        (_o200k_like(r"\p{N}{1,3}", _ANY_CONTRACTION, marks=r"\p{M}"),), ignore_merges=True
    ),
    "tekken": PreTokenizer((_o200k_like(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "falcon": PreTokenizer(_FALCON),
    "default": PreTokenizer(_DEFAULT),
    "bloom": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "youtu": PreTokenizer(_YOUTU, ignore_merges=True),
    "spark2_5": PreTokenizer((r"\p{N}{1,3}", _CJK, rf"{_ASCII_LED}| ?[\p{{P}}\p{{S}}]+|[\r\n]|{_SPACES}", r"\p{N}")),
    "minicpm5": PreTokenizer((r"\p{N}{1,3}", _gpt4_like(r"\p{N}+")), ignore_merges=True),
    "seed-coder": PreTokenizer((_SEED_CODER,)),
    "exaone-moe": PreTokenizer((_EXAONE_MOE,)),
    "laguna": PreTokenizer((_LINES, _QWEN2)),
    "ufakzeka": PreTokenizer((_QWEN2.replace(f"{_CONTRACTION_ANY_CASE}|", ""),)),
    "jais-2": PreTokenizer(
        (
            _LLAMA3.removesuffix(_SPACES)
            + "|".join(rf"[{_S}]{{{n}}}(?![^{_S}])" for n in (512, 256, 128, 64, 32, 16, 8, 4, "1,2"))
            + f"|[{_S}]",
        )
    ),
    "gemma4": PreTokenizer((_LINES,), add_bos=True, in_characters=True, whole_line_ends=True),
    "sarvam-moe": PreTokenizer((_LINES,), in_characters=True),
}

# Names under which files ask for the same rules.  Each was compared with llama.cpp on thousands of texts (all but
# inkling, which llama.cpp b11739 does not know).
_SAME_AS = {
    "smollm": "codeshell command-r exaone mellum2 minerva-7b refact starcoder",
    "gpt-2": "a.x-4.0 exaone4 gigachat granite-docling jais mellum modern-bert mpt olmo phi-2 trillion",
    "llama-bpe": "falcon-h1 falcon3 jina-v5-nano lfm2 llama-v3 llama3 midm-2.0 pixtral",
    "qwen2": (
        "bailingmoe bailingmoe2 deepseek-r1-qwen f2llmv2 grok-2 hunyuan kormo llada-moe megrez solar-open stablelm2"
    ),
    "chatglm-bpe": "dbrx smaug-bpe",
    "glm4": "glm5",
    "deepseek-v3": "hunyuan-dense hy_v4 joyai-llm",
    "gpt-4o": "kanana2 llama4 minimax-m2 talkie",
    "bloom": "gpt3-finnish poro-chat",
}

PRE_TOKENIZERS: dict[str, PreTokenizer] = _RULES | {
    name: _RULES[rules] for rules, names in _SAME_AS.items() for name in names.split()
}
