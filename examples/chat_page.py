"""Chat page for an agent, using React and `useChat` of the AI SDK, with approvals, stop and reload.

Run `uvicorn chat_page:site --app-dir examples`, and open http://localhost:8000. `examples/chat_page/build` bundles
examples/chat_page/page.jsx into a single HTML file. As a script, this file simulates the page.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.testing import demo_model

try:
    from starlette.applications import Starlette
    from starlette.responses import FileResponse
    from starlette.routing import Mount, Route

    from rxloop.server import ui_stream
except (ImportError, ValueError) as error:
    sys.exit(f"This example needs starlette ({error}): pip install 'rxloop[server]'")

PAGE = Path(__file__).with_name("chat_page") / "page.html"


@tool(approve="Look up the weather in {city}?")
async def get_weather(city: str) -> dict[str, float | str]:
    """Return the current weather of a city."""
    return {"temperature": 18.0, "unit": "C", "sky": "sunny", "city": city}


def make_site(agent: Agent[Any, Any]) -> Starlette:
    """Create a site with the chat page and its API. All users share all data unless `ui_stream` has `auth`."""
    runtime = Runtime({"clerk": agent}, log=MemoryEventLog())
    chats = ui_stream(runtime)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with runtime:
            yield
            await chats.drain(5)

    async def page(_: Any) -> FileResponse:
        return FileResponse(PAGE)

    return Starlette(routes=[Route("/", page), Mount("", chats)], lifespan=lifespan)


site = make_site(Agent(demo_model(), tools=[get_weather]))


async def ask(client: httpx.AsyncClient, message: dict[str, Any]) -> list[dict[str, Any]]:
    """Send a message to the API, and print and return the response."""
    answer = await client.post("/api/chat", json={"id": "my-chat", "messages": [message]})
    lines = [line.removeprefix("data: ") for line in answer.raise_for_status().text.splitlines()]
    chunks = [json.loads(line) for line in lines if line.startswith("{")]
    for chunk in chunks:
        if chunk["type"] in ("tool-approval-request", "tool-output-available", "text-delta"):
            print(" ", {name: chunk[name] for name in chunk if name not in ("id", "toolCallId", "approvalId")})
    return chunks


async def main() -> None:
    """Send a question and approve the tool call."""
    transport = httpx.ASGITransport(site)
    async with (
        site.router.lifespan_context(site),
        httpx.AsyncClient(transport=transport, base_url="http://x") as client,
    ):
        question = {"id": "m1", "role": "user", "parts": [{"type": "text", "text": "Is it warm in Oslo?"}]}
        chunks = await ask(client, question)
        [request] = [chunk for chunk in chunks if chunk["type"] == "tool-approval-request"]
        approval = {"id": request["approvalId"], "approved": True}
        part = {"type": "dynamic-tool", "toolCallId": request["toolCallId"], "state": "approval-responded"}
        run = {"id": chunks[0]["messageId"], "role": "assistant", "parts": [{**part, "approval": approval}]}
        await ask(client, run)


if __name__ == "__main__":
    asyncio.run(main())
