"""Baseline of the benchmark: a minimal agent loop with httpx and orjson."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Self

import httpx
import orjson

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
                "required": ["a", "b"],
            },
        },
    }
]


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


FUNCTIONS: dict[str, Callable[..., Awaitable[int]]] = {"add": add}


class Client:
    """Minimal agent loop."""

    def __init__(self, url: str) -> None:
        self._url = f"{url}/chat/completions"
        self._http = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def stream(self) -> dict[str, int]:
        """Stream an answer and process its text."""
        pieces: list[str] = []
        await self._call({"messages": [{"role": "user", "content": "Tell me a story."}]}, pieces.append)
        return {"pieces": len(pieces), "characters": len("".join(pieces))}

    async def tools(self) -> dict[str, int]:
        """Execute tool calls until there is a text."""
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Count."}]
        results = 0
        while True:
            pieces: list[str] = []
            calls = await self._call({"messages": messages, "tools": TOOLS}, pieces.append)
            messages.append({"role": "assistant", "content": "".join(pieces), "tool_calls": calls})
            if not calls:
                return {"results": results, "characters": len(messages[-1]["content"])}
            for call in calls:
                function = call["function"]
                result = await FUNCTIONS[function["name"]](**orjson.loads(function["arguments"]))
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(result)})
                results += 1

    async def hold(self, count: int, reached: Callable[[], None]) -> None:
        """Read an endless answer, and signal when the given number of chunks has arrived."""
        pieces: list[str] = []

        def push(text: str) -> None:
            pieces.append(text)
            if len(pieces) == count:
                reached()

        await self._call({"messages": [{"role": "user", "content": "Tell me a story."}]}, push)

    async def _call(self, fields: dict[str, Any], push: Callable[[str], None]) -> list[dict[str, Any]]:
        calls: dict[int, dict[str, Any]] = {}
        body = orjson.dumps({"model": "bench", "stream": True, **fields})
        rest = b""
        async with self._http.stream(
            "POST", self._url, content=body, headers={"content-type": "application/json"}
        ) as response:
            response.raise_for_status()
            async for data in response.aiter_bytes():
                *events, rest = (rest + data).split(b"\n\n")
                for event in events:
                    if event == b"data: [DONE]":
                        continue
                    for choice in orjson.loads(event[6:])["choices"]:
                        delta = choice["delta"]
                        if text := delta.get("content"):
                            push(text)
                        for piece in delta.get("tool_calls", ()):
                            _add_piece(calls, piece)
        return list(calls.values())


def _add_piece(calls: dict[int, dict[str, Any]], piece: dict[str, Any]) -> None:
    call = calls.get(piece["index"])
    if call is None:
        calls[piece["index"]] = piece
    else:
        call["function"]["arguments"] += piece["function"]["arguments"]
