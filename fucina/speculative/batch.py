"""Several streams, one pass: every stream drafts, and all rows of all streams are verified together.

Each row has the bits that it would have alone, so each stream commits what it would commit alone.  What one stream's
drafts add to the pass is paid by all of them; the gates therefore look at the cost of the whole pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter

import numpy as np

from ..decoding import Decoder, DecodeStream, PassTaken, RowModel
from ..errors import EmptyInput, SharedStream
from ..ops.rows import MAX_ROWS
from .cost_gate import VerifyCost
from .options import Options


class BatchMember:
    """One stream of a batch and the decoder that drafts for it.

    Attributes
    ----------
    error : what ended this stream, if it failed; the others go on.
    """

    __slots__ = ("decoder", "error", "stream")

    def __init__(self, stream: DecodeStream, decoder: Decoder) -> None:
        self.stream, self.decoder = stream, decoder
        self.error: Exception | None = None

    @property
    def live(self) -> bool:
        """Whether the stream takes part in the next pass: its turn goes on, and a row fits in its cache."""
        return self.error is None and not self.stream.ended and self.stream.room > 0


class BatchDecoder:
    """Decodes streams together, with or without drafts; streams may be added and removed between steps.

    Parameters
    ----------
    model : Model, or anything that has its `forward_rows`.
    options : Options, optional
        Only its cost table is used; each decoder has options of its own.  Decoders with the same table share the
        batch's prices, which begin with what the first of them has learned.
    timed : whether measured times may rescale the cost table.
    """

    def __init__(self, model: RowModel, options: Options | None = None, timed: bool = True) -> None:
        self.model, self.timed = model, timed
        self.cost = VerifyCost(options)
        self.members: list[BatchMember] = []

    def add(self, stream: DecodeStream, decoder: Decoder | None = None) -> BatchMember:
        """Add a stream that is ready for a step (see `Decoder.bootstrap_step`); its decoder is a plain one by default.

        Raises
        ------
        SharedStream : its cache, sampler, processor, history, decoder or draft source belongs to a stream of the batch.
        """
        member = BatchMember(stream, Decoder(self.model) if decoder is None else decoder)
        taken = {id(thing): name for other in self.members for name, thing in _own_things(other)}
        for name, thing in _own_things(member):
            if id(thing) in taken:
                raise SharedStream(
                    f"the {name} is already that of another stream of this batch; every stream needs its own"
                )
        self._share_prices(member.decoder)
        self.members.append(member)
        return member

    def _share_prices(self, decoder: Decoder) -> None:
        """Let a decoder choose its drafts by the prices that the batch will charge, and the batch begin with its own."""
        own = getattr(decoder, "cost", None)
        if not isinstance(own, VerifyCost) or own.table != self.cost.table or decoder.timed != self.timed:  # type: ignore[attr-defined]
            return
        shared = any(getattr(m.decoder, "cost", None) is self.cost for m in self.members)
        if self.cost.untouched and not shared:
            self.cost = own
        else:
            decoder.cost = self.cost  # type: ignore[attr-defined]

    def remove(self, member: BatchMember) -> None:
        """Take a stream out."""
        self.members.remove(member)

    @property
    def live(self) -> list[BatchMember]:
        """The streams that the next step will move."""
        return [m for m in self.members if m.live]

    def step(self) -> list[int]:
        """Run one pass for all live streams; return how many tokens each member of the batch committed.

        A source, sampler, processor or sink that raises ends its own stream (`BatchMember.error`).  An error of the
        pass itself is raised and leaves every stream as it was before the step.

        Raises
        ------
        EmptyInput : no stream is live.
        """
        live = self.live
        if not live:
            raise EmptyInput("a batch step needs at least one stream whose turn goes on")
        committed = dict.fromkeys(map(id, self.members), 0)
        plans = self._plan(live)
        if plans:
            streams = [m.stream for m, _ in plans]
            context = float(np.mean([s.cache.len for s in streams]))
            start = perf_counter()
            rows = self.model.forward_rows([(m.stream.cache, [m.stream.history[-1], *d], "all") for m, d in plans])
            taken = self._price(len(plans), sum(len(d) for _, d in plans), context, perf_counter() - start)
            self._settle(plans, rows, taken, committed)
        return [committed[id(m)] for m in self.members]

    def _plan(self, live: list[BatchMember]) -> list[tuple[BatchMember, list[int]]]:
        most = MAX_ROWS // len(live) - 1  # all rows in one pass
        plans = []
        for member in live:
            member.decoder.streams = len(live)
            try:
                plans.append((member, member.decoder.plan(member.stream, max(most, 0))))
            except Exception as error:
                member.error = error
        return plans

    def _price(self, streams: int, drafted: int, context: float, seconds: float) -> PassTaken:
        rows = streams + drafted
        if drafted:
            cost = self.cost.verify(rows, context, streams, seconds if self.timed else None)
        else:
            cost = 1.0
            if self.timed:
                self.cost.note_plain(seconds, streams)
        return PassTaken(streams, rows, drafted, context, seconds, cost)

    def _settle(
        self,
        plans: Sequence[tuple[BatchMember, list[int]]],
        rows: Sequence[np.ndarray],
        taken: PassTaken,
        committed: dict[int, int],
    ) -> None:
        done = 0
        try:
            for (member, draft), logits in zip(plans, rows, strict=True):
                before = len(member.stream.history)
                done += 1
                try:
                    member.decoder.settle(member.stream, logits, draft, taken)
                except Exception as error:
                    member.error = error
                committed[id(member)] = len(member.stream.history) - before
        finally:
            # broken off from outside (Ctrl-C): streams that were not reached drop the rows of this pass
            for member, _ in plans[done:]:
                member.stream.rewind()


def _own_things(member: BatchMember) -> list[tuple[str, object]]:
    stream, decoder = member.stream, member.decoder
    things = [
        ("cache", stream.cache),
        ("sampler", stream.sampler),
        ("processor", getattr(stream.sampler, "processor", None)),
        ("history", stream.history),
        ("decoder", decoder),
        ("draft source", getattr(decoder, "source", None)),
    ]
    return [(name, thing) for name, thing in things if thing is not None]
