"""Texts to measure tokenizers with: prose, code, Chinese and logs, of any length, from what every Python has or by formula."""

from __future__ import annotations

import math
import random
from itertools import count

from .index import real_text

_LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "WARNING", "ERROR")
_PARTS = ("http.server", "db.pool", "scheduler", "cache.disk", "auth", "worker-3")


def _cut(pieces: list[str], size: int) -> str:
    raw = "".join(pieces).encode()[:size]
    return raw.decode("utf-8", "ignore")


def prose(size: int) -> str:
    """English: the topics of Python's own help, again and again until there is enough."""
    from pydoc_data.topics import topics

    page = "\n\n".join(topics[name] for name in sorted(topics))
    return _cut([page] * (1 + size // len(page)), size)


def code(size: int) -> str:
    """Python: the standard library."""
    pieces, length = [], 0
    for page in real_text():
        pieces.append(page)
        length += len(page)
        if length > size:
            break
    return _cut(pieces, size)


def chinese(size: int) -> str:
    """Characters of Chinese, drawn as often as their rank in a list of 3,500 allows, in sentences of words of one to four."""
    draw = random.Random(1)
    letters = [chr(0x4E00 + i * 5) for i in range(3500)]
    draw.shuffle(letters)
    words = [
        "".join(letters[int(3500 ** draw.random()) - 1] for _ in range(draw.choice((1, 2, 2, 2, 3, 4))))
        for _ in range(30_000)
    ]
    pieces, length = [], 0
    while length < size:
        sentence = "".join(words[int(30_000 ** draw.random()) - 1] for _ in range(draw.randint(3, 14)))
        pieces.append(sentence + draw.choice("，，。。！？\n"))
        length += 3 * len(pieces[-1])
    return _cut(pieces, size)


def logs(size: int) -> str:
    """Lines with times, addresses, numbers and names."""
    draw = random.Random(2)
    pieces, length = [], 0
    for second in count():
        line = (
            f"2026-03-{1 + second // 86400 % 28:02d}T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}."
            f"{draw.randrange(10**6):06d}Z {draw.choice(_LEVELS)} [{draw.choice(_PARTS)}] "
            f"10.{draw.randrange(256)}.{draw.randrange(256)}.{draw.randrange(256)} GET /api/v2/items/{draw.randrange(10**7)}"
            f"?q={draw.getrandbits(40):x} {draw.choice((200, 200, 200, 304, 404, 500))} {math.exp(draw.gauss(3, 1)):.3f}ms\n"
        )
        pieces.append(line)
        length += len(line)
        if length > size:
            return _cut(pieces, size)
    raise AssertionError


TEXTS = {"prose": prose, "code": code, "chinese": chinese, "logs": logs}
