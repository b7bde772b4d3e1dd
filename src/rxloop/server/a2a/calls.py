"""A2A request context, body limits and streaming."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
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

from rxloop.server.a2a.parts import check_part_count
from rxloop.server.core.adapter import Call
from rxloop.server.core.bodies import SDK_VALUES, check_json, get_media_type
from rxloop.server.core.errors import Refused, find_refusal
from rxloop.server.core.gateway import Principal
from rxloop.server.core.stream import SSE, FrameWriter
from rxloop.stream.sources import Push, from_task
from rxloop.stream.stream import ReadOnlyHold, Stream
from rxloop.support.text import to_one_line

log = logging.getLogger("rxloop")

MAX_DEPTH = 40
"""Maximum nesting depth of JSON, because each level takes two of the 100 levels of protobuf."""

_MAX_VERSION = 100
"""Maximum length of a protocol version in characters."""

_JSON = ("application/json", "application/a2a+json")
_REQUEST_KEY = "rxloop.a2a"
_STATUSES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}


@dataclass(slots=True)
class A2aRequest:
    """Authenticated request, with an optional error that replaces the response of the handler."""

    principal: Principal
    http: Request
    refused: Refused | None = None

    @contextmanager
    def convert_errors(self) -> Generator[None]:
        """Convert all exceptions to A2A errors, without details of internal errors."""
        try:
            yield
        except A2AError:
            raise
        except Exception as error:
            refused = find_refusal(error)
            if refused is None:
                log.error(
                    "Request %s failed", to_one_line(f"{self.http.method} {self.http.url.path}", 500), exc_info=error
                )
                raise InternalError from None
            if refused.status == 404:
                raise TaskNotFoundError from None
            if refused.status in (400, 409, 422):
                raise InvalidParamsError(str(refused)) from None
            # A2A has no error code for rate limits and server shutdown.
            self.refused = refused
            raise InternalError(str(refused)) from None


class ContextBuilder(DefaultServerCallContextBuilder):
    """Context builder that passes the authenticated request to the handler."""

    @override
    def build(self, request: Request) -> ServerCallContext:
        context = super().build(request)
        # It refers to the scope, so remove it from there to break the reference cycle.
        context.state[_REQUEST_KEY] = request.scope.pop(_REQUEST_KEY)
        return context


def get_request(context: ServerCallContext) -> A2aRequest:
    """Return the request from a call context."""
    return cast("A2aRequest", context.state[_REQUEST_KEY])


SdkEndpoint = Callable[[Request], Awaitable[Response]]


async def serve_sdk(endpoint: SdkEndpoint, rpc: bool, call: Call[bytes | None, None]) -> Response:
    """Handle a request with an SDK endpoint, applying rxloop's body and stream limits.

    Args:
        endpoint: Endpoint of the SDK.
        rpc: True for JSON-RPC, False for REST.
        call: Authenticated request.
    """
    request = call.request
    if len(request.headers.get("a2a-version", "")) > _MAX_VERSION:
        # The SDK would fail to parse the number.
        raise Refused(400, "bad_request", "the a2a-version header is too long")
    body = call.body or b""
    if call.body is not None:
        try:
            if body and get_media_type(request) not in _JSON:
                return _reject_body(rpc, ContentTypeNotSupportedError("the content type must be application/json"))
            check_json(body, "body", call.gateway.limits, MAX_DEPTH, SDK_VALUES)
            # Encoding the body again removes duplicate keys and invalid characters.
            payload = orjson.loads(body) if body else None
            _check_parts(payload, rpc)
            body = orjson.dumps(payload) if body else b""
        except InvalidParamsError as error:
            return _reject_body(rpc, error)
        except orjson.JSONDecodeError:
            return reject_json(rpc, "the body is not valid JSON")
    inner = Request(request.scope, _replay(body, request.receive))
    a2a_request = inner.scope[_REQUEST_KEY] = A2aRequest(call.principal, inner)
    response = await endpoint(inner)
    if a2a_request.refused is not None:
        raise a2a_request.refused
    if not isinstance(response, EventSourceResponse):
        return response
    return call.stream(Stream(*_to_source(cast("Any", response).body_iterator), overflow="block"), _WRITER)


def _check_parts(payload: Any, rpc: bool) -> None:
    # The SDK validates each part before the handler can refuse the message, which would block the event loop.
    for name in ("params", "message", "parts")[not rpc :]:
        payload = cast("dict[str, Any]", payload).get(name) if isinstance(payload, dict) else None
    if isinstance(payload, list) and payload:
        check_part_count(len(cast("list[Any]", payload)))


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receive function that replays a body before further messages."""
    bodies = [body]

    async def receive_again() -> Message:
        return {"type": "http.request", "body": bodies.pop(), "more_body": False} if bodies else await receive()

    return receive_again


def _to_source(items: AsyncGenerator[Any]) -> tuple[Any, ReadOnlyHold]:
    """Convert the SDK's frames to a source with back pressure."""
    hold = ReadOnlyHold()

    async def work(push: Push[Any]) -> None:
        async with aclosing(items):
            async for item in items:
                push(item)
                if hold.gate.closed:
                    await hold.gate.wait()

    return from_task(work, name="rxloop-a2a-stream"), hold


def _encode_frame(item: Any) -> bytes:
    return ensure_bytes(item, "\n")


_WRITER = FrameWriter[Any](SSE.media_type, _encode_frame, draining=SSE.draining)


# -- errors


class _SdkLogFilter(logging.Filter):
    """Filter for the SDK's log records about requests, which contain text from clients.

    For an invalid request, the SDK logs a traceback as an error before it logs the reason as a warning.
    """

    _TRACEBACKS = ("Failed to validate base JSON-RPC request", "Failed to parse request params")

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        if record.msg in self._TRACEBACKS:
            return False
        record.msg, record.args = to_one_line(record.getMessage(), 1_000), ()
        return True


_SDK_LOG_FILTER = _SdkLogFilter()


def filter_sdk_logs() -> None:
    """Drop tracebacks about invalid requests from the SDK's logs, and write each record on one line."""
    for name in ("a2a.server.routes.jsonrpc_dispatcher", "a2a.utils.error_handlers"):
        logging.getLogger(name).addFilter(_SDK_LOG_FILTER)


def respond_refused(refused: Refused) -> Response:
    """Return the response for a request refused before the SDK handles it."""
    status = _STATUSES.get(refused.status, "INVALID_ARGUMENT")
    error = {"code": refused.status, "status": status, "message": str(refused)}
    return JSONResponse({"error": error}, refused.status, {"cache-control": "no-store", **refused.headers})


def reject_json(rpc: bool, message: str) -> Response:
    """Create the error response for an unparsable body."""
    return _reject_body(rpc, JSONParseError(message=message) if rpc else InvalidRequestError(message))


def _reject_body(rpc: bool, error: A2AError | JSONRPCError) -> Response:
    if rpc:
        return JSONResponse(build_error_response(None, error))
    payload = build_rest_error_payload(cast("A2AError", error))
    status = payload["error"]["code"] = 415 if isinstance(error, ContentTypeNotSupportedError) else 400
    return JSONResponse(payload, status)
