"""Connections dropped after any number of bytes. The result is an error or the whole answer, never a part."""

from __future__ import annotations

import asyncio
import contextlib
import os
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, Literal

import orjson
import pytest

from rxloop import Agent, Limits, ToolCompleteEvent, ToolStartEvent
from rxloop.errors import LimitReached, ProviderConnectionError, RunError
from rxloop.pipeline.requests import ToolDefinition
from rxloop.pipeline.run_context import RunContext
from rxloop.protocol.events import ContentCompleteEvent
from rxloop.providers import HTTPModel, Retry, openai_chat
from support.http_server import REQUEST, StreamResult, collect, delta, sse, streamed_text
from support.tcp_server import serve_connections
from support.vendors.recordings import body, choice, needs_recordings, oracle, recording, recording_names

EVERY_BYTE = os.environ.get("RXLOOP_RECORDINGS") == "all"
Framing = Literal["chunked", "length", "close"]
FRAMINGS: tuple[Framing, ...] = ("chunked", "length", "close")
Said = tuple[str, list[tuple[str, str]]]


class DroppingServer:
    """Server that drops connections after a given number of body bytes."""

    def __init__(self) -> None:
        self.url = ""
        self.sent = b""

    def drop(self, whole: bytes, after: int, framing: Framing) -> None:
        """Send only the first bytes of a body."""
        part = whole[:after]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
        if framing == "chunked":
            # Drop inside a chunk if any byte is missing.
            self.sent = head + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(whole) + part
        elif framing == "length":
            self.sent = head + b"content-length: %d\r\n\r\n" % (len(whole) + 1) + part
        else:
            self.sent = head + b"connection: close\r\n\r\n" + part

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))
            await reader.readexactly(int(length.partition(b":")[2]))
            writer.write(self.sent)
            await writer.drain()


@contextlib.asynccontextmanager
async def start_dropping_server() -> AsyncGenerator[tuple[DroppingServer, HTTPModel]]:
    """Start a dropping server, and create a provider."""
    made = DroppingServer()
    async with serve_connections(made.handle) as port:
        url = f"http://127.0.0.1:{port}/v1"
        provider = openai_chat("m", base_url=url, retry=Retry(attempts=1), thought_tags=False, sanitize=False)
        try:
            yield made, provider
        finally:
            await provider.aclose()


def is_final(block: bytes) -> bool:
    """Return True if an event ends the answer."""
    for line in block.splitlines():
        payload = line.removeprefix(b"data:").strip()
        if payload == b"[DONE]":
            return True
        if line.startswith(b"data:"):
            with contextlib.suppress(orjson.JSONDecodeError):
                if any(choice.get("finish_reason") for choice in orjson.loads(payload)["choices"]):
                    return True
    return False


def expect_outcome(whole: bytes, after: int) -> Literal["error", "answer", "either"]:
    """Return the expected outcome of a body that is dropped at a position.

    Both outcomes are right if the final event is complete and only its blank line is missing.
    """
    *events, rest = whole[:after].replace(b"\r\n", b"\n").split(b"\n\n")
    if any(map(is_final, events)):
        return "answer"
    return "either" if is_final(rest) else "error"


def summarize_answer(answer: StreamResult) -> Said:
    message = answer.events[-1]
    assert isinstance(message, ContentCompleteEvent)
    return message.content, [(call.name, call.raw or "") for call in message.tool_calls]


def find_problem(answer: StreamResult, due: str, whole: Said) -> str | None:
    if answer.error is None:
        if due == "error":
            return f"a part was taken for the whole: {summarize_answer(answer)}"
        return (
            None
            if summarize_answer(answer) == whole
            else f"a proper end with a part of the answer: {summarize_answer(answer)}"
        )
    if due == "answer":
        return f"the answer was whole, and the error is {answer.error!r}"
    if not isinstance(answer.error, ProviderConnectionError) or not answer.error.retryable:
        return f"the wrong error: {answer.error!r}"
    if any(isinstance(event, ContentCompleteEvent) for event in answer.events):
        return "an error behind a complete message"
    return None if whole[0].startswith(streamed_text(answer)) else "other text than was sent"


def make_call_piece(index: int, arguments: str, **first: Any) -> dict[str, Any]:
    name = {"name": first.pop("name")} if first else {}
    return delta(tool_calls=[{"index": index, **first, "function": {**name, "arguments": arguments}}])


USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
TEXT = b"".join(
    sse(
        delta(role="assistant", content=""),
        delta(reasoning_content="Hm"),
        delta(content="Grüße 👋"),
        delta("stop"),
        USAGE,
    )
)
CALLS = b"".join(
    sse(
        delta(content="I look."),
        make_call_piece(0, '{"city":', id="a", name="weather"),
        make_call_piece(0, '"Oslo"}'),
        make_call_piece(1, "{}", id="b", name="clock"),
        delta("tool_calls"),
        USAGE,
    )
)
UNFINISHED = b": hello\n\n" + b"".join(sse(delta(content="Hi"), delta(content=" there")))
SAYS_WEATHER: Said = ("I look.", [("weather", '{"city":"Oslo"}'), ("clock", "{}")])
FIXTURES: list[tuple[bytes, Said]] = [
    (TEXT, ("Grüße 👋", [])),
    (CALLS, SAYS_WEATHER),
    (UNFINISHED, ("Hi there", [])),
    (TEXT.replace(b"\n", b"\r\n"), ("Grüße 👋", [])),
]


@pytest.mark.parametrize("number", range(len(FIXTURES)), ids=["text", "calls", "no finish reason", "CRLF"])
async def test_dropped_answer_is_an_error_or_complete(number: int) -> None:
    # L66
    whole, says = FIXTURES[number]
    wrong: list[tuple[int, str]] = []
    seen = set[str]()
    async with start_dropping_server() as (server, provider):
        for after in range(len(whole) + 1):
            server.drop(whole, after, FRAMINGS[(after + number) % 3])
            due = expect_outcome(whole, after)
            seen.add(due)
            found = find_problem(await collect(provider.call(REQUEST)), due, says)
            wrong += [(after, found)] if found else []
    assert seen == {"error", "either", "answer"}
    assert wrong == []


@dataclass
class RecordingTool:
    definition: ToolDefinition
    ran: list[str]
    timeout: float | None = None
    idempotent: bool = False
    approve: bool = False

    def enabled(self, ctx: RunContext[Any]) -> bool:
        return True

    async def call(self, arguments: dict[str, Any], ctx: RunContext[Any]) -> str:
        self.ran.append(self.definition.name)
        return "done"


async def run_dropped(server: DroppingServer, provider: HTTPModel, calls: list[str]) -> tuple[list[str], list[Any]]:
    """Run an agent with a dropped answer, and return executed and published tools."""
    ran: list[str] = []
    tools = [RecordingTool(ToolDefinition(name, "", {"type": "object"}), ran) for name in dict.fromkeys(calls)]
    run = Agent(provider, tools=tools, limits=Limits(iterations=1)).run("Hi")
    events = [event async for event in run]
    with pytest.raises((LimitReached, RunError)) as failure:
        await run
    # The limit of one iteration is reached if calls were complete.
    assert isinstance(failure.value, LimitReached) == bool(ran)
    return ran, [event.kind for event in events if isinstance(event, ToolStartEvent | ToolCompleteEvent)]


async def test_tools_of_a_dropped_message_are_not_executed() -> None:
    # L66
    wrong: list[Any] = []
    async with start_dropping_server() as (server, provider):
        for turn, after in enumerate(range(0, len(CALLS) + 1, 1 if EVERY_BYTE else 3)):
            server.drop(CALLS, after, FRAMINGS[turn % 3])
            due = expect_outcome(CALLS, after)
            ran, kinds = await run_dropped(server, provider, ["weather", "clock"])
            if (ran or kinds) and (due == "error" or sorted(ran) != ["clock", "weather"] or len(kinds) != 4):
                wrong.append((after, due, ran, kinds))
            if due == "answer" and not ran:
                wrong.append((after, due))
    assert wrong == []


def list_streamed() -> list[tuple[str, int, bytes]]:
    """Return the recorded answers that are streamed and complete, shortest first."""
    found: list[tuple[str, int, bytes]] = []
    for name in recording_names():
        conversation = recording(name)
        for number, (exchange, expected) in enumerate(zip(conversation["exchanges"], oracle(name), strict=True)):
            if exchange["stream"] and not expected.get("http_error") and not expected.get("error_mid_stream"):
                found.append((name, number, body(exchange)))
    return sorted(found, key=lambda each: (len(each[2]), each[0], each[1]))


def list_positions(name: str, whole: bytes, count: int) -> range:
    """List all positions of a recorded answer, or a sample derived from its name."""
    step = 1 if EVERY_BYTE else max(1, len(whole) // count)
    return range(zlib.crc32(name.encode()) % step, len(whole) + 1, step)


def read_by_sdk(name: str, number: int) -> Said:
    """Return a recorded answer as parsed by the SDK."""
    theirs = choice(oracle(name)[number])
    calls = [(called, arguments or "") for _, called, arguments in theirs["tool_calls"]]
    return theirs["text"] or theirs.get("refusal") or "", calls


@needs_recordings
@pytest.mark.timeout(1800 if EVERY_BYTE else 120)
async def test_dropped_recorded_answer_is_an_error_or_complete() -> None:
    # L66
    wrong: list[tuple[str, int, int, str]] = []
    asked = 0
    async with start_dropping_server() as (server, provider):
        for name, number, whole in list_streamed()[: 25 if EVERY_BYTE else 60]:
            says = read_by_sdk(name, number)
            for turn, after in enumerate(list_positions(name, whole, 20)):
                server.drop(whole, after, FRAMINGS[turn % 3])
                found = find_problem(await collect(provider.call(REQUEST)), expect_outcome(whole, after), says)
                wrong += [(name, number, after, found)] if found else []
                asked += 1
    print(f"{asked} answers dropped")
    assert asked > 1000
    assert wrong == []


@needs_recordings
@pytest.mark.timeout(1800 if EVERY_BYTE else 120)
async def test_tools_of_a_dropped_recorded_message_are_not_executed() -> None:
    # L66
    wrong: list[Any] = []
    tried = 0
    async with start_dropping_server() as (server, provider):
        with_calls = [each for each in list_streamed() if read_by_sdk(*each[:2])[1]]
        for name, number, whole in with_calls[: 10 if EVERY_BYTE else 20]:
            calls = [called for called, _ in read_by_sdk(name, number)[1]]
            for turn, after in enumerate(list_positions(name, whole, 15)):
                server.drop(whole, after, FRAMINGS[turn % 3])
                due = expect_outcome(whole, after)
                ran, kinds = await run_dropped(server, provider, calls)
                tried += 1
                if (ran or kinds) and (due == "error" or sorted(ran) != sorted(calls)):
                    wrong.append((name, after, due, ran))
                if due == "answer" and not ran:
                    wrong.append((name, after, due))
    print(f"{tried} runs dropped")
    assert tried > 200
    assert wrong == []
