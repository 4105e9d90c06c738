"""The pool that requests take states from and give them back to; see `fucina.cache.pool`."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ... import checks
from ...errors import EmptyInput, InvalidOption, InvalidPrefix, KvCacheOverflow, PoolClosed
from ...interrupts import HoldInterrupts
from ..memory import bytes_held
from ..rows import append_rows, held_from, recurrent_positions
from .disk import DiskTier
from .scope import scope_of
from .slot import Slot
from .stats import PoolStats
from .store import RowStore, Victim, offer_of
from .tree import TOKEN, path_of_text
from .writer import Writer

if TYPE_CHECKING:
    from ...engine import Engine
    from ..state import State


class SlotPool:
    """States with the rows of earlier requests.

    A request begins with tokens that an earlier one had: a chat that goes on, a system prompt that many share, a
    question asked again.  Every row has the same bits whoever computes it, so a copied row is not an approximation.

    Texts are kept in prefix trees: what two have in common is stored once.  The rows of a request are copied into a
    state of its own, so nothing that it does changes what others find.

    Rows are shared within a *tenant* alone.  What another tenant has stored is never found, compared or counted; the
    budget is common, so that one tenant's texts can push another's out.

    Safe under threads, and Ctrl-C at any moment leaves a pool that can go on.

    Parameters
    ----------
    model : Model or Engine
    memory : int or str
        Bytes that stored rows may take, as a number or like "512MiB", "1GiB".  States in use are not part of it: they
        belong to their requests.
    disk : path, optional
        A folder for texts that memory has no room for, made if it does not exist.  Files of earlier pools are used
        again.  Without one, what is pushed out of memory is lost.
    disk_bytes : int or str
        Bytes that this model's files there may take; from the start, so that a smaller number than before removes some.
    background : bool
        Write these files on a thread, as a server does: whoever gives rows back does not wait for the disk.  Texts that
        wait to be written take up to a quarter of `memory` besides; more are lost, and counted.  `close` waits.

    Raises
    ------
    InvalidOption : no such budget.  KvFileError : the folder cannot be made or read.
    """

    def __init__(
        self,
        model: Engine,
        memory: int | str = "1GiB",
        disk: str | os.PathLike[str] | None = None,
        disk_bytes: int | str = "4GiB",
        *,
        background: bool = False,
    ) -> None:
        self.model = model
        layout = model.new_cache(1).layout
        self._rows = RowStore(layout, model.cache_dtype, checks.byte_count("memory", memory))
        if disk is not None and not (isinstance(disk, (str, os.PathLike)) and os.fspath(disk)):
            raise InvalidOption(f"disk must be the path of a folder, got {disk!r}")
        self._disk = None if disk is None else DiskTier(model, Path(disk), checks.byte_count("disk_bytes", disk_bytes))
        self._writer = Writer(self._rows.budget // 4, background)
        self._lock = threading.Lock()
        self._in_use: weakref.WeakSet[Slot] = weakref.WeakSet()
        self._closed = False
        self._requests = self._hits = self._asked = self._reused = 0

    def __repr__(self) -> str:
        stats = self.stats()
        return f"SlotPool({stats.entries} texts, {stats.bytes} of {stats.budget} bytes, {stats.in_use} slots in use)"

    # --- taking and giving back ---------------------------------------------------------------------------------------

    def acquire(
        self,
        ids: Sequence[int],
        *,
        tenant: str = "",
        selection: str = "",
        prefix_rows: int = 0,
        capacity: int | None = None,
    ) -> Slot:
        """Return a state that holds rows of as many of these tokens as the pool knows, all but the last at most.

        Parameters
        ----------
        ids : the whole text of the request, at least one token.
        tenant : whose texts may be found.
        selection, prefix_rows : name of the rows that lie before the first token, and their number.  Only texts after
            the same prefix are found.
        capacity : positions of the state; default: the model's context.

        Raises
        ------
        EmptyInput : no token.  TokenOutOfRange, InvalidOption : ids or tenant that are none.
        KvCacheOverflow : the tokens do not fit.  PoolClosed : after `close`.
        """
        ids = checks.token_ids("ids", ids, self.model.n_tokens)
        if not ids:
            raise EmptyInput("a slot is acquired for at least one token, got none")
        scope = scope_of(tenant, selection, prefix_rows)
        state = self.model.new_cache(capacity)
        length = prefix_rows + len(ids)
        if length > state.capacity:
            raise KvCacheOverflow(f"{length} positions were asked for, the capacity is {state.capacity}")
        path = path_of_text(ids, prefix_rows)
        with HoldInterrupts(), self._lock:
            self._check_open()
            match = self._rows.find(scope, path, length - 1)
        found = None
        if self._disk is not None:
            gate = prefix_rows + len(ids) // 10
            found = self._disk.restore(scope, path, gate, max(match.point, prefix_rows), state.capacity)
        if found is not None:
            state = found
        elif match.point >= max(prefix_rows, 1):
            append_rows(state, match.pieces, match.low, match.bank)
        slot = Slot(self, state, scope, ids, prefix_rows, max(match.shared, state.len) - prefix_rows)
        with HoldInterrupts(), self._lock:
            self._requests += 1
            self._hits += slot.cached > 0
            self._asked += len(ids)
            self._reused += slot.cached
            self._in_use.add(slot)
        return slot

    def store(
        self, state: State, tokens: Sequence[int], *, tenant: str = "", selection: str = "", prefix_rows: int = 0
    ) -> None:
        """Keep the rows of a state for others to begin with, and leave the state to its owner.

        To be called at the end of what many texts will share, such as a system prompt: windows and recurrent parts
        can only be gone on from at places where they were stored.

        Parameters
        ----------
        state : of this model; no other thread uses it meanwhile.
        tokens : those whose rows it holds, after `prefix_rows` rows; its rows of later tokens are not stored.

        Raises
        ------
        KvCacheShapeMismatch : a state of another model.  TokenOutOfRange, InvalidOption, InvalidPrefix, PoolClosed.
        """
        self._store(state, tokens, scope_of(tenant, selection, prefix_rows), prefix_rows)

    def _store(self, state: State, tokens: Sequence[int], scope: bytes, prefix_rows: int) -> None:
        self.model.check_state(state)
        self._keep(state, tokens, scope, prefix_rows, None)

    def _release(self, slot: Slot, tokens: Sequence[int]) -> None:
        mine = object()
        try:
            with HoldInterrupts(), self._lock:
                state = slot._claimed_by(mine)
            self._keep(state, tokens, slot._scope, slot.prefix_rows, slot)
        finally:
            slot._unclaim(mine)  # it failed, or Ctrl-C came: the slot is still its owner's

    def _discard(self, slot: Slot) -> None:
        with HoldInterrupts(), self._lock:
            slot._claimed_by(slot._pool)
            self._give_back(slot)

    def _give_back(self, slot: Slot) -> None:
        self._in_use.discard(slot)
        slot._gone()

    def _keep(self, state: State, tokens: Sequence[int], scope: bytes, prefix_rows: int, slot: Slot | None) -> None:
        """Store a text's rows; of a slot, which is given back by the same step."""
        tokens = checks.token_ids("tokens", tokens, self.model.n_tokens)
        state.rollback()
        if state.len < prefix_rows:
            raise InvalidPrefix(f"{prefix_rows} rows of prefix were declared, the state holds {state.len}")
        length = min(prefix_rows + len(tokens), state.len)  # neither more tokens than rows, nor more rows than tokens
        path = path_of_text(tokens[: length - prefix_rows], prefix_rows)
        low = held_from(state)
        marks = [mark for mark in recurrent_positions(state) if mark <= length]
        # The gate asks whether an older text is a good part of the new prompt; what `store` kept supersedes nothing.
        longest_kept = length if slot is None else prefix_rows + slot._asked // 10
        done = False
        while not done:
            with HoldInterrupts(), self._lock:
                self._check_open()
                need = self._rows.need(scope, path, low, marks)
            offer = offer_of(state, need, length, low)
            with HoldInterrupts(), self._lock:
                large = length > 0 and not self._rows.fits(offer)
                done = large or length == 0 or self._rows.put(scope, path, offer, slot is None, longest_kept)
                if done:
                    self._rows.too_large += large
                    victims = self._rows.shrink(self._disk is not None)
                    if slot is not None:
                        self._give_back(slot)
        self._spill(victims, path)
        if large and slot is not None and (disk := self._disk) is not None:  # the state is nobody's any more
            state.rewind(state.rewind_point(length))
            own, banks = path[: state.len * TOKEN], len(recurrent_positions(state))
            size = bytes_held(state.layout, state.dtype, state.capacity, state.len)
            self._writer.put(size, lambda: disk.keep(scope, own, lambda: state, banks))

    def _spill(self, victims: Sequence[Victim], new: bytes = b"") -> None:
        if (disk := self._disk) is not None:
            for victim in victims:
                size = sum(piece.nbytes for piece in victim.match.pieces)
                self._writer.put(size, partial(disk.spill, victim, new))

    # --- the pool itself ----------------------------------------------------------------------------------------------

    def stats(self) -> PoolStats:
        """What the pool has done so far, and what it holds."""
        with HoldInterrupts(), self._lock:
            store, disk = self._rows, self._disk
            files, size = (0, 0) if disk is None else disk.counts()
            return PoolStats(
                requests=self._requests,
                hits=self._hits,
                rows_asked=self._asked,
                rows_reused=self._reused,
                rows_stored=store.rows_stored,
                evictions=store.evictions,
                too_large=store.too_large,
                visits=store.usage.visits,
                entries=len(store),
                bytes=store.usage.bytes,
                budget=store.budget,
                in_use=len(self._in_use),
                spills=0 if disk is None else disk.spills,
                restores=0 if disk is None else disk.restores,
                files=files,
                disk_bytes=size,
                disk_budget=0 if disk is None else disk.budget,
                disk_errors=self._writer.errors + (0 if disk is None else disk.errors),
                lost=self._writer.lost,
                writing=self._writer.waiting,
            )

    def resize(self, memory: int | str) -> None:
        """Let stored rows take so many bytes from now on; texts that have no room go, as after a release.

        Raises
        ------
        InvalidOption : no such budget.  PoolClosed : after `close`.
        """
        budget = checks.byte_count("memory", memory)
        with HoldInterrupts(), self._lock:
            self._check_open()
            self._rows.budget = budget
            victims = self._rows.shrink(self._disk is not None)
        self._spill(victims)

    def flush(self) -> None:
        """Wait until all texts that are on their way to disk are there."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is in memory to disk, if there is a folder, and forget it.  Slots in use can only be discarded."""
        with HoldInterrupts(), self._lock:
            self._closed = True
            victims = self._rows.clear(self._disk is not None)
        self._writer.close()
        self._spill(victims)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise PoolClosed("this pool was closed; expected a new SlotPool")
