"""Links to external files over the HTTP API, AG-UI and the UI stream."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, ArtifactUpdateEvent, RunContext, tool
from rxloop.client import Client
from rxloop.testing import ScriptedModel, call
from support.api_server import make_client, serve_api
from support.clients.agui import node, serve_agui
from support.clients.ai_sdk import select_parts, serve_pages

URL = "https://example.org/report.pdf"


@tool
async def publish(ctx: RunContext[Any]) -> str:
    """Publish a report."""
    await ctx.artifacts.link("report.pdf", URL, name="A report")
    return "published"


def make_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(call("publish"), "Done."), tools=[publish], thoughts=False, name="clerk")


async def test_client_receives_the_url() -> None:
    async with serve_api(make_clerk()) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Publish")
        [link] = [each async for each in client.follow(run.task_id) if isinstance(each, ArtifactUpdateEvent)]
    assert (link.url, link.media_type, link.name, link.last) == (URL, "application/pdf", "A report", True)


@pytest.mark.service("node-clients")
async def test_agui_client_receives_the_url() -> None:
    async with node() as clients, serve_agui(make_clerk()) as served:
        stream = (await clients.agent(served.url, "t").send("Publish")).check()
    [sent] = [each["value"] for each in stream.select("CUSTOM") if each["name"] == "rxloop.artifact-update"]
    assert (sent["data"], sent["mediaType"], sent["name"]) == ({"url": URL}, "application/pdf", "A report")


@pytest.mark.service("node-clients")
async def test_page_shows_the_url_also_after_a_reload() -> None:
    async with serve_pages(make_clerk()) as served:
        page = await served.page()
        [sent] = select_parts(await page.send("Publish"), "data-artifact")
        async with make_client(served.url) as http:
            [_, answer] = (await http.get("/api/chat/chat-1")).json()
    assert sent in answer["parts"]
    assert (sent["data"]["url"], sent["data"]["mediaType"], sent["data"]["name"]) == (
        URL,
        "application/pdf",
        "A report",
    )
