"""Messages after a page reload during a run."""

from __future__ import annotations

import asyncio
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


@pytest.mark.parametrize("keep_deltas", [True, False])
async def test_reload_at_any_moment_yields_the_same_message(keep_deltas: bool) -> None:
    lengths = sorted(random.Random(7).choices(range(1, 380), k=20))
    clerk = Agent(make_model(), tools=[weather], name="clerk")
    async with serve_pages(clerk, log=MemoryEventLog(keep_deltas=keep_deltas)) as served:
        headers = {"authorization": "Bearer ann-key"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers) as client:
            first = await served.page("first")
            await first.send("Weather?", wait=False)
            resumed_pages: list[Any] = []
            for number, characters in enumerate(lengths):
                await first.do("until", characters=characters)
                # Reload with the local messages or the stored messages.
                messages = (
                    (await first.do("seen"))["messages"]
                    if number % 2
                    else (await client.get("/api/chat/chat-1")).json()
                )
                page = await served.page(f"page {number}", messages=messages, after=bool(number % 3))
                await page.do("start_resume")
                resumed_pages.append(page)
            screen = await first.do("settled")
            reloaded_screens = [await page.do("settled") for page in resumed_pages]
            stored = (await client.get("/api/chat/chat-1")).json()
    assert screen["status"] == "ready"
    resumed = [each for each in reloaded_screens if each["messages"][-1]["metadata"]["rxloop"]["state"] == "completed"]
    assert len(resumed) >= 10, "most pages must be reloaded during the run"
    for each in resumed:
        assert each["status"] == "ready"
        assert each["errors"] == []
        assert each["messages"] == screen["messages"]
    assert stored == screen["messages"]


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


class ReloadedChat:
    """Chat whose run is held in a tool call while the page loads its messages."""

    def __init__(self) -> None:
        self.is_held, self.release = asyncio.Event(), asyncio.Event()

        @tool
        async def hold(ctx: RunContext[Any]) -> str:
            """Wait."""
            self.is_held.set()
            await self.release.wait()
            return "held"

        self.hold = hold


async def load_messages(url: str) -> list[Any]:
    async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer ann-key"}) as client:
        return (await client.get("/api/chat/chat-1")).json()


@pytest.mark.parametrize("end", ["Done.", call("refund", order="A1")], ids=["answer", "question"])
@pytest.mark.parametrize("keep_deltas", [True, False])
async def test_run_that_ends_between_the_requests_of_a_reload_is_shown(keep_deltas: bool, end: Any) -> None:
    chat = ReloadedChat()
    clerk = Agent(ScriptedModel(call("hold"), end), tools=[chat.hold, refund], name="clerk", thoughts=False)
    async with serve_pages(clerk, log=MemoryEventLog(keep_deltas=keep_deltas)) as served:
        first = await served.page("first")
        await first.send("Hold", wait=False)
        await chat.is_held.wait()
        loaded = await load_messages(served.url)
        chat.release.set()
        screen = await first.do("settled")
        reloaded = await (await served.page("reloaded", messages=loaded, after=True)).do("resume")
        assert loaded != screen["messages"]
        assert (reloaded["status"], reloaded["errors"]) == ("ready", [])
        assert reloaded["messages"] == screen["messages"] == await load_messages(served.url)


async def test_run_that_starts_and_ends_during_a_reload_is_shown() -> None:
    clerk = Agent(ScriptedModel("One.", "Two."), name="clerk", thoughts=False)
    async with serve_pages(clerk) as served:
        first = await served.page("first")
        await first.send("First")
        # These are the messages of a chat whose second run has not begun its answer.
        loaded = await load_messages(served.url)
        screen = await first.send("Second")
        loaded.append(screen["messages"][-2])
        reloaded = await (await served.page("reloaded", messages=loaded, after=True)).do("resume")
        assert reloaded["messages"] == screen["messages"]


async def test_reload_of_an_idle_chat_streams_nothing() -> None:
    clerk = Agent(ScriptedModel(call("refund", order="A1"), "Done."), tools=[refund], name="clerk", thoughts=False)
    async with serve_pages(clerk) as served:
        first = await served.page("first", auto=["approvals"])
        await first.send("Refund")
        loaded = await load_messages(served.url)
        cursor = loaded[-1]["metadata"]["rxloop"]["cursor"]
        async with httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer ann-key"}) as client:
            url = "/api/chat/chat-1/stream"
            assert (await client.get(url)).status_code == 204
            assert (await client.get(url, params={"after": cursor})).status_code == 204
            assert (await client.get("/api/chat/new/stream", params={"after": ""})).status_code == 204
            await first.do("approve", answers=[[loaded[-1]["parts"][-1]["approval"]["id"], True]])
            assert (await client.get(url)).status_code == 204
            assert (await client.get(url, params={"after": cursor})).status_code == 200
