"""Base class for protocol adapters, with endpoints and ids in paths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, Literal, TypedDict, TypeVar
from urllib.parse import unquote

from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send
from typing_extensions import Unpack

from rxloop.errors import ConfigurationError
from rxloop.pipeline.log_retry import limit_log_time
from rxloop.protocol.ids import find_id_fault
from rxloop.runtime.runtime import Runtime
from rxloop.server.core.account import ServerLimits
from rxloop.server.core.bodies import parse_body, read_query
from rxloop.server.core.caller_trace import use_trace_context
from rxloop.server.core.errors import Refused, to_refusal
from rxloop.server.core.gateway import ANONYMOUS, Auth, Gateway, Principal
from rxloop.server.core.request_slots import use_request
from rxloop.server.core.stream import EventStream, FrameWriter
from rxloop.stream.stream import Stream


def check_id(value: str, name: str) -> None:
    """Validate a client-supplied id.

    Raises:
        Refused: If the id is invalid.
    """
    fault = find_id_fault(name, value)
    if fault is not None:
        raise Refused(422, "invalid", fault, fields={name: fault})


B = TypeVar("B")
Q = TypeVar("Q")
T = TypeVar("T")

OnDisconnect = Literal["keep", "cancel"]


class AdapterOptions(TypedDict, total=False):
    """Options shared by all adapters.

    Attributes:
        auth: Function that returns the principal of a request. Use `bearer({...})` for token authentication. Without
            it, every client can see all runs.
        limits: Limits for clients.
        heartbeat: Idle seconds before a stream sends a heartbeat, which keeps connections through proxies open.
            Defaults to 15; None disables heartbeats.
    """

    auth: Auth | None
    limits: ServerLimits | None
    heartbeat: float | None


@dataclass(frozen=True, slots=True)
class Call(Generic[B, Q]):
    """An authenticated request with its parsed body and query."""

    adapter: Adapter
    request: Request
    principal: Principal
    body: B
    query: Q

    @property
    def gateway(self) -> Gateway:
        """Gateway of the adapter."""
        return self.adapter.gateway

    def stream(
        self,
        events: Stream[T],
        writer: FrameWriter[T],
        *,
        on_disconnect: Callable[[], Coroutine[Any, Any, None]] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> EventStream:
        """Create a streaming response, see `EventStream`.

        Raises:
            Refused: If the principal has too many open streams, or the server is shutting down.
        """
        slot = self.gateway.reserve_stream(self.principal)
        heartbeat = self.adapter.heartbeat
        return EventStream(slot, events, writer, heartbeat=heartbeat, on_disconnect=on_disconnect, headers=headers)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A single method of a path.

    Attributes:
        method: HTTP method; `GET` also serves `HEAD`.
        path: Path in the syntax of `starlette.routing.Route`.
        handle: Handler for a call. Exceptions are converted to responses by `Adapter.write_error`.
        body: Pydantic model of the JSON body, or `bytes` for the raw body. If None, the body is ignored.
        query: Pydantic model of the query. If None, the handler reads the query.
        public: True if clients need no authentication.
    """

    method: str
    path: str
    handle: Callable[[Any], Awaitable[Response]]
    body: type[BaseModel] | type[bytes] | None = None
    query: type[BaseModel] | None = None
    public: bool = False


class Adapter(ABC):
    """ASGI application that serves a protocol over a runtime.

    Standalone, it opens and closes the runtime in its lifespan. When mounted, the parent application is responsible for
    the runtime.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        agent: str | None = None,
        on_disconnect: OnDisconnect = "keep",
        **options: Unpack[AdapterOptions],
    ) -> None:
        """Initialize the adapter without opening the runtime.

        Args:
            runtime: Runtime with the agents and the event log.
            agent: Name of the agent to serve, for protocols whose requests do not name an agent.
            on_disconnect: Either `keep` or `cancel`, for runs whose client disconnects before the end.
            options: See `AdapterOptions`.

        Raises:
            ConfigurationError: If an argument is invalid.
        """
        heartbeat = options.get("heartbeat", 15.0)
        if agent is not None:
            find_only_agent(runtime, agent)
        if heartbeat is not None and not heartbeat > 0:
            raise ConfigurationError(f"heartbeat must be a positive number of seconds or None, got {heartbeat!r}")
        if on_disconnect not in ("keep", "cancel"):
            raise ConfigurationError(f"on_disconnect must be 'keep' or 'cancel', got {on_disconnect!r}")
        self.gateway = Gateway(runtime, options.get("auth"), options.get("limits") or ServerLimits())
        self.agent, self.heartbeat, self.on_disconnect = agent, heartbeat, on_disconnect

    @abstractmethod
    def endpoints(self) -> Sequence[Endpoint | BaseRoute]:
        """Return the endpoints of the protocol.

        Starlette routes must authenticate their requests with `gateway`.
        """

    @abstractmethod
    def write_error(self, refused: Refused, request: HTTPConnection) -> Response:
        """Return the protocol's response for a refused request."""

    def write_routing_error(self, refused: Refused, request: HTTPConnection) -> Response:
        """Return the response to a request with an unknown path or method."""
        return self.write_error(refused, request)

    def to_refusal(self, error: Exception, request: HTTPConnection) -> Refused:
        """Convert an exception from a handler into an error for the client."""
        return to_refusal(error, request)

    def make_call(self, request: Request, principal: Principal, body: Any, query: Any) -> Call[Any, Any]:
        """Return the argument of handlers; override it to pass a subclass of `Call`."""
        return Call(self, request, principal, body, query)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request (ASGI entry point)."""
        is_http = scope["type"] == "http"
        seconds, headers = (self.gateway.limits.log_seconds, Headers(scope=scope)) if is_http else (None, Headers())
        with limit_log_time(seconds), use_trace_context(headers):
            await self._app(keep_slashes(scope), receive, send)

    async def drain(self, seconds: float | None = None) -> None:
        """Shut down gracefully, before the server closes its connections.

        New runs are refused. Active runs have `seconds` to finish and are then released, so that another process can
        resume them. Finally, each stream ends with a closing frame, and its client can reconnect to another server. It
        is safe to drain several adapters of the same runtime concurrently or repeatedly. The event log stays open;
        `Shutdown` also closes the log.

        Args:
            seconds: Timeout for active runs; None uses the `grace` of the runtime.
        """
        await self.gateway.drain(seconds)

    @cached_property
    def _app(self) -> Starlette:
        endpoints = self.endpoints()
        # Use a single route per path, so that a 405 response lists all allowed methods.
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
            principal = ANONYMOUS if endpoint.public else await self.gateway.authenticate(request)
            query = None if endpoint.query is None else read_query(endpoint.query, request)
            reservation = None if endpoint.public else self.gateway.reserve(principal, "requests")
            with reservation or nullcontext():
                data = None if endpoint.body is None else await self.gateway.read_body(principal, request)
                slot = None if endpoint.public else self.gateway.acquire_slot(principal, request, len(data or b""))
                async with slot or nullcontext():
                    body = data
                    if data is not None and endpoint.body is not None and issubclass(endpoint.body, BaseModel):
                        body = parse_body(endpoint.body, data, request, self.gateway.limits)
                    # Requests with a body may start runs, whose tasks would keep the request in memory.
                    with nullcontext() if endpoint.method != "GET" else use_request(request):
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
    """Resolve the agent name for a single-agent adapter.

    The name is optional if the runtime has only one agent.

    Raises:
        ConfigurationError: If the agent is unknown, or if no name is passed and the runtime has several agents.
    """
    known = ", ".join(runtime.agents)
    if agent is None and len(runtime.agents) != 1:
        raise ConfigurationError(f"agent= is required unless the runtime has exactly one agent; it has {known}")
    if agent is not None and agent not in runtime.agents:
        raise ConfigurationError(f"unknown agent {agent!r}; the runtime has {known}")
    return agent or next(iter(runtime.agents))


_SLASH = "\x1f"
"""Replacement for an encoded slash in a path. Ids cannot contain this character."""


class _IdConvertor(PathConvertor):
    """Path convertor that matches any characters, including newlines, so that the handler can reject invalid ids."""

    regex = "(?s:.*)"


register_url_convertor("rxloop_id", _IdConvertor())


def keep_slashes(scope: Scope) -> Scope:
    """Return a scope whose path distinguishes encoded slashes from separators.

    Servers decode `%2F` before routing, so an id that contains a slash would otherwise match the wrong route.

    Args:
        scope: Request scope from the server or the parent application.
    """
    raw: bytes = scope.get("raw_path") or b""
    if scope["type"] not in ("http", "websocket") or b"%2f" not in raw.lower():
        return scope
    segments = [unquote(each) for each in raw.partition(b"?")[0].decode("ascii", "replace").split("/")]
    path: str = scope["path"]
    # A parent application may have removed a prefix from `path` but not from `raw_path`.
    for first in range(len(segments)):
        tail = segments[first:]
        prefix = "" if first == 0 or not path.startswith("/") else "/"
        if prefix + "/".join(tail) == path:
            return {**scope, "path": prefix + "/".join(each.replace("/", _SLASH) for each in tail)}
    return scope


def read_path_id(request: HTTPConnection, name: str) -> str:
    """Return an id from the path parameters of a request."""
    value: str = request.path_params[name]
    return value.replace(_SLASH, "/")
