"""Error responses for refused requests and server failures."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from rxloop.errors import (
    ConfigurationError,
    ConflictError,
    ContextBusy,
    EventLogError,
    InvalidEvent,
    InvalidInput,
    QueueFull,
    RunOver,
    RuntimeClosed,
    UnknownRun,
)
from rxloop.protocol.http_api import Problem, ProblemInfo

log = logging.getLogger("rxloop")

_ROUTING = {
    404: ("not_found", "there is nothing at this path"),
    405: ("method_not_allowed", "this path does not take this method"),
}
_FIELD = re.compile("[a-z][A-Za-z]*")
_BROKEN = ("json_invalid", "extra_forbidden")
"""Pydantic error types for malformed JSON and unknown fields."""


class Refused(Exception):
    """Exception for a refused request."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        fields: dict[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.fields, self.headers = status, code, fields, dict(headers or {})


def not_found() -> Refused:
    """Return the error for a missing or inaccessible run."""
    return Refused(404, "not_found", "there is no such run")


def draining() -> Refused:
    """Return the error for new requests during shutdown."""
    headers = {"retry-after": "5"}
    return Refused(503, "draining", "the server takes nothing new at the moment", headers=headers)


def misfit(error: ValidationError, where: str) -> Refused:
    """Return the error for an invalid body or query."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields: dict[str, str] = {}
    for each in found[:20]:
        # Omit model names, because they mean nothing to clients.
        place = ".".join(str(part) for part in each["loc"] if isinstance(part, int) or _FIELD.fullmatch(part))
        fields.setdefault(place or where, each["msg"])
    if all(each["type"] in _BROKEN for each in found):
        return Refused(400, "bad_request", f"the {where} cannot be read", fields=fields)
    return Refused(422, "invalid", f"the {where} does not fit", fields=fields)


def answer(refused: Refused) -> Response:
    """Return the response for a refused request."""
    info = ProblemInfo(code=refused.code, message=str(refused), fields=refused.fields)
    body = Problem(error=info).model_dump_json(by_alias=True)
    headers = {"cache-control": "no-store", **refused.headers}
    return Response(body, refused.status, headers, media_type="application/json")


def refusal_of(error: Exception) -> Refused | None:
    """Return the client's error for an exception, or None for an internal server error.

    The message never contains the text of the exception, which may name internal tools, calls and questions. Callers
    that know the text to be safe raise `Refused` themselves.
    """
    match error:
        case Refused():
            return error
        case UnknownRun():
            return not_found()
        case RuntimeClosed():
            # The server started draining after it accepted the request.
            return draining()
        case QueueFull():
            return Refused(429, "busy", "too much waits already", headers={"retry-after": "5"})
        case ContextBusy():
            return Refused(409, "context_busy", "the conversation has a run under way")
        case RunOver():
            return Refused(409, "run_over", "nobody goes on with the run: begin a new one in its conversation")
        case InvalidInput():
            return Refused(422, "invalid_input", "the answer does not fit the question")
        case ConfigurationError() | InvalidEvent():
            log.info("a request is refused: %s", error)
            return Refused(422, "invalid", "the agent cannot do what is asked for")
        case ConflictError():
            return Refused(409, "conflict", "the run goes on elsewhere")
        case EventLogError():
            log.warning("a request cannot be answered: %s", error)
            return Refused(503, "log", "the log is out of reach", headers={"retry-after": "5"})
        case HTTPException():
            code, message = _ROUTING.get(error.status_code, ("refused", str(error.detail)))
            return Refused(error.status_code, code, message, headers=error.headers)
        case _:
            return None


def to_refusal(error: Exception, request: HTTPConnection) -> Refused:
    """Convert an exception to a client error. Server errors are logged and their details are hidden from the client."""
    refused = refusal_of(error)
    if refused is None:
        log.error("%s %s failed", request.scope.get("method", "WebSocket"), request.url.path, exc_info=error)
        refused = Refused(500, "internal", "the server failed")
    return refused
