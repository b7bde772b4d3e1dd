"""Refused requests and failures, as one form of error."""

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
"""What pydantic says of JSON that cannot be read, and of fields that there are not."""


class Refused(Exception):
    """A request is refused."""

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
    """The refusal of what is not there, and of what is not for whoever asks: nobody can tell which."""
    return Refused(404, "not_found", "there is no such run")


def draining() -> Refused:
    """The refusal of what is new while the server goes away."""
    headers = {"retry-after": "5"}
    return Refused(503, "draining", "the server takes nothing new at the moment", headers=headers)


def misfit(error: ValidationError, where: str) -> Refused:
    """The refusal of a body, or a query, that is not what it should be."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    fields: dict[str, str] = {}
    for each in found[:20]:
        # Without the names of models, which say nothing to a client.
        place = ".".join(str(part) for part in each["loc"] if isinstance(part, int) or _FIELD.fullmatch(part))
        fields.setdefault(place or where, each["msg"])
    if all(each["type"] in _BROKEN for each in found):
        return Refused(400, "bad_request", f"the {where} cannot be read", fields=fields)
    return Refused(422, "invalid", f"the {where} does not fit", fields=fields)


def answer(refused: Refused) -> Response:
    """The answer to a request that is refused."""
    info = ProblemInfo(code=refused.code, message=str(refused), fields=refused.fields)
    body = Problem(error=info).model_dump_json(by_alias=True)
    headers = {"cache-control": "no-store", **refused.headers}
    return Response(body, refused.status, headers, media_type="application/json")


def refusal_of(error: Exception) -> Refused | None:
    """What is said to a client of an error; None of one that is a mistake of the server.

    Never with the error's own words: they may name tools, calls and questions that are not for clients. Where they are
    for the client that is answered, whoever knows that makes a `Refused` of them.
    """
    match error:
        case Refused():
            return error
        case UnknownRun():
            return not_found()
        case RuntimeClosed():
            # It has begun to drain since the request was let in.
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
    """Return what a client is told about an error. A defect of the server is logged, and the client learns no more."""
    refused = refusal_of(error)
    if refused is None:
        log.error("%s %s failed", request.scope.get("method", "WebSocket"), request.url.path, exc_info=error)
        refused = Refused(500, "internal", "the server failed")
    return refused
