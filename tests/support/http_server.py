"""HTTP/1.1 server that sends scripted replies in chosen pieces."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpcore
import orjson
from reactivex import Observable

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ContentDeltaEvent, Event
from rxloop.protocol.messages import Message
from rxloop.providers import HTTPModel, Retry, openai_chat
from rxloop.providers.transport.httpx_client import HttpxClient
from support.tcp_server import serve_connections

REQUEST = ModelRequest(messages=[Message.user("hi")])


@dataclass(frozen=True, slots=True)
class Reply:
    """Scripted HTTP response."""

    pieces: Sequence[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    content_type: str = "text/event-stream"
    end: Literal["end", "drop", "hang"] = "end"
    """End of the body: complete it, drop the connection, or stop sending."""
    interim: int = 0
    """Number of interim responses before the response."""


@dataclass(frozen=True, slots=True)
class Received:
    """Recorded HTTP request."""

    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes


class Server:
    """HTTP server with scripted replies. The last reply is repeated."""

    def __init__(self) -> None:
        self.replies: list[Reply] = [Reply()]
        self.requests: list[Received] = []
        self.connections = 0
        self.open = 0
        self.port = 0
        self.requested = asyncio.Event()
        self.all_closed = asyncio.Event()
        self.tasks: set[asyncio.Task[Any]] = set()
        """Active connection tasks."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def answer(self, *replies: Reply) -> None:
        self.replies = list(replies)

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        self.connections += 1
        self.open += 1
        self.all_closed.clear()
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            writer.close()
            self.tasks.discard(task)
            self.open -= 1
            if not self.open:
                self.all_closed.set()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers["content-length"]))
        reply = self.replies[min(len(self.requests), len(self.replies) - 1)]
        self.requests.append(Received(head[0].split()[1], headers, orjson.loads(body), body))
        self.requested.set()
        lines = ["HTTP/1.1 103 Early Hints", ""] * reply.interim
        lines += [f"HTTP/1.1 {reply.status} Whatever", "transfer-encoding: chunked"]
        lines += [f"content-type: {reply.content_type}"] if reply.content_type else []
        lines += [f"{name}: {value}" for name, value in reply.headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        for piece in reply.pieces:
            if piece:
                writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                await writer.drain()
                await asyncio.sleep(0)
        if reply.end == "drop":
            return False
        if reply.end == "hang":
            await reader.read()
            return False
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True


@contextlib.asynccontextmanager
async def start_server() -> AsyncGenerator[Server]:
    """Run a server for the duration of the block."""
    server = Server()
    async with serve_connections(server.handle) as server.port:
        yield server


@dataclass
class StreamResult:
    """Outcome of a subscription."""

    events: list[Any]
    error: Exception | None


async def collect(source: Observable[Event]) -> StreamResult:
    """Subscribe until the end of the stream."""
    end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    events: list[Event] = []
    source.subscribe(events.append, end.set_result, lambda: end.set_result(None))
    async with asyncio.timeout(20):
        return StreamResult(events, await end)


def sse(*chunks: Any, done: bool = True) -> list[bytes]:
    """Encode each chunk as one server-sent event."""
    pieces = [b"data: " + (chunk if isinstance(chunk, bytes) else orjson.dumps(chunk)) + b"\n\n" for chunk in chunks]
    return [*pieces, b"data: [DONE]\n\n"] if done else pieces


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return one chunk of a streamed chat completion."""
    return {"id": "c1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def text_reply(*words: str, end: Literal["end", "drop", "hang"] = "end", finished: bool = True) -> Reply:
    """Return a reply that streams words."""
    last = [delta("stop")] if finished else []
    return Reply(sse(*(delta(content=word) for word in words), *last, done=finished), end=end)


def chat_model(server: Server, **options: Any) -> HTTPModel:
    """Return a provider for the server, without retries by default."""
    options.setdefault("retry", Retry(attempts=1))
    return openai_chat("m", base_url=server.base_url, **options)


def streamed_text(answer: StreamResult) -> str:
    """Return the streamed text."""
    return "".join(event.delta for event in answer.events if isinstance(event, ContentDeltaEvent))


def active_connections(provider: HTTPModel) -> list[str]:
    """Return a provider's active connections, for any transport."""
    return [str(one) for client in provider._pool.clients for one in _list_active(client)]


def list_connections(client: Any) -> list[httpcore.AsyncConnectionInterface]:
    """Return all connections of an httpx client."""
    return client.http._transport._pool.connections


def _list_active(client: Any) -> Iterable[Any]:
    if isinstance(client, HttpxClient):
        return [one for one in list_connections(client) if not one.is_idle() and not one.is_closed()]
    connector = client.session.connector
    return [] if connector is None else connector._acquired
