"""Which of the pre-tokenizer rules that GGUF files can name are those of a `tokenizer.json`.

A GGUF holds the name of the rules alone.  Two sets of rules are told apart by what they do to texts that were made for
it: every set cuts them differently.
"""

from __future__ import annotations

from functools import cache

from ..errors import ConvertError
from ..tokenizers import PRE_TOKENIZERS, PreTokenizer

PROBES = (
    "Hello world, I've been told he's there; 'RE you sure? WE'LL see, don'T you? IT'S o'clock 'tis",
    "3 33 333 3333 33333 3.3 1,234,567 x86_64 2024-01-02 1e-9 ½² ٣٤٥ １２３ Ⅻ a1b2",
    "  two   three    four\ttab\t\ttwo \t mixed\n\nlines\n \n  \r\n\r\nend  \n",
    " \n \n\n  \n\t\n   x\n   y \n",
    "世界你好，我想在apple工作1314151天～ 日本語カタカナ ｶﾀ 한국어 ㄱㄴ 漢字かな交じり文。",
    "naïve École ßen iPhone camelCase HTTPServer e\u0301\u0323 क्षि ไทย कান់তែ ـلا Ελλάδα Привет",
    "foo(); //x /*y*/ a->b::c {}[] <|x|> == != #! @a _b_ a/b\\c http://a.b/c?d=e&f `q` ~^ $x £€",
    "... …!!! ??? ------ ======= ''''''\"\"\"\"\" ««»» ‘’ “” । ۔ ، ؟",
    "🚀 (normal) 😶\u200d🌫️ ✅🦙🦙 👍🏽 🇩🇪 \u200b\ufeff \xa0x\u2028y\u3000z\x00\x1f",
    ".com #tag /path\n/next !\n?\r\n)\n\n(*\n word.\n 'quoted' \"text\"\n",
    "aaaa bbbb  cccc   1 2 3  !  ?  .\n" + " " * 20 + "x" + "\n" * 5 + " " * 9,
    "x'sy I'mx you'llama we'd've they'REd x'Ty 1'sx\n'twas .'sx",
    "AbC aBC ABc Abc's ABC's abcDef's 9a's ǅabc ʼs ’s",
)


@cache
def _cuts(rules: PreTokenizer) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(rules.cut(text)) for text in PROBES)


def rules_name(rules: PreTokenizer) -> str:
    """The name of the rules that do the same.

    Raises
    ------
    ConvertError : none does; a GGUF could not say how texts are cut.
    """
    wanted = _cuts(rules)
    for name, known in PRE_TOKENIZERS.items():
        same = (known.ignore_merges, known.in_characters) == (rules.ignore_merges, rules.in_characters)
        if same and _cuts(known) == wanted:
            return name
    raise ConvertError(
        "the pre-tokenizer of tokenizer.json is none of those that a GGUF file can name "
        f"(patterns {ascii(rules.patterns)[:300]}, ignore_merges {rules.ignore_merges})"
    )
