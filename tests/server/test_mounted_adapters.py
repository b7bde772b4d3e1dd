"""Adapters mounted under a prefix, reached with the official clients."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from a2a.client import ClientConfig, create_client
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.routing import Mount

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.client import Client
from rxloop.server import a2a, agui, api, mcp_server, openai_api, ui_stream
from rxloop.testing import ScriptedModel
from support.api_server import make_client, serve_app
from support.clients import agui as agui_client
from support.clients import ai_sdk
from support.clients.a2a import BINDINGS, answer_text, collect_responses, message_request
from support.clients.mcp import result_text


@asynccontextmanager
async def serve_at(prefix: str, adapter: Any, **options: Any) -> AsyncGenerator[str]:
    """Serve an adapter below a prefix, next to another application. Yield the URL of the prefix."""
    agent = Agent(ScriptedModel("It is 7 C.", "And dry."), thoughts=False, name="clerk")
    runtime = Runtime({"clerk": agent}, log=MemoryEventLog(), grace=0.2)
    app = adapter(runtime, **options)
    async with runtime, serve_app(Starlette(routes=[Mount(prefix, app), Mount("/other", Starlette())])) as url:
        yield f"{url}{prefix}"
        await app.drain(0.2)


async def test_http_api_is_at_the_prefix() -> None:
    async with serve_at("/x/agents", api) as url, Client(url) as client:
        run = await client.start("clerk", "Weather?", wait=10)
        assert run.content == "It is 7 C."


@pytest.mark.service("node-clients")
async def test_agui_is_at_the_prefix_with_a_slash() -> None:
    async with agui_client.node() as clients, serve_at("/x/agui", agui) as url:
        client = clients.agent(url, "t", path="/")
        assert (await client.send("Weather?")).check().messages[-1]["content"] == "It is 7 C."
        assert (await client.connect()).check().messages[-1]["content"] == "It is 7 C."


@pytest.mark.service("node-clients")
@pytest.mark.parametrize(("options", "path"), [({}, "/api/chat"), ({"path": ""}, ""), ({"path": "/chat"}, "/chat")])
async def test_ui_stream_is_at_its_path_below_the_prefix(options: Any, path: str) -> None:
    async with serve_at("/x/ui", ui_stream, **options) as url:
        pages = ai_sdk.node()
        await pages.do("open", "mounted", api=f"{url}{path}", id="chat-1", token="ann-key")
        page = ai_sdk.Page(pages, "mounted")
        assert ai_sdk.join_text(await page.send("Weather?")) == "It is 7 C."
        assert ai_sdk.join_text(await page.send("Rain?")) == "And dry."
        async with make_client(url) as http:
            assert len((await http.get(f"{url}{path}/chat-1")).json()) == 4
            assert (await http.get(f"{url}{path}/chat-1/stream")).status_code == 204
            assert (await http.post(f"{url}{path}/chat-1/stop")).status_code == 204


async def test_openai_api_is_at_v1_below_the_prefix() -> None:
    async with serve_at("/x/openai", openai_api) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client:
        response = await client.responses.create(model="clerk", input="Weather?")
        assert response.output_text == "It is 7 C."
        assert (await client.responses.retrieve(response.id)).output_text == "It is 7 C."


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a2a_card_and_its_urls_are_at_the_prefix(binding: str) -> None:
    async with serve_at("/x/a2a", a2a) as url, make_client(url) as http:
        config = ClientConfig(httpx_client=http, supported_protocol_bindings=[binding], streaming=False)
        async with await create_client(url, config) as client:
            card = (await http.get(f"{url}/.well-known/agent-card.json")).json()
            assert all(each["url"].startswith(url) for each in card["supportedInterfaces"])
            [response] = await collect_responses(client.send_message(message_request("Weather?")))
            assert answer_text(response.task) == "It is 7 C."


@pytest.mark.parametrize(("options", "path"), [({}, "/mcp"), ({"path": "/"}, "/")])
async def test_mcp_server_is_at_its_path_below_the_prefix(options: Any, path: str) -> None:
    async with serve_at("/x/tools", mcp_server, **options) as url:
        async with McpClient(streamable_http_client(f"{url}{path}")) as client:
            result = await client.call_tool("clerk", {"prompt": "Weather?"})
            assert result_text(result) == "It is 7 C."
