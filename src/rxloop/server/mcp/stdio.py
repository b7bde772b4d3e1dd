"""MCP over stdin and stdout."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any, Self, cast

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from rxloop.protocol.json_data import replace_surrogates

_STDIN = 0
_CHUNK = 65_536
_MAX_CHUNKS_AHEAD = 16
"""Maximum number of chunks read from stdin in advance."""
_GRACE = 5.0
"""Grace period in seconds for pending requests after the end of stdin."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


async def serve_stdio(server: Server[Any]) -> None:
    """Serve a single client over stdin and stdout, until stdin ends or stdout is closed.

    Meanwhile, other output to stdout is redirected to stderr. Requests received before the end of stdin are still
    answered.
    """
    lines: Any = _LineReader(_STDIN)
    try:
        async with stdio_server(stdin=lines) as (read, write):
            pending = _PendingRequests()
            options = server.create_initialization_options()
            try:
                await server.run(cast("Any", _Receiver(read, pending)), cast("Any", _Sender(write, pending)), options)
            finally:
                # Flush buffered output while stdout is still redirected to stderr.
                sys.stdout.flush()
    except* (BrokenPipeError, ConnectionResetError):
        # The client disconnected without waiting for an answer.
        pass


class _LineReader:
    """Asynchronous line reader for a file descriptor.

    Reading happens in a daemon thread, because a blocking read from stdin cannot be interrupted.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()
        self._slots = threading.Semaphore(_MAX_CHUNKS_AHEAD)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="stdin", daemon=True).start()

    def _read(self) -> None:
        chunk = b"more"
        while chunk:
            self._slots.acquire()
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
            self._slots.release()
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                line = b"".join([*parts, end])
                parts.clear()
                if line.strip():
                    yield _decode_line(line)
            parts.append(rest)
        if last := b"".join(parts).strip():
            yield _decode_line(last)


def _decode_line(line: bytes) -> str:
    """Decode a message, replacing unpaired surrogates."""
    text = line.decode("utf-8", "replace")
    if _SURROGATE.search(text):
        try:
            return replace_surrogates(json.dumps(json.loads(text), ensure_ascii=False))
        except ValueError:
            return text
    return text


class _PendingRequests:
    """Pending requests."""

    def __init__(self) -> None:
        self._ids: set[str | int] = set()
        self._removed = asyncio.Event()

    def record_incoming(self, message: object) -> None:
        """Record a message from the client."""
        if isinstance(message, types.JSONRPCRequest):
            self._ids.add(message.id)
        elif isinstance(message, types.JSONRPCNotification) and message.method == "notifications/cancelled":
            self._remove((message.params or {}).get("requestId"))

    def record_outgoing(self, message: object) -> None:
        """Record a message from the server."""
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError) and message.id is not None:
            self._remove(message.id)

    async def wait(self) -> None:
        """Wait until all requests are answered or the grace period ends."""
        with anyio.move_on_after(_GRACE):
            while self._ids:
                self._removed.clear()
                await self._removed.wait()

    def _remove(self, request: Any) -> None:
        self._ids.discard(request)
        self._removed.set()


class _StreamWrapper:
    """Wrapper for an SDK stream."""

    def __init__(self, inner: Any, pending: _PendingRequests) -> None:
        self._inner = inner
        self._pending = pending

    async def aclose(self) -> None:
        """Close the stream."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()


class _Receiver(_StreamWrapper):
    """Client messages. The stream ends after all requests have been answered."""

    @property
    def last_context(self) -> Any:
        """Sender's context variables for the last message."""
        return self._inner.last_context

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message, or an error for invalid input."""
        try:
            item = await self._inner.receive()
        except anyio.EndOfStream:
            await self._pending.wait()
            raise
        if isinstance(item, SessionMessage):
            self._pending.record_incoming(item.message)
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Sender(_StreamWrapper):
    """Server messages."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        await self._inner.send(item)
        self._pending.record_outgoing(item.message)
