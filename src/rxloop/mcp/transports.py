"""Runs an MCP server: over the pipes of the process, or by HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import re
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any, Self, cast

import anyio

from rxloop.errors import ConfigurationError
from rxloop.mcp import missing
from rxloop.protocol.json_data import readable

try:
    import mcp_types as types
    import uvicorn
    from mcp.server import Server
    from mcp.server.stdio import stdio_server
    from mcp.server.transport_security import TransportSecuritySettings
    from mcp.shared.message import SessionMessage

    from rxloop.mcp._gate import LONGEST, Gate, impatient
except ModuleNotFoundError as error:
    raise missing(error) from error

ENDPOINT = "/mcp"
"""Where the server is found by HTTP."""

_STDIN = 0
_CHUNK = 65_536
_AHEAD = 16
"""Pieces of stdin that are read before they are wanted."""
_GRACE = 5.0
"""Seconds that requests have to be answered once stdin has ended."""
IDLE = 24 * 60 * 60.0
"""Seconds without a request after which a client has left."""
_CLIENTS = 1_000
_MORE = 100
"""Connections beside the two that a client has open: one that listens and one that asks."""
_LOCAL = ("127.0.0.1", "localhost", "[::1]")

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over stdin and stdout, until stdin ends or stdout is closed.

    Whatever else writes to stdout meanwhile goes to stderr. Requests that came before the end are answered.
    """
    lines: Any = _Lines(_STDIN)
    try:
        async with stdio_server(stdin=lines) as (read, write):
            unanswered = _Unanswered()
            options = server.create_initialization_options()
            try:
                await server.run(cast("Any", _Read(read, unanswered)), cast("Any", _Write(write, unanswered)), options)
            finally:
                # What was printed meanwhile may lie in a buffer, and still goes to stderr now.
                sys.stdout.flush()
    except* (BrokenPipeError, ConnectionResetError):
        # The client has left without waiting for an answer.
        pass


class _Lines:
    """The lines of a file descriptor.

    A thread of its own reads them, which nobody waits for: a read of stdin cannot be interrupted.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._ahead = threading.Semaphore(_AHEAD)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        chunk = b"more"
        while chunk:
            self._ahead.acquire()
            try:
                chunk = os.read(self._descriptor, _CHUNK)
            except OSError:
                chunk = b""
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                # The loop is closed.
                return

    async def __aiter__(self) -> AsyncIterator[str]:
        parts: list[bytes] = []
        while chunk := await self._chunks.get():
            self._ahead.release()
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line = b"".join([*parts, end])
                parts.clear()
                if line.strip():
                    yield _line(line)
            parts.append(rest)
        if last := b"".join(parts).strip():
            yield _line(last)


def _line(line: bytes) -> str:
    """A message as text that can be read; half a character becomes a replacement character."""
    text = line.decode("utf-8", "replace")
    if _SURROGATE.search(text):
        try:
            return readable(json.dumps(json.loads(text), ensure_ascii=False))
        except ValueError:
            return text
    return text


class _Unanswered:
    """The requests that wait for their answers."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._none = asyncio.Event()

    def asked(self, message: object) -> None:
        """Note what the client has sent."""
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._done((message.params or {}).get("requestId"))

    def answered(self, message: object) -> None:
        """Note what the server has sent."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._done(message.id)

    async def wait(self) -> None:
        """Wait until all are answered, for a while."""
        with anyio.move_on_after(_GRACE):
            while self._ids:
                self._none.clear()
                await self._none.wait()

    def _done(self, request: Any) -> None:
        self._ids.discard(request)
        self._none.set()


class _Wrapped:
    """A stream of the SDK around another one."""

    def __init__(self, inner: Any, unanswered: _Unanswered) -> None:
        self._inner = inner
        self._unanswered = unanswered

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


class _Read(_Wrapped):
    """What the client sends; it ends when all of it is answered."""

    @property
    def last_context(self) -> Any:
        """The context variables of the sender."""
        return self._inner.last_context

    async def receive(self) -> SessionMessage | Exception:
        """The next message, or what was not a message."""
        try:
            item = await self._inner.receive()
        except anyio.EndOfStream:
            await self._unanswered.wait()
            raise
        if isinstance(item, SessionMessage):
            self._unanswered.asked(item.message)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Write(_Wrapped):
    """What the server sends."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        await self._inner.send(item)
        self._unanswered.answered(item.message)


async def serve_http(
    server: Server[Any],
    host: str = "127.0.0.1",
    port: int = 8000,
    *,
    allowed_hosts: Sequence[str] = (),
    ttl: float = IDLE,
    max_clients: int = _CLIENTS,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve any number of clients by streamable HTTP, until the process gets a signal.

    A request whose `Host` or `Origin` names something else than this machine, or the hosts allowed here, is refused:
    a page in a browser could otherwise reach the server under a name of its own.

    Args:
        server: The server.
        host: The address to listen on.
        port: The port; 0 takes a free one.
        allowed_hosts: Other names by which clients may call the server.
        ttl: Seconds without a request after which a client has left, and what was kept for it is freed.
        max_clients: How many clients there may be; one more is answered with status 503.
        ready: Called with the server's URL when it listens.

    Raises:
        ConfigurationError: The address cannot be listened on, or a number is too small.
    """
    if not 0 < ttl < math.inf or max_clients < 1:
        raise ConfigurationError(f"ttl={ttl!r} must be more than 0 seconds, and max_clients={max_clients!r} at least 1")
    hosts = [*_LOCAL, *([f"[{host}]"] if ":" in host else [host]), *allowed_hosts]
    names = [name for known in dict.fromkeys(hosts) for name in (known, f"{known}:*")]
    app = server.streamable_http_app(
        streamable_http_path=ENDPOINT,
        max_request_body_size=LONGEST,
        session_idle_timeout=ttl,
        max_sessions=max_clients,
        transport_security=TransportSecuritySettings(
            enable_dns_rebinding_protection=True,
            allowed_hosts=names,
            allowed_origins=[f"{scheme}://{name}" for scheme in ("http", "https") for name in names],
        ),
    )
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"cannot listen on {host}, port {port}: {error.strerror or error}") from error
    with listener:
        if ready is not None:
            shown = f"[{host}]" if ":" in host else host
            ready(f"http://{shown}:{listener.getsockname()[1]}{ENDPOINT}")
        config = uvicorn.Config(
            Gate(app, hosts),
            http=impatient(2 * max_clients + _MORE),
            ws="none",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,
        )
        await _run(uvicorn.Server(config), listener)


async def _run(runner: uvicorn.Server, listener: socket.socket) -> None:
    """Run the server until a signal comes; clients that are still there are then cut off, without a word in the log."""
    logger = logging.getLogger("uvicorn.error")

    def worth_logging(_: logging.LogRecord) -> bool:
        return not runner.should_exit

    logger.addFilter(worth_logging)
    try:
        await runner.serve(sockets=[listener])
    finally:
        logger.removeFilter(worth_logging)
