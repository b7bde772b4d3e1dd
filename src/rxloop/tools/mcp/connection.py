"""One connection, entered and left in one task."""

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
from rxloop.tools.mcp.calls import MOST, Connect, Link, bounded
from rxloop.tools.mcp.client_requests import Answers
from rxloop.tools.mcp.options import CredentialOfRun, Http, Stdio, Taken
from rxloop.tools.mcp.repair import ResultRepair
from rxloop.tools.mcp.tool_list import Listing

_TAIL = 2_000
"""Characters of what a program wrote to stderr that are kept for the reason why it failed."""

_AGAIN = 5.0
"""Seconds until a lost stream of changes is opened again."""

Heard = Callable[[object], None]
"""Gets each message, in order."""


class Connection(Link):
    """A connection with the list of its tools."""

    def __init__(
        self,
        name: str,
        taken: Taken,
        client: Client,
        secrets: tuple[str, ...],
        connect_again: Connect,
        *,
        sessions: bool,
    ) -> None:
        super().__init__(name, taken, client, secrets, sessions=sessions)
        self.listing = Listing(self, connect_again)


@asynccontextmanager
async def connect(
    name: str, place: Stdio | Http, taken: Taken, credential: CredentialOfRun, connect_again: Connect
) -> AsyncGenerator[Connection]:
    """Connect to a server, and ask it to tell when its tools change.

    Args:
        name: What the server is called.
        place: Where it is.
        taken: What is taken of it.
        credential: What is sent with each request.
        connect_again: Gives its tools a connection, this one or a later one.

    Raises:
        RxloopError: It cannot be started or reached, or does not speak MCP.
    """
    secrets = (*place.secrets(), *credential.secrets())
    complaints = _Complaints()
    connection: Connection | None = None

    def closed() -> None:
        if connection is not None:
            connection.closed = True

    repair = ResultRepair()

    def heard(message: object) -> None:
        if connection is not None:
            repair.received(message, connection.client.protocol_version, connection.listing.warn)
            if getattr(message, "method", None) == "notifications/tools/list_changed":
                connection.listing.changed()

    async with AsyncExitStack() as stack:
        stack.callback(complaints.close)
        try:
            inner = await _transport(place, credential, complaints, stack)
            transport = _Watched(inner, repair.sent, heard, closed)
            answers = Answers(taken, lambda: connection)
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
            raise RxloopError(redact_each(_why(error, complaints.text()), secrets)) from None
        connection = Connection(name, taken, client, secrets, connect_again, sessions=isinstance(place, Http))
        group = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(group.cancel_scope.cancel)
        stack.callback(connection.listing.close)
        if connection.modern:
            group.start_soon(_listen, connection)
        try:
            yield connection
        finally:
            connection.closed = True


async def _transport(
    place: Stdio | Http, credential: CredentialOfRun, complaints: _Complaints, stack: AsyncExitStack
) -> AbstractAsyncContextManager[Any]:
    if isinstance(place, Stdio):
        parameters = StdioServerParameters(
            command=place.command,
            args=list(place.args),
            env=dict(place.env),
            cwd=place.cwd,
            # What is no UTF-8 is no message either, and costs no more than that.
            encoding_error_handler="replace",
        )
        return stdio_client(parameters, errlog=complaints.open())
    with name_variables():
        http = httpx2.AsyncClient(
            headers={**place.headers, **credential.headers, "Accept-Encoding": "identity"},
            auth=credential.auth,
            event_hooks={"response": [bounded]},
            # A server may think as long as the timeout of the call lets it.
            timeout=httpx2.Timeout(30.0, read=None),
        )
    await stack.enter_async_context(http)
    return streamable_http_client(place.url, http_client=http, max_sse_event_size=MOST)


async def _listen(connection: Connection) -> None:
    """Hear of changes of the tools, as long as the server tells of them."""
    tools = connection.client.server_capabilities.tools
    if tools is None or not tools.list_changed:
        return
    while True:
        try:
            async with connection.client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    # Heard already: see `_Read`.
                    pass
            return
        except MCPError as error:
            if error.code != types.CONNECTION_CLOSED:
                return
        except (SubscriptionLost, TimeoutError):
            pass
        connection.listing.changed()
        await asyncio.sleep(_AGAIN)


def _why(error: BaseException, complaints: str) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, MCPError):
        text = str(error)
    return f"{text}; it wrote: {complaints}" if complaints else text


class _Complaints:
    """What a program writes to stderr: only its end is kept, for who wants to know why it failed."""

    def __init__(self) -> None:
        self._last: deque[bytes] = deque()
        self._size = 0
        self._read: int | None = None
        self._write: TextIO | None = None

    def open(self) -> TextIO:
        """Give the file that the program is to write to."""
        self._read, write = os.pipe()
        os.set_blocking(self._read, False)
        try:
            asyncio.get_running_loop().add_reader(self._read, self._readable)
        except NotImplementedError:
            # An event loop that cannot watch a pipe (on Windows): nobody reads what the program says.
            os.close(write)
            write = os.open(os.devnull, os.O_WRONLY)
        self._write = os.fdopen(write, "w")
        return self._write

    def text(self) -> str:
        """The end of what the program has written."""
        if self._read is not None:
            self._readable()
        return b"".join(self._last).decode("utf-8", "replace").strip()[-_TAIL:]

    def close(self) -> None:
        """Read no more."""
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
        while len(self._last) > 1 and self._size - len(self._last[0]) > _TAIL:
            self._size -= len(self._last.popleft())


class _Watched:
    """A transport that tells what is sent, what the server says, and when it has closed its side."""

    def __init__(
        self, inner: AbstractAsyncContextManager[Any], sent: Heard, heard: Heard, closed: Callable[[], None]
    ) -> None:
        self._inner = inner
        self._sent = sent
        self._heard = heard
        self._closed = closed

    async def __aenter__(self) -> tuple[Any, Any]:
        read, write = await self._inner.__aenter__()
        return _Read(read, self._heard, self._closed), _Write(write, self._sent)

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._inner.__aexit__(*error)


class _Write:
    """The stream to the server. It reports each message before it is sent."""

    def __init__(self, inner: Any, sent: Heard) -> None:
        self._inner = inner
        self._sent = sent

    async def send(self, item: Any) -> None:
        """Send a message."""
        self._sent(getattr(item, "message", None))
        await self._inner.send(item)

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()

    def close(self) -> None:
        """Close it."""
        self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._inner.__aexit__(*error)


class _Read:
    """The stream of what the server sends, in its order: the SDK tells of a change after the result that follows it."""

    def __init__(self, inner: Any, heard: Heard, closed: Callable[[], None]) -> None:
        self._inner = inner
        self._heard = heard
        self._closed = closed

    @property
    def last_context(self) -> Any:
        """The context variables of the sender."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> Any:
        """The next message."""
        return await self._next(self._inner.receive)

    async def _next(self, receive: Callable[[], Awaitable[Any]]) -> Any:
        try:
            item = await receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, StopAsyncIteration):
            self._closed()
            raise
        self._heard(getattr(item, "message", None))
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await self._next(self._inner.__anext__)

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()

    def close(self) -> None:
        """Close it."""
        self._inner.close()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._inner.__aexit__(*error)
