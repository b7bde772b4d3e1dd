"""CPU time per streamed token for each codec, compared with a minimal loop for the same protocol.

    python benchmarks/wires.py [--rounds 5] [--tokens 20000] [--transport httpx|aiohttp]

Each result is the CPU time of a separate client process per round. Loop and codec alternate.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
PATHS = {
    "openai_chat": "/v1/chat/completions",
    "anthropic_messages": "/v1/messages",
    "google_gemini": "/v1beta/models/m:streamGenerateContent",
    "openai_responses": "/v1/responses",
}


def chat(words: list[str]) -> Iterator[dict[str, Any]]:
    fields = {"id": "chatcmpl-0123456789abcdef", "object": "chat.completion.chunk", "created": 1767225600, "model": "m"}
    for word in words:
        yield {**fields, "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
    yield {**fields, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def anthropic(words: list[str]) -> Iterator[dict[str, Any]]:
    message = {"id": "msg_01", "type": "message", "role": "assistant", "content": [], "model": "m"}
    yield {"type": "message_start", "message": {**message, "usage": {"input_tokens": 9, "output_tokens": 1}}}
    yield {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    for word in words:
        yield {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}
    yield {"type": "message_stop"}


def gemini(words: list[str]) -> Iterator[dict[str, Any]]:
    usage = {"promptTokenCount": 9, "candidatesTokenCount": 9, "totalTokenCount": 18}
    about = {"usageMetadata": usage, "modelVersion": "m", "responseId": "r"}
    for word in words:
        yield {"candidates": [{"content": {"parts": [{"text": word}], "role": "model"}, "index": 0}], **about}
    last = {"content": {"parts": [{"text": ""}], "role": "model"}, "finishReason": "STOP", "index": 0}
    yield {"candidates": [last], **about}


def responses(words: list[str]) -> Iterator[dict[str, Any]]:
    response = {"id": "resp_1", "object": "response", "status": "in_progress", "model": "m", "output": []}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    text = {"type": "output_text", "text": "".join(words), "annotations": []}
    done = {**item, "status": "completed", "content": [text]}
    yield {"type": "response.created", "response": response}
    yield {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield {"type": "response.content_part.added", **place, "part": {**text, "text": ""}}
    for word in words:
        yield {"type": "response.output_text.delta", **place, "delta": word, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": text["text"]}
    yield {"type": "response.content_part.done", **place, "part": text}
    yield {"type": "response.output_item.done", "output_index": 0, "item": done}
    usage = {"input_tokens": 9, "output_tokens": 9, "total_tokens": 18}
    yield {
        "type": "response.completed",
        "response": {**response, "status": "completed", "output": [done], "usage": usage},
    }


EVENTS = {"openai_chat": chat, "anthropic_messages": anthropic, "google_gemini": gemini, "openai_responses": responses}
TEXT: dict[str, Callable[[Any], str]] = {
    "openai_chat": lambda event: event["choices"][0]["delta"].get("content", ""),
    "anthropic_messages": lambda event: event["delta"]["text"] if event["type"] == "content_block_delta" else "",
    "google_gemini": lambda event: event["candidates"][0]["content"]["parts"][0]["text"],
    "openai_responses": lambda event: event["delta"] if event["type"] == "response.output_text.delta" else "",
}


def answer(wire: str, count: int) -> bytes:
    """Return an answer with the given number of words in separate HTTP chunks."""
    named = wire in ("anthropic_messages", "openai_responses")

    def framed() -> Iterator[bytes]:
        for event in EVENTS[wire]([f"word {number} " for number in range(count)]):
            name = f"event: {event['type']}\n".encode() if named else b""
            yield name + b"data: " + orjson.dumps(event) + b"\n\n"
        if wire == "openai_chat":
            yield b"data: [DONE]\n\n"

    return HEAD + b"".join(b"%x\r\n%b\r\n" % (len(data), data) for data in framed()) + b"0\r\n\r\n"


async def serve(count: int) -> None:
    """Respond to requests based on their paths until stdin is closed."""
    answers = {path: answer(wire, count) for wire, path in PATHS.items()}

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = head.decode("latin-1").lower().split("\r\n")
                size = next(int(field[15:]) for field in fields if field.startswith("content-length:"))
                await reader.readexactly(size)
                path = head.split(b" ")[1].decode().partition("?")[0]
                writer.write(answers[path])
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def by_hand(wire: str, url: str) -> int:
    """Stream with a minimal loop."""
    text_of, pieces = TEXT[wire], []
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", f"{url}{PATHS[wire]}", json={"model": "m", "stream": True}) as response,
    ):
        rest = b""
        async for data in response.aiter_bytes():
            *events, rest = (rest + data).split(b"\n\n")
            for event in events:
                payload = event[event.index(b"data: ") + 6 :]
                if payload != b"[DONE]" and (text := text_of(orjson.loads(payload))):
                    pieces.append(text)
    return len(pieces)


async def by_wire(wire: str, url: str, transport: Any) -> int:
    """Stream the text of a run."""
    from rxloop import Agent, ContentDeltaEvent, op, providers

    base = f"{url}/v1" if wire.startswith("openai") else url
    model = getattr(providers, wire)("m", base_url=base, api_key="k", transport=transport)
    pieces: list[str] = []
    async with Agent(model, thoughts=False) as agent:
        run = agent.run("Tell me a story.")
        run.pipe(op.of_type(ContentDeltaEvent)).subscribe(lambda event: pieces.append(event.delta))
        await run
    return len(pieces)


def client(who: str, wire: str, url: str, count: int, transport: str) -> None:
    """Stream three times after a warm-up, and print the CPU time per token in microseconds."""

    async def main() -> float:
        best = float("inf")
        for turn in range(4):
            started = time.process_time()
            got = await (by_hand(wire, url) if who == "hand" else by_wire(wire, url, transport))
            assert got == count, f"{wire}: {got} pieces of {count}"
            best = min(best, time.process_time() - started) if turn else best
        return best / count * 1e6

    print(asyncio.run(main()))


def measured(*arguments: str) -> float:
    return float(
        subprocess.run([sys.executable, __file__, *arguments], check=True, capture_output=True, text=True).stdout
    )


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--transport", default="httpx", choices=["httpx", "aiohttp"])
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--client", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve is not None:
        asyncio.run(serve(given.serve))
        return
    if given.client:
        who, wire, url, count = given.client
        client(who, wire, url, int(count), given.transport)
        return
    command = [sys.executable, __file__, "--serve", str(given.tokens)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        for wire in PATHS:
            ratios: list[float] = []
            hands: list[float] = []
            for _ in range(given.rounds):
                hand = measured("--client", "hand", wire, url, str(given.tokens))
                ours = measured("--client", "ours", wire, url, str(given.tokens), "--transport", given.transport)
                hands.append(hand)
                ratios.append(ours / hand)
            low, middle, high = min(ratios), statistics.median(ratios), max(ratios)
            by_hand_us = statistics.median(hands)
            print(
                f"{wire:20} by hand {by_hand_us:5.1f} us, {given.transport} {middle:.2f} ({low:.2f} - {high:.2f})",
                flush=True,
            )
        server.stdin.close()


if __name__ == "__main__":
    main()
