"""Which words are wrong, and how hard a text is to read.

House rules: rates are told with "per" ("tokens per second"), what comes later stands "after", what is not the same is
"different", and "more" stands before its noun.  Right uses of such words are listed by their sentence in tests/data/right_words.txt.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.prose import Passage

COUNTED = (
    "tokens rows bits bytes positions multiplications additions matrices microseconds milliseconds seconds minutes hours "
    "words characters threads dimensions units chunks entries floats pages layers logits turns chapters exercises messages "
    "ms us MB GB KB KiB MiB GiB kB tokens/s"
).split()
VERBS_TOO = (  # "it passes a token on": counted only after a number
    "steps passes points drafts numbers lines values columns samples draws copies weights files streams heads calls"
).split()
ONE = (
    "row number column value byte bit score entry slot matrix word field file line page vector cache token pass".split()
)
NUMBERS = "one two three four five six eight ten sixteen".split()
UNIT = (
    "second minute token row pass step weight position stream block layer line head value entry column chunk thread word "
    "chapter turn call draw draft pair vocabulary expert family kernel model exercise file student number call slot request "
    "section window dimension prompt drafted cached key query hint record unit test op process case command dialect "
    "parameter source letter character byte plane group run part"
).split()
_units = "|".join(UNIT)
_RATE = re.compile(
    rf"\b(?i:{'|'.join(COUNTED)}) an? (?:\w+ed )?(?:{_units})\b"
    rf"|\b(?i:{'|'.join(NUMBERS)}|\d+(?:[.,]\d+)*|[kmnN]) an? (?:{_units})\b(?! (?:or|of|that|with|whose|from|in))"
    rf"|\b(?i:{'|'.join(ONE)}) an? (?:{_units})\b"
    rf"|\b(?:(?i:{'|'.join(NUMBERS)}|many|few|more|most|fewer|of|all)|\d[\d.,]*) (?:{'|'.join(VERBS_TOO)}) an? (?:{_units})\b"
    rf"|\b(?i:once|twice|times) an? (?!second|minute)(?:{_units})\b"
)
_BEHIND = re.compile(r"\bbehind\b", re.I)
_OTHER = re.compile(
    r"\b(?:gives?|gave|says?|said|has|have|had|is|are|becomes?|draws?|produces?|makes?|needs?|takes?|with|into) "
    r"(?:an)?other (?:bits?|tokens|words|texts?|logits|numbers|results?|weights|values|shape|draws|dice)\b",
    re.I,
)
_MORE = re.compile(
    r"\b(?:one|two|three|four|five|six|eight|each|every|a few) (?:\w+ )?"
    r"(?:tokens?|rows?|bits?|bytes|operations?|dimensions?|promises?|mistakes?|steps?|pass(?:es)?|words?|files?) "
    r"(?:more|less)\b(?! than| or)",
    re.I,
)
RIDDLES = (
    "the rest that stays", "park their share", "every token more", "falls down to one draw", "this, then quickly",
    "match comes by", "does not tremble", "looking also teaches", "if there is one on your machine",
)  # fmt: skip
_RIDDLE = re.compile("|".join(map(re.escape, RIDDLES)), re.I)
RULES = (
    (_BEHIND, '"behind" means before, in a queue: say "after" for what comes later'),
    (_RATE, 'a rate is told with "per" (or "for each")'),
    (_OTHER, 'what is not the same is "different"'),
    (_MORE, 'the word order is "one more token", "one bit fewer"'),
    (_RIDDLE, "a riddle: say what is meant"),
)
# Uses of these words that are right wherever they stand.
RIGHT = re.compile(
    r"\b(?:leav(?:e|es|ing)|left|hid(?:e|es|den|ing)|idea|reason|meaning|lags?|falls?|stays?|proxy) (?:\w+ ){0,8}?behind\b"
    r"|\bhow many \w+ an? \w+ (?:commits|yields|takes|makes|needs|gives|holds)\b|\ban? \w+ an? \w+ (?:belongs|depends|needs)\b|\btimes a number\b|\ba second (?:time|one)\b"
    r"|\bbehind (?:a|one|the same|its|their) (?:\w+ )?(?:interface|proxy|lock|link|face|firewall)\b",
    re.I,
)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong: where, the sentence, and why."""

    passage: Passage
    sentence: str
    why: str

    def __str__(self) -> str:
        return f"{self.passage.file}, {self.passage.place}: {self.why}\n    {self.sentence}"


def faults(found: Iterable[Passage], right: frozenset[str] = frozenset()) -> Iterator[Fault]:
    """Each sentence with a word that is wrong; `right` are sentences in which it is not."""
    for passage in found:
        for sentence in passage.sentences():
            if sentence in right:
                continue
            text = RIGHT.sub("", sentence)
            for pattern, why in RULES:
                if match := pattern.search(text):
                    yield Fault(passage, sentence, f"'{match[0]}': {why}")


# --- how hard it is to read -------------------------------------------------------------------------------------------

WORD = re.compile(r"[A-Za-z][A-Za-z'-]*")


def syllables(word: str) -> int:
    """How many syllables an English word has, about: groups of vowels, a silent e at its end not counted."""
    word = re.sub(r"[^a-z]", "", word.lower())
    groups = len(re.findall(r"[aeiouy]+", word))
    if groups > 1 and re.search(r"[^aeiouyl]e$|[^aeiouytd]ed$|[^aeiouysxzcg]es$", word):
        groups -= 1
    return max(groups, 1)


def grade(sentences: Iterable[str]) -> float:
    """The years of school that a text asks for (Flesch and Kincaid): long sentences and long words raise it."""
    words = [words for sentence in sentences if len(words := WORD.findall(sentence.replace("CODE", "it"))) > 3]
    count = sum(map(len, words))
    if not count:
        return 0.0
    spoken = sum(syllables(word) for sentence in words for word in sentence)
    return 0.39 * count / len(words) + 11.8 * spoken / count - 15.59
