"""Random texts for tokenizers: every kind of character, and the sequences that rules for words care about.

The texts of a seed are the same with every version of Python: the characters are those of Unicode 3.2, and the numbers
come from a generator of our own.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import cache

_OLD = unicodedata.ucd_3_2_0
_KINDS = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Cc Cf".split()
# What later versions of Unicode put into another category.
_MOVED = frozenset(
    c
    for c in map(chr, [*range(0xD800), *range(0xE000, 0x30000)])
    if _OLD.category(c) != "Cn" and _OLD.category(c) != unicodedata.category(c)
)
_PIECES = (
    "' 's 't 're 've 'm 'll 'd 'S 'T 'RE 'Ve 'lL 'D don't I'LL we'Re ʼs ’s '' 'st 'ſ 'K "
    "the The THE iPhone camelCase HTTPServer ǅabc ßÉcole naïve e\u0301 e\u0301\u0323 \u0301 \u0301\u0301 क्षि ไทย ـلا "
    "12 123 1234 3.14159 1,234,567 ½² ٣٤٥ １２３ Ⅻ 2024-01-02 0x1F 1e-9 "
    "世界 世界你好 日本語カタカナ ｶﾀ 〇 々 한국어 ㄱㄴ 漢字かな交じり文 \U00020000 \u3000 。，、！ “引用” "
    "🙂 👩\u200d👩\u200d👧 👍🏽 🇩🇪 ❤\ufe0f \u200d \ufe0f \u200b \ufeff \u00ad \u2028 \u2029 \x85 \xa0 \u1680 \u202f "
    "foo(); //x /*y*/ a->b::c {}[] <|x|> </s> <br> $x `y` ~ ^^ == != #! @a _b_ a_b a/b\\c http://a.b/c?d=e&f "
    ". , ! ? ... … — - -- « » ‘ ’ ।  ۔ ، \x00 \x01 \x1c \x1f \x7f \t \v \f"
).split(" ")
_SPACES = [
    " ",
    " ",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\t",
    " \n",
    "\n ",
    " \n \n",
    "\t\t ",
    "    ",
    "\u3000",
    "\xa0 ",
]


class Numbers:
    """Whole numbers from a seed (splitmix64)."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def below(self, n: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) & (2**64 - 1)
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
        return (z ^ (z >> 31)) % n


@cache
def _pools() -> list[list[str]]:
    by_kind: dict[str, list[str]] = {kind: [] for kind in _KINDS}
    for code in [*range(0xD800), *range(0xE000, 0x30000)]:
        kind = _OLD.category(chr(code))
        if kind in by_kind and chr(code) not in _MOVED:
            by_kind[kind].append(chr(code))
    ascii_alone = [chr(code) for code in range(128)]
    return [*by_kind.values(), ascii_alone, ascii_alone, ascii_alone]


def random_text(numbers: Numbers, pieces: int = 24) -> str:
    """A text of up to so many pieces: characters of one kind, runs of one character, pieces that rules care about."""
    pools = _pools()
    parts: list[str] = []
    for _ in range(numbers.below(pieces) + 1):
        choice = numbers.below(10)
        if choice < 3:
            parts.append(_PIECES[numbers.below(len(_PIECES))])
        elif choice < 5:
            parts.append(_SPACES[numbers.below(len(_SPACES))])
        elif choice < 8:
            pool = pools[numbers.below(len(pools))]
            parts += (pool[numbers.below(len(pool))] for _ in range(numbers.below(4) + 1))
        elif choice < 9:
            pool = pools[numbers.below(len(pools))]
            parts.append(pool[numbers.below(len(pool))] * (numbers.below(12) + 1))
        else:
            parts.append(
                "".join(chr(97 + numbers.below(26) - 32 * numbers.below(2)) for _ in range(numbers.below(6) + 1))
            )
    return "".join(parts)


def random_texts(seed: int, count: int, pieces: int = 24) -> Iterator[str]:
    """So many texts of a seed."""
    numbers = Numbers(seed)
    for _ in range(count):
        yield random_text(numbers, pieces)
