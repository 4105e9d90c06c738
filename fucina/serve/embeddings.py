"""OpenAI's embeddings: vectors of texts."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import checks
from ..embedding import text_ids
from ..engine.hidden import POOLINGS, unit
from ..errors import ContextFull, EmptyInput, TokenOutOfRange
from . import schema
from .dialect import Dialect
from .fields import Fields, bad
from .parts import Ask, Choice, Part
from .problems import Problem
from .vectors import Embedded, VectorRequest

IGNORED = ("user",)
MAX_INPUTS = 2048
SIDE_BY_SIDE = 4  # jobs that the texts of a request are dealt out to


BODY = schema.Table(
    {
        "model": schema.Text(),
        "input": schema.OneOf(
            (
                schema.Text(1),
                schema.Ids(1),
                schema.Items(schema.OneOf((schema.Text(1), schema.Ids(1))), 1, MAX_INPUTS),
            )
        ),
        "encoding_format": schema.Choice(("float", "base64")),
        "dimensions": schema.Integer(1),
        "pooling": schema.Choice(POOLINGS),
    },
    ("input",),
    IGNORED,
)


@dataclass(frozen=True, slots=True)
class EmbeddingsAsk(Ask):
    """A request of this dialect; the texts were dealt out to its jobs one by one."""

    dimensions: int | None = None
    base64: bool = False


class Embeddings(Dialect[EmbeddingsAsk]):
    """POST /v1/embeddings."""

    paths = ("/v1/embeddings", "/embeddings")
    table = BODY

    def parse(self, body: dict[str, Any], tenant: str) -> EmbeddingsAsk:
        service, fields = self.service, Fields.read(body, BODY)
        texts = self._texts(fields.take("input"))
        coded, pooling = fields.text("encoding_format") == "base64", fields.text("pooling") or "last"
        dimensions, most = fields.integer("dimensions"), service.model.config.dim
        if dimensions is not None and dimensions > most:
            raise bad("dimensions", f"dimensions is {dimensions}, the vectors of {service.name} have {most}")
        n = min(len(texts), SIDE_BY_SIDE)
        return EmbeddingsAsk(
            [VectorRequest.of(texts[k::n], pooling, tenant) for k in range(n)], dimensions=dimensions, base64=coded
        )

    def _texts(self, given: Any) -> list[list[int]]:
        """The texts as token ids: a text, an array of ids, or an array of either."""
        several = isinstance(given, list) and bool(given) and isinstance(given[0], (str, list))
        texts = given if several else [given]
        try:
            return [self._text(text) for text in texts]
        except (ContextFull, EmptyInput, TokenOutOfRange) as error:
            code = "context_length_exceeded" if isinstance(error, ContextFull) else "invalid_value"
            raise Problem(400, str(error), param="input", code=code) from None

    def _text(self, text: Any) -> list[int]:
        service = self.service
        if isinstance(text, str):
            service.check_length([text])
            return service.checked(text_ids(service.model, text))
        return service.checked(checks.token_ids("input", text, service.model.n_tokens))

    def whole(self, ask: EmbeddingsAsk, choices: Sequence[Choice]) -> dict[str, Any]:
        ends = [choice.end.done for choice in choices]
        jobs = [end.vectors for end in ends if isinstance(end, Embedded)]
        n, count = len(jobs), sum(map(len, jobs))
        tokens = sum(end.prompt_tokens for end in ends)
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": i, "embedding": self._told(ask, jobs[i % n][i // n])}
                for i in range(count)
            ],
            "model": self.service.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    @staticmethod
    def _told(ask: EmbeddingsAsk, vector: np.ndarray) -> str | list[float]:
        if ask.dimensions is not None and ask.dimensions < len(vector):
            vector = unit(vector[: ask.dimensions])
        if ask.base64:
            return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        return [float(f"{number:.9g}") for number in vector.tolist()]  # as many digits as a float32 has

    def frames(self, ask: EmbeddingsAsk, parts: AsyncIterator[tuple[int, Part]]) -> AsyncGenerator[str, None]:
        raise AssertionError("vectors are not streamed")

    def failed(self, ask: EmbeddingsAsk, problem: Problem) -> str:
        raise AssertionError("vectors are not streamed")
