"""Error responses: HTTP status, headers, and a body in OpenAI's format or in that of the protocol that was spoken."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from paceline.errors import (
    EngineDead,
    GroupLost,
    InvalidParameter,
    PacelineError,
    PromptTooLong,
    RequestRejected,
    UnknownModel,
    WorkerDied,
)
from paceline.serving.protocol.anthropic import Messages
from paceline.serving.protocol.dialects import Dialect
from paceline.serving.protocol.responses import Responses

_DIALECTS: tuple[type[Dialect], ...] = (Messages, Responses)

_CODES: Mapping[type[InvalidParameter], str] = {
    UnknownModel: "model_not_found",
    PromptTooLong: "context_length_exceeded",
}
"""OpenAI's codes, by which clients tell errors apart."""
_KINDS = {401: "authentication_error", 429: "rate_limit_error", 500: "request_failed"}
"""OpenAI's types of errors by status; others are ``invalid_request_error``."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response.

    Attributes:
        status: HTTP status.
        body: OpenAI's error object.
        headers: besides the usual ones.
    """

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    def response(self, path: str) -> JSONResponse:
        """The response to a request for `path`, in the form of the protocol that is served there."""
        dialect = next((each for each in _DIALECTS if path.startswith(each.path)), Dialect)
        return JSONResponse(dialect.error(self.body, self.status), self.status, dict(self.headers))


class HttpRefusal(PacelineError):
    """A request rejected at the HTTP level: for its size, type, key, host or path, or because it failed in the engine
    and its protocol has no place for that in an answer.

    Args:
        status: HTTP status.
        problem: what is wrong and what to do.
        headers: besides the usual ones.
    """

    def __init__(self, status: int, problem: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(problem)
        self.status, self.headers = status, dict(headers or {})


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object; invalid Unicode quoted from a request is replaced."""
    return {"error": {"message": _valid(message), "type": kind, "param": param and _valid(param), "code": code}}


def _valid(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def refusal_of(error: Exception) -> Refusal:
    """The response for `error`; errors that are not ours are reported without details."""
    if isinstance(error, InvalidParameter):
        code = next((code for kind, code in _CODES.items() if isinstance(error, kind)), None)
        status = 404 if isinstance(error, UnknownModel) else 400
        return Refusal(status, error_body(str(error), "invalid_request_error", error.field, code))
    if isinstance(error, HttpRefusal):
        kind = _KINDS.get(error.status, "invalid_request_error")
        code = "invalid_api_key" if error.status == 401 else None
        return Refusal(error.status, error_body(str(error), kind, code=code), error.headers)
    if isinstance(error, RequestRejected):
        status = 503 if error.seconds_late is None else 429
        headers = {"Retry-After": str(max(1, math.ceil(error.seconds_late or 1)))}
        return Refusal(status, error_body(str(error), "request_rejected"), headers)
    if isinstance(error, GroupLost | EngineDead | WorkerDied):
        return Refusal(503, error_body(str(error), type(error).__name__))
    if isinstance(error, PacelineError):
        return Refusal(500, error_body(str(error), type(error).__name__))
    return Refusal(500, error_body("the server failed to answer this request", "internal_error"))
