"""A story as notes in a file, beside the rows of its tokens; and back.

The first note says what opens the conversation, then each turn has one.  Where the story is not as its latest turn left
it, since turns were taken back, one more tells the place.  Each note tells how far the text went when it was written,
with a checksum of the tokens: so a file of which only a part can be read gives the story of a moment that there was, or
of before the first turn.
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
    def of(cls, story: Story, draws: SamplerState | None) -> Place:
        """The place of a story between turns."""
        made = None if draws is None or not (draws.position or story.turns) else (draws.seed, draws.position)
        return cls(len(story.tokens), checksum(story.tokens), made, story.complete)


START = Place(0, 0, None, True)


def checksum(tokens: Sequence[int]) -> int:
    """CRC-32 of token ids."""
    return crc32(np.asarray(tokens, "<u4").tobytes())


class Notes:
    """The notes of one conversation; those of turns that stay are made once."""

    def __init__(self) -> None:
        self._opening: tuple[list[Message], bool, bytes] | None = None  # messages, whether they are told, the note
        self._turns: list[tuple[TurnRecord, Place | None, bytes]] = []

    def of(self, story: Story, draws: SamplerState) -> list[bytes]:
        """All notes of a story between turns."""
        place = Place.of(story, draws)
        known = 0
        for (record, _, _), other in zip(self._turns, story.turns, strict=False):
            if record is not other:
                break
            known += 1
        del self._turns[known:]
        for i, record in enumerate(story.turns[known:], known + 1):
            at = place if i == len(story.turns) else None  # an earlier one, of a moment that is gone
            self._turns.append((record, at, _packed(_turn(story, record, at))))
        told = next((r.messages for r in story.turns if r.messages is not None), len(story.messages)) > 0
        if self._opening is None or not story.turns or self._opening[:2] != (story.opening, told):
            at = START if story.turns else place
            note = {"fucina": KIND, "version": VERSION, "opening": story.opening, "told": told, "at": at}
            self._opening = story.opening, told, _packed(note)
        notes = [self._opening[2], *(note for _, _, note in self._turns)]
        if not self._turns or self._turns[-1][1] == place:
            return notes
        return [*notes, _packed({"place": place})]

    @classmethod
    def read(cls, raw: Sequence[bytes], tokens: Sequence[int]) -> tuple[Notes, Story, SamplerState | None]:
        """The latest story that notes and tokens agree about, and its draws; its tokens are a prefix of `tokens`.

        Raises
        ------
        NotASavedConversation : the notes are no conversation's.
        """
        try:
            return cls._read([json.loads(note) for note in raw], raw, list(tokens))
        except (FucinaError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, NotASavedConversation):
                raise
            raise NotASavedConversation(f"its notes are no conversation's: {error!r}") from None

    @classmethod
    def _read(
        cls, notes: list[Any], raw: Sequence[bytes], tokens: list[int]
    ) -> tuple[Notes, Story, SamplerState | None]:
        if not notes or not isinstance(notes[0], dict) or notes[0].get("fucina") != KIND:
            kind = notes[0].get("fucina") if notes and isinstance(notes[0], dict) else None
            raise NotASavedConversation(
                f"it holds {len(tokens)} tokens of {'a ' + str(kind) if kind else 'some text'} and no conversation"
            )
        if notes[0]["version"] != VERSION:
            raise NotASavedConversation(f"its notes are of version {notes[0]['version']}, expected {VERSION}")
        first, self = notes[0], cls()
        opening: list[Message] = list(check_messages(first["opening"]))
        self._opening = opening, bool(first["told"]), raw[0]
        story = Story(opening, [], list(opening) if first["told"] else [])
        begun = _place(first["at"])
        best = (story, begun, 0) if _is_at(begun, tokens) else (Story(opening, [], list(opening)), START, 0)
        for note, bytes_ in zip(notes[1:], raw[1:], strict=True):
            if "place" in note:
                at: Place | None = _place(note["place"])
            else:
                at = None if note["at"] is None else _place(note["at"])
                story = _with_turn(story, note)
                self._turns.append((story.turns[-1], at, bytes_))
            if at is not None and _is_at(at, tokens):
                best = story, at, len(self._turns)
        story, place, count = best
        del self._turns[count:]
        story = story._replace(tokens=tokens[: place.end], complete=place.complete)
        return self, story, None if place.draws is None else SamplerState(*place.draws)


def _turn(story: Story, record: TurnRecord, at: Place | None) -> dict[str, Any]:
    note: dict[str, Any] = {"start": record.start, "prompt_end": record.prompt_end, "at": at}
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
    record = TurnRecord(
        start, prompt_end, known, None if grammar is None else Grammar(grammar["kind"], grammar["program"])
    )
    return story._replace(messages=messages, turns=(*story.turns, record))


def _place(value: Sequence[Any]) -> Place:
    end, check, draws, complete = value
    if draws is not None:
        seed, position = draws
        draws = (checks.integer("seed", seed, 0), checks.integer("position", position, 0))
    return Place(checks.integer("end", end, 0), check, draws, bool(complete))


def _is_at(place: Place, tokens: Sequence[int]) -> bool:
    """Whether a text has been at a place that it may have gone on from."""
    return place.end <= len(tokens) and checksum(tokens[: place.end]) == place.check


def _packed(note: dict[str, Any]) -> bytes:
    return json.dumps(note, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
