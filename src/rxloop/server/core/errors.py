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
from rxloop.support.text import to_one_line

log = logging.getLogger("rxloop")

_ROUTING = {
    404: ("not_found", "the path does not exist"),
    405: ("method_not_allowed", "the path does not support this method"),
}
_MAX_PATH = 500
_FIELD_NAME = re.compile("[a-z][A-Za-z]*")
_BAD_REQUEST = ("json_invalid", "extra_forbidden")
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


def make_not_found_error() -> Refused:
    """Return the error for a missing or inaccessible run."""
    return Refused(404, "not_found", "the run does not exist")


def draining() -> Refused:
    """Return the error for new requests during shutdown."""
    headers = {"retry-after": "5"}
    return Refused(503, "draining", "the server is not accepting new requests", headers=headers)


def make_invalid_data_error(error: ValidationError, subject: str) -> Refused:
    """Return the error for an invalid body or query."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    fields: dict[str, str] = {}
    for fault in faults[:20]:
        # Omit model names, because they mean nothing to clients.
        field = ".".join(str(part) for part in fault["loc"] if isinstance(part, int) or _FIELD_NAME.fullmatch(part))
        fields.setdefault(field or subject, fault["msg"])
    if all(fault["type"] in _BAD_REQUEST for fault in faults):
        return Refused(400, "bad_request", f"the {subject} cannot be parsed", fields=fields)
    return Refused(422, "invalid", f"the {subject} is invalid", fields=fields)


def write_problem(refused: Refused) -> Response:
    """Return the response for a refused request."""
    info = ProblemInfo(code=refused.code, message=str(refused), fields=refused.fields)
    body = Problem(error=info).model_dump_json(by_alias=True)
    headers = {"cache-control": "no-store", **refused.headers}
    return Response(body, refused.status, headers, media_type="application/json")


def find_refusal(error: Exception) -> Refused | None:
    """Return the client's error for an exception, or None for an internal server error.

    The message never contains the text of the exception, which may name internal tools, calls and questions. Callers
    that know the text to be safe raise `Refused` themselves.
    """
    match error:
        case Refused():
            return error
        case UnknownRun():
            return make_not_found_error()
        case RuntimeClosed():
            # The server started draining after it accepted the request.
            return draining()
        case QueueFull():
            return Refused(429, "busy", "the queue is full", headers={"retry-after": "5"})
        case ContextBusy():
            return Refused(409, "context_busy", "the conversation already has an active run")
        case RunOver():
            return Refused(409, "run_over", "the run is over; start a new run in its conversation")
        case InvalidInput():
            return Refused(422, "invalid_input", "the answer is invalid for this question")
        case ConfigurationError() | InvalidEvent():
            log.info("Refused a request: %s", to_one_line(str(error), _MAX_PATH))
            return Refused(422, "invalid", "the agent does not support this request")
        case ConflictError():
            return Refused(409, "conflict", "the run is owned by another process")
        case EventLogError():
            log.warning("Event log failed during a request: %s", error)
            return Refused(503, "log", "the event log is unavailable", headers={"retry-after": "5"})
        case HTTPException():
            code, message = _ROUTING.get(error.status_code, ("refused", str(error.detail)))
            return Refused(error.status_code, code, message, headers=error.headers)
        case _:
            return None


def to_refusal(error: Exception, request: HTTPConnection) -> Refused:
    """Convert an exception to a client error. Server errors are logged and their details are hidden from the client."""
    refused = find_refusal(error)
    if refused is None:
        method = to_one_line(request.scope.get("method", "WebSocket"))
        log.error("Request %s %s failed", method, to_one_line(request.url.path, _MAX_PATH), exc_info=error)
        refused = Refused(500, "internal", "internal server error")
    return refused
