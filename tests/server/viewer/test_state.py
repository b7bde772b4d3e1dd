"""The state of a run after each event, in the inspector of the viewer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from rxloop import Agent, EventLog, MemoryEventLog, Runtime, tool
from rxloop.server.viewer.document import make_file
from rxloop.storage.conversation import conversation
from rxloop.testing import ScriptedModel, call
from rxloop.tools import goal_tool
from support.browser import expect, find_barriers
from support.viewer_pages import find_inspector, get_text, open_page_anew, serve_view
from support.viewer_runs import record_hostile_run

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


async def record_approval(log: EventLog) -> str:
    """Record a run with a question and its answer, in two attempts."""
    model = ScriptedModel([call("refund", order="A1"), call("refund", order="A2")], "Both are refunded.")
    async with Runtime({"clerk": Agent(model, tools=[refund])}, log=log) as runtime:
        run = await runtime.start("clerk", "Refund both")
        await runtime.follow(run.task_id, until="attempt")
        for pending in await runtime.list_pending():
            await runtime.answer(run.task_id, {each.input_id: True for each in pending.inputs})
        await runtime.follow(run.task_id)
    return run.task_id


@pytest.fixture(params=["weather", "approval", "hostile", "conversation"])
async def recorded(
    request: pytest.FixtureRequest, weather: tuple[EventLog, str], conversation: tuple[EventLog, str]
) -> tuple[EventLog, str]:
    log = MemoryEventLog()
    match request.param:
        case "weather":
            return weather
        case "conversation":
            return conversation
        case "approval":
            return log, await record_approval(log)
        case _:
            return log, await record_hostile_run(log)


def find_group(page: Page, name: str) -> Locator:
    return find_inspector(page).get_by_role("region", name=name, exact=True).get_by_role("listitem")


_READ = """(async () => {
    const groups = [...document.querySelectorAll('.runstate section')].map(group => [group.getAttribute('aria-label'),
        [...group.querySelectorAll('li:not(.removed) > div')].map(each => each.textContent)]);
    return Object.fromEntries(groups);
})()"""


async def test_state_of_every_event_equals_that_of_the_api(page: Page, recorded: tuple[EventLog, str]) -> None:
    log, task_id = recorded
    async with serve_view(log) as url, httpx.AsyncClient(base_url=url) as client:
        sent: list[int] = []

        async def count(response: Any) -> None:
            if "/state?" in response.url:
                sent.append(len((await response.json())["messages"]))

        page.on("response", count)
        await page.goto(f"{url}#/r/{task_id}?at=1.1.0&in=state")
        last = (await log.get_record(task_id)).seq
        state: dict[str, Any] = {}
        for seq in range(1, last + 1):
            await expect(page.locator(f".runstate[data-seq='{seq}'][aria-busy=false]")).to_be_attached()
            shown = await page.evaluate(_READ)
            query = {"seq": seq, "visibility": "all"}
            state = (await client.get(f"../runs/{task_id}/state", params=query)).json()
            assert len(shown.get("Messages", [])) == len(state["messages"]), seq
            roles = [each["role"] for each in state["messages"]]
            assert [text.split(" ")[0] for text in shown.get("Messages", [])] == roles
            assert [text.split(" ")[0] for text in shown.get("Open calls", [])] == [
                each["name"] for each in state.get("calls", [])
            ]
            assert shown.get("Open questions", []) == [each["prompt"] for each in state.get("pending", [])]
            shown_figures = await page.locator(".transport .figures b").all_inner_texts()
            used = state["usage"]["inputTokens"] + state["usage"]["outputTokens"]
            expected = [len(state["messages"]), len(state.get("calls", []))]
            assert [shown_figures[2], shown_figures[3], shown_figures[5]] == [*map(str, expected), f"{used:,}"], seq
            figures = shown["Figures"]
            assert f"model calls {state['iteration']}" in figures
            assert figures[0].startswith(f"state {state['state']}")
            tokens = state["usage"]["inputTokens"]
            assert (f"input tokens {tokens:,}" in figures) == bool(tokens)
            await page.keyboard.press("j")
        # Each message is sent once.
        assert sum(sent) == len(state["messages"])


async def test_changes_are_marked_since_the_event_before_and_since_a_marked_event(
    page: Page, weather: tuple[EventLog, str]
) -> None:
    log, task_id = weather
    events = await log.read(task_id)
    # The message of this event has no calls, so it is in the history immediately.
    seq = max(each.seq for each in events if each.kind == "content-complete")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{seq}.0&in=state")
        await expect(find_inspector(page)).to_contain_text(f"Changes since event {seq - 1}")
        [added] = await get_text(find_group(page, "Messages").and_(page.locator(".added")))
        assert added.startswith("+ added assistant Oslo is the better choice")
        await page.keyboard.press("m")
        await page.keyboard.press("k")
        await expect(find_inspector(page)).to_contain_text(f"Changes since the marked event {seq}")
        [removed] = await get_text(find_group(page, "Messages").and_(page.locator(".removed")))
        assert removed.startswith("\N{MINUS SIGN} removed assistant Oslo is the better choice")
        await page.get_by_role("button", name="Compare with the event before").click()
        await expect(find_inspector(page)).to_contain_text(f"Changes since event {seq - 2}")


@pytest.mark.service("axe")
async def test_moving_the_playhead_requests_only_the_state_at_which_it_rests(
    page: Page, weather: tuple[EventLog, str]
) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        requests: list[str] = []
        await page.goto(f"{url}#/r/{task_id}?at=1.1.0&in=state")
        await expect(page.locator(".runstate[data-seq='1'][aria-busy=false]")).to_be_attached()
        page.on("request", lambda request: requests.append(request.url))
        await page.evaluate(
            "(async () => { for (let k = 0; k < 40; k++) {"
            "document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'j', bubbles: true }));"
            "await new Promise(requestAnimationFrame); } })()"
        )
        await expect(page.locator(".runstate[data-seq='41'][aria-busy=false]")).to_be_attached()
        states = [re.search(r"seq=(\d+)", each) for each in requests if "/state?" in each]
        assert [each and each[1] for each in states][-2:] == ["40", "41"]
        # A slow browser may rest in between.
        assert len(states) <= 10
        assert await find_barriers(page) == []


@pytest.mark.service("axe")
async def test_goals_are_shown_at_each_event_with_their_changes(page: Page) -> None:
    model = ScriptedModel(
        call(
            "update_goals",
            goals=[
                {"id": "trip", "title": "Plan the trip", "status": "active"},
                {"id": "rain", "title": "<b>Check</b> the rain", "parent": "trip"},
                {"id": "book", "title": "Book a hut", "parent": "trip", "depends_on": ["rain"]},
            ],
        ),
        call("update_goals", goals=[{"id": "rain", "status": "done"}, {"id": "pack", "title": "Pack"}]),
        "Done.",
    )
    log = MemoryEventLog()
    task_id = (await Agent(model, tools=[goal_tool], log=log).run("Plan a hike")).task_id
    first, second = [each.seq for each in await log.read(task_id) if each.kind == "goals-updated"]
    goals = find_group(page, "Goals")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.{first - 1}.0&in=state")
        await expect(page.locator(f".runstate[data-seq='{first - 1}'][aria-busy=false]")).to_be_visible()
        await expect(goals).to_have_count(0)
        await page.keyboard.press("j")
        await expect(goals).to_have_count(3)
        assert await get_text(goals) == [
            "+ added ● active Plan the trip",
            "+ added ○ pending <b>Check</b> the rain",
            "+ added ○ pending Book a hut after <b>Check</b> the rain (pending)",
        ]
        assert [await each.get_attribute("aria-level") for each in await goals.all()] == ["1", "2", "2"]
        await page.goto(f"{url}#/r/{task_id}?at=1.{second}.0&in=state")
        await expect(goals).to_have_count(4)
        shown = [
            "● active Plan the trip",
            "~ changed ✓ done <b>Check</b> the rain, was pending",
            "○ pending Book a hut after <b>Check</b> the rain (done)",
            "+ added ○ pending Pack",
        ]
        assert await get_text(goals) == shown
        await expect(page.get_by_role("region", name="Goals").get_by_role("heading")).to_have_text("Goals 4+1 ~1")
        # The event itself shows the same.
        await find_inspector(page).get_by_role("tab", name="Event").click()
        await expect(goals).to_have_count(4)
        assert await get_text(goals) == shown
        assert await find_barriers(page) == []
        await page.goto(f"{url}#/r/{task_id}?at=1.{second + 1}.0&in=state")
        await expect(page.locator(f".runstate[data-seq='{second + 1}'][aria-busy=false]")).to_be_visible()
        await expect(page.get_by_role("region", name="Goals").get_by_role("heading")).to_have_text("Goals 4")


async def test_goals_of_an_earlier_run_are_shown_from_the_start(page: Page, tmp_path: Path) -> None:
    log = MemoryEventLog()
    turns = [
        call("update_goals", goals=[{"id": "trip", "title": "Plan the trip", "status": "active"}]),
        "Planned.",
        call("update_goals", goals=[{"id": "trip", "status": "done"}]),
        "Done.",
    ]
    agent = Agent(ScriptedModel(*turns), tools=[goal_tool], log=log)
    earlier = await agent.run("Plan a hike")
    task_id = (await agent.run("Finish it", context_id=earlier.context_id)).task_id
    record = await log.get_record(task_id)
    changed = next(each.seq for each in await log.read(task_id) if each.kind == "goals-updated")
    path = tmp_path / "run.html"
    before = await conversation(log, record.conversation, before=task_id)
    path.write_bytes(make_file(record, await log.read(task_id), before=before, internal=True))
    goals, note = find_group(page, "Goals"), find_inspector(page).get_by_text("come from an earlier run")
    done = ["~ changed \N{CHECK MARK} done Plan the trip, was active"]
    async with serve_view(log) as url:
        for address in (url, path.as_uri()):
            for seq in (1, changed - 1):
                await open_page_anew(page, f"{address}#/r/{task_id}?at=1.{seq}.0&in=state")
                await expect(note).to_be_visible()
                assert await get_text(goals) == ["\N{BLACK CIRCLE} active Plan the trip"]
            for tab in ("event", "state"):
                await open_page_anew(page, f"{address}#/r/{task_id}?at=1.{changed}.0&in={tab}")
                await expect(goals).to_have_count(1)
                assert await get_text(goals) == done
                await expect(note).to_have_count(0)
        await page.goto(f"{url}#/r/{earlier.task_id}?at=1.1.0&in=state")
        await expect(page.locator(".runstate[data-seq='1'][aria-busy=false]")).to_be_visible()
        await expect(goals).to_have_count(0)
