"""Viewer page in a browser."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rxloop import Agent, EventLog, MemoryEventLog, Runtime
from rxloop.cli.commands.view import create_viewer
from rxloop.cli.service.adapters import create_adapters, create_application
from rxloop.protocol.events import CustomEvent, Event, TaskEvent
from rxloop.protocol.messages import Message as LogMessage
from rxloop.testing import ScriptedModel
from support.api_server import serve_app
from support.browser import expect, until
from support.viewer_pages import (
    find_filter,
    find_inspector,
    find_rows,
    get_text,
    make_guide,
    open_page_anew,
    serve_view,
)
from support.viewer_runs import HOSTILE, record_hostile_run, store_long_run

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

SELECTED = "+(document.querySelector('.waterfall .row.selected')?.dataset.seq ?? 0)"


async def press(page: Page, *keys: str) -> None:
    """Press keys one after the other."""
    for key in keys:
        await page.keyboard.press(key)


async def open_run(page: Page, url: str, task_id: str, place: str = "") -> None:
    """Open the page of a run, and wait for its rows and its problems."""
    await page.goto(f"{url}#/r/{task_id}{place}")
    await expect(find_rows(page, "Waterfall").first).to_be_visible()
    await expect(page.get_by_role("tab", name=re.compile(r"Problems [1-9]"))).to_be_visible()


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_pages_report_no_problem(page: Page, weather: tuple[EventLog, str], theme: Any) -> None:
    log, task_id = weather
    await page.emulate_media(color_scheme=theme)
    run = f"#/r/{task_id}"
    async with serve_view(log) as url:
        for address, ready in (
            ("", find_rows(page, "Runs").get_by_text("Oslo or Bergen")),
            (run, find_rows(page, "Waterfall").first),
            (f"{run}?at=1.14.0&in=json", find_inspector(page).get_by_text("timed out after 2 s").first),
            (f"{run}/problems", find_rows(page, "Problems").get_by_text("rate_limited: too many requests")),
            (f"{run}/conversation", page.get_by_label("Conversation").get_by_text("Start before ten")),
            (f"{run}/thoughts?at=1.10.0", find_rows(page, "Thoughts").nth(2)),
            (f"{run}/events", find_rows(page, "Events").first),
            ("#/r/unknown", page.get_by_role("heading", name="No such run")),
        ):
            await open_page_anew(page, url + address)
            await expect(ready).to_be_visible()
        background = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == {"dark": "rgb(14, 17, 22)", "light": "rgb(255, 255, 255)"}[theme]


async def test_policy_refuses_markup_and_foreign_styles(
    page: Page, problems: list[str], weather: tuple[EventLog, str]
) -> None:
    async with serve_view(weather[0]) as url:
        await page.goto(url)
        await expect(page.get_by_role("banner")).to_be_visible()
        refused = await page.evaluate("(() => { try { document.body.innerHTML = '<b>'; } catch { return true; } })()")
        await page.evaluate(
            "(() => { const style = document.createElement('style'); style.textContent = 'body { margin: 9px }';"
            "document.head.append(style); })()"
        )
        margin = await page.evaluate("getComputedStyle(document.body).margin")
        await expect(page.get_by_role("banner")).to_be_visible()
    assert (refused, margin) == (True, "0px")
    for directive in ("require-trusted-types-for", "style-src-elem"):
        assert any(f"policy violation: {directive}" in each for each in problems), problems
    problems.clear()


async def test_run_page_shows_rows_lanes_and_figures(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_run(page, url, task_id)
        rows = [await each.get_attribute("aria-label") or "" for each in await find_rows(page, "Waterfall").all()]
        lanes = await page.locator(".lane .title").all_inner_texts()
        figures = await get_text(page.locator(".top .figure"))
    assert figures[:3] == ["11.5 s elapsed", "0.64 s first token", "5 model calls"]
    assert re.fullmatch(r"11,\d{3} tokens, 38 % cached", figures[3])
    assert rows[1].startswith("step 1, glm-4.7, 1.44 s, 1,212 → 148 tokens")
    assert any("get_alerts" in row and "2.00 s, failed" in row for row in rows)
    assert any(row.startswith("step 2, glm-4.7, 2 tries, 3.40 s") for row in rows)
    assert lanes == ["Model", "Text", "Thoughts", "get_forecast", "get_alerts", "alerts-desk", "Run"]


async def test_tokens_at_each_event_equal_the_state_of_the_run(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    figures = "[...document.querySelectorAll('.figures b')].map(each => each.textContent)"
    async with serve_view(log) as url, httpx.AsyncClient(base_url=url) as client:
        await open_run(page, url, task_id, "?at=1.1.0")
        requests: list[str] = []
        page.on("request", lambda request: requests.append(request.url))
        shown: list[Any] = []
        for _ in range(52):
            shown.append(await page.evaluate(figures))
            await page.keyboard.press("j")
        # Only bodies of events for the inspector are fetched.
        assert {each.partition("?")[0] for each in requests} <= {f"{url[:-5]}runs/{task_id}/events"}
        for seq in range(1, 53):
            state = (await client.get(f"../runs/{task_id}/state", params={"seq": seq})).json()
            tokens = state["usage"]["inputTokens"] + state["usage"]["outputTokens"]
            assert [int(shown[seq - 1][k].replace(",", "")) for k in (0, 5)] == [seq, tokens]


async def test_keys_step_within_the_filter(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await open_run(page, url, task_id)
        await page.keyboard.press("n")
        await page.wait_for_url("**at=1.14.0*")
        await press(page, "n", "p", "/")
        await expect(find_filter(page)).to_be_focused()
        await find_filter(page).fill("name:get_forecast")
        assert "at=1.14.0" in page.url
        await page.keyboard.press("Escape")
        events: list[int] = []
        for _ in range(4):
            await page.keyboard.press("j")
            events.append(await page.evaluate("+location.hash.match(/at=1[.](\\d+)/)[1]"))
        assert events == [28, 36, 36, 36]
        await expect(page.get_by_text("3 of 15 rows")).to_be_visible()
        await press(page, "Escape", "5")
        await expect(page.locator("[aria-label=Events] .row.selected")).to_be_visible()
        await page.keyboard.press("t")
        assert await page.evaluate("document.documentElement.dataset.theme") == "light"
        await press(page, "t", "g", "r")
        await expect(find_rows(page, "Runs")).to_have_count(1)


async def test_problems_are_those_of_the_api_and_open_their_events(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url, httpx.AsyncClient(base_url=url) as client:
        await open_run(page, url, task_id)
        await page.keyboard.press("6")
        rows = find_rows(page, "Problems")
        await expect(rows.first).to_be_visible()
        shown = [int(await each.get_attribute("data-seq") or 0) for each in await rows.all()]
        response = await client.get(f"../runs/{task_id}/problems", params={"visibility": "all"})
        assert shown == [each["seq"] for each in response.json()["problems"]]
        await rows.nth(2).click()
        await expect(find_inspector(page)).to_contain_text("The request is repeated after 0.80 s")


async def test_reloaded_address_shows_the_same_place(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather

    async def describe_place() -> list[str]:
        await expect(find_inspector(page)).to_contain_text("showers from 11:00")
        rows = page.get_by_role("treegrid", name="Waterfall")
        return [page.url, await page.locator(".flag").inner_text(), await rows.inner_text()]

    async with serve_view(log) as url:
        await page.goto(f"{url}#{task_id}/1.36.0")
        await until(page, f"{SELECTED} === 28")
        await page.keyboard.press("f")
        await find_filter(page).fill("ok:yes")
        before = await describe_place()
        assert "q=ok:yes" in before[0]
        assert "from=" in before[0]
        await page.reload()
        assert await describe_place() == before


@pytest.mark.parametrize("size", [(1680, 960), (390, 844)])
async def test_hostile_run_is_shown_as_text(page: Page, size: tuple[int, int]) -> None:
    log = MemoryEventLog()
    task_id = await record_hostile_run(log)
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    width = "document.documentElement.scrollWidth"
    async with serve_view(log) as url:
        await page.goto(url)
        await expect(find_rows(page, "Runs")).to_contain_text("<img src=x")
        await page.goto(f"{url}#/r/{task_id}")
        await expect(find_rows(page, "Waterfall").first).to_be_visible()
        inspected = ""
        for _ in range(24):
            await press(page, "j", "Enter")
            await expect(find_inspector(page)).not_to_contain_text("Loading")
            assert await page.evaluate(width) <= size[0]
            inspected = await find_inspector(page).inner_text()
            if "tool-complete\nfetch" in inspected:
                for text in ("<img src=x onerror=", "␛[31mred", "U+202Etxt.exe", "U+200Bzero"):
                    assert text in inspected
        await page.keyboard.press("2")
        await expect(page.locator(".said.model")).to_contain_text(HOSTILE[:14])
        assert await page.evaluate(width) <= size[0]
        executed = "[window.hacked, document.querySelectorAll('.page img, .page script').length]"
        assert await page.evaluate(executed) == [None, 0]
        assert HOSTILE[:40] in await page.title()


async def test_long_run_has_few_rows_in_the_document_and_can_be_filtered(page: Page) -> None:
    log = MemoryEventLog()
    await store_long_run(log, steps=10_000)
    rows = page.get_by_role("row")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/long")
        await expect(page.get_by_role("tab", name="Events 50,003")).to_be_visible()
        waterfall = page.get_by_role("treegrid", name="Waterfall")
        await expect(waterfall).to_have_attribute("aria-rowcount", "10001")
        assert await rows.count() <= 80
        await waterfall.evaluate("element => { element.scrollTop = 150000; }")
        await expect(waterfall).to_contain_text("step 5001")
        assert await rows.count() <= 80
        await find_filter(page).fill("ok:no")
        await expect(page.get_by_text("100 of 20,001 rows")).to_be_visible()
        assert await rows.count() <= 80
        await press(page, "Escape", "5")
        await expect(find_rows(page, "Events").first).to_be_visible()
        assert await rows.count() <= 80


class Cut:
    """Application whose event streams break while `is_cutting` is true."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.is_cutting = False
        self.is_ranges = False
        """True to break requests for ranges of events instead of streams."""
        self.cuts = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def cut(message: Message) -> None:
            is_range = b"from=" in scope["query_string"]
            if self.is_cutting and scope["path"].endswith("/events") and is_range == self.is_ranges:
                self.cuts += 1
                raise ConnectionResetError
            await send(message)

        await self._app(scope, receive, cut)


async def test_live_run_is_complete_after_its_connection_was_killed(page: Page) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    runtime = Runtime({"guide": make_guide(reached, go_on)}, log=MemoryEventLog())
    adapters = create_adapters(runtime, ["view"], {})
    app = Cut(create_application(adapters, (), "127.0.0.1", keys=False))

    async def list_rows() -> str:
        return re.sub(r"[\d.]+ m?s\b", "", await page.get_by_role("treegrid", name="Waterfall").inner_text())

    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Look around.")
        await asyncio.wait_for(reached.wait(), 30)
        await page.goto(f"{url}/view/#/r/{run.task_id}?at=1.6.0")
        await expect(find_rows(page, "Waterfall").first).to_be_visible()
        await expect(page.get_by_text("The page stays where you are")).to_be_visible()
        app.is_cutting = True
        go_on.set()
        await expect(page.get_by_text("not connected").first).to_be_visible()
        app.is_cutting = False
        await expect(page.locator(".path .state.completed")).to_be_visible()
        record = await runtime.get_record(run.task_id)
        assert app.cuts > 0
        await expect(page.get_by_role("tab", name=f"Events {record.seq}", exact=True)).to_be_visible()
        assert "at=1.6.0" in page.url
        live = await list_rows()
        await page.reload()
        await expect(find_rows(page, "Waterfall").first).to_be_visible()
        assert await list_rows() == live


async def test_event_that_could_not_be_loaded_can_be_requested_again(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with Runtime({}, log=log) as runtime:
        app = Cut(create_viewer(runtime)[0])
        app.is_cutting = app.is_ranges = True
        async with serve_app(app) as url:
            await page.goto(f"{url}/view/#/r/{task_id}?at=1.13.0")
            inspector = find_inspector(page)
            await expect(inspector).to_contain_text("The event could not be loaded: the server answered 500")
            app.is_cutting = False
            await inspector.get_by_role("button", name="Again").click()
            await expect(inspector).to_contain_text("9 °C, 4 mm before noon")


async def answer(runtime: Runtime, question: str) -> None:
    """Start a run and follow it to its end."""
    record = await runtime.start("clerk", question)
    async for _ in runtime.follow(record.task_id):
        pass


async def test_new_runs_wait_until_the_reader_adds_them(page: Page) -> None:
    agent = Agent(ScriptedModel(*(f"Answer {number}." for number in range(40))), thoughts=False)
    runtime = Runtime({"clerk": agent}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    rows = find_rows(page, "Runs")
    async with runtime, serve_app(app) as url:
        for number in range(12):
            await answer(runtime, f"Question {number} about place{number}x")
        await page.goto(f"{url}/view/")
        await expect(rows).to_have_count(12)
        await expect(rows.nth(11)).to_contain_text("Question 0")
        await answer(runtime, "Question 12")
        new = page.get_by_role("button", name="1 new run")
        await expect(new).to_be_visible()
        await expect(rows).to_have_count(12)
        await new.click()
        await expect(rows).to_have_count(13)
        await expect(rows.first).to_contain_text("Question 12")
        await find_filter(page).fill("state:completed place7x")
        await expect(rows).to_have_count(1)
        await page.reload()
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("Question 7")
        # Only the log contains the answers.
        await find_filter(page).fill("agent:clerk Answer 5.")
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("Question 5")
        # The server waits for the end of the live list.
        await page.goto("about:blank")


async def test_page_asks_for_the_key_of_the_server(page: Page, weather: tuple[EventLog, str]) -> None:
    runtime = Runtime({}, log=weather[0])
    adapters = create_adapters(runtime, ["view"], {"secret-key-of-ann-1": "ann"})
    app = create_application(adapters, (), "127.0.0.1", keys=True)
    async with runtime, serve_app(app) as url:
        await page.goto(f"{url}/view")
        await page.wait_for_url("**/view/")
        await expect(page.get_by_role("alert")).to_have_count(0)
        await page.get_by_label("Key", exact=True).fill("wrong")
        await page.get_by_role("button", name="Open").click()
        await expect(page.get_by_role("alert")).to_have_text("The server does not accept this key.")
        await page.get_by_label("Key", exact=True).fill("secret-key-of-ann-1")
        await page.get_by_role("button", name="Open").click()
        await expect(page.get_by_role("heading", name="No run yet")).to_be_visible()
        await page.goto("about:blank")


async def test_title_is_never_the_id_of_a_run_that_is_being_loaded(page: Page, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    may_load = asyncio.Event()

    async def hold(route: Route) -> None:
        await may_load.wait()
        await route.continue_()

    async with serve_view(log) as url:
        await page.route("**/outline*", hold)
        await page.goto(f"{url}#/r/{task_id}")
        heading = page.get_by_role("heading", level=1)
        await expect(heading).to_have_text("Waiting for the first event")
        await page.goto(f"{url}#/")
        await find_rows(page, "Runs").first.click()
        await expect(heading).to_contain_text("Oslo or Bergen")
        may_load.set()
        await expect(find_rows(page, "Waterfall").first).to_be_visible()
        await page.unroute_all(behavior="wait")


async def test_late_response_does_not_replace_the_run_that_was_opened_later(
    page: Page, weather: tuple[EventLog, str]
) -> None:
    log, first = weather
    agent = Agent(ScriptedModel("Fine."), name="clerk", log=log)
    second = (await agent.run("How are you?")).task_id
    held: list[Route] = []
    is_held = asyncio.Event()

    async def hold(route: Route) -> None:
        held.append(route)
        is_held.set()

    async with serve_view(log) as url:
        await page.route(f"**/runs/{first}", hold)
        await page.goto(f"{url}#/r/{first}")
        await is_held.wait()
        await page.evaluate(f"location.hash = '#/r/{second}'")
        await expect(find_inspector(page).get_by_text(second)).to_be_visible()
        async with page.expect_response(f"**/runs/{first}"):
            await held[0].continue_()
        await page.evaluate("new Promise(done => setTimeout(done))")
        await expect(find_inspector(page).get_by_text(second)).to_be_visible()
        await expect(find_inspector(page).get_by_text("clerk").first).to_be_visible()


async def test_large_events_are_loaded_in_several_responses(page: Page) -> None:
    log = MemoryEventLog()
    envelope: dict[str, Any] = {"task_id": "large", "context_id": "large", "attempt": 1}
    events: list[Event] = [
        TaskEvent(seq=1, messages=[LogMessage.user("Large")], model="m", agent_name="clerk", **envelope),
        *(CustomEvent(seq=seq, name="note", data=f"{seq} {'x' * 5_000_000}", **envelope) for seq in range(2, 6)),
    ]
    await log.append("large", events, expected_seq=0)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/large?at=1.5.0")
        await expect(find_inspector(page).get_by_text(re.compile("5 xxx")).first).to_be_visible()
        await expect(find_inspector(page).get_by_text("This event is hidden")).to_have_count(0)
