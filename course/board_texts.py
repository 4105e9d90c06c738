"""The texts of the boards: five kinds, each twice, so that what was tuned on one set is tried on another.

They are made by fixed rules from fixed seeds, so a score is the same number on every machine and every day.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

NOUNS = (
    "bridge river market lantern garden harbour letter clock window orchard miller tower road kettle ladder barn "
    "cellar meadow carpenter boat chapel widow baker fence roof candle mountain valley"
).split()
VERBS = (
    "carries crosses finds paints repairs leaves keeps counts opens closes borrows remembers follows measures".split()
)
ADJECTIVES = "old narrow quiet wooden grey early broken tall distant heavy yellow empty careful northern".split()
TAILS = (
    "before the rain",
    "in the evening",
    "for a small price",
    "without a word",
    "beside the mill",
    "as every year",
    "until the bell rings",
    "against all advice",
)
FIELDS = "name size colour weight origin price".split()


@dataclass(frozen=True, slots=True)
class Text:
    """A text as token ids; the first `prompt` of them are given, the others are what the model is going to say."""

    kind: str
    ids: tuple[int, ...]
    prompt: int


def _sentence(chance: random.Random) -> str:
    noun, other = chance.sample(NOUNS, 2)
    tail = f" {chance.choice(TAILS)}" if chance.random() < 0.6 else ""
    return (
        f"The {chance.choice(ADJECTIVES)} {noun} {chance.choice(VERBS)} the {chance.choice(ADJECTIVES)} {other}{tail}."
    )


def _prose(chance: random.Random) -> tuple[str, str]:
    sentences = [_sentence(chance) for _ in range(40)]
    return " ".join(sentences[:6]), " ".join(sentences[6:])


def _quotation(chance: random.Random) -> tuple[str, str]:
    """A passage, then the same passage again with one word changed here and there."""
    passage = [_sentence(chance) for _ in range(14)]
    again = [s.replace("The", "Her", 1) if chance.random() < 0.25 else s for s in passage]
    return "Copy this with care: " + " ".join(passage), " ".join([_sentence(chance), *again, _sentence(chance)])


def _code(chance: random.Random) -> tuple[str, str]:
    blocks = []
    for noun in chance.sample(NOUNS, 9):
        field = chance.choice(FIELDS)
        blocks.append(
            f"def set_{field}(self, {noun}):\n    if {noun} is None:\n        raise ValueError('no {noun}')\n"
            f"    self.{field} = {noun}\n    return self\n"
        )
    return blocks[0], "\n".join(blocks[1:])


def _records(chance: random.Random) -> tuple[str, str]:
    rows = []
    for noun in chance.sample(NOUNS, 12):
        rows.append(
            f'{{"name": "{noun}", "colour": "{chance.choice(ADJECTIVES)}", "size": {chance.randrange(2, 40)}, '
            f'"origin": "{chance.choice(NOUNS)}"}},'
        )
    return "\n".join(rows[:2]), "\n".join(rows[2:])


def _dialogue(chance: random.Random) -> tuple[str, str]:
    lines, things = [], chance.sample(NOUNS, 5)
    for turn in range(30):
        thing = chance.choice(things)
        ask = f"Where is the {thing}?" if turn % 2 == 0 else f"The {thing} is {chance.choice(TAILS)}, I think."
        lines.append(f"{'Anna' if turn % 2 == 0 else 'Peter'}: {ask}")
    return "\n".join(lines[:4]), "\n".join(lines[4:])


KINDS = {"prose": _prose, "quotation": _quotation, "code": _code, "records": _records, "dialogue": _dialogue}


def tokens_of(text: str, numbers: dict[str, int]) -> list[int]:
    """A text in pieces: words of up to five letters, spaces, signs.  `numbers` grows with each new piece."""
    pieces = re.findall(r"[A-Za-z]{1,5}|\d|\s+|[^\sA-Za-z\d]", text)
    return [numbers.setdefault(piece, len(numbers)) for piece in pieces]


def texts(held_out: bool = False) -> list[Text]:
    """The five texts that everybody sees, or the five that are held out."""
    numbers: dict[str, int] = {}
    made = []
    for i, (kind, make) in enumerate(KINDS.items()):
        given, said = make(random.Random(100 * i + (71 if held_out else 7)))
        ids, rest = tokens_of(given + "\n", numbers), tokens_of(said, numbers)
        made.append(Text(kind, (*ids, *rest), len(ids)))
    return made
