"""Applications for servers without any code for shutdowns: `app` in FastAPI with all adapters, and `plain` alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from clerk import runtime as make_runtime
from fastapi import FastAPI

from rxloop.server import a2a, agui, api, mcp_server, openai_api, ui_stream

runtime = make_runtime()
plain = api(make_runtime())


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    async with runtime:
        yield
    await runtime.log.aclose()


app = FastAPI(lifespan=lifespan)
app.mount("/agui", agui(runtime))
app.mount("/ui", ui_stream(runtime))
app.mount("/openai", openai_api(runtime))
app.mount("/a2a", a2a(runtime))
app.mount("/mcp", mcp_server(runtime, path="/", allowed_hosts=["127.0.0.1"]))
http_api = api(runtime)
app.mount("/api", http_api)
