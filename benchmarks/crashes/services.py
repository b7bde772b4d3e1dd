"""Model and bank of the crash benchmark. They run in their own process, so they survive the crashes of the agents.

All paths begin with `/POLICY/RUN`. `POST .../chat/completions` and `POST .../v1beta/models/M:generateContent` are the
model. It decides by the tool results of the request: it looks up the order, refunds it, writes a note, and answers. If
the framework answered a tool call itself, because its result is unknown, the policy decides. With `accept`, the model
continues. With `check`, it looks up the order again, and repeats the call if the bank has not executed it.

`POST .../bank/TOOL` are the tools. Their effects happen when the request arrives. The bank executes duplicates, unless
they have the same `key`. `GET /POLICY/RUN` returns the counts.

As a program, it prints its port and ends when stdin is closed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

LOOK_UP, REFUND, NOTE = "lookup_order", "refund", "write_note"
RECEIPT = "bank:"
"""Prefix for bank receipts. Frameworks write other results themselves."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    LOOK_UP: {"order": "A-7"},
    REFUND: {"order": "A-7", "amount": 20},
    NOTE: {"order": "A-7", "text": "Refunded 20."},
}
Results = list[tuple[str, str]]
"""Tool names and results, oldest first."""


@dataclass(slots=True)
class Ledger:
    """Counters for a run."""

    effects: Counter[str] = field(default_factory=Counter[str])
    keys: set[str] = field(default_factory=set[str])
    requests: int = 0
    interrupted: Counter[str] = field(default_factory=Counter[str])
    notices: dict[str, str] = field(default_factory=dict[str, str])

    def apply(self, tool: str, key: str | None) -> str:
        """Book an effect and return the receipt."""
        if tool == LOOK_UP:
            states = (f"{name} {'done' if self.effects[name] else 'open'}" for name in (REFUND, NOTE))
            return f"{RECEIPT} order A-7, 20 paid, {', '.join(states)}"
        if f"{tool} {key}" not in self.keys:
            self.effects[tool] += 1
            if key is not None:
                self.keys.add(f"{tool} {key}")
        return f"{RECEIPT} {tool} done"

    def decide(self, results: Results, checks: bool) -> str | None:
        """Return the next tool, or None for an answer."""
        self.requests += 1
        latest = {name: (index, text) for index, (name, text) in enumerate(results)}
        if LOOK_UP not in latest:
            return LOOK_UP
        for tool in (REFUND, NOTE):
            if tool not in latest:
                return tool
            index, text = latest[tool]
            if RECEIPT in text:
                continue
            self.notices[tool] = text
            if not checks:
                continue
            looked_up, state = latest[LOOK_UP]
            if looked_up < index:
                return LOOK_UP
            if f"{tool} open" in state:
                return tool
        return None


def chat_results(body: dict[str, Any]) -> Results:
    """Return the tool results of a chat completion request."""
    names: dict[str, str] = {}
    results: Results = []
    for message in body["messages"]:
        for call in message.get("tool_calls") or ():
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            results.append((names[message["tool_call_id"]], json.dumps(message["content"])))
    return results


def gemini_results(body: dict[str, Any]) -> Results:
    """Return the tool results of a Gemini request."""
    parts = (part for content in body["contents"] for part in content["parts"])
    answers = (part["functionResponse"] for part in parts if "functionResponse" in part)
    return [(answer["name"], json.dumps(answer["response"])) for answer in answers]


def chat_message(tool: str | None, number: int) -> dict[str, Any]:
    """Return a tool call message, or an answer."""
    if tool is None:
        return {"role": "assistant", "content": "The order is refunded."}
    function = {"name": tool, "arguments": json.dumps(ARGUMENTS[tool])}
    # Real vendors generate unique ids.
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def chat_response(tool: str | None, number: int, stream: bool) -> tuple[str, bytes]:
    """Return the content type and the body of a chat completion."""
    finish = "stop" if tool is None else "tool_calls"
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    fields: dict[str, Any] = {"id": f"chatcmpl-{number}", "created": 1767225600, "model": "bench", "usage": usage}
    message = chat_message(tool, number)
    if not stream:
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return "application/json", json.dumps({**fields, "object": "chat.completion", "choices": [choice]}).encode()
    choice = {"index": 0, "delta": message, "finish_reason": finish}
    chunk = json.dumps({**fields, "object": "chat.completion.chunk", "choices": [choice]})
    return "text/event-stream", f"data: {chunk}\n\ndata: [DONE]\n\n".encode()


def gemini_response(tool: str | None) -> tuple[str, bytes]:
    """Return the content type and the body of a Gemini response."""
    part: dict[str, Any] = {"text": "The order is refunded."}
    if tool is not None:
        part = {"functionCall": {"name": tool, "args": ARGUMENTS[tool]}}
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    return "application/json", json.dumps({"candidates": [candidate], "usageMetadata": usage}).encode()


class Services:
    """HTTP handlers for model and bank requests."""

    def __init__(self, model_seconds: float, tool_seconds: float) -> None:
        self._model_seconds, self._tool_seconds = model_seconds, tool_seconds
        self._ledgers: defaultdict[str, Ledger] = defaultdict(Ledger)
        self._calls = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Handle a connection."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().split("\r\n")
                size = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
                body = json.loads(await reader.readexactly(size) or b"null")
                kind, answer = await self._answer(head.split(b" ", 2)[1].decode(), body, reader)
                length = f"content-length: {len(answer)}"
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{length}\r\n\r\n".encode() + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # A client died, or services are stopping.
        finally:
            writer.close()

    async def _answer(self, path: str, body: Any, reader: asyncio.StreamReader) -> tuple[str, bytes]:
        policy, run, action = (path.strip("/") + "/").split("/", 2)
        action = action.removesuffix("/")
        ledger = self._ledgers[run]
        if not action:
            counts = {"effects": ledger.effects, "requests": ledger.requests, "interrupted": ledger.interrupted}
            return "application/json", json.dumps({**counts, "notices": ledger.notices}).encode()
        if action.startswith("bank/"):
            tool = action.removeprefix("bank/")
            text = ledger.apply(tool, body.get("key"))
            await asyncio.sleep(self._tool_seconds)
            # The kernel closes sockets immediately when a client dies.
            ledger.interrupted[tool] += reader.at_eof()
            return "text/plain", text.encode()
        self._calls += 1
        number = self._calls
        gemini = "messages" not in body
        tool = ledger.decide(gemini_results(body) if gemini else chat_results(body), policy == "check")
        await asyncio.sleep(self._model_seconds)
        return gemini_response(tool) if gemini else chat_response(tool, number, body.get("stream", False))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-ms", type=float, default=60)
    parser.add_argument("--tool-ms", type=float, default=60)
    options = parser.parse_args()
    services = Services(options.model_ms / 1_000, options.tool_ms / 1_000)
    server = await asyncio.start_server(services.handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
