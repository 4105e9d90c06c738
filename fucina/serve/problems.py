"""What is told to a client whose request is not answered: statuses, kinds, and the shapes of the dialects."""

from __future__ import annotations

from typing import Any

from ..errors import (
    ChatTemplateError,
    ContextFull,
    EmptyInput,
    FucinaError,
    InvalidGrammar,
    InvalidOption,
    InvalidSamplerOption,
    InvalidText,
    KvCacheOverflow,
    LlguidanceNotEnabled,
    NoEosToken,
    QueueFull,
    RequestTooLarge,
    ShuttingDown,
    TokenOutOfRange,
)

BUSY_SECONDS = 2  # after so many a refused client may try again


class Problem(Exception):
    """Why a request is not answered.

    Attributes
    ----------
    status : of HTTP.  message : for people.
    kind, param, code : OpenAI's `type`, `param` and `code`.
    closes : nothing more is read from the connection.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.closes = closes
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers that belong to it."""
        told = {"retry-after": str(BUSY_SECONDS)} if self.status in (429, 503) else {}
        return {**told, "connection": "close"} if self.closes else told


def problem_of(error: Exception) -> Problem:
    """What a client is told about an error.  Faults of ours are told without their text, which may hold anything."""
    message = str(error)
    if isinstance(error, Problem):
        return error
    if isinstance(error, QueueFull):
        return Problem(429, message, "rate_limit_error", None, "rate_limit_exceeded")
    if isinstance(error, ShuttingDown):
        return Problem(503, message, "unavailable_error")
    if isinstance(error, LlguidanceNotEnabled):
        return Problem(501, message, "not_supported_error", "response_format")
    if isinstance(error, (ContextFull, KvCacheOverflow, RequestTooLarge)):
        return Problem(400, message, param="messages", code="context_length_exceeded")
    if isinstance(error, (InvalidGrammar, NoEosToken)):
        return Problem(400, message, param="response_format")
    if isinstance(error, ChatTemplateError):
        return Problem(400, message, param="messages")
    if isinstance(error, (EmptyInput, InvalidOption, InvalidSamplerOption, InvalidText, TokenOutOfRange)):
        return Problem(400, message)
    if isinstance(error, FucinaError):
        return Problem(500, message, "server_error")
    return Problem(500, f"the server failed ({type(error).__name__}); its log says more", "server_error")


def openai_shape(problem: Problem) -> dict[str, Any]:
    """The JSON of a problem, as OpenAI's API has it."""
    return {"error": {"message": problem.message, "type": problem.kind, "param": problem.param, "code": problem.code}}


_ANTHROPIC = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    501: "invalid_request_error",
    503: "overloaded_error",
}


def anthropic_shape(problem: Problem) -> dict[str, Any]:
    """The JSON of a problem, as Anthropic's API has it."""
    return {"type": "error", "error": {"type": _ANTHROPIC.get(problem.status, "api_error"), "message": problem.message}}
