"""Local model endpoint that is faster than any client, because its responses are rendered in advance.

The path selects the response. `/stream/N/READ`: N text chunks, READ of them in each HTTP chunk. `/drip/N/MS`: N chunks
with an interval of MS milliseconds. `/write/CALLS/N/MS`: a message with CALLS tool calls, whose arguments are split
into N chunks with an interval of MS milliseconds, then a text. `/pour/N`: N chunks at the speed of the reader.
`/held/N`: N chunks without an end. `/cut/N`: N chunks, then a broken connection. `/fail/CODE`: an error. `/tools/K`: K
sequential tool calls, then a text. `/typed/K`: the same with JSON at the end. `GET /requests` returns the number of
responses.

As a program, it prints its port and ends when stdin is closed.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from functools import cache

import orjson

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CONTENT_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
RESULT, RESULT_OF = b'"tool_call_id"', re.compile(rb'"tool_call_id": ?"call_(\d+)"')
POURED = 1_000
"""Number of chunks per write for answers that are too long for the cache."""


def chunk(delta: dict[str, object], finish: str | None = None) -> bytes:
    """Return an event of a streamed chat completion."""
    fields = {
        "id": "chatcmpl-0123456789abcdef",
        "object": "chat.completion.chunk",
        "created": 1767225600,
        "model": "bench",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }
    return b"data: " + orjson.dumps(fields) + b"\n\n"


def ending(finish: str) -> list[bytes]:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    return [
        chunk({}, finish),
        b"data: " + orjson.dumps({"id": "chatcmpl-0", "choices": [], "usage": usage}) + b"\n\n",
        b"data: [DONE]\n\n",
    ]


def story(count: int) -> list[bytes]:
    """Return the events of an answer with the given number of text chunks."""
    words = [chunk({"content": f"word {number} "}) for number in range(count)]
    return [chunk({"role": "assistant", "content": ""}), *words, *ending("stop")]


def response(events: list[bytes], per_read: int) -> bytes:
    def chunks() -> Iterator[bytes]:
        for start in range(0, len(events), per_read):
            data = b"".join(events[start : start + per_read])
            yield b"%x\r\n%b\r\n" % (len(data), data)

    return HEAD + b"".join(chunks()) + b"0\r\n\r\n"


@cache
def stream(count: int, per_read: int) -> bytes:
    """Return an answer with `count` text chunks."""
    return response(story(count), per_read)


@cache
def pieces(count: int) -> list[bytes]:
    """Return HTTP chunks of the answer, one per event, including its end."""
    return [*(b"%x\r\n%b\r\n" % (len(event), event) for event in story(count)), b"0\r\n\r\n"]


@cache
def block() -> bytes:
    """Return text chunks grouped in HTTP chunks."""
    words = [chunk({"content": f"word {number} "}) for number in range(POURED)]
    return response(words, 10).removeprefix(HEAD).removesuffix(b"0\r\n\r\n")


@cache
def typed() -> bytes:
    """Return a JSON answer."""
    texts = ['{"total":', " 4", "2}"]
    return response([chunk({"content": text}) for text in texts] + ending("stop"), 1)


@cache
def tool_call(number: int) -> bytes:
    """Return an answer with a tool call whose arguments are split in two."""
    first: dict[str, object] = {
        "index": 0,
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": "add", "arguments": ""},
    }
    pieces = [
        chunk({"role": "assistant", "content": None, "tool_calls": [first]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": f'{{"a":{number},'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '"b":1}'}}]}),
    ]
    return response([*pieces, *ending("tool_calls")], 1)


@cache
def written(calls: int, count: int) -> list[bytes]:
    """Return HTTP chunks of an answer with several tool calls and split arguments."""
    events: list[bytes] = []
    for index in range(calls):
        arguments = f'{{"topic": "number {index} {"of many " * count}"}}'
        size = -(-len(arguments) // count)
        for start in range(0, len(arguments), size):
            call: dict[str, object] = {"index": index, "function": {"arguments": arguments[start : start + size]}}
            if not start:
                function = {"name": "search", "arguments": arguments[:size]}
                call |= {"id": f"call_{index}", "type": "function", "function": function}
            events.append(chunk({"tool_calls": [call]}))
    events.append(b"".join(ending("tool_calls")))
    return [*(b"%x\r\n%b\r\n" % (len(event), event) for event in events), b"0\r\n\r\n"]


class Connection(asyncio.Protocol):
    """Keep-alive connection."""

    requests = 0

    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.Transport | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._pouring: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            head, found, rest = self._data.partition(b"\r\n\r\n")
            if not found:
                return
            length = CONTENT_LENGTH.search(head)
            size = int(length[1]) if length else 0
            if len(rest) < size:
                return
            self._data = rest[size:]
            assert self._transport is not None
            path = head.split(b" ", 2)[1].decode().split("/")
            if path[1] == "write" and RESULT not in rest[:size]:
                Connection.requests += 1
                self._transport.write(HEAD)
                self._drip(self._transport, written(int(path[2]), int(path[3])), int(path[4]))
            elif path[1] in ("drip", "pour", "held", "cut"):
                self._answer_in_parts(path[1], [int(number) for number in path[2:-2]])
            else:
                self._transport.write(answer(path, rest[:size]))

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._pouring is not None:
            self._pouring.cancel()

    def _answer_in_parts(self, kind: str, numbers: list[int]) -> None:
        """Write an answer gradually, or without its end."""
        Connection.requests += 1
        transport = self._transport
        assert transport is not None
        transport.write(HEAD)
        if kind == "pour":
            self._pouring = asyncio.get_running_loop().create_task(self._pour(transport, numbers[0]))
            return
        parts = pieces(numbers[0])
        if kind == "drip":
            self._drip(transport, parts, numbers[1])
            return
        transport.write(b"".join(parts[: numbers[0] + 1]))
        if kind == "cut":
            transport.close()

    async def _pour(self, transport: asyncio.Transport, count: int) -> None:
        """Write at the speed of the reader."""
        for _ in range(count // POURED):
            transport.write(block())
            await self._may_write.wait()
        transport.write(b"".join(pieces(0)))

    def _drip(self, transport: asyncio.Transport, parts: list[bytes], milliseconds: int) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()

        def write(place: int) -> None:
            if transport.is_closing() or place >= len(parts):
                return
            transport.write(parts[place])
            # Use absolute times, so that a late chunk does not delay later ones.
            loop.call_at(start + (place + 1) * milliseconds / 1_000, write, place + 1)

        write(0)


def answer(path: list[str], body: bytes) -> bytes:
    if path[1] == "requests":
        count = str(Connection.requests).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(count), count)
    Connection.requests += 1
    if path[1] == "stream":
        return stream(int(path[2]), int(path[3]))
    if path[1] == "write":
        return stream(10, 1)
    if path[1] == "fail":
        error = b'{"error":{"message":"The server is not well.","type":"server_error"}}'
        return b"HTTP/1.1 %b Failed\r\ncontent-length: %d\r\n\r\n%b" % (path[2].encode(), len(error), error)
    # Use the last result instead of the number of results, because requests may be compressed.
    last = RESULT_OF.match(body, max(0, body.rfind(RESULT)))
    answered = int(last[1]) + 1 if last is not None else 0
    if answered < int(path[2]):
        return tool_call(answered)
    return typed() if path[1] == "typed" else stream(10, 1)


async def main() -> None:
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
