"""Measured server in a separate process: `served_by.py NAME UPSTREAM` prints its port.

For each line on stdin, it prints its CPU time. It ends when stdin is closed. Other environments also run this program,
so each application imports its own dependencies.
"""

# Other environments are unknown to the type checker.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import uvicorn


def relay(upstream: str) -> Any:
    """Create a minimal application that relays tokens with Starlette and httpx."""
    from contextlib import asynccontextmanager

    import httpx
    import orjson
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    http = httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None))

    async def tokens(question: str) -> AsyncIterator[bytes]:
        body = {"model": "bench", "stream": True, "messages": [{"role": "user", "content": question}]}
        async with http.stream("POST", f"{upstream}/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                for choice in orjson.loads(line[6:])["choices"]:
                    if text := choice["delta"].get("content"):
                        yield b"data: " + orjson.dumps({"delta": text}) + b"\n\n"

    async def answer(request: Request) -> StreamingResponse:
        return StreamingResponse(tokens((await request.json())["input"]), media_type="text/event-stream")

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with http:
            yield

    return Starlette(routes=[Route("/runs", answer, methods=["POST"])], lifespan=lifespan)


def rxloop(upstream: str) -> Any:
    """Create the HTTP API, with the transport selected by the environment."""
    from rxloop import Agent, MemoryEventLog, Runtime, openai_chat
    from rxloop.server import api

    agent = Agent(openai_chat("bench", base_url=upstream), thoughts=False)
    return api(Runtime({"agent": agent}, log=MemoryEventLog()))


def agui(upstream: str) -> Any:
    """Create the AG-UI adapter of rxloop."""
    from rxloop import Agent, MemoryEventLog, Runtime, openai_chat
    from rxloop.server import agui

    agent = Agent(openai_chat("bench", base_url=upstream), thoughts=False)
    return agui(Runtime({"agent": agent}, log=MemoryEventLog()))


def pydantic_ai(upstream: str) -> Any:
    """Create the AG-UI adapter of pydantic-ai, in its own environment."""
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.ui.ag_ui import AGUIAdapter
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.routing import Route

    client = AsyncOpenAI(base_url=upstream, api_key="none")
    agent: Any = Agent(OpenAIChatModel("bench", provider=OpenAIProvider(openai_client=client)))

    async def answer(request: Request) -> Any:
        return await AGUIAdapter.dispatch_request(request, agent=agent)

    return Starlette(routes=[Route("/", answer, methods=["POST"])])


APPS: dict[str, Callable[[str], Any]] = {"relay": relay, "rxloop": rxloop, "agui": agui, "pydantic-ai": pydantic_ai}


class Server(uvicorn.Server):
    """Server that prints its port."""

    async def startup(self, sockets: Any = None) -> None:
        """Listen."""
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)


def main(name: str, upstream: str) -> None:
    """Serve until stdin is closed."""
    config = uvicorn.Config(APPS[name](upstream), port=0, log_level="warning", timeout_graceful_shutdown=1)
    server = Server(config)

    def control() -> None:
        for _ in sys.stdin:
            print(time.process_time(), flush=True)
        server.should_exit = True

    threading.Thread(target=control, daemon=True).start()
    asyncio.run(server.serve())


if __name__ == "__main__":
    main(*sys.argv[1:])
