"""Inspector and problems of a run: copied values, failed tries, selected rows and live problems."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, ToolError, tool
from rxloop.testing import ScriptedModel, call
from support.acting_pages import serve_agents
from support.browser import expect
from support.viewer_pages import find_filter, find_inspector, find_rows, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


async def test_json_of_an_event_is_copied_as_a_whole_or_in_part(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.12.0&in=json")
        for name, expected in (
            ("Copy", '"kind": "tool-complete"'),
            ("copy the value of .result", "11 °C, dry until 15:00"),
            ("copy the path .call.name", ".call.name"),
        ):
            await find_inspector(page).get_by_role("button", name=name, exact=True).click()
            await expect(find_inspector(page).get_by_role("button", name="copied").first).to_be_visible()
            assert expected in await page.evaluate("navigator.clipboard.readText()")


async def test_request_lists_its_failed_tries_and_leads_to_the_previous_one(
    page: Page, weather: tuple[EventLog, str]
) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.17.0&in=request")
        tries = find_inspector(page).get_by_role("region", name="Tries")
        await expect(tries).to_contain_text(re.compile(r"429 rate_limited after 0 s\s*repeated after 0\.80 s"))
        await find_inspector(page).get_by_role("button", name="compared with seq 3").click()
        await page.wait_for_url("**at=1.3.0*")
        await page.goto(f"{url}#/r/{task_id}?at=1.17.0&in=request")
        await tries.get_by_role("button").click()
        await page.wait_for_url("**at=1.18.0*")


async def test_selected_row_stays_in_view(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    await page.set_viewport_size({"width": 1200, "height": 500})
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}/events?at=1.1.0")
        selected = find_rows(page, "Events").and_(page.locator(".selected"))
        await expect(selected).to_be_in_viewport()
        for key, count in (("j", 40), ("k", 38)):
            for _ in range(count):
                await page.keyboard.press(key)
            await expect(selected).to_be_in_viewport(ratio=1)
        await find_filter(page).fill("step:3")
        await expect(page.get_by_text(re.compile(r"^[1-4] of \d+ rows"))).to_be_visible()


async def test_problems_are_listed_and_counted_while_the_run_works(page: Page) -> None:
    gates = {place: asyncio.Event() for place in ("Bergen", "Bodø")}

    @tool
    async def look(place: str) -> str:
        """Look at a place."""
        if place == "Rome":
            raise ToolError("It is dark.")
        if place in gates:
            await gates[place].wait()
        return "seen"

    places = ("Bergen", "Oslo", "Oslo", "Oslo", "Rome", "Bodø")
    agent = Agent(ScriptedModel(*(call("look", place=each) for each in places), "Done."), name="guide", tools=[look])
    async with serve_agents(agent, log=MemoryEventLog()) as served:
        run = await served.runtime.start("guide", "Look around.")
        await page.goto(served.find_run(run.task_id, "/problems"))
        await expect(page.get_by_role("heading", name="No problems in")).to_be_visible()
        gates["Bergen"].set()
        rows = find_rows(page, "Problems")
        await expect(page.get_by_role("tab", name=re.compile(r"Problems [1-9]"))).to_be_visible()
        await expect(rows.filter(has_text="tool failed").first).to_contain_text("It is dark.")
        await expect(rows.get_by_role("gridcell", name="same call repeated")).to_have_text(
            re.compile(r"repeated\s3 times$")
        )
        await expect(page.locator(".path .state.working")).to_be_visible()
        gates["Bodø"].set()
        await expect(page.locator(".path .state.completed")).to_be_visible()
