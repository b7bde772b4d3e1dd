"""MCP server connection, opened and closed within a single task."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any, Self, TextIO, cast

import anyio
import httpx2
import mcp_types as types
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError

from rxloop._version import __version__
from rxloop.errors import ConfigurationError, RxloopError
from rxloop.support.http_environment import name_variables
from rxloop.support.redaction import redact_each
from rxloop.tools.mcp.calls import MAX_MESSAGE_BYTES, Connect, Link, limit_body
from rxloop.tools.mcp.client_requests import Answers
from rxloop.tools.mcp.options import Http, RunCredential, ServerOptions, Stdio
from rxloop.tools.mcp.repair import ResultRepair
from rxloop.tools.mcp.tool_list import Listing

_MAX_STDERR = 2_000
"""Maximum stderr length for error messages, in characters."""

_RETRY_AFTER = 5.0
"""Seconds before a lost subscription is opened again."""

OnMessage = Callable[[object], None]
"""Callback for received messages in order."""


class Connection(Link):
    """MCP connection with a cached tool list."""

    def __init__(
        self,
        name: str,
        options: ServerOptions,
        client: Client,
        secrets: tuple[str, ...],
        connect_again: Connect,
        *,
        sessions: bool,
    ) -> None:
        super().__init__(name, options, client, secrets, sessions=sessions)
        self.listing = Listing(self, connect_again)


@asynccontextmanager
async def connect(
    name: str, address: Stdio | Http, options: ServerOptions, credential: RunCredential, connect_again: Connect
) -> AsyncGenerator[Connection]:
    """Connect to a server, and subscribe to changes of its tools.

    Args:
        name: Name of the server.
        address: Program or URL of the server.
        options: Options of the server.
        credential: Credential sent with each request.
        connect_again: Returns the current connection for a tool call.

    Raises:
        RxloopError: If the server cannot be started or reached, or does not speak MCP.
    """
    secrets = (*address.secrets(), *credential.secrets())
    stderr = _Stderr()
    connection: Connection | None = None

    def closed() -> None:
        if connection is not None:
            connection.closed = True

    repair = ResultRepair()

    def on_message(message: object) -> None:
        if connection is not None:
            repair.repair_result(message, connection.client.protocol_version, connection.listing.warn)
            if getattr(message, "method", None) == "notifications/tools/list_changed":
                connection.listing.expire()

    async with AsyncExitStack() as stack:
        stack.callback(stderr.close)
        try:
            inner = await _transport(address, credential, stderr, stack)
            transport = _ObservedTransport(inner, repair.record_request, on_message, closed)
            answers = Answers(options, lambda: connection)
            client = Client(
                cast("Any", transport),
                client_info=types.Implementation(name="rxloop", version=__version__),
                cache=None,
                **answers.callbacks(),
            )
            await stack.enter_async_context(client)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError | ConfigurationError):
                raise
            raise RxloopError(redact_each(_explain_failure(error, stderr.text()), secrets)) from None
        connection = Connection(name, options, client, secrets, connect_again, sessions=isinstance(address, Http))
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        stack.callback(connection.listing.close)
        if connection.is_modern:
            group.start_soon(_listen, connection)
        try:
            yield connection
        finally:
            connection.closed = True


async def _transport(
    address: Stdio | Http, credential: RunCredential, stderr: _Stderr, stack: AsyncExitStack
) -> AbstractAsyncContextManager[Any]:
    if isinstance(address, Stdio):
        parameters = StdioServerParameters(
            command=address.command,
            args=list(address.args),
            env=dict(address.env),
            cwd=address.cwd,
            # Replacing invalid UTF-8 limits the damage to a single message.
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, errlog=stderr.open())
    with name_variables():
        http = httpx2.AsyncClient(
            headers={**address.headers, **credential.headers, "Accept-Encoding": "identity"},
            auth=credential.auth,
            event_hooks={"response": [limit_body]},
            # Read timeout disabled, because calls have a separate timeout.
            timeout=httpx2.Timeout(30.0, read=None),
        )
    await stack.enter_async_context(http)
    return streamable_http_client(address.url, http_client=http, max_sse_event_size=MAX_MESSAGE_BYTES)


async def _listen(connection: Connection) -> None:
    """Receive change notifications until the server ends the subscription."""
    tools = connection.client.server_capabilities.tools
    if tools is None or not tools.list_changed:
        return
    while True:
        try:
            async with connection.client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    # `_Read` has already handled the notification.
                    pass
            return
        except MCPError as error:
            if error.code != types.CONNECTION_CLOSED:
                return
        except (SubscriptionLost, TimeoutError):
            pass
        connection.listing.expire()
        await asyncio.sleep(_RETRY_AFTER)


def _explain_failure(error: BaseException, stderr: str) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, MCPError):
        text = str(error)
    return f"{text}; stderr: {stderr}" if stderr else text


class _Stderr:
    """Stderr buffer for error messages, limited to the most recent output."""

    def __init__(self) -> None:
        self._last: deque[bytes] = deque()
        self._size = 0
        self._read: int | None = None
        self._write: TextIO | None = None

    def open(self) -> TextIO:
        """Return the file to which the program writes."""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        try:
            asyncio.get_running_loop().add_reader(self._read, self._readable)
        except NotImplementedError:
            # The event loop (on Windows) cannot watch pipes, so discard the output.
            os.close(write)
            write = os.open(os.devnull, os.O_WRONLY)
        self._write = os.fdopen(write, "w")
        return self._write

    def text(self) -> str:
        """Return the most recent output."""
        if self._read is not None:
            self._readable()
        return b"".join(self._last).decode("utf-8", "replace").strip()[-_MAX_STDERR:]

    def close(self) -> None:
        """Stop reading."""
        if self._write is not None:
            self._write.close()
        if self._read is not None:
            with suppress(NotImplementedError):
                asyncio.get_running_loop().remove_reader(self._read)
            os.close(self._read)
            self._read = None

    def _readable(self) -> None:
        assert self._read is not None
        try:
            data = os.read(self._read, 65_536)
        except OSError:
            return
        if not data:
            asyncio.get_running_loop().remove_reader(self._read)
            return
        self._last.append(data)
        self._size += len(data)
        while len(self._last) > 1 and self._size - len(self._last[0]) > _MAX_STDERR:
            self._size -= len(self._last.popleft())


class _ObservedTransport:
    """A transport that reports sent and received messages and the end of the connection."""

    def __init__(
        self,
        inner: AbstractAsyncContextManager[Any],
        sent: OnMessage,
        on_message: OnMessage,
        closed: Callable[[], None],
    ) -> None:
        self._inner = inner
        self._sent = sent
        self._on_message = on_message
        self._closed = closed

    async def __aenter__(self) -> tuple[Any, Any]:
        read, write = await self._inner.__aenter__()
        return _Read(read, self._on_message, self._closed), _Write(write, self._sent)

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._inner.__aexit__(*error)


class _ObservedStream:
    """A stream that reports its messages."""

    def __init__(self, inner: Any, on_message: OnMessage) -> None:
        self._inner = inner
        self._on_message = on_message

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    def close(self) -> None:
        """Close the stream."""
        self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._inner.__aexit__(*error)


class _Write(_ObservedStream):
    """The stream to the server. Reports each message before sending it."""

    async def send(self, item: Any) -> None:
        """Send a message."""
        self._on_message(getattr(item, "message", None))
        await self._inner.send(item)


class _Read(_ObservedStream):
    """Ordered server message stream. The SDK otherwise reports changes after subsequent results."""

    def __init__(self, inner: Any, on_message: OnMessage, closed: Callable[[], None]) -> None:
        super().__init__(inner, on_message)
        self._closed = closed

    @property
    def last_context(self) -> Any:
        """Context variables of the message sender."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        """Return the next message."""
        return await self._next(self._inner.receive)

    async def _next(self, receive: Callable[[], Awaitable[Any]]) -> Any:
        try:
            item = await receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, StopAsyncIteration):
            self._closed()
            raise
        self._on_message(getattr(item, "message", None))
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._next(self._inner.__anext__)
