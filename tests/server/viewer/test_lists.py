"""Pages about all runs in a browser: the list of runs, found texts, and problems."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import EventLog, MemoryEventLog, StatusUpdateEvent, TaskEvent
from rxloop.protocol.events import CustomEvent, Event, UsageEvent
from rxloop.protocol.messages import ErrorInfo, Message, Usage
from rxloop.server.http import findings
from support.browser import expect, find_barriers
from support.viewer_pages import find_filter, find_rows, get_text, open_page_anew, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


async def store_run(
    log: EventLog,
    number: int,
    *,
    title: str = "",
    state: Any = "completed",
    context: str = "",
    detail: str = "plain",
    owner: str = "",
    days: int = 0,
    model: str = "small",
) -> str:
    """Store a run that started some days ago. Its number determines its time."""
    task_id = f"run-{number:03}"
    envelope: dict[str, Any] = {"task_id": task_id, "context_id": context or task_id, "attempt": 1}
    envelope |= {"timestamp": time.time_ns() // 1_000_000 - 100_000 - days * 86_400_000 + number}
    messages = [Message.user(title or f"Question {number}")]
    events: list[Event] = [
        TaskEvent(seq=1, messages=messages, model=model, agent_name="clerk", owner=owner or None, **envelope),
        StatusUpdateEvent(seq=2, state="working", **envelope),
        UsageEvent(seq=3, step="1", input_tokens=100, output_tokens=number, **envelope, metadata={"model": model}),
        CustomEvent(seq=4, name="note", data=f"{detail} <b>note</b> {number}", **envelope),
    ]
    if state != "working":
        error = ErrorInfo(code="limit", message="too many steps") if state == "failed" else None
        ends: dict[str, Any] = {"state": state, "final": True, "usage": Usage(input_tokens=100), "error": error}
        envelope["timestamp"] += 2_500
        events.append(StatusUpdateEvent(seq=5, **ends, **envelope))
    await log.append(task_id, events, expected_seq=0)
    return task_id


async def store_runs(log: EventLog, count: int) -> None:
    for number in range(count):
        await store_run(log, number, state="failed" if number % 50 == 0 else "completed")


async def get_titles(rows: Locator) -> list[str]:
    return [text.split(" clerk")[0] for text in await get_text(rows)]


async def scroll(page: Page, top: int) -> None:
    await page.locator(".runs .list").first.evaluate(f"each => {{ each.scrollTop = {top}; }}")


async def get_offset(page: Page) -> int:
    return await page.locator(".runs .list").first.evaluate("each => each.scrollTop")


async def test_new_runs_wait_and_do_not_move_the_list(page: Page) -> None:
    log = MemoryEventLog()
    await store_runs(log, 120)
    async with serve_view(log) as url:
        await page.goto(url)
        rows = find_rows(page, "Runs")
        await expect(rows.first).to_contain_text("Question 119")
        await page.get_by_role("button", name="Load older runs").click()
        await expect(page.get_by_text("120 runs")).to_be_visible()
        assert await rows.count() < 40
        await scroll(page, 600)
        await expect(rows.get_by_text("Question 100", exact=True)).to_be_visible()
        await store_run(log, 200, title="Brand new", state="working")
        waiting = page.get_by_role("button", name="1 new run")
        await expect(waiting).to_be_visible()
        assert await get_offset(page) == 600
        await store_run(log, 201, title="Newer")
        await expect(page.get_by_role("button", name="2 new runs")).to_be_visible()
        await page.keyboard.press(".")
        await expect(waiting).to_be_hidden()
        assert await get_offset(page) == 600
        await scroll(page, 0)
        await expect(rows.first).to_contain_text("Newer")
        await expect(rows.nth(1)).to_contain_text("working")


async def test_changed_run_is_replaced_in_place(page: Page) -> None:
    log = MemoryEventLog()
    task_id = await store_run(log, 1, title="Slow one", state="working")
    await store_run(log, 2)
    async with serve_view(log) as url:
        await page.goto(url)
        row = find_rows(page, "Runs").filter(has_text="Slow one")
        await expect(row).to_contain_text("working")
        envelope: dict[str, Any] = {"task_id": task_id, "context_id": task_id, "attempt": 1}
        end = StatusUpdateEvent(seq=5, state="failed", final=True, usage=Usage(input_tokens=4_321), **envelope)
        await log.append(task_id, [end], expected_seq=4)
        await expect(row).to_contain_text("failed")
        await expect(row).to_contain_text("4,321")
        await expect(find_rows(page, "Runs").nth(1)).to_contain_text("Slow one")


async def test_list_continues_after_a_lost_connection(page: Page) -> None:
    log = MemoryEventLog()
    await store_run(log, 1)
    async with serve_view(log) as url:
        await page.goto(url)
        await expect(find_rows(page, "Runs")).to_have_count(1)
        await page.context.set_offline(True)
        await page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        await expect(page.get_by_text(re.compile("not reached since .*, trying again in"))).to_be_visible()
        await expect(find_rows(page, "Runs")).to_have_count(1)
        await store_run(log, 2)
        await page.context.set_offline(False)
        await expect(page.get_by_role("button", name="1 new run")).to_be_visible()
        await expect(page.get_by_text("live", exact=True)).to_be_visible()


async def test_filter_finds_runs_that_are_not_loaded(page: Page) -> None:
    log = MemoryEventLog()
    await store_runs(log, 160)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/?q=state:failed")
        rows = find_rows(page, "Runs")
        await expect(rows).to_have_count(4)
        assert [re.search(r"Question \d+", text)[0] for text in await get_text(rows)] == [  # pyright: ignore[reportOptionalSubscript]
            *("Question 150", "Question 100", "Question 50", "Question 0")
        ]
        await page.reload()
        await expect(rows).to_have_count(4)
        await find_filter(page).fill("state:failed Question 5")
        await expect(rows).to_have_count(1)


@pytest.mark.service("axe")
async def test_runs_have_a_cost_and_an_owner(page: Page) -> None:
    log = MemoryEventLog()
    await store_run(log, 1, title="Free", owner="ann")
    await store_run(log, 900, title="Paid", owner="bob", model="zai:glm-4.7")
    async with serve_view(log) as url:
        await page.goto(url)
        rows = find_rows(page, "Runs")
        await expect(rows.first).to_contain_text(re.compile(r"Paid *clerk *bob *zai:glm-4.7 *0 *100 *\$0\.0020"))
        await expect(rows.nth(1)).to_contain_text(re.compile(r"Free *clerk *ann *small *0 *100 *2.50 s *\d min$"))
        assert await find_barriers(page) == []


async def test_list_is_filtered_by_owner_and_age(page: Page) -> None:
    log = MemoryEventLog()
    await store_run(log, 1, title="Ancient", owner="bob", days=40)
    await store_run(log, 2, title="Last week", owner="ann", days=5)
    for number in range(120):
        await store_run(log, 100 + number, owner="ann")
    await store_run(log, 300, title="Fresh", owner="bob")
    async with serve_view(log) as url:
        await page.goto(url)
        rows = find_rows(page, "Runs")
        await expect(page.get_by_role("combobox", name="agent").get_by_role("option")).to_have_text(["agent", "clerk"])
        await page.get_by_role("combobox", name="owner").select_option("bob")
        await expect(rows).to_have_count(2)
        await expect(page).to_have_url(re.compile(r"#/\?q=owner:bob$"))
        await page.get_by_role("combobox", name="since").select_option("last 30 days")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("Fresh")
        await open_page_anew(page, page.url)
        await expect(rows).to_have_count(1)
        await expect(page.get_by_role("combobox", name="since")).to_have_value("30d")
        await page.get_by_role("combobox", name="owner").select_option("")
        # Runs that are not on the first page are found by the server.
        await page.get_by_role("combobox", name="state").select_option("completed")
        await find_filter(page).fill(f"{await find_filter(page).input_value()} Last week")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("ann")


@pytest.mark.service("axe")
async def test_runs_are_grouped_by_conversation(page: Page) -> None:
    log = MemoryEventLog()
    await store_run(log, 1, title="First question", context="talk")
    await store_run(log, 2, title="Other")
    await store_run(log, 3, title="Second question", context="talk")
    async with serve_view(log) as url:
        await page.goto(url)
        rows = find_rows(page, "Runs")
        await expect(rows).to_have_count(3)
        button = page.get_by_role("button", name="By conversation")
        await button.click()
        await expect(rows).to_have_count(5)
        await expect(rows.first).to_contain_text(re.compile("2 runs *First question"))
        await expect(rows.nth(2)).to_contain_text("First question")
        assert await find_barriers(page) == []
        await open_page_anew(page, page.url)
        await expect(rows).to_have_count(5)
        await button.click()
        await expect(rows).to_have_count(3)


@pytest.mark.service("axe")
async def test_found_texts_link_to_their_events(page: Page) -> None:
    log = MemoryEventLog()
    await store_run(log, 1, detail="needle")
    await store_run(log, 2)
    async with serve_view(log) as url:
        await page.goto(url)
        await find_filter(page).fill("NEEDLE")
        hits = find_rows(page, "Texts")
        await expect(hits).to_have_count(1)
        await expect(hits.get_by_text("needle", exact=True)).to_be_visible()
        await expect(hits).to_contain_text("<b>note</b>")
        assert await find_barriers(page) == []
        await find_filter(page).fill("nothing like this")
        await expect(page.get_by_text("No text contains these words")).to_be_visible()
        await find_filter(page).fill("needle")
        await hits.get_by_role("link").click()
        await page.wait_for_url(re.compile(r"#/r/run-001\?at=1\.4\.0$"))


@pytest.mark.service("axe")
async def test_problems_of_all_runs_link_to_their_events(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "ORPHANED_AFTER", 0.0)
    log = MemoryEventLog()
    await store_run(log, 1, title="It fails", state="failed")
    await store_run(log, 2, title="It works")
    await store_run(log, 3, title="Lost", state="working")
    async with serve_view(log) as url:
        await page.goto(url)
        await expect(find_rows(page, "Runs").first).to_be_visible()
        await page.keyboard.press("g")
        await page.keyboard.press("p")
        rows = find_rows(page, "Problems")
        await expect(rows.filter(has_text="no process owns this run since").first).to_be_visible()
        texts = await get_text(rows)
        assert "Lost" in texts[0]
        assert any("run failed 5" in text and "too many steps" in text for text in texts)
        assert not any("It works" in text for text in texts)
        assert await find_barriers(page) == []
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.set_viewport_size({"width": 1680, "height": 960})
        await rows.get_by_role("link", name="run failed").click()
        await page.wait_for_url(re.compile(r"#/r/run-001\?at=1\.5\.0$"))
        await open_page_anew(page, f"{url}#/problems")
        await rows.get_by_role("link", name="It fails").click()
        await page.wait_for_url(re.compile(r"#/r/run-001/problems$"))


class ShortOnce(float):
    """Duration that is negative when it is first added to a time."""

    is_used = False

    def __radd__(self, time: float) -> float:
        self.is_used, was_used = True, self.is_used
        return time + (float(self) if was_used else -1)


@pytest.mark.parametrize("is_slow", [False, True])
async def test_older_problems_and_texts_are_loaded_on_request(
    page: Page, monkeypatch: pytest.MonkeyPatch, is_slow: bool
) -> None:
    if is_slow:
        # The first request returns the results of one run.
        monkeypatch.setattr(findings, "PROBLEM_SECONDS", ShortOnce(1))
        monkeypatch.setattr(findings, "SEARCH_SECONDS", ShortOnce(1))
    log = MemoryEventLog()
    for number in range(60):
        await store_run(log, number, state="failed", detail="needle")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/problems")
        status = page.get_by_role("navigation").get_by_role("status")
        await expect(status).to_have_text("50+ runs with problems")
        await page.get_by_role("button", name="Load older runs").click()
        await expect(status).to_have_text("60 runs with problems")
        await store_run(log, 61, title="The newest one", state="failed")
        await page.get_by_role("button", name="Reload").click()
        await expect(find_rows(page, "Problems").first).to_contain_text("The newest one")
        await page.goto(f"{url}#/?q=needle")
        await expect(page.get_by_role("heading", name="50+ texts")).to_be_visible()
        await page.get_by_role("button", name="Search older runs").click()
        await expect(page.get_by_role("heading", name="60 texts")).to_be_visible()


async def test_page_says_that_there_are_no_problems(page: Page) -> None:
    log = MemoryEventLog()
    await store_run(log, 1)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/problems")
        await expect(page.get_by_role("heading", name="No problems")).to_be_visible()


async def test_two_marked_runs_are_compared(page: Page) -> None:
    log = MemoryEventLog()
    for number in range(3):
        await store_run(log, number)
    async with serve_view(log) as url:
        await page.goto(url)
        rows = find_rows(page, "Runs")
        await rows.first.focus()
        for key in ("Space", "j", "Space", "j", "Space", "m"):
            await page.keyboard.press(key)
        await expect(page).to_have_url(re.compile("#/diff/run-001/run-000"))
