"""Prompts on which speculation is measured.  Fixed before anything was measured; changing one changes every figure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

MAX_TOKENS = 160
SEED = 7


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt of a kind.

    kind, index : name it.  text : what the user says (chat), or the beginning of a text (not chat).
    references : documents given to the index of drafts.  sampling : options of `generate`.
    """

    kind: str
    index: int
    text: str
    chat: bool = True
    references: tuple[str, ...] = ()
    sampling: dict[str, Any] = field(default_factory=dict)


PASSAGES = (
    (
        "The harbour of Orlen was dug by hand in 1742, when the town's council decided that the old river mouth had become too "
        "shallow for grain ships. Four hundred men worked for three summers with wooden shovels and ox carts. The stone they cut "
        "from the eastern bank was used to build the customs house, which still stands beside the lock and now holds a small "
        "museum of ropes, anchors and navigation lamps."
    ),
    (
        "Bees find their way by the sun. A forager that has discovered a field of clover returns to the hive and dances on the "
        "comb: the angle of her run against the vertical is the angle between the field and the sun, and the length of the run "
        "tells the distance. Other workers follow the dance in the dark, touching her with their antennae, and then fly out along "
        "the same line, even when a hill lies between the hive and the flowers."
    ),
    (
        "To make the bread, mix five hundred grams of strong flour with ten grams of salt and a spoonful of honey. Dissolve the "
        "yeast in three hundred grams of lukewarm water and pour it into the bowl. Knead for ten minutes until the dough is "
        "smooth, cover it with a damp cloth and let it rise for an hour. Shape a loaf, let it rest for thirty minutes, and bake it "
        "at two hundred and twenty degrees until the crust sounds hollow."
    ),
    (
        "The committee met on Tuesday to discuss the new timetable of the night buses. Ms Okafor reported that line 14 had carried "
        "twice as many passengers in March as in February, while line 9 had often been empty after midnight. It was agreed to move "
        "one vehicle from line 9 to line 14 from the first of May, to publish the change in both newspapers, and to ask the drivers "
        "for their opinion at the end of June."
    ),
    (
        "A glacier is a river of ice. Snow that falls on the upper slopes is pressed together by the snow of later years until the "
        "air is squeezed out and blue ice remains. Under its own weight the ice begins to creep downhill, faster in the middle than "
        "at the edges, carrying stones and sand along. Where it reaches warmer ground it melts, and the stones that it drops form "
        "long ridges that show, thousands of years later, how far the ice once came."
    ),
    (
        "Professor Lindqvist kept her notebooks in a tin trunk under the stairs. Each had a date on the cover and a pressed flower "
        "inside, taken from the meadow where the measurements of that day had been made. When the trunk was opened after forty "
        "years, the ink had faded but the flowers could still be named, and with them the botanists of the institute reconstructed "
        "which meadows had been wet and which had been dry in every summer since 1951."
    ),
    (
        "The violin is tuned in fifths: the lowest string to G, then D, A and E. The player changes the pitch by pressing a string "
        "against the fingerboard, which shortens the part that can vibrate. The bow, strung with horse hair and rubbed with rosin, "
        "catches the string, pulls it aside and lets it slip back several hundred times a second. The bridge passes this movement to "
        "the belly of the instrument, which is large enough to set the air of a whole room in motion."
    ),
    (
        "Before the railway came, letters between the two valleys were carried over the pass by a woman called Marta Brenn. She made "
        "the crossing twice a week from April to November, on foot, with a leather bag and a dog. In winter the post waited in a hut "
        "below the summit, and people on either side got used to reading their news in spring. The hut is a shelter for hikers today, "
        "and her bag hangs on a nail beside the door."
    ),
    (
        "Customers may return any article within thirty days of delivery, provided that it is unused and in its original packaging. "
        "To return an article, fill in the form that was enclosed with the parcel and hand the parcel to any post office. The price "
        "is refunded within five working days after we have received it. Costs of delivery are refunded only if the article was "
        "damaged or if another article than the one ordered was sent."
    ),
    (
        "Tides are caused by the moon and, to a lesser degree, by the sun. The moon pulls the water on the near side of the earth more "
        "strongly than the earth itself, and the water on the far side less strongly, so that two bulges form. As the earth turns, "
        "each place passes through both in a little more than a day. At new moon and at full moon the sun and the moon pull along the "
        "same line, and the tides are highest; at half moon they partly cancel each other."
    ),
)

QUESTIONS = (
    "Why was the harbour dug, and what became of the stone?",
    "How does a forager tell the other bees where a field is?",
    "What has to be done after the dough has been kneaded?",
    "What did the committee agree to do about lines 9 and 14?",
    "How does snow become ice, and what do the stones show?",
    "How could the botanists reconstruct which meadows had been wet?",
    "How does the movement of the bow reach the air of a room?",
    "Who carried the letters, how often, and what happened in winter?",
    "Under which conditions may an article be returned, and when are costs of delivery refunded?",
    "When are the tides highest, and why?",
)

CODE = (
    (
        (
            "def mean(values):\n    total = 0.0\n    count = 0\n    for value in values:\n        total += value\n        count += 1\n"
            "    if count == 0:\n        raise ValueError('no values')\n    return total / count\n"
        ),
        "Rename the variable `total` to `result`.",
    ),
    (
        (
            "def find(items, wanted):\n    for index, item in enumerate(items):\n        if item == wanted:\n            return index\n"
            "    return -1\n\n\ndef contains(items, wanted):\n    return find(items, wanted) >= 0\n"
        ),
        "Return None instead of -1 and adapt `contains`.",
    ),
    (
        (
            "class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n\n"
            "    def pop(self):\n        return self.items.pop()\n\n    def __len__(self):\n        return len(self.items)\n"
        ),
        "Add a method `peek` that returns the last item.",
    ),
    (
        (
            "def read_config(path):\n    config = {}\n    with open(path) as file:\n        for line in file:\n            key, value = line.split('=')\n"
            "            config[key.strip()] = value.strip()\n    return config\n"
        ),
        "Skip lines that are empty.",
    ),
    (
        (
            "def area(shape):\n    if shape['kind'] == 'circle':\n        return 3.14159 * shape['radius'] ** 2\n    if shape['kind'] == 'square':\n"
            "        return shape['side'] ** 2\n    raise ValueError(shape['kind'])\n"
        ),
        "Use math.pi instead of the number.",
    ),
    (
        (
            "def count_words(text):\n    counts = {}\n    for word in text.split():\n        if word in counts:\n            counts[word] += 1\n"
            "        else:\n            counts[word] = 1\n    return counts\n"
        ),
        "Make it ignore upper and lower case.",
    ),
    (
        (
            "def fetch(client, url, retries=3):\n    for attempt in range(retries):\n        response = client.get(url)\n        if response.status == 200:\n"
            "            return response.body\n    raise RuntimeError('no answer from ' + url)\n"
        ),
        "Rename the parameter `client` to `session`.",
    ),
    (
        (
            "def merge(left, right):\n    result = []\n    i = j = 0\n    while i < len(left) and j < len(right):\n        if left[i] <= right[j]:\n"
            "            result.append(left[i])\n            i += 1\n        else:\n            result.append(right[j])\n            j += 1\n"
            "    return result + left[i:] + right[j:]\n"
        ),
        "Add a docstring to the function.",
    ),
    (
        "SELECT name, city, balance\nFROM customers\nWHERE balance > 1000\n  AND city = 'Turin'\nORDER BY balance DESC;\n",
        "Show only the first ten rows.",
    ),
    (
        (
            "function greet(user) {\n  const name = user.name || 'guest';\n  const hour = new Date().getHours();\n  if (hour < 12) {\n"
            "    return 'Good morning, ' + name;\n  }\n  return 'Good day, ' + name;\n}\n"
        ),
        "Add a greeting for the evening, after 18 o'clock.",
    ),
)

STORIES = (
    "Write a story about a lighthouse keeper who finds a letter in a bottle.",
    "Describe a market in a city that does not exist.",
    "Write about a child who learns to whistle.",
    "Tell the story of two clocks that disagree.",
    "Describe the first day of snow from the point of view of a cat.",
    "Write a short story about a train that never arrives.",
    "Tell me about an old gardener and her favourite tree.",
    "Write a dialogue between the sea and a stone.",
    "Describe a journey through a desert by night.",
    "Write a story about a musician who loses the sense of hearing.",
)


def tasks() -> Iterator[Task]:
    """All prompts, kind by kind."""
    for i, passage in enumerate(PASSAGES):
        copying = f"Copy the following text exactly, word for word, without any comment.\n\n{passage}"
        yield Task("grounded copy", i, copying)
        yield Task("grounded copy, t = 0.7", i, copying, sampling={"temperature": 0.7, "seed": SEED + i})
        # a text of two repetitions goes on with a third: its period is longer than the loops that are set apart
        yield Task("verbatim repetition", i, f"{passage}\n\n{passage}\n\n", chat=False)
        question = f"{passage[: len(passage) // 2].rsplit(' ', 1)[0]} ...\n\n{QUESTIONS[i]} Quote the text."
        yield Task("question over a reference", i, question, references=(passage,))
        yield Task("summary", i, f"Summarise the following text in two sentences.\n\n{passage}")
    for i, (code, change) in enumerate(CODE):
        yield Task("code edit", i, f"{change} Answer with the whole code and nothing else.\n\n```\n{code}```")
    for i, story in enumerate(STORIES):
        yield Task("free prose", i, story)


KINDS = tuple(dict.fromkeys(t.kind for t in tasks()))
