"""A small HTTP/1.1 server: one handler, keep-alive, answers at once or in chunks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import orjson

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    500: "Internal Server Error",
}


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """What a client sent."""

    method: str
    path: str
    """Without the query."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class HTTPResponse:
    """What it is answered: a body, or chunks that come one by one."""

    status: int = 200
    body: bytes = b""
    chunks: AsyncGenerator[bytes, None] | None = None
    headers: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def json(cls, value: object, status: int = 200) -> HTTPResponse:
        """A value as JSON."""
        return cls(status, orjson.dumps(value), headers={"content-type": "application/json"})


Handler = Callable[[HTTPRequest], Awaitable[HTTPResponse]]


class _Unreadable(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Connection:
    """One connection: reads requests and writes their answers until the client leaves or asks to close."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._buffer = b""

    async def serve(self) -> None:
        """Answer one request after the other."""
        try:
            while (request := await self._read_request()) is not None:
                await self._answer(request)
                if request.headers.get("connection", "").lower() == "close":
                    break
        except _Unreadable as error:
            refusal = HTTPResponse.json({"error": {"message": str(error), "type": "bad_request"}}, error.status)
            with contextlib.suppress(ConnectionError):
                await self._write(refusal, close=True)
        except ConnectionError:
            pass  # The client left; there is nobody to tell.
        finally:
            self._writer.close()
            with contextlib.suppress(ConnectionError):
                await self._writer.wait_closed()

    async def _answer(self, request: HTTPRequest) -> None:
        """Write the answer, unless the client leaves before it is complete."""
        answer = asyncio.ensure_future(self._handle(request))
        watch = asyncio.ensure_future(self._watch())
        try:
            await asyncio.wait({answer, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done() and not answer.done():
                answer.cancel()
            await asyncio.wait({answer})
        finally:
            for task in (answer, watch):
                task.cancel()
            await asyncio.gather(answer, watch, return_exceptions=True)
        if watch.done() and not watch.cancelled():
            raise ConnectionResetError("the client left")
        answer.result()

    async def _watch(self) -> None:
        """Return when the client leaves; what it sends meanwhile is kept for the next request."""
        while await self._fill():
            pass

    async def _handle(self, request: HTTPRequest) -> None:
        try:
            response = await self._handler(request)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            response = HTTPResponse.json({"error": {"message": message, "type": "server_error"}}, 500)
        await self._write(response, close=request.headers.get("connection", "").lower() == "close")

    async def _write(self, response: HTTPResponse, *, close: bool) -> None:
        headers = response.headers | {"connection": "close" if close else "keep-alive"}
        if response.chunks is None:
            headers["content-length"] = str(len(response.body))
        else:
            headers["transfer-encoding"] = "chunked"
        lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Unknown')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + response.body)
        await self._writer.drain()
        if response.chunks is None:
            return
        async with contextlib.aclosing(response.chunks) as chunks:
            async for chunk in chunks:
                self._writer.write(b"%x\r\n%s\r\n" % (len(chunk), chunk))
                await self._writer.drain()
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def _read_request(self) -> HTTPRequest | None:
        """The next request, or None when the client is done."""
        while b"\r\n\r\n" not in self._buffer:
            if len(self._buffer) > _MAX_HEAD:
                raise _Unreadable(413, "the head of the request is too long")
            if not await self._fill():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *rest = head.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise _Unreadable(400, "not an HTTP/1.1 request")
        pairs = [line.partition(":") for line in rest]
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        body = await self._read_chunks() if "transfer-encoding" in headers else await self._read_length(headers)
        return HTTPRequest(parts[0], parts[1].partition("?")[0], headers, body)

    async def _read_length(self, headers: dict[str, str]) -> bytes:
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise _Unreadable(400, "content-length is no number")
        return await self._take(int(length))

    async def _read_chunks(self) -> bytes:
        body = b""
        while True:
            line = await self._take_line()
            try:
                size = int(line.partition(b";")[0], 16)
            except ValueError:
                raise _Unreadable(400, "a chunk has no size") from None
            if size == 0:
                while await self._take_line():
                    pass
                return body
            body += await self._take(size)
            await self._take_line()

    async def _take(self, size: int) -> bytes:
        if size > _MAX_BODY:
            raise _Unreadable(413, "the body is too long")
        while len(self._buffer) < size:
            if not await self._fill():
                raise ConnectionResetError("the client left within its request")
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    async def _take_line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            if len(self._buffer) > _MAX_HEAD:
                raise _Unreadable(413, "a line is too long")
            if not await self._fill():
                raise ConnectionResetError("the client left within its request")
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    async def _fill(self) -> bool:
        data = await self._reader.read(65536)
        self._buffer += data
        return bool(data)
