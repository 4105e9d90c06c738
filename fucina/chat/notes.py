"""A story as notes in a file, beside the rows of its tokens; and back.

The first note says what opened the conversation when the file was made, and stays for ever.  Then each turn has one.
Where the story is not as its latest turn left it, since turns were taken back, one more tells the place.  The first of
these tells the opening, if it has changed.

Each note tells how far the text went when it was written, with a checksum of the tokens.  So a file of which only a
part can be read gives the story of a moment that there was; at worst, that of before the first turn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from .. import checks
from ..errors import FucinaError, NotASavedConversation
from ..sampling import Grammar
from ..sampling.sampler import SamplerState
from .messages import Message, check_messages
from .story import Story, TurnRecord

KIND, VERSION = "conversation", 1


class Place(NamedTuple):
    """How far a story went: its tokens, their checksum, the draws that were made (None: none), `Story.complete`."""

    end: int
    check: int
    draws: tuple[int, int] | None
    complete: bool

    @classmethod
    def of(cls, story: Story, draws: SamplerState) -> Place:
        """The place of a story between turns."""
        made = (draws.seed, draws.position) if draws.position or story.turns else None
        return cls(len(story.tokens), checksum(story.tokens), made, story.complete)

    def agrees(self, tokens: Sequence[int]) -> bool:
        """Whether tokens begin as the story did."""
        return self.end <= len(tokens) and checksum(tokens[: self.end]) == self.check


START = Place(0, 0, None, True)


def checksum(tokens: Sequence[int]) -> int:
    """CRC-32 of token ids."""
    return crc32(np.asarray(tokens, "<u4").tobytes())


class Notes:
    """The notes of one conversation; those of turns that stay are made once."""

    def __init__(self) -> None:
        self._first = b""
        self._opening: tuple[list[Message], bool] = [], False  # of the first note: messages, whether they are told
        self._turns: list[tuple[TurnRecord, Place | None, bytes]] = []

    def of(self, story: Story, draws: SamplerState) -> list[bytes]:
        """All notes of a story between turns."""
        place = Place.of(story, draws)
        told = next((r.messages for r in story.turns if r.messages is not None), len(story.messages)) > 0
        opening = {"opening": story.opening, "told": told}
        if not self._first:
            self._opening = story.opening, told
            self._first = _packed({"fucina": KIND, "version": VERSION, **opening})
        changed = {} if (story.opening, told) == self._opening else opening
        known = 0
        for (record, _, _), other in zip(self._turns, story.turns, strict=False):
            if record is not other:
                break
            known += 1
        del self._turns[known:]
        for i, record in enumerate(story.turns[known:], known):
            at = place if i == len(story.turns) - 1 else None  # an earlier one is of a moment that is gone
            note = {**_turn(story, record), "at": at, **({} if i else changed)}
            self._turns.append((record, at, _packed(note)))
        notes = [self._first, *(note for _, _, note in self._turns)]
        if self._turns:
            return notes if self._turns[-1][1] == place else [*notes, _packed({"at": place})]
        return notes if place == START and not changed else [*notes, _packed({"at": place, **changed})]

    @classmethod
    def read(cls, raw: Sequence[bytes], tokens: Sequence[int]) -> tuple[Notes, Story, SamplerState | None]:
        """The latest story that notes and tokens agree about, and its draws; its tokens are a prefix of `tokens`.

        Raises
        ------
        NotASavedConversation : the notes are no conversation's.
        """
        try:
            notes = [json.loads(note) for note in raw]
            kind = notes[0].get("fucina") if notes else "text"
            if kind != KIND:
                raise NotASavedConversation(f"it holds {len(tokens)} tokens of a {kind}, and no conversation")
            if notes[0]["version"] != VERSION:
                raise NotASavedConversation(f"its notes are of version {notes[0]['version']}, expected {VERSION}")
            return cls._read(notes, raw, list(tokens))
        except (FucinaError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, NotASavedConversation):
                raise
            raise NotASavedConversation(f"its notes are no conversation's: {error!r}") from None

    @classmethod
    def _read(
        cls, notes: list[Any], raw: Sequence[bytes], tokens: list[int]
    ) -> tuple[Notes, Story, SamplerState | None]:
        self, story = cls(), _opened(notes[0])
        self._first, self._opening = raw[0], (story.opening, bool(notes[0]["told"]))
        best = Story(story.opening, [], list(story.opening)), START
        for note, packed in zip(notes[1:], raw[1:], strict=True):
            at = None if note["at"] is None else _place(note["at"])
            if "opening" in note:
                story = _opened(note)
            if "start" in note:
                story = _with_turn(story, note)
                self._turns.append((story.turns[-1], at, packed))
            if at is not None and at.agrees(tokens):
                best = story, at
        story, place = best
        story = story._replace(tokens=tokens[: place.end], complete=place.complete)
        return self, story, None if place.draws is None else SamplerState(*place.draws)


def _opened(note: Mapping[str, Any]) -> Story:
    opening: list[Message] = list(check_messages(note["opening"]))
    return Story(opening, [], list(opening) if note["told"] else [])


def _turn(story: Story, record: TurnRecord) -> dict[str, Any]:
    note: dict[str, Any] = {"start": record.start, "prompt_end": record.prompt_end}
    if record.messages is not None:
        user, reply = story.messages[record.messages : record.messages + 2]
        note |= {"user": user, "reply": reply["content"]}
    if record.grammar is not None:
        note["grammar"] = {"kind": record.grammar.kind, "program": record.grammar.program}
    return note


def _with_turn(story: Story, note: Mapping[str, Any]) -> Story:
    grammar = note.get("grammar")
    messages: list[Message] = list(story.messages)
    known = None
    if "user" in note:
        known = len(messages)
        messages += check_messages([note["user"], {"role": "assistant", "content": note["reply"]}])
    start = checks.integer("start", note["start"], 0)
    prompt_end = checks.integer("prompt_end", note["prompt_end"], start)
    compiled = None if grammar is None else Grammar(grammar["kind"], grammar["program"])
    return story._replace(messages=messages, turns=(*story.turns, TurnRecord(start, prompt_end, known, compiled)))


def _place(value: Sequence[Any]) -> Place:
    end, check, draws, complete = value
    if draws is not None:
        seed, position = draws
        draws = (checks.integer("seed", seed, 0), checks.integer("position", position, 0))
    return Place(checks.integer("end", end, 0), check, draws, bool(complete))


def _packed(note: dict[str, Any]) -> bytes:
    return json.dumps(note, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
