"""A conversation that is kept in a file.

The file is written after each event: a turn that is entered, turns that are taken back, a reset.  Only what is new is
written.  So whatever happens to the process, the file holds a conversation as it was after some event; a reply that was
being made when the process died is not part of it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from .. import checks
from ..engine.stream import rewind_point
from ..errors import ContextFull, InvalidOption, NotASavedConversation, SystemMismatch
from ..sampling.sampler import SamplerState
from ..saving import SaveFile
from .notes import Notes
from .token_conversation import TokenConversation

if TYPE_CHECKING:
    import os

    from .story import Story
    from .turn import Reply, Turn
    from .warm import WarmState


class SavedConversation(TokenConversation):
    """A conversation that may be kept in a file; `close` ends it, and so does the end of a `with` block."""

    _saving: Saving | None = None

    @property
    def save_path(self) -> Path | None:
        """The file that it is kept in."""
        return None if self._saving is None else self._saving.file.path

    @property
    def restored(self) -> int:
        """Tokens whose rows were read from the file when it was opened."""
        return 0 if self._saving is None else self._saving.restored

    @property
    def save_lost(self) -> str:
        """What a damaged file had lost when it was opened; "" if nothing."""
        return "" if self._saving is None else self._saving.file.lost

    @property
    def save_error(self) -> Exception | None:
        """Why the latest event is not in the file, or None.  The next event, and `close`, try again."""
        return None if self._saving is None else self._saving.file.error

    def close(self) -> None:
        """End the conversation, a reply that is being made with it; its file is released.  More than once is no error."""
        if self._state is not None:
            self._end_turn()
            self._save()
            self._state = None
        self._release_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def take_cache(self) -> WarmState:
        """End the conversation and give its cache away, with its tokens; its file is released.

        Raises
        ------
        ConversationClosed : it was taken already.
        """
        warm = super().take_cache()
        self._release_file()
        return warm

    def note_prefix_rows(self, rows: int) -> None:
        """Declare the rows that the cache holds a preloaded prefix: they belong to no token and are never dropped.

        Once, before the first turn, after the rows have been written into `cache`.

        Raises
        ------
        InvalidPrefix : the conversation has begun, or the cache does not hold exactly `rows` rows.
        """
        super().note_prefix_rows(rows)
        self._save()

    def _enter(self, turn: Turn, reply: Reply) -> None:
        if self._story.turn is turn:
            super()._enter(turn, reply)
        else:  # entered before, and interrupted, perhaps while it was written
            self._save()

    def _become(self, story: Story) -> None:
        super()._become(story)
        self._save()

    def _save(self) -> None:
        if self._saving is not None and self._state is not None:
            self._saving.write(self)

    def _release_file(self) -> None:
        if self._saving is not None:
            self._saving.file.close()

    def _open_file(self, path: str | os.PathLike[str], system: str | None, seeded: bool) -> None:
        """Go on with the conversation in a file, or begin one there.

        Parameters
        ----------
        system : the system message that was asked for; None asks for none in particular.
        seeded : whether a seed was asked for.
        """
        saving = Saving(SaveFile(path, self.model))
        try:
            saving.begin(self, system, seeded)
        except BaseException:
            saving.file.close()
            raise
        self._saving = saving
        if saving.fresh:
            saving.make(self)


class Saving:
    """A conversation's file, and what of the conversation it holds.

    Attributes
    ----------
    file : SaveFile
    restored : tokens whose rows were read.
    fresh : whether the file was empty.
    """

    def __init__(self, file: SaveFile) -> None:
        self.file = file
        self.restored, self.fresh = 0, file.empty
        self._notes = Notes()
        self._written: tuple[list[int], list[bytes], int] | None = None

    def begin(self, c: TokenConversation, system: str | None, seeded: bool) -> None:
        """Let a new conversation be what the file holds, if it holds anything.

        Raises
        ------
        SystemMismatch : the system message is another one.
        NotASavedConversation : it holds something else, or nothing of it can be read.
        ContextFull : it does not fit in the conversation's capacity.
        InvalidOption : the conversation begins with a cache, and the file is not empty.
        """
        path, state = self.file.path, c.cache
        if self.fresh:
            return
        if state.len or c.history:
            raise InvalidOption(
                f"{path}: holds a text already; a conversation that begins with a cache needs a new file"
            )
        if self.file.positions > state.capacity:
            raise ContextFull(
                f"{path}: holds {self.file.positions} positions, and the capacity is {state.capacity}; expected as many"
            )
        found = self.file.restore(state)
        if not found.notes and found.why:
            raise NotASavedConversation(
                f"{path}: nothing of it can be read: {found.why}; expected a conversation's file"
            )
        try:
            self._notes, story, draws = Notes.read(
                found.notes, checks.token_ids("tokens", found.tokens, c.model.n_tokens)
            )
        except NotASavedConversation as error:
            raise NotASavedConversation(f"{path}: {error}; expected a conversation's file, or a new one") from None
        _check_fits(path, c, story, system, found.prefix_rows)
        c.prefix_rows, c._story = found.prefix_rows, story
        if c.cache.len - c.prefix_rows > len(story.tokens):
            state.rewind(rewind_point(state, c.prefix_rows + len(story.tokens), c.prefix_rows))
        self.restored = state.len - c.prefix_rows
        if draws is not None and (not seeded or c.sampler.options.seed == draws.seed):
            c.sampler.options = replace(c.sampler.options, seed=draws.seed)
            c.sampler.restore(draws)
        if found.why:
            turns = len(story.turns)
            self.file.warn_of_loss(
                f"{found.why}; the conversation goes on as it was after {turns} turn{'' if turns == 1 else 's'}, "
                f"{len(story.tokens)} tokens, and what came later is lost"
            )
        self._written = list(story.tokens), self._notes.of(story, c.sampler.state()), c.prefix_rows

    def make(self, c: TokenConversation) -> None:
        """Begin the file: what opens the conversation comes first, so that nothing is ever written over it."""
        if c.cache.len and not c.prefix_rows:
            begun = self._notes.of(c._story._replace(tokens=[], turns=(), complete=True), SamplerState(0, 0))
            self.file.write(c.model.new_cache(1), [], 0, begun)
        self.write(c)

    def write(self, c: TokenConversation) -> None:
        """Let the file hold the conversation, if it does not yet."""
        notes = self._notes.of(c._story, c.sampler.state())
        now = list(c._story.tokens), notes, c.prefix_rows
        if now == self._written:
            return
        self._written = None  # from here on the file may hold anything that is true, until it is written
        try:
            if missing := c._story.tokens[
                c.cache.len - c.prefix_rows : -1
            ]:  # of a state that could not go back so little
                c.model.forward_rows([(c.cache, missing, "none")])
        except Exception as error:
            self.file.failed(error)
            return
        if self.file.write(c.cache, c._story.tokens, c.prefix_rows, notes):
            self._written = now


def _check_fits(path: Path, c: TokenConversation, story: Story, system: str | None, prefix_rows: int) -> None:
    """Raise an error unless the story of a file may become that of a conversation."""
    mine = next((m["content"] for m in story.system), None)
    if system is not None and system != mine:
        theirs = "none" if mine is None else checks.shown(mine)
        raise SystemMismatch(
            f"{path}: the system message of its conversation is {theirs}, and {checks.shown(system)} was given; leave it "
            "out to go on, or choose another file"
        )
    if prefix_rows + len(story.tokens) > c.capacity:
        raise ContextFull(
            f"{path}: its conversation has {prefix_rows + len(story.tokens)} positions, the capacity is {c.capacity}"
        )
