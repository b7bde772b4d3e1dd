"""A page that is loaded anew in the middle of a run has the same message as one that was there all the time."""

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


def model() -> ScriptedModel:
    words = "".join(f"-word{n} " for n in range(20))
    return ScriptedModel(
        turn(frames(f"{words}|", 0.02), calls=[call("weather", city="Oslo")], reasoning="Let me see."),
        turn(frames(f"{words}|", 0.02), calls=[call("weather", city=city) for city in ("Bergen", "Tromsø")]),
        frames(f"{words}|", 0.02),
    )


@pytest.mark.parametrize("keeps", [True, False], ids=["with deltas in the log", "without"])
async def test_a_reload_at_any_moment_gives_the_same_message(keeps: bool) -> None:
    moments = sorted(random.Random(7).choices(range(1, 380), k=20))
    clerk = Agent(model(), tools=[weather], name="clerk")
    async with serve_pages(clerk, log=MemoryEventLog(keep_deltas=keeps)) as made:
        headers = {"authorization": "Bearer ann-key"}
        async with httpx.AsyncClient(base_url=made.url, headers=headers) as client:
            first = await made.page("first")
            await first.send("Weather?", wait=False)
            others: list[Any] = []
            for number, characters in enumerate(moments):
                await first.do("until", characters=characters)
                # What the page had, or what the server has.
                had = (
                    (await first.do("seen"))["messages"]
                    if number % 2
                    else (await client.get("/api/chat/chat-1")).json()
                )
                page = await made.page(f"page {number}", messages=had)
                await page.do("start_resume")
                others.append(page)
            shown = await first.do("settled")
            again = [await page.do("settled") for page in others]
            kept = (await client.get("/api/chat/chat-1")).json()
    assert shown["status"] == "ready"
    resumed = [each for each in again if each["messages"][-1]["metadata"]["rxloop"]["state"] == "completed"]
    assert len(resumed) >= 10, "most of them came while the run went on"
    for each in resumed:
        assert (each["status"], each["errors"]) == ("ready", [])
        assert each["messages"] == shown["messages"]
    assert kept == shown["messages"]
