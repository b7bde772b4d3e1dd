"""Vendor that tries to exhaust the memory of its client, and a client that measures the effect.

`python hostile_vendor.py TRANSPORT` prints one JSON object per attack. The vendor runs in another process, so that its
work does not affect the measurements.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import itertools
import json
import os
import re
import socket
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from reactivex import Observable

from rxloop.protocol.events import Event
from rxloop.providers import Bounds, Retry, Timeouts, http_model
from rxloop.providers.codecs.chat import ChatCodec
from rxloop.providers.vendors.presets import CUSTOM
from support.http_server import REQUEST
from support.vendors.aws_events import chunk as chunk_of_aws
from support.vendors.aws_events import message, prelude
from support.vendors.echo_codec import EchoCodec

MEGABYTE = 2**20
TIMEOUTS = Timeouts(idle=0.4, event=0.5, total=20)
SMALLER = Bounds(answer=16 * MEGABYTE)
"""Bounds for attacks without another limit. The defaults need more time but not more memory."""
FEW = {
    kind: Bounds(answer=4 * MEGABYTE)
    for kind in ("endless empty events", "endless short texts", "endless small objects in an array")
}
"""Bounds for attacks that consist of many small events. A few hundred thousand events suffice."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n"
STREAM = HEAD + b"\r\n"
GZIP = HEAD + b"content-encoding: gzip\r\n\r\n"
JSON = HEAD.replace(b"text/event-stream", b"application/json") + b"\r\n"
AWS = HEAD.replace(b"text/event-stream", b"application/vnd.amazon.eventstream") + b"\r\n"
Pieces = Iterator[bytes]


def forever(piece: bytes, *, first: bytes = STREAM, seconds: float = 0) -> Pieces:
    yield first
    block = piece if seconds else piece * max(1, 65536 // len(piece))
    while True:
        yield block
        if seconds:
            time.sleep(seconds)


def bomb(compressor: Any, encoding: bytes, kind: bytes = b"text/event-stream") -> Pieces:
    """Yield a small response that decompresses to hundreds of megabytes."""
    yield HEAD.replace(b"text/event-stream", kind) + b"content-encoding: " + encoding + b"\r\n\r\n"
    yield compressor.compress(b'data: {"choices": [{"delta": {"content": "')
    for _ in range(300):
        yield compressor.compress(b" " * MEGABYTE)
    yield compressor.flush()


def chunk(delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


def whole(delta: Any) -> Pieces:
    """Yield a valid stream with a single event."""
    yield STREAM + chunk(delta) + b"data: [DONE]\n\n"


def calls() -> Pieces:
    yield STREAM
    for number in range(1_000_000):
        yield chunk({"tool_calls": [{"index": number, "id": f"c{number}", "function": {"name": "f", "arguments": ""}}]})


def calls_at_once() -> Pieces:
    yield STREAM + b'data: {"choices": [{"delta": {"tool_calls": ['
    for _ in range(100):
        yield b'{"function": {"name": "f"}},' * 10_000
    yield b"{}]}}]}\n\n"


def one_byte_chunks(byte: bytes) -> Pieces:
    yield HEAD + b"transfer-encoding: chunked\r\n\r\n"
    while True:
        yield b"1\r\n%s\r\n" % byte * 10_000


def documents(*bad: bytes) -> Pieces:
    yield STREAM
    for document in bad:
        yield b"data: " + document + b"\n\n"


def refuses(body: Pieces, status: bytes = b"500") -> Pieces:
    yield JSON.replace(b"200", status)
    yield from body


DEEP = 100_000
EIGHT = 8 * MEGABYTE
ATTACKS: dict[str, Callable[[], Pieces]] = {
    "endless line": lambda: forever(b"data: " + b"x" * 1000),
    "endless event": lambda: forever(b"data: x\n"),
    "endless comments": lambda: forever(b": x\n\n"),
    "endless empty comments": lambda: forever(b":\n\n"),
    "endless comments in one event": lambda: forever(b": x\n"),
    "endless blank lines": lambda: forever(b"\n"),
    "endless empty events": lambda: forever(b"data: {}\n\n"),
    "endless text": lambda: forever(chunk({"content": "x" * 200})),
    "endless short texts": lambda: forever(chunk({"content": "x"})),
    "endless reasoning": lambda: forever(chunk({"reasoning_content": "x" * 200})),
    "endless opaque reasoning": lambda: forever(chunk({"reasoning_details": [{"type": "reasoning.encrypted"}]})),
    "endless thoughts": lambda: forever(chunk({"content": "<think>a</think>" * 20})),
    "endless arguments": lambda: forever(
        chunk({"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 200}}]})
    ),
    "endless stop tokens": lambda: forever(chunk({"content": "<|im_end|>" * 50})),
    "stop tokens in one event": lambda: whole({"content": "<|im_end|>" * 400_000}),
    "thoughts in one event": lambda: whole({"content": "<think>a</think>" * 250_000}),
    "one comment a moment": lambda: forever(b": x\n\n", seconds=0.05),
    "one byte a moment": lambda: forever(b"d", seconds=0.05),
    "one byte a moment, not streamed": lambda: forever(b" ", first=JSON, seconds=0.05),
    "chunks of one byte": lambda: one_byte_chunks(b"x"),
    "comments in chunks of one byte": lambda: one_byte_chunks(b":"),
    "endless headers": lambda: forever(b"a: b\r\n", first=HEAD),
    "an endless header": lambda: forever(b"x", first=HEAD + b"a: "),
    "an endless status": lambda: forever(b"x", first=b"HTTP/1.1 200 "),
    "endless interim answers": lambda: forever(b"HTTP/1.1 103 Early Hints\r\n\r\n", first=b""),
    "an interim answer a moment": lambda: forever(b"HTTP/1.1 103 Early Hints\r\n\r\n", first=b"", seconds=0.05),
    "gzip bomb": lambda: bomb(zlib.compressobj(9, wbits=31), b"gzip"),
    "gzip bomb, not streamed": lambda: bomb(zlib.compressobj(9, wbits=31), b"gzip", b"application/json"),
    "gzip bomb of comments": lambda: forever(
        gzip.compress(b": x\n\n" * MEGABYTE), first=HEAD + b"content-encoding: gzip\r\n\r\n"
    ),
    "endless empty gzips": lambda: forever(gzip.compress(b""), first=HEAD + b"content-encoding: gzip\r\n\r\n"),
    "deflate bomb": lambda: bomb(zlib.compressobj(9), b"deflate"),
    "raw deflate bomb": lambda: bomb(zlib.compressobj(9, wbits=-15), b"deflate"),
    "br bomb": lambda: bomb(zlib.compressobj(9), b"br"),
    "zstd bomb": lambda: bomb(zlib.compressobj(9), b"zstd"),
    "gzip in gzip": lambda: bomb(zlib.compressobj(9), b"gzip, gzip"),
    "gzip bomb in an error": lambda: itertools.chain(
        [JSON.replace(b"200", b"500")[:-2] + b"content-encoding: gzip\r\n\r\n"],
        itertools.islice(bomb(zlib.compressobj(9, wbits=31), b"gzip"), 1, None),
    ),
    "a million calls": calls,
    "a million calls at once": calls_at_once,
    "a call of many megabytes": lambda: documents(
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":"%s"}}]}}]}' % (b"x" * 3 * MEGABYTE)
    ),
    "deep JSON": lambda: documents(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "deep lists": lambda: documents(b"[" * DEEP + b"]" * DEEP),
    "deep JSON without an end": lambda: documents(b"[" * DEEP),
    "rather deep JSON": lambda: documents(b'{"choices":' * 500 + b"1" + b"}" * 500),
    "deep arguments": lambda: documents(
        b'{"choices":[{"delta":{"tool_calls":[{"function":{"name":"f","arguments":%s}}]}}]}'
        % (b'{"a":' * 500 + b"1" + b"}" * 500)
    ),
    "deep JSON, not streamed": lambda: iter([JSON, b'{"a":' * DEEP + b"1" + b"}" * DEEP]),
    "a deep error": lambda: refuses(iter([b'{"error":{"code":%s}}' % (b'{"a":' * 900 + b"1" + b"}" * 900)])),
    "many small lists": lambda: documents(b"[" + b"[]," * MEGABYTE + b"1]"),
    "many numbers": lambda: documents(b"[" + b"1.5," * (MEGABYTE - 10) + b"1]"),
    "many strings": lambda: documents(b"[" + b'"a",' * (MEGABYTE - 10) + b"1]"),
    "many escapes": lambda: documents(b'{"a":"' + b"\\\\" * (MEGABYTE * 2 - 10) + b'"}'),
    "many bad numbers": lambda: documents(b"[" + b"1," * (MEGABYTE * 2 - 10) + b"x]"),
    "a long text that is no JSON": lambda: documents(b"x" * (4 * MEGABYTE - 10)),
    "a whole answer of many megabytes": lambda: forever(b" " * 65536, first=JSON),
    "a page without an end": lambda: forever(b"<p>", first=STREAM),
    "a huge error": lambda: refuses(forever(b"x" * 1000, first=b"")),
    "an error a byte a moment": lambda: refuses(forever(b"x", first=b"", seconds=0.05)),
    "redirects": lambda: iter([b"HTTP/1.1 307 Go\r\nlocation: " + b"/x" * 2000 + b"\r\ncontent-length: 0\r\n\r\n"]),
    "too long a content-length": lambda: iter([HEAD + b"content-length: 99999999999\r\n\r\n", chunk({"content": "x"})]),
    "too short a content-length": lambda: forever(b"data: x\n\n", first=HEAD + b"content-length: 7\r\n\r\n"),
    "two content-lengths": lambda: iter([HEAD + b"content-length: 7\r\ncontent-length: 9\r\n\r\n", b"x" * 20]),
    "a chunk of no size": lambda: iter([HEAD + b"transfer-encoding: chunked\r\n\r\n", b"zz\r\nx\r\n"]),
    "a chunk with an endless size": lambda: forever(b"0", first=HEAD + b"transfer-encoding: chunked\r\n\r\n"),
    "endless trailers": lambda: forever(
        b"a: b\r\n", first=HEAD + b"transfer-encoding: chunked\r\n\r\n7\r\ndata: {\r\n0\r\n"
    ),
    "endless text in an array": lambda: forever(b"x" * 1000, first=JSON + b'[{"text": "'),
    "endless strings in an array": lambda: forever(b'"a",', first=JSON + b'[{"text": ['),
    "endless escapes in an array": lambda: forever(b"\\\\", first=JSON + b'[{"text": "'),
    "endless objects in an array": lambda: forever(b'{"a": "%s"},\n' % (b"x" * 200), first=JSON + b"["),
    "endless spaces in an array": lambda: forever(b" ", first=JSON + b"["),
    "endless brackets in an array": lambda: forever(b"[]", first=JSON + b"["),
    "endless small objects in an array": lambda: forever(b'{"a": [1, 2]},\n', first=JSON + b"["),
    "endless numbers in an array": lambda: forever(b"1,", first=JSON + b"["),
    "deep objects in an array": lambda: forever(b'{"a":', first=JSON + b"["),
    "an endless message of AWS": lambda: forever(b"x" * 1000, first=AWS + prelude(4 * MEGABYTE, 0)),
    "too long a message of AWS": lambda: forever(b"x" * 1000, first=AWS + prelude(2**32 - 1, 0)),
    "endless messages of AWS": lambda: forever(chunk_of_aws(b'{"a": "%s"}' % (b"x" * 200)), first=AWS),
    "endless empty messages of AWS": lambda: forever(message(b""), first=AWS),
    "deep JSON of AWS": lambda: iter([AWS, chunk_of_aws(b'{"a":' * DEEP + b"1" + b"}" * DEEP)]),
    "many small lists of AWS": lambda: iter([AWS, chunk_of_aws(b"[" + b"[]," * (MEGABYTE // 2) + b"1]")]),
    "no messages of AWS": lambda: forever(b"data: x\n\n", first=AWS),
}
OTHER_FRAMES = ("in an array", "of AWS")
"""Name fragments of attacks without server-sent events."""
for number, bad in enumerate(
    (
        b"{", b"}", b"nul", b"NaN", b'{"choices": NaN}', b"1e999", b"-", b'"', b'"\\ud800"', b'{"a":1,}', b"'a'",
        b"\xff\xfe", b"\x00", b'{"choices": [{"delta": {"content": "\xff"}}]}', b"1" * 5000, b"[]", b'"x"', b"null",
        b'{"choices": {"a": 1}}', b'{"choices": [1, null, "x"]}', b'{"choices": [{"delta": 5}]}', b"<html>", b"{}{}",
    )
):  # fmt: skip
    ATTACKS[f"bad JSON {number}"] = lambda bad=bad: documents(bad)


def serve(port: Any) -> None:
    """Respond with the attack selected by the path."""
    names = list(ATTACKS)
    with socket.create_server(("127.0.0.1", 0), backlog=50) as listener:
        port.send(listener.getsockname()[1])
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=_answer, args=(connection, names), daemon=True).start()


def _answer(connection: socket.socket, names: list[str]) -> None:
    with connection, contextlib.suppress(OSError):
        head = connection.recv(65536)
        found = re.search(rb"/kind(\d+)/", head)
        assert found is not None
        for piece in ATTACKS[names[int(found[1])]]():
            connection.sendall(piece)


REFERENCE = 0.006
"""CPU seconds of `_work` on the reference machine."""


def _work() -> float:
    """Measure the CPU seconds of a fixed amount of work, to detect the current speed of the machine."""
    start, total = time.thread_time(), 0
    for number in range(100_000):
        total += number & 7
    return time.thread_time() - start


class LoopMonitor:
    """Monitor of the longest time that the event loop was blocked.

    Measures CPU time of the thread, because wall-clock time includes waiting on a busy machine. The result is scaled
    by the current speed of the machine.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        """CPU seconds on the reference machine."""
        self.beats = 0

    async def beat(self) -> None:
        last, longest = time.thread_time(), 0.0
        while True:
            await asyncio.sleep(0.001)
            held = time.thread_time() - last
            if held > longest:
                longest = held
                # Short intervals never reach a limit, so do not delay the loop by measuring its speed.
                self.longest = held * REFERENCE / _work() if held > 0.05 else held
            self.beats += 1
            last = time.thread_time()


def _peak() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


async def await_failure(source: Observable[Event]) -> Exception | None:
    """Read a response to its end, returning its error."""
    end: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    source.subscribe(lambda _: None, end.set_result, lambda: end.set_result(None))
    async with asyncio.timeout(60):
        return await end


async def measure(kind: str, number: int, port: int, transport: Any, bounds: Bounds) -> dict[str, Any]:
    """Measure an attack."""
    wire = EchoCodec if any(words in kind for words in OTHER_FRAMES) else ChatCodec
    model = http_model(
        "m",
        CUSTOM,
        wire,
        base_url=f"http://127.0.0.1:{port}/kind{number}",
        api_key="k",
        transport=transport,
        # Other attacks must reach their bound first, even on a slow machine.
        timeout=TIMEOUTS if re.search("endless|a moment|of one byte", kind) else replace(TIMEOUTS, event=10),
        retry=Retry(attempts=1),
        sanitize=True,
        thought_tags=True,
        stream="not streamed" not in kind,
        bounds=bounds,
    )
    monitor = LoopMonitor()
    monitoring = asyncio.create_task(monitor.beat())
    await asyncio.sleep(0.01)
    _forget_peak()
    before, start = _peak(), time.perf_counter()
    error = await await_failure(model.call(REQUEST))
    await asyncio.sleep(0.005)
    seconds, peak = time.perf_counter() - start, _peak() - before
    monitoring.cancel()
    await model.aclose()
    return {
        "kind": kind,
        "error": type(error).__name__,
        "message": str(error),
        "seconds": round(seconds, 2),
        "megabytes": round(peak / 1024, 1),
        "milliseconds": round(1000 * monitor.longest, 1),
    }


async def _main(transport: str, port: int, kinds: list[str], bounds: Bounds) -> None:
    names = list(ATTACKS)
    # The first call loads modules, so do not measure it.
    await measure("redirects", names.index("redirects"), port, transport, bounds)
    for kind in kinds:
        few = FEW.get(kind, bounds) if bounds is SMALLER else bounds
        print(json.dumps(await measure(kind, names.index(kind), port, transport, few)), flush=True)


def main(transport: str, pattern: str = "", bounds: Bounds = SMALLER) -> None:
    """Run all attacks matching a pattern."""
    ours, theirs = get_context("spawn").Pipe()
    vendor = get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    vendor.start()
    kinds = [kind for kind in ATTACKS if re.search(pattern, kind)]
    asyncio.run(_main(transport, ours.recv(), kinds, bounds))
    vendor.kill()


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    main(*sys.argv[1:3], bounds=Bounds() if sys.argv[3:] else SMALLER)
