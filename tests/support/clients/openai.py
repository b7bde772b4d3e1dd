"""OpenAI adapter on a real port, and the official client."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from openai import AsyncOpenAI

from rxloop import Agent, EventLog, MemoryEventLog, Runtime
from rxloop.server import bearer, openai_api
from rxloop.server.core.adapter import Adapter
from support.api_server import TOKENS, serve_app


class OpenAIEndpoint:
    """Endpoint of an OpenAI adapter."""

    def __init__(self, url: str, app: Adapter, runtime: Runtime) -> None:
        self.url, self.app, self.runtime = url, app, runtime

    def client(self, token: str = "ann-key") -> AsyncOpenAI:
        """Return the official client for one of the `TOKENS` users."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key=token, max_retries=0, timeout=30)


@contextlib.asynccontextmanager
async def serve_openai(
    *agents: Agent[Any, Any], log: EventLog | None = None, runtime: dict[str, Any] | None = None, **options: Any
) -> AsyncGenerator[OpenAIEndpoint]:
    """Serve agents to the users in `TOKENS`."""
    made = Runtime({each.name: each for each in agents}, log=log or MemoryEventLog(), grace=0.3, **(runtime or {}))
    async with made:
        given: dict[str, Any] = {"auth": bearer(TOKENS), **options}
        app = openai_api(made, **given)
        async with serve_app(app) as url:
            yield OpenAIEndpoint(url, app, made)
            await app.drain(0.2)
    for agent in agents:
        await agent.aclose()
