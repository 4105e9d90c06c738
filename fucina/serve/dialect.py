"""What the server needs of a dialect: one class per API, in a file of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .options import plain_json
from .parts import Ask, Choice, Part
from .problems import Problem, openai_shape
from .schema import Table
from .service import Service

A = TypeVar("A", bound=Ask)


class Dialect(ABC, Generic[A]):
    """From the JSON of a body to requests, and from the parts of replies to JSON or frames.

    A dialect has no state of its own: everything about a request is in its `Ask`.

    Attributes
    ----------
    paths : where it is asked.
    table : what its bodies may be.
    """

    paths: ClassVar[tuple[str, ...]]
    table: ClassVar[Table]

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    def parse(self, body: dict[str, Any], tenant: str) -> A:
        """What a body asks for; runs on a thread that may take its time.

        Raises
        ------
        Problem, or an error of fucina that `problem_of` knows.
        """

    @abstractmethod
    def whole(self, ask: A, choices: Sequence[Choice]) -> dict[str, Any]:
        """The JSON of complete replies, one per request of the ask."""

    @abstractmethod
    def frames(self, ask: A, parts: AsyncIterator[tuple[int, Part]]) -> AsyncGenerator[str, None]:
        """The frames of a stream.

        Nothing may be yielded before the first part has come: what fails earlier becomes a plain answer with its status.
        A Problem that `parts` raises later becomes `failed`, which the server sends.
        """

    @abstractmethod
    def failed(self, ask: A, problem: Problem) -> str:
        """The last frames of a stream that an error has ended."""

    @classmethod
    def error(cls, problem: Problem) -> dict[str, Any]:
        """The JSON of a request that is not answered."""
        return openai_shape(problem)


def frame(data: Any, event: str | None = None) -> str:
    """One frame of a stream of server-sent events; the data is one line of JSON."""
    return ("" if event is None else f"event: {event}\n") + f"data: {plain_json(data)}\n\n"


DONE = "data: [DONE]\n\n"
