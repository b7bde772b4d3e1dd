"""A small HTTP/1.1 server on h11: one handler, keep-alive, answers at once or in chunks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus

import h11
import orjson

_MAX_HEAD = 64 * 1024
_MAX_BODY = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class HTTPRequest:
    """What a client sent."""

    method: str
    path: str
    """Without the query."""
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
        """Answer with a value as JSON."""
        return cls(status, orjson.dumps(value), headers={"content-type": "application/json"})


Handler = Callable[[HTTPRequest], Awaitable[HTTPResponse]]


class Connection:
    """One connection: reads requests and writes their answers until the client leaves or asks to close."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: Handler) -> None:
        self._reader = reader
        self._writer = writer
        self._handler = handler
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)

    async def serve(self) -> None:
        """Answer one request after the other."""
        try:
            while (request := await self._read_request()) is not None:
                await self._answer(request)
                if self._http.our_state is not h11.DONE:
                    break
                self._http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            # A request that is too long has one status, whichever part of it is.
            status = 413 if error.error_status_hint == 431 else error.error_status_hint
            refusal = HTTPResponse.json({"error": {"message": str(error), "type": "bad_request"}}, status)
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
        await self._write(response, close=self._http.their_state is h11.MUST_CLOSE)

    async def _write(self, response: HTTPResponse, *, close: bool) -> None:
        headers = response.headers | {"connection": "close" if close else "keep-alive"}
        if response.chunks is None:
            headers["content-length"] = str(len(response.body))
        else:
            headers["transfer-encoding"] = "chunked"
        reason = HTTPStatus(response.status).phrase
        head = h11.Response(status_code=response.status, headers=[*headers.items()], reason=reason)
        await self._send(head, h11.Data(data=response.body))
        if response.chunks is not None:
            async with contextlib.aclosing(response.chunks) as chunks:
                async for chunk in chunks:
                    await self._send(h11.Data(data=chunk))
        await self._send(h11.EndOfMessage())

    async def _send(self, *events: h11.Event) -> None:
        self._writer.write(b"".join(self._http.send(event) or b"" for event in events))
        await self._writer.drain()

    async def _read_request(self) -> HTTPRequest | None:
        """Read the next request; None when the client is done."""
        head = await self._next_event()
        if not isinstance(head, h11.Request):
            return None
        size = next((int(value) for name, value in head.headers if name == b"content-length"), 0)
        body = bytearray()
        while size <= _MAX_BODY and isinstance(event := await self._next_event(), h11.Data):
            body += event.data
            size = max(size, len(body))
        if size > _MAX_BODY:
            raise h11.RemoteProtocolError("the body is too long", error_status_hint=413)
        path = head.target.decode("latin-1").partition("?")[0]
        return HTTPRequest(head.method.decode("latin-1"), path, bytes(body))

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            await self._fill()
        return event

    async def _fill(self) -> bool:
        data = await self._reader.read(65536)
        self._http.receive_data(data)
        return bool(data)
