"""Base class of adapters, which serve one protocol over a runtime, with their endpoints and ids in paths."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.pipeline.log_retry import within
from rxloop.protocol.ids import find_id_fault
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.errors import Refused, misfit, to_refusal
from rxloop.server.core.gateway import ANYBODY, Auth, Gateway, Principal, ServerLimits
from rxloop.server.core.stream import EventStream, FrameWriter
from rxloop.stream.stream import Stream

M = TypeVar("M", bound=BaseModel)


async def read_body(model: type[M], request: Request, limits: ServerLimits) -> M:
    """Read a body; it is counted while it comes, whatever its header says.

    Raises:
        Refused: It is too large, too slow, no JSON, or does not fit.
    """
    data = await read_bytes(request, limits)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if data and media_type != "application/json":
        raise Refused(415, "media_type", "send the body as application/json")
    return parse_json(model, data or b"{}", "body")


def parse_json(model: type[M], data: bytes | str, where: str) -> M:
    """Parse JSON that a client sent.

    Args:
        model: The model of the data.
        data: The JSON.
        where: Name of the data in an error, such as `body`.

    Raises:
        Refused: It is no JSON, or does not fit.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise misfit(error, where) from None


async def read_bytes(request: Request, limits: ServerLimits) -> bytes:
    """Read a body as it is; it is counted while it comes.

    Raises:
        Refused: It is too large, or too slow.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                data += chunk
                if len(data) > limits.body:
                    raise Refused(413, "too_large", f"a body has at most {limits.body} bytes", headers=_CLOSE)
    except TimeoutError:
        raise Refused(408, "too_slow", f"the body took over {limits.body_seconds:g} s", headers=_CLOSE) from None
    except ClientDisconnect:
        raise Refused(400, "bad_request", "the body broke off", headers=_CLOSE) from None
    return bytes(data)


_CLOSE = {"connection": "close"}
"""What is left of a body is not read: nothing more can come over this connection."""


def read_query(model: type[M], request: Request) -> M:
    """Read the query of an address.

    Raises:
        Refused: It does not fit, or has a field that there is not.
    """
    try:
        return model.model_validate(dict(request.query_params))
    except ValidationError as error:
        raise misfit(error, "query") from None


def check_id(value: str, name: str) -> None:
    """Check an id that a client chose.

    Raises:
        Refused: It is no id.
    """
    wrong = find_id_fault(name, value)
    if wrong is not None:
        raise Refused(422, "invalid", wrong, fields={name: wrong})


B = TypeVar("B")
Q = TypeVar("Q")
T = TypeVar("T")

OnDisconnect = Literal["keep", "cancel"]


class AdapterOptions(TypedDict, total=False):
    """Options of all adapters.

    Attributes:
        auth: Returns the principal of a request; `bearer({...})` identifies clients by tokens. Without it, every client
            sees all runs.
        limits: Limits for clients.
        heartbeat: Seconds of silence after which a stream sends a heartbeat, so that proxies keep the connection; 15 by
            default, None for no heartbeats.
    """

    auth: Auth | None
    limits: ServerLimits | None
    heartbeat: float | None


@dataclass(frozen=True, slots=True)
class Call(Generic[B, Q]):
    """An authenticated request, with its body and its query checked."""

    adapter: Adapter
    request: Request
    principal: Principal
    body: B
    query: Q

    @property
    def gateway(self) -> Gateway:
        """The gateway of the adapter."""
        return self.adapter.gateway

    def stream(
        self,
        events: Stream[T],
        writer: FrameWriter[T],
        *,
        on_disconnect: Callable[[], Coroutine[Any, Any, None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EventStream:
        """Return a response that streams; see `EventStream`.

        Raises:
            Refused: The principal reads too many streams, or the server goes away.
        """
        slot = self.gateway.reserve_stream(self.principal)
        heartbeat = self.adapter.heartbeat
        return EventStream(slot, events, writer, heartbeat=heartbeat, on_disconnect=on_disconnect, headers=headers)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path.

    Attributes:
        method: The HTTP method; `GET` also serves `HEAD`.
        path: The path, as for `starlette.routing.Route`.
        handle: Answers a call. Any exception becomes a response of `Adapter.write_error`.
        body: Model of the JSON body, read within the limits; None leaves the body to `handle`.
        query: Model of the query; None leaves it to `handle`.
        public: True if clients need no authentication.
    """

    method: str
    path: str
    handle: Callable[[Any], Awaitable[Response]]
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    public: bool = False


class Adapter(ABC):
    """A protocol over a runtime, as an ASGI application.

    Served alone, it enters the runtime and leaves it. Mounted in another application, that one does.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        agent: str | None = None,
        on_disconnect: OnDisconnect = "keep",
        **options: Unpack[AdapterOptions],
    ) -> None:
        """Create an adapter; it opens nothing.

        Args:
            runtime: Has the agents, and the log.
            agent: The agent that it serves, for protocols in which a request names none.
            on_disconnect: Whether a run continues (`keep`) if its reader leaves before the end, or is cancelled.
            options: See `AdapterOptions`.

        Raises:
            ConfigurationError: An argument is wrong.
        """
        heartbeat = options.get("heartbeat", 15.0)
        if agent is not None:
            find_only_agent(runtime, agent)
        if heartbeat is not None and not heartbeat > 0:
            raise ConfigurationError(f"heartbeat must be more than 0 seconds, or None for none, not {heartbeat!r}")
        if on_disconnect not in ("keep", "cancel"):
            raise ConfigurationError(f"on_disconnect must be 'keep' or 'cancel', not {on_disconnect!r}")
        self.gateway = Gateway(runtime, options.get("auth"), options.get("limits") or ServerLimits())
        self.agent, self.heartbeat, self.on_disconnect = agent, heartbeat, on_disconnect

    @abstractmethod
    def endpoints(self) -> Sequence[Endpoint | BaseRoute]:
        """Return the endpoints; a route of Starlette authenticates its requests itself, by `gateway`."""

    @abstractmethod
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        """Return the response to a request that is refused, in the format of the protocol."""

    def write_routing_error(self, refused: Refused, request: HTTPConnection) -> Response:
        """Return the response to a request with an unknown path or method."""
        return self.write_error(refused, request)

    def to_refusal(self, error: Exception, request: HTTPConnection) -> Refused:
        """Return what the client is told about an error of a handler."""
        return to_refusal(error, request)

    def make_call(self, request: Request, principal: Principal, body: Any, query: Any) -> Call[Any, Any]:
        """Return the argument of handlers; override it to pass a subclass of `Call`."""
        return Call(self, request, principal, body, query)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI has it."""
        with within(self.gateway.limits.log_seconds if scope["type"] == "http" else None):
            await self._app(keep_slashes(scope), receive, send)

    async def drain(self, seconds: float | None = None) -> None:
        """Shut down without breaking anything off, before the server closes its connections.

        New runs are refused. The runs that go on get `seconds` to end, and are then released, so that another process
        resumes them. Finally, each stream ends with a last frame, and its client reconnects elsewhere. Adapters of one
        runtime may be drained concurrently and repeatedly. The log stays open; `Shutdown` also closes the log.

        Args:
            seconds: How long runs have to end; None is the `grace` of the runtime.
        """
        await self.gateway.drain(seconds)

    @cached_property
    def _app(self) -> Starlette:
        endpoints = self.endpoints()
        # One route for each path, so that the response to an unknown method lists all methods of the path.
        by_path: dict[str, dict[str, Endpoint]] = {}
        for each in endpoints:
            if isinstance(each, Endpoint):
                by_path.setdefault(each.path, {})[each.method] = each
        routes = [each for each in endpoints if not isinstance(each, Endpoint)]
        for path, by_method in by_path.items():
            routes.append(Route(path, partial(self._handle, by_method), methods=[*by_method]))
        handlers: Any = {HTTPException: self._refuse_route}
        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers=handlers)

    async def _handle(self, by_method: Mapping[str, Endpoint], request: Request) -> Response:
        endpoint = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            principal = ANYBODY if endpoint.public else await self.gateway.authenticate(request)
            query = None if endpoint.query is None else read_query(endpoint.query, request)
            body = None if endpoint.body is None else await read_body(endpoint.body, request, self.gateway.limits)
            return await endpoint.handle(self.make_call(request, principal, body, query))
        except Exception as error:
            return self.write_error(self.to_refusal(error, request), request)

    async def _refuse_route(self, request: Request, error: HTTPException) -> Response:
        return self.write_routing_error(to_refusal(error, request), request)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        runtime = self.gateway.runtime
        if runtime.open:
            yield
            return
        async with runtime:
            try:
                yield
            finally:
                await self.drain()


def find_only_agent(runtime: Runtime, agent: str | None) -> str:
    """Return the name of the agent of an adapter that serves one; it may be left out if the runtime has one agent.

    Raises:
        ConfigurationError: There is no such agent, or the name is left out and there are several.
    """
    known = ", ".join(runtime.agents)
    if agent is None and len(runtime.agents) != 1:
        raise ConfigurationError(f"this adapter serves one agent, and the runtime has {known}: say agent=")
    if agent is not None and agent not in runtime.agents:
        raise ConfigurationError(f"there is no agent {agent!r}: the runtime has {known}")
    return agent or next(iter(runtime.agents))


_SLASH = "\x1f"
"""Takes the place of a slash that a client has encoded; no id has this character."""


class _IdConvertor(PathConvertor):
    """A place of a path that takes everything, also a line end, which no id has: its refusal is for the handler."""

    regex = "(?s:.*)"


register_url_convertor("rxloop_id", _IdConvertor())


def keep_slashes(scope: Scope) -> Scope:
    """Return a scope whose path shows which slashes belong to an id: a server decodes `%2F` before routes are matched.

    Args:
        scope: A request as the server, or the application around, passes it on.
    """
    raw: bytes = scope.get("raw_path") or b""
    if scope["type"] not in ("http", "websocket") or b"%2f" not in raw.lower():
        return scope
    segments = [unquote(each) for each in raw.partition(b"?")[0].decode("ascii", "replace").split("/")]
    path: str = scope["path"]
    # An application around may have taken a prefix off the path, and not off the bytes.
    for first in range(len(segments)):
        tail = segments[first:]
        prefix = "" if first == 0 or not path.startswith("/") else "/"
        if prefix + "/".join(tail) == path:
            return {**scope, "path": prefix + "/".join(each.replace("/", _SLASH) for each in tail)}
    return scope


def id_in_path(request: HTTPConnection, name: str) -> str:
    """Return the id at a place of the path of a request."""
    value: str = request.path_params[name]
    return value.replace(_SLASH, "/")
