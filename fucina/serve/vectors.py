"""Texts that become vectors, on the engine's thread: a job whose rows join the passes of replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from ..engine import HiddenStream
from .jobs import Cancelled, Done, Failed, GenerateRequest, Job
from .running import Running

if TYPE_CHECKING:
    from ..model import Model


@dataclass(frozen=True, slots=True)
class VectorRequest(GenerateRequest):
    """Texts that are to become vectors, one after another; `ids` are all their tokens.

    Once begun it goes on: sums over the rows of a text are not kept apart from them.  It needs no more memory with time.

    Attributes
    ----------
    texts : token ids of each, at least one token.
    pooling : see `HiddenStream`.
    """

    can_be_set_aside: ClassVar[bool] = False

    texts: tuple[Sequence[int], ...] = ()
    pooling: str = "last"

    @property
    def capacity(self) -> int:
        """Positions of the longest text: they are computed one after another."""
        return max(map(len, self.texts), default=0)

    def __str__(self) -> str:
        return f"a text of {self.capacity} tokens"

    @classmethod
    def of(cls, texts: Sequence[Sequence[int]], pooling: str = "last", tenant: str = "") -> Self:
        """The request of some texts."""
        return cls(tuple(chain.from_iterable(texts)), 1, tenant=tenant, texts=tuple(texts), pooling=pooling)


@dataclass(frozen=True, slots=True)
class Embedded(Done):
    """The end of such a job: `vectors`, float32 [dim] of each text, of length 1."""

    vectors: tuple[np.ndarray, ...] = ()


class Embedding(Running):
    """A job of vectors that has a stream.  It keeps nothing in the pool: such texts seldom begin alike."""

    stream: HiddenStream

    def __init__(self, job: Job, request: VectorRequest, model: Model) -> None:
        self.job, self.joined, self.first = job, perf_counter(), 0.0
        self._request = request
        self._cuts = []
        self.stream = HiddenStream(request.texts, model.new_cache, request.pooling)

    def flush(self) -> None:
        """Nothing is given out before the end."""

    def can_share(self, rows: int) -> bool:
        """Its rows are not kept."""
        return False

    def settle(self, error: Exception | None = None) -> Done | Failed:
        """End the job; see `Running.settle`."""
        stream = self.stream
        error = error or stream.error
        if not stream.check_end():
            stream.cancel()
            stream.check_end()
        if error is None and stream.finish != "ended":
            error = Cancelled("the request was given up")
        if error is not None:
            return Failed(error)
        return Embedded("stop", sum(map(len, self._request.texts)), 0, 0, vectors=tuple(stream.vectors))
