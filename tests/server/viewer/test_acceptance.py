"""Requirements that hold on every page of the viewer: hostile data, keyboards, small windows and long runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import EventLog, MemoryEventLog
from support.browser import expect, find_barriers
from support.viewer_pages import find_filter, find_inspector, find_rows, open_page_anew, serve_view
from support.viewer_runs import HOSTILE, record_hostile_run, store_long_run

if TYPE_CHECKING:
    from playwright.async_api import CDPSession, Page, Route

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

PHONE, DESK = (390, 844), (1680, 960)

WIDTH = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"

EXECUTED = """[window.hacked,
    document.querySelectorAll('.page script, .page iframe, .page object, .page img, .page a[href^=java]').length]"""

MOUSE_ONLY = """[...document.querySelectorAll('#page *')].filter(element => {
    const objects = Object.values(element).filter(each => each !== null && typeof each === 'object');
    const listeners = objects.flatMap(Object.keys);
    if (!listeners.some(each => /^on(Click|DblClick|PointerDown|MouseDown)/.test(each))) return false;
    const others = element.parentElement.querySelector('[role=row][tabindex="0"]');
    const isInGrid = others && element.matches('[role=row][tabindex="-1"]');
    const focusable = 'button:not([tabindex]), a[href], input, select, textarea, summary, details, [tabindex="0"]';
    return !isInGrid && !element.matches(focusable);
}).map(element => element.className || element.tagName)"""
"""Elements that react to the mouse and cannot get the focus."""

KEYS_INSTEAD = {
    "CANVAS",  # j and k step through the marbles
    "axis",  # +, -, a and d change the time range
    "overview",  # the same
    "fold",  # e
    "marker",  # Space
    "veil",  # Esc
    "dialog",  # only keeps clicks from the veil
}

FOCUSABLE = """[...document.querySelectorAll('#page button, #page a[href], #page input, #page select, #page textarea,'
    + '#page summary, #page [tabindex="0"]')]
    .filter(each => each.tabIndex >= 0 && !each.disabled && each.checkVisibility())"""

VISIT = """(() => {
    const isKnown = document.activeElement !== document.body && reached.has(document.activeElement);
    reached.add(document.activeElement);
    return isKnown;
})()"""


async def visit_pages(page: Page, url: str, task_id: str) -> AsyncGenerator[str]:
    """Open each page in turn: the lists, each tab of a run, and the inspector with an event. Yield its name."""
    for address in ("", "#/problems", "#/x"):
        await open_page_anew(page, url + address)
        nothing = page.get_by_role("heading", name=re.compile("No (problems|experiments)"))
        await expect(page.get_by_role("grid").or_(nothing).first).to_be_visible()
        yield address or "runs"
    await page.goto(f"{url}#/r/{task_id}")
    await expect(find_rows(page, "Waterfall").first).to_be_visible()
    tabs = page.get_by_role("navigation", name="Views").get_by_role("tab")
    for number in range(await tabs.count()):
        await page.keyboard.press(str(number + 1))
        await expect(tabs.nth(number)).to_have_attribute("aria-selected", "true")
        await expect(page.locator("[aria-busy=true]")).to_have_count(0)
        yield await tabs.nth(number).inner_text()
    await page.goto(f"{url}#/r/{task_id}?at=1.8.0&in=json")
    await page.keyboard.press("Enter")
    await expect(find_inspector(page).get_by_role("tabpanel")).to_be_visible()
    inspector_tabs = find_inspector(page).get_by_role("tab")
    for tab in await inspector_tabs.all():
        await tab.click()
        await expect(find_inspector(page)).not_to_contain_text("Loading")
        yield f"inspector {await tab.inner_text()}"
    await page.goto(f"{url}#/diff/{task_id}/{task_id}")
    await expect(page.get_by_role("grid", name="Compared events")).to_be_visible()
    yield "diff"


@pytest.mark.parametrize("size", [DESK, PHONE])
async def test_hostile_texts_are_text_on_every_page(page: Page, size: tuple[int, int]) -> None:
    log = MemoryEventLog()
    task_id = await record_hostile_run(log)
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    names: list[str] = []
    async with serve_view(log) as url:
        async for name in visit_pages(page, url, task_id):
            names.append(name.split()[0])
            if name != "#/x":
                await expect(page.get_by_text(re.compile(re.escape(HOSTILE[:20]))).first).to_be_attached()
            assert await page.evaluate(WIDTH) <= size[0], name
            assert await page.evaluate(EXECUTED) == [None, 0], name
            # The parts of the page stay where they are, whatever the texts are.
            header = await page.get_by_role("banner").bounding_box()
            assert header is not None
            assert (header["y"], header["height"]) == (0, 48), name
    assert {"runs", "Timeline", "Conversation", "Thoughts", "Events", "Problems", "inspector"} <= set(names)


@pytest.mark.service("axe")
@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_pages_have_no_barriers(page: Page, conversation: tuple[EventLog, str], theme: Any) -> None:
    log, task_id = conversation
    await page.emulate_media(color_scheme=theme)
    # The themes only differ in their colours.
    rules = ["color-contrast"] if theme == "light" else []
    async with serve_view(log) as url:
        async for name in visit_pages(page, url, task_id):
            assert await find_barriers(page, *rules) == [], name
        await page.get_by_role("button", name="Keys").click()
        await expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
        assert await find_barriers(page, *rules) == []


async def test_pages_do_not_scroll_sideways_on_a_phone(
    page: Page, weather: tuple[EventLog, str], conversation: tuple[EventLog, str]
) -> None:
    await page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for log, task_id in (weather, conversation):
        async with serve_view(log) as url:
            async for name in visit_pages(page, url, task_id):
                assert await page.evaluate(WIDTH) <= PHONE[0], name


async def test_events_and_other_pages_are_reached_on_a_phone(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    await page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    async with serve_view(log) as url:
        await page.goto(url)
        await page.get_by_role("link", name="Problems").click()
        await expect(page.get_by_role("heading", name="Problems", exact=True)).to_be_in_viewport(ratio=1)
        await page.get_by_role("link", name="Experiments").click()
        await page.get_by_role("link", name="Runs", exact=True).click()
        await expect(find_rows(page, "Runs")).to_have_count(1)
        await page.goto(f"{url}#/r/{task_id}/events")
        await find_rows(page, "Events").nth(11).click()
        for name in ("To the end", "Inspector"):
            await expect(page.get_by_role("button", name=name)).to_be_in_viewport(ratio=1)
        await page.get_by_role("button", name="Inspector").click()
        await expect(find_inspector(page)).to_contain_text("11 °C, dry until 15:00")
        await page.keyboard.press("Escape")
        await page.get_by_role("button", name="To the end").click()
        assert "at=" not in page.url


async def test_keys_are_listed_by_page(page: Page) -> None:
    async with serve_view(MemoryEventLog()) as url:
        for size in (DESK, PHONE):
            await page.set_viewport_size({"width": size[0], "height": size[1]})
            await page.goto(url)
            await page.get_by_role("button", name="Keys").click()
            keys = page.get_by_role("dialog", name="Keys")
            await expect(keys.get_by_role("region", name="Run", exact=True)).to_contain_text("play or pause")
            await expect(keys.get_by_role("region", name="List of runs")).to_contain_text("mark up to two runs")
            box = await keys.bounding_box()
            assert box
            assert (box["x"] >= 0, box["x"] + box["width"] <= size[0]) == (True, True)
            await keys.get_by_role("button", name="Close the keys").click()
            await expect(keys).to_have_count(0)


async def test_every_control_is_reached_by_keyboard(page: Page, conversation: tuple[EventLog, str]) -> None:
    log, task_id = conversation
    async with serve_view(log) as url:
        async for name in visit_pages(page, url, task_id):
            assert set(await page.evaluate(MOUSE_ONLY)) <= KEYS_INSTEAD, name
            # Press Tab until the focus returns to an element that had it before. Parts that are still loading are
            # reached as well.
            await page.evaluate("window.reached = new Set()")
            for _ in range(500):
                await page.keyboard.press("Tab")
                if await page.evaluate(VISIT):
                    break
            missing = f"{FOCUSABLE}.filter(each => !reached.has(each)).map(each => each.outerHTML.slice(0, 200))"
            assert await page.evaluate(missing) == [], name


async def test_run_is_inspected_without_a_mouse(page: Page, weather: tuple[EventLog, str]) -> None:
    log, _ = weather
    async with serve_view(log) as url:
        await page.goto(url)
        await expect(find_rows(page, "Runs")).to_have_count(1)
        while await page.evaluate("document.activeElement.getAttribute('role')") != "row":
            await page.keyboard.press("Tab")
        await page.keyboard.press("Enter")
        rows = find_rows(page, "Waterfall")
        await expect(rows.first).to_be_visible()
        selected = rows.and_(page.locator("[aria-selected=true]"))
        for _ in range(2):
            await page.keyboard.press("ArrowDown")
        await expect(selected).to_have_attribute("aria-label", re.compile("^step 1"))
        count = await rows.count()
        await page.keyboard.press("e")
        await expect(selected).to_have_attribute("aria-expanded", "false")
        assert await rows.count() < count
        await page.keyboard.press("e")
        await expect(rows).to_have_count(count)
        await page.keyboard.press("?")
        keys = page.get_by_role("dialog", name="Keys")
        await expect(keys).to_be_focused()
        await page.keyboard.press("Escape")
        await expect(keys).to_have_count(0)
        separator = page.get_by_role("separator", name="Width of the inspector")
        before = int(await separator.get_attribute("aria-valuenow") or 0)
        await separator.focus()
        await page.keyboard.press("ArrowLeft")
        await expect(separator).to_have_attribute("aria-valuenow", str(before + 20))


async def count_calls(session: CDPSession) -> int:
    """Return the number of calls of functions of the page since the last time."""
    coverage = await session.send("Profiler.takePreciseCoverage")
    scripts = [script for script in coverage["result"] if "/view" in script["url"]]
    return sum(function["ranges"][0]["count"] for script in scripts for function in script["functions"])


async def test_long_run_is_painted_with_few_calls_per_event(page: Page) -> None:
    log, events = MemoryEventLog(), 50_003
    await store_long_run(log, steps=10_000)
    rows = page.get_by_role("row")
    session = await page.context.new_cdp_session(page)
    await session.send("Profiler.enable")
    await session.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    asked, released = asyncio.Event(), asyncio.Event()

    async def hold(route: Route) -> None:
        asked.set()
        await released.wait()
        await route.continue_()

    async with serve_view(log) as url:
        await page.route("**/outline?after=20000&*", hold)
        await open_page_anew(page, f"{url}#/r/long")
        # The first rows are visible before the rest of the run is loaded.
        await expect(rows.first).to_be_visible()
        await asked.wait()
        assert events < await count_calls(session) < 40 * events
        released.set()
        await expect(page.get_by_role("tab", name=f"Events {events:,}")).to_be_visible()
        assert await count_calls(session) < 120 * events
        await session.send("Profiler.stopPreciseCoverage")
        tabs = page.get_by_role("navigation", name="Views").get_by_role("tab")
        for number in range(await tabs.count()):
            await page.keyboard.press(str(number + 1))
            await expect(tabs.nth(number)).to_have_attribute("aria-selected", "true")
            await expect(page.locator("[aria-busy=true]")).to_have_count(0)
            assert await rows.count() <= 80, await tabs.nth(number).inner_text()
        await page.keyboard.press("1")
        await find_filter(page).fill("ok:no")
        await expect(page.get_by_text("100 of 20,001 rows")).to_be_visible()
        assert await rows.count() <= 80
