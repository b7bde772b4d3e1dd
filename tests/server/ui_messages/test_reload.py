"""Page that is reloaded during a run, whose message must equal that of a page that stayed open."""

from __future__ import annotations

import random
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, RunContext, tool
from rxloop.testing import ScriptedModel, call, frames, turn
from support.clients.ai_sdk import serve_pages

pytestmark = pytest.mark.service("node-clients")


@tool
async def weather(ctx: RunContext[Any], city: str) -> dict[str, Any]:
    """Current weather."""
    ctx.progress("half", 0.5)
    return {"city": city, "celsius": 7}


def make_model() -> ScriptedModel:
    words = "".join(f"-word{n} " for n in range(20))
    return ScriptedModel(
        turn(frames(f"{words}|", 0.02), calls=[call("weather", city="Oslo")], reasoning="Let me see."),
        turn(frames(f"{words}|", 0.02), calls=[call("weather", city=city) for city in ("Bergen", "Tromsø")]),
        frames(f"{words}|", 0.02),
    )


@pytest.mark.parametrize("keeps", [True, False], ids=["with deltas in the log", "without"])
async def test_reload_at_any_moment_yields_the_same_message(keeps: bool) -> None:
    moments = sorted(random.Random(7).choices(range(1, 380), k=20))
    clerk = Agent(make_model(), tools=[weather], name="clerk")
    async with serve_pages(clerk, log=MemoryEventLog(keep_deltas=keeps)) as served:
        headers = {"authorization": "Bearer ann-key"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers) as client:
            first = await served.page("first")
            await first.send("Weather?", wait=False)
            resumed_pages: list[Any] = []
            for number, characters in enumerate(moments):
                await first.do("until", characters=characters)
                # The messages that the page had, or those of the server.
                had = (
                    (await first.do("seen"))["messages"]
                    if number % 2
                    else (await client.get("/api/chat/chat-1")).json()
                )
                page = await served.page(f"page {number}", messages=had)
                await page.do("start_resume")
                resumed_pages.append(page)
            screen = await first.do("settled")
            again = [await page.do("settled") for page in resumed_pages]
            stored = (await client.get("/api/chat/chat-1")).json()
    assert screen["status"] == "ready"
    resumed = [each for each in again if each["messages"][-1]["metadata"]["rxloop"]["state"] == "completed"]
    assert len(resumed) >= 10, "most of them came while the run went on"
    for each in resumed:
        assert each["status"] == "ready"
        assert each["errors"] == []
        assert each["messages"] == screen["messages"]
    assert stored == screen["messages"]
