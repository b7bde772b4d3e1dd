"""A2A request context, body limits and streaming."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import orjson
from a2a.server.context import ServerCallContext
from a2a.server.jsonrpc_models import JSONParseError, JSONRPCError
from a2a.server.request_handlers.response_helpers import build_error_response
from a2a.server.routes.common import DefaultServerCallContextBuilder
from a2a.utils.error_handlers import build_rest_error_payload
from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotFoundError,
)
from sse_starlette.event import ensure_bytes  # pyright: ignore[reportUnknownVariableType]
from sse_starlette.sse import EventSourceResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Message, Receive
from typing_extensions import override

from rxloop.server.core.adapter import Call, read_bytes
from rxloop.server.core.errors import Refused, refusal_of
from rxloop.server.core.gateway import Principal
from rxloop.server.core.stream import SSE, FrameWriter
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream

log = logging.getLogger("rxloop")

_DEEPEST = 64
"""Maximum nesting depth of JSON. The limit of protobuf is 100, and A2A messages need slightly more levels than JSON."""
_JSON = ("application/json", "application/a2a+json")
_ASKED = "rxloop.a2a"
_STATUS = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass(slots=True)
class Asked:
    """Request context, including an error response that overrides the handler's response."""

    principal: Principal
    request: Request
    refused: Refused | None = None

    @contextmanager
    def in_words_of_a2a(self) -> Generator[None]:
        """Convert all exceptions to A2A errors, without details of internal errors."""
        try:
            yield
        except A2AError:
            raise
        except Exception as error:
            refused = refusal_of(error)
            if refused is None:
                log.error("%s %s failed", self.request.method, self.request.url.path, exc_info=error)
                raise InternalError from None
            if refused.status == 404:
                raise TaskNotFoundError from None
            if refused.status in (400, 409, 422):
                raise InvalidParamsError(str(refused)) from None
            # A2A has no error code for rate limits and server shutdown.
            self.refused = refused
            raise InternalError(str(refused)) from None


class Contexts(DefaultServerCallContextBuilder):
    """Context builder that passes the authenticated request to the handler."""

    @override
    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        context.state[_ASKED] = request.scope[_ASKED]
        return context


def asked_of(context: ServerCallContext) -> Asked:
    """Return a handler call's request context."""
    return cast("Asked", context.state[_ASKED])


SdkEndpoint = Callable[[Request], Awaitable[Response]]


async def serve_sdk(endpoint: SdkEndpoint, rpc: bool, call: Call[None, None]) -> Response:
    """Handle a request with an SDK endpoint, applying rxloop's body and stream limits.

    Args:
        endpoint: Endpoint of the SDK.
        rpc: True for JSON-RPC, False for REST.
        call: Authenticated request.
    """
    request = call.request
    body = b"" if request.method in ("GET", "HEAD", "DELETE") else await read_bytes(request, call.gateway.limits)
    if body:
        if _media_type(request) not in _JSON:
            return _unreadable(rpc, ContentTypeNotSupportedError("send the body as application/json"))
        body = _harmless(body)
        if body is None:
            message = "the body is no JSON, or is nested too deep"
            return _unreadable(rpc, JSONParseError(message=message) if rpc else InvalidRequestError(message))
    inner = Request(request.scope, _replayed(body, request.receive))
    asked = inner.scope[_ASKED] = Asked(call.principal, inner)
    response = await endpoint(inner)
    if asked.refused is not None:
        raise asked.refused
    if not isinstance(response, EventSourceResponse):
        return response
    return call.stream(Stream(*_held(cast("Any", response).body_iterator), overflow="block"), _WRITER)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _harmless(body: bytes) -> bytes | None:
    """Normalize JSON by parsing and encoding it again, or return None if it is invalid or nested too deeply."""
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    level: list[Any] = [value]
    for _ in range(_DEEPEST):
        level = [each for part in level for each in _inside(part)]
        if not level:
            return orjson.dumps(value)
    return None


def _inside(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        yield from cast("list[Any]", value)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that replays a body before further messages."""
    left = [body]

    async def again() -> Message:
        return {"type": "http.request", "body": left.pop(), "more_body": False} if left else await receive()

    return again


def _held(items: AsyncGenerator[Any]) -> tuple[Any, ReadOnlyHold]:
    """Convert the SDK's frames to a source with back pressure."""
    hold = ReadOnlyHold()

    async def work(push: Push[Any]) -> None:
        async with aclosing(items):
            async for item in items:
                push(item)
                if hold.gate.closed:
                    await hold.gate.wait()

    return from_task(work, name="rxloop-a2a-stream"), hold


def _frame(item: Any) -> bytes:
    return ensure_bytes(item, "\n")


_WRITER = FrameWriter[Any](SSE.media_type, _frame, draining=SSE.draining)


# -- errors


def answer(refused: Refused) -> Response:
    """Return the response for a request refused before the SDK handles it."""
    status = _STATUS.get(refused.status, "INVALID_ARGUMENT")
    error = {"code": refused.status, "status": status, "message": str(refused)}
    return JSONResponse({"error": error}, refused.status, {"cache-control": "no-store", **refused.headers})


def _unreadable(rpc: bool, error: A2AError | JSONRPCError) -> Response:
    if rpc:
        return JSONResponse(build_error_response(None, error))
    payload = build_rest_error_payload(cast("A2AError", error))
    status = payload["error"]["code"] = 415 if isinstance(error, ContentTypeNotSupportedError) else 400
    return JSONResponse(payload, status)
