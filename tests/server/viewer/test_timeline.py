"""Timeline of a run: marbles, bars, time range, slider and playback."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, StatusUpdateEvent, TaskEvent, tool
from rxloop.protocol.events import Event, InputReceivedEvent, InputRequiredEvent
from rxloop.protocol.messages import Message, PendingInput
from rxloop.testing import ScriptedModel, call
from support.acting_pages import serve_agents
from support.browser import expect, until
from support.viewer_pages import find_inspector, find_rows, serve_view

if TYPE_CHECKING:
    from playwright.async_api import FloatRect, Locator, Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

SELECTED = "+location.hash.match(/at=1[.](\\d+)/)?.[1]"
WINDOW = "location.hash.match(/from=([\\d.]+)&to=([\\d.]+)/)?.slice(1).map(Number)"
COLOR = """(([x, y]) => {
    const canvas = document.querySelector('.marbles canvas'), scale = canvas.width / canvas.clientWidth;
    return [...canvas.getContext('2d').getImageData(x * scale, y * scale, 1, 1).data].slice(0, 3);
})"""


async def get_box(locator: Locator) -> FloatRect:
    await expect(locator).to_be_visible()
    box = await locator.bounding_box()
    assert box
    return box


async def open_timeline(page: Page, url: str, task_id: str, place: str = "") -> None:
    await page.goto(f"{url}#/r/{task_id}{place}")
    await expect(find_rows(page, "Waterfall").first).to_be_visible()


def find_row(page: Page, label: str) -> Locator:
    return find_rows(page, "Waterfall").and_(page.locator(f"[aria-label^='{label}']"))


async def find_marble(page: Page, row: str, lane: str) -> tuple[float, float]:
    """Return x of the end of a waterfall row and y of a lane."""
    bar = await get_box(find_row(page, row).locator(".bar"))
    title = await get_box(page.locator(".lane").filter(has_text=lane))
    return bar["x"] + bar["width"], title["y"] + title["height"] / 2


async def test_marbles_are_drawn_explained_and_opened(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id)
        x, y = await find_marble(page, "get_alerts", "get_alerts")
        canvas = await get_box(page.locator(".marbles canvas"))
        color = await page.evaluate(f"{COLOR}([{x - canvas['x']}, {y - canvas['y'] - 6}])")
        assert color[0] > color[1] + 60, "the marble of a failed call is red"
        await page.mouse.move(x, y)
        tip = page.locator(".tip")
        await expect(tip).to_contain_text(re.compile(r"tool-complete get_alerts\s*seq 14 · \+3\.44 s · step 1"))
        await page.mouse.click(x, y)
        await expect(find_inspector(page)).to_contain_text("timed out after 2 s")
        await page.mouse.move(x, 10)
        await expect(tip).to_have_count(0)
        # Events with the same timestamp share a marble. Each click opens the next event.
        x = (await get_box(find_row(page, "alerts-desk").first.locator(".bar")))["x"]
        y = (await find_marble(page, "get_alerts", "Thoughts"))[1] + 10
        seqs: list[int] = []
        for _ in range(3):
            await page.mouse.click(x, y)
            seqs.append(await until(page, SELECTED))
        assert seqs == [22, 25, 22]


async def test_bars_start_and_end_at_the_times_of_their_events(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id)
        # The axis is 2 % longer than the run.
        axis = await get_box(page.locator(".axis"))
        scale = (axis["width"] - 32) / (11.54 * 1.02)
        for label, start, seconds in (("get_alerts", 1.44, 2.0), ("get_forecast", 1.44, 0.76), ("run", 0, 11.54)):
            row = find_row(page, label) if label != "run" else find_rows(page, "Waterfall").first
            box = await get_box(row.first.locator(".bar").first)
            assert abs(box["x"] - axis["x"] - 16 - start * scale) < 2, label
            assert abs(box["width"] - seconds * scale) < 2, label
        step = find_row(page, "step 1").first
        waits, streams = [await get_box(step.locator(f".bar.{name}")) for name in ("waiting", "model")]
        assert abs(waits["x"] + waits["width"] - streams["x"]) < 1
        await expect(find_row(page, "step 2").first.locator(".bar.pause")).to_have_attribute("title", "waits 0.80 s")


async def test_rows_are_opened_folded_and_enlarged_with_a_mouse(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id)
        rows = find_rows(page, "Waterfall")
        count = await rows.count()
        step = find_row(page, "step 1").first
        await step.get_by_role("button", name="fold").click()
        assert await rows.count() < count
        await step.get_by_role("button", name="unfold").click()
        await expect(rows).to_have_count(count)
        await find_row(page, "get_alerts").click()
        await expect(find_inspector(page)).to_contain_text("timed out after 2 s")
        await find_inspector(page).get_by_role("button", name="begins with tool-start, seq 11").click()
        await expect(find_inspector(page).get_by_role("heading", name="tool-start")).to_be_visible()
        await find_row(page, "get_alerts").dblclick()
        first, last = await until(page, WINDOW)
        assert (round(first, 1), round(last, 1)) == (1.2, 3.6)


async def drag(page: Page, box: FloatRect, start: float, end: float) -> None:
    """Drag horizontally inside a box. `start` and `end` are fractions of its width."""
    y = box["y"] + box["height"] / 2
    await page.mouse.move(box["x"] + box["width"] * start, y)
    await page.mouse.down()
    await page.mouse.move(box["x"] + box["width"] * (start + end) / 2, y)
    await page.mouse.move(box["x"] + box["width"] * end, y)
    await page.mouse.up()


async def test_time_range_is_chosen_with_mouse_wheel_and_keys(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        for part in (".axis", ".overview"):
            await open_timeline(page, url, task_id)
            box = await get_box(page.locator(part))
            await drag(page, box, 0.25, 0.5)
            first, last = await until(page, WINDOW)
            assert (abs(first - 2.9) < 0.3, abs(last - 5.9) < 0.3) == (True, True), part
            await page.keyboard.press("0")
            assert "from=" not in page.url
        lanes = await get_box(page.locator(".marbles"))
        await page.mouse.move(lanes["x"] + lanes["width"] / 2, lanes["y"] + 20)
        for size in (4.5, 1.7):
            await page.keyboard.down("Control")
            await page.mouse.wheel(0, -300)
            await page.keyboard.up("Control")
            await until(page, f"({WINDOW})?.[1] - ({WINDOW})?.[0] < {size}")
        before = await page.evaluate(WINDOW)
        await page.keyboard.down("Shift")
        await page.mouse.wheel(0, 100)
        await page.keyboard.up("Shift")
        await until(page, f"({WINDOW})[0] > {before[0]}")
        sizes: list[float] = []
        for key in ("+", "-", "d", "a"):
            before = await page.evaluate(WINDOW)
            await page.keyboard.press(key)
            after = await page.evaluate(WINDOW)
            sizes.append((after[1] - after[0]) / (before[1] - before[0]))
            assert {"d": after[0] > before[0], "a": after[0] < before[0]}.get(key, True), key
        assert [round(each, 1) for each in sizes] == [0.7, 1.4, 1, 1]


async def test_long_pauses_are_left_out_until_they_are_requested(page: Page) -> None:
    log = MemoryEventLog()
    envelope: dict[str, Any] = {"task_id": "slow", "context_id": "c", "attempt": 1}
    question = PendingInput(input_id="i", input_kind="text", prompt="Why?")
    events: list[Event] = [
        TaskEvent(seq=1, timestamp=0, messages=[Message.user("Ask.")], model="m", agent_name="a", **envelope),
        StatusUpdateEvent(seq=2, timestamp=0, state="working", **envelope),
        InputRequiredEvent(seq=3, timestamp=1_000, input=question, **envelope),
        InputReceivedEvent(seq=4, timestamp=3_601_000, input_id="i", value="So.", **envelope),
        StatusUpdateEvent(seq=5, timestamp=3_602_000, state="completed", final=True, content="Done.", **envelope),
    ]
    await log.append("slow", events, expected_seq=0)
    async with serve_view(log) as url:
        await open_timeline(page, url, "slow")
        pause = page.locator(".axis .cut")
        await expect(pause).to_have_text("1 h, waited for you")
        await page.keyboard.press("x")
        await expect(pause).to_have_count(0)
        await page.keyboard.press("x")
        await expect(pause).to_have_count(1)


async def test_slider_and_buttons_move_through_the_events(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id)
        slider = page.get_by_role("slider", name="Event")
        box = await get_box(slider)
        await drag(page, box, 0.2, 0.5)
        await until(page, f"{SELECTED} === 26 || {SELECTED} === 27")
        # The slider ignores pointer moves without a pressed button.
        await page.mouse.move(box["x"] + 10, box["y"] + 10)
        assert await page.evaluate(SELECTED) in (26, 27)
        await expect(page.locator(".overlay .future")).to_be_visible()
        await expect(page.locator(".edge")).to_contain_text(re.compile("2[56] later events"))
        buttons = (("First event", 1), ("Next event", 2), ("Next event", 3), ("Event before", 2), ("Last event", 52))
        for name, seq in buttons:
            await page.get_by_role("button", name=name).click()
            assert await page.evaluate(SELECTED) == seq, name
            await expect(slider).to_have_attribute("aria-valuenow", str(seq))
        await page.get_by_role("button", name="First event").click()
        await page.get_by_role("button", name="Go to the end").click()
        await expect(page.locator(".edge")).to_contain_text("The run is over. 52 events.")
        assert "at=" not in page.url


async def test_run_is_played_in_its_own_pace(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id)
        await page.clock.install()
        await page.clock.pause_at(await page.evaluate("Date.now() + 1000"))
        await page.get_by_role("button", name="Play").click()
        await page.clock.run_for(2_500)
        # The forecasts arrive after 2.2 s and 2.88 s.
        assert await page.evaluate(SELECTED) == 12
        await page.get_by_role("button", name="Speed").click()
        await page.clock.run_for(150)
        assert await page.evaluate(SELECTED) == 13
        await page.get_by_role("button", name="Pause").click()
        await page.clock.run_for(5_000)
        assert await page.evaluate(SELECTED) == 13
        await page.keyboard.press("Space")
        await page.clock.run_for(5_000)
        assert await page.evaluate(SELECTED) == 52
        await expect(page.get_by_role("button", name="Play")).to_be_visible()


async def test_keys_step_through_the_events_of_a_track(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id, "?at=1.9.0")
        seqs: list[int] = []
        for key in ("]", "]", "]", "["):
            await page.keyboard.press(key)
            seqs.append(await page.evaluate(SELECTED))
        assert seqs == [10, 12, 13, 12]


async def test_page_follows_a_live_run_again_and_announces_its_steps(page: Page) -> None:
    gates = {place: asyncio.Event() for place in ("Oslo", "Bergen")}

    @tool
    async def look(place: str) -> str:
        """Look at a place."""
        await gates[place].wait()
        return f"seen {place}"

    agent = Agent(ScriptedModel(*(call("look", place=each) for each in gates), "Done."), name="guide", tools=[look])
    async with serve_agents(agent) as served:
        run = await served.runtime.start("guide", "Look around.")
        await page.goto(served.find_run(run.task_id, "?at=1.1.0"))
        rows, edge, slider = find_rows(page, "Waterfall"), page.locator(".edge"), page.get_by_role("slider")
        await expect(rows.filter(has_text="Oslo")).to_be_visible()
        await expect(edge).to_contain_text(re.compile(r"\d newer events"))
        await page.get_by_role("button", name="Go live").click()
        await expect(edge).to_contain_text("The page follows the newest event.")
        last = await slider.get_attribute("aria-valuenow")
        assert last
        gates["Oslo"].set()
        # The run still works.
        await expect(rows.filter(has_text="Bergen")).to_be_visible()
        await expect(page.locator(".path .state.working")).to_be_visible()
        await expect(slider).not_to_have_attribute("aria-valuenow", last)
        await expect(page.locator(".unseen[role=status]")).to_have_text("step 2")
        gates["Bergen"].set()
        await expect(page.locator(".path .state.completed")).to_be_visible()


async def test_settings_and_links_are_kept(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id, "?at=1.14.0")
        await page.get_by_role("button", name="Copy link").click()
        await expect(page.locator(".notice-line")).to_have_text("Link copied")
        assert await page.evaluate("navigator.clipboard.readText()") == page.url
        await page.keyboard.press("j")
        await page.keyboard.press("c")
        await page.get_by_role("button", name="Dark or light").click()
        await page.keyboard.press("?")
        await page.get_by_label("Switch off single letters").check()
        await page.keyboard.press("Escape")
        await page.reload()
        await expect(find_rows(page, "Waterfall").first).to_be_visible()
        assert await page.evaluate("document.documentElement.dataset.theme") == "light"
        for key in ("j", "t", "5"):
            await page.keyboard.press(key)
        assert await page.evaluate("document.documentElement.dataset.theme") == "light"
        assert await page.evaluate(SELECTED) == 15
        await page.keyboard.press("ArrowRight")
        assert await page.evaluate(SELECTED) == 16


async def test_back_button_returns_to_the_earlier_event(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_timeline(page, url, task_id)
        await page.get_by_role("tab", name="Events").click()
        await find_rows(page, "Events").nth(11).click()
        await expect(find_inspector(page)).to_contain_text("11 °C, dry until 15:00")
        await page.get_by_role("tab", name="Problems").click()
        assert "at=1.12.0" in page.url
        await page.go_back()
        await expect(find_rows(page, "Events").and_(page.locator(".selected"))).to_contain_text("get_forecast")
        await page.go_back()
        # No event was selected on the timeline.
        await expect(page.locator(".edge")).to_contain_text("The run is over.")
        await page.go_forward()
        await expect(find_inspector(page)).to_contain_text("11 °C, dry until 15:00")
        await page.get_by_role("button", name="Go to the end").click()
        # A link to an event of the open run stops following.
        await page.evaluate("location.hash += '?at=1.14.0'")
        await expect(page.locator(".edge")).to_contain_text("38 later events")
