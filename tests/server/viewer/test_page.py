"""Viewer page in a browser."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rxloop import Agent, EventLog, MemoryEventLog, Runtime, tool
from rxloop.cli.commands.view import create_viewer
from rxloop.cli.service.adapters import create_adapters, create_application
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_app
from support.browser import Browser, browser
from support.viewer_runs import HOSTILE, record_hostile_run, record_weather_run, store_long_run

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Browser]:
    """Browser shared by all tests of this module, because starting Chromium is slow."""
    async with browser(tmp_path_factory.mktemp("profile")) as started:
        yield started


@pytest_asyncio.fixture(loop_scope="module")
async def page(chromium: Browser) -> AsyncGenerator[Browser]:
    """The browser on an empty page. At the end, the page must not have reported a problem."""
    await chromium.open("about:blank")
    await chromium.emulate()
    await chromium.watch()
    yield chromium
    assert chromium.problems == []


@pytest.fixture(scope="module")
def weather() -> tuple[EventLog, str]:
    log = MemoryEventLog()
    return log, record_weather_run(log)


@contextlib.asynccontextmanager
async def serve_view(log: EventLog) -> AsyncGenerator[str]:
    """Serve the application of `rxloop view` and yield the URL of the page."""
    async with Runtime({}, log=log) as runtime, serve_app(create_viewer(runtime)[0]) as url:
        yield f"{url}/view/"


READY = "document.querySelector('.waterfall [role=row]') !== null"
RUNS = "[...document.querySelectorAll('.runs [data-run]')]"
SELECTED = "+(document.querySelector('.waterfall .row.selected')?.dataset.seq ?? 0)"
INSPECTOR = "document.querySelector('.inspector').innerText"


def find_button(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find(each => each.textContent.includes({text!r}))"


async def fill(page: Browser, text: str) -> None:
    """Write a text into the filter."""
    await page.run(
        "{ const field = document.querySelector('input[type=search]'); field.value = " + repr(text) + ";"
        "field.dispatchEvent(new Event('input', { bubbles: true })); }"
    )


@pytest.mark.parametrize("theme", ["dark", "light"])
async def test_pages_report_no_problem_and_reach_no_other_host(
    page: Browser, weather: tuple[EventLog, str], theme: str
) -> None:
    log, task_id = weather
    await page.emulate(theme=theme)
    async with serve_view(log) as url:
        for address, ready in (
            ("", f"{RUNS}.length === 1 && document.body.innerText.includes('Oslo or Bergen')"),
            (f"#/r/{task_id}", READY),
            (f"#/r/{task_id}?at=1.14.0&in=json", f"{INSPECTOR}.includes('timed out after 2 s')"),
            (f"#/r/{task_id}/problems", "document.body.innerText.includes('rate_limited: too many requests')"),
            (f"#/r/{task_id}/conversation", "document.querySelectorAll('.said').length === 4"),
            (f"#/r/{task_id}/events", "document.querySelector('[aria-label=Events] [role=row]') !== null"),
            ("#/r/unknown", "document.body.innerText.includes('No such run')"),
        ):
            await page.open("about:blank")
            await page.open(url + address)
            await page.until(ready)
        background = await page.run("getComputedStyle(document.body).backgroundColor")
        assert background == {"dark": "rgb(14, 17, 22)", "light": "rgb(255, 255, 255)"}[theme]
        host = url.removesuffix("view/")
        assert {each for each in page.requests if not each.startswith((host, "about:", "data:"))} == set()


async def test_policy_refuses_markup_and_foreign_styles(page: Browser, weather: tuple[EventLog, str]) -> None:
    async with serve_view(weather[0]) as url:
        await page.open(url)
        await page.until("document.querySelector('.top') !== null")
        refused = await page.run("(() => { try { document.body.innerHTML = '<b>'; } catch { return true; } })()")
        await page.run(
            "{ const style = document.createElement('style'); style.textContent = 'body { margin: 9px }';"
            "document.head.append(style); }"
        )
        margin = await page.run("getComputedStyle(document.body).margin")
        await page.until("document.querySelector('.top') !== null")
    assert (refused, margin) == (True, "0px")
    assert page.problems
    page.problems.clear()


async def test_run_page_shows_rows_lanes_and_figures(page: Browser, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await page.open(f"{url}#/r/{task_id}")
        await page.until(READY)
        rows = await page.run("[...document.querySelectorAll('.waterfall [role=row]')].map(each => each.ariaLabel)")
        lanes = await page.run("[...document.querySelectorAll('.lane .title')].map(each => each.textContent)")
    assert rows[1].startswith("step 1, glm-4.7, 1.44 s, 1,212 → 148 tokens")
    assert any("get_alerts" in row and "2.00 s, failed" in row for row in rows)
    assert any(row.startswith("step 2, glm-4.7, 2 tries, 3.40 s") for row in rows)
    assert lanes == ["Model", "Text", "Thoughts", "get_forecast", "get_alerts", "alerts-desk", "Run"]


async def test_tokens_at_each_event_equal_the_state_of_the_run(page: Browser, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url, httpx.AsyncClient(base_url=url) as client:
        await page.open(f"{url}#/r/{task_id}?at=1.1.0")
        await page.until(READY)
        await page.until("document.querySelector('.tabs small.bad') !== null")
        requests = len(page.requests)
        shown: list[Any] = []
        for _ in range(52):
            shown.append(await page.run("[...document.querySelectorAll('.figures b')].map(each => each.textContent)"))
            await page.press("j")
        # Only bodies of events for the inspector are fetched.
        assert {each.partition("?")[0] for each in page.requests[requests:]} <= {f"{url[:-5]}runs/{task_id}/events"}
        for seq in range(1, 53):
            state = (await client.get(f"../runs/{task_id}/state", params={"seq": seq})).json()
            tokens = state["usage"]["inputTokens"] + state["usage"]["outputTokens"]
            assert [int(shown[seq - 1][k].replace(",", "")) for k in (0, 5)] == [seq, tokens]


async def test_keys_step_within_the_filter(page: Browser, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await page.open(f"{url}#/r/{task_id}")
        await page.until(READY)
        await page.until("document.querySelector('.tabs small.bad') !== null")
        await page.press("n")
        assert await page.until("location.hash.includes('at=1.14.0')")
        await page.press("n", "p", "/")
        await page.until("document.activeElement.type === 'search'")
        await fill(page, "name:get_forecast")
        assert "at=1.14.0" in await page.run("location.hash")
        await page.press("Escape")
        events: list[int] = []
        for _ in range(4):
            await page.press("j")
            events.append(await page.run("+location.hash.match(/at=1[.](\\d+)/)[1]"))
        assert events == [28, 36, 36, 36]
        assert "3 of 15 rows" in await page.run("document.querySelector('.count').textContent")
        await page.press("Escape", "3")
        await page.until("document.querySelector('[aria-label=Events] .row.selected') !== null")
        await page.press("t")
        assert await page.run("document.documentElement.dataset.theme") == "light"
        await page.press("t", "g", "r")
        await page.until(f"{RUNS}.length === 1")


async def test_conversation_contains_the_messages_up_to_the_playhead(
    page: Browser, weather: tuple[EventLog, str]
) -> None:
    log, task_id = weather
    texts = "[...document.querySelectorAll('.said, .call')].map(each => each.innerText.replace(/\\s+/g, ' '))"
    async with serve_view(log) as url:
        await page.open(f"{url}#/r/{task_id}/conversation")
        await page.until("document.querySelectorAll('.said').length === 4")
        shown = await page.run(texts)
        assert shown[0] == "Oslo or Bergen for a hike on Saturday?"
        assert shown[3] == "get_forecast city=Oslo 11 °C, dry until 15:00 0.76 s"
        assert shown[-1].startswith("Oslo is the better choice")
        assert len(shown) == 12
        await page.open("about:blank")
        await page.open(f"{url}#/r/{task_id}/conversation?at=1.12.0")
        await page.until("document.querySelectorAll('.said').length === 2")
        assert (await page.run(texts))[3:] == [
            "get_forecast city=Oslo 11 °C, dry until 15:00 0.76 s",
            "get_forecast city=Bergen running",
            "get_alerts region=Vestland running",
        ]
        await page.run("document.querySelector('.said.model').focus()")
        await page.press("Enter")
        await page.until(f"{INSPECTOR}.includes('content-complete')")


async def test_problems_are_those_of_the_api_and_open_their_events(
    page: Browser, weather: tuple[EventLog, str]
) -> None:
    log, task_id = weather
    rows = "[...document.querySelectorAll('.problems [role=row][tabindex]')]"
    async with serve_view(log) as url, httpx.AsyncClient(base_url=url) as client:
        await page.open(f"{url}#/r/{task_id}")
        await page.until(READY)
        await page.press("4")
        await page.until(f"{rows}.length > 0")
        shown = await page.run(f"{rows}.map(each => +each.dataset.seq)")
        response = await client.get(f"../runs/{task_id}/problems", params={"visibility": "all"})
        assert shown == [each["seq"] for each in response.json()["problems"]]
        await page.run(f"{rows}[2].click()")
        await page.until(f"{INSPECTOR}.includes('The request is repeated after 0.80 s')")


async def test_reloaded_address_shows_the_same_place(page: Browser, weather: tuple[EventLog, str]) -> None:
    log, task_id = weather
    async with serve_view(log) as url:
        await page.open(f"{url}#{task_id}/1.36.0")
        await page.until(f"{SELECTED} === 28 && {INSPECTOR}.includes('showers from 11:00')")
        await page.press("f")
        await fill(page, "ok:yes")
        texts = ("flag", "waterfall")
        found = ", ".join(f"document.querySelector('.{each}')?.innerText" for each in texts)
        place = f"[location.hash, {found}]"
        before = await page.run(place)
        assert "q=ok:yes" in before[0]
        assert "from=" in before[0]
        await page.reload()
        await page.until(READY)
        await page.until(f"{INSPECTOR}.includes('showers from 11:00')")
        assert await page.run(place) == before


@pytest.mark.parametrize("size", [(1680, 960), (390, 844)])
async def test_hostile_run_is_shown_as_text(page: Browser, size: tuple[int, int]) -> None:
    log = MemoryEventLog()
    task_id = await record_hostile_run(log)
    await page.emulate(width=size[0], height=size[1])
    async with serve_view(log) as url:
        await page.open(url)
        await page.until(f"{RUNS}.length === 1 && {RUNS}[0].innerText.includes('<img src=x')")
        await page.open(f"{url}#/r/{task_id}")
        await page.until(READY)
        for _ in range(24):
            await page.press("j", "Enter")
            await page.until(f"!{INSPECTOR}.includes('Loading')")
            assert await page.run("document.documentElement.scrollWidth") <= size[0]
            seen = await page.run(INSPECTOR)
            if "tool-complete\nfetch" in seen:
                assert "<img src=x onerror=" in seen
                assert "␛[31mred" in seen
                assert "U+202Etxt.exe" in seen
                assert "U+200Bzero" in seen
        await page.press("2")
        await page.until(f"document.querySelector('.said.model')?.innerText.includes('{HOSTILE[:14]}')")
        assert await page.run("document.documentElement.scrollWidth") <= size[0]
        assert await page.run("[window.hacked, document.querySelectorAll('.page img, .page script').length]") == [
            None,
            0,
        ]
        assert HOSTILE[:40] in await page.run("document.title")


async def test_long_run_has_few_rows_in_the_document_and_can_be_filtered(page: Browser) -> None:
    log = MemoryEventLog()
    await store_long_run(log, steps=10_000)
    count = "document.querySelectorAll('[role=row]').length"
    async with serve_view(log) as url:
        await page.open(f"{url}#/r/long")
        await page.until(f"{READY} && document.querySelector('.tabs small').textContent === '50,003'")
        assert await page.run("+document.querySelector('.waterfall').ariaRowCount") == 10_001
        assert await page.run(count) <= 80
        await page.run("document.querySelector('.waterfall').scrollTop = 150000")
        await page.until("document.querySelector('.waterfall').innerText.includes('step 5001')")
        assert await page.run(count) <= 80
        await fill(page, "ok:no")
        await page.until("document.querySelector('.count')?.textContent === '100 of 20,001 rows'")
        assert await page.run(count) <= 80
        await page.press("Escape", "3")
        await page.until("document.querySelector('[aria-label=Events] [role=row]') !== null")
        assert await page.run(count) <= 80


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


def make_guide(reached: asyncio.Event, go_on: asyncio.Event) -> Agent[Any, Any]:
    """Return an agent whose second call waits for an event."""

    @tool
    async def look(place: str) -> str:
        """Look at a place."""
        if place == "Bergen":
            reached.set()
            await go_on.wait()
        return f"seen {place}"

    model = ScriptedModel(
        call("look", place="Oslo"), call("look", place="Bergen"), frames("--It -is -done.|", 0.02), name="m"
    )
    return Agent(model, tools=[look], thoughts=False)


async def test_live_run_is_complete_after_its_connection_was_killed(page: Browser) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    runtime = Runtime({"guide": make_guide(reached, go_on)}, log=MemoryEventLog())
    adapters = create_adapters(runtime, ["view"], {})
    app = Cut(create_application(adapters, (), "127.0.0.1", keys=False))
    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Look around.")
        await asyncio.wait_for(reached.wait(), 30)
        await page.open(f"{url}/view/#/r/{run.task_id}?at=1.6.0")
        await page.until(f"{READY} && document.body.innerText.includes('The page stays where you are')")
        app.is_cutting = True
        go_on.set()
        await page.until("document.body.innerText.includes('not connected')")
        app.is_cutting = False
        await page.until("document.querySelector('.path .state.completed') !== null")
        record = await runtime.get_record(run.task_id)
        assert app.cuts > 0
        assert await page.run("+document.querySelector('.tabs small').textContent") == record.seq
        assert "at=1.6.0" in await page.run("location.hash")
        live = await page.run("document.querySelector('.waterfall').innerText.replace(/[\\d.]+ m?s\\b/g, '')")
        await page.reload()
        await page.until(READY)
        assert await page.run("document.querySelector('.waterfall').innerText.replace(/[\\d.]+ m?s\\b/g, '')") == live


async def test_conversation_is_updated_while_the_run_works(page: Browser) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()
    runtime = Runtime({"guide": make_guide(reached, go_on)}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    calls = "[...document.querySelectorAll('.call')].map(each => each.innerText.replace(/\\s+/g, ' ')).join('; ')"
    async with runtime, serve_app(app) as url:
        run = await runtime.start("guide", "Look around.")
        await asyncio.wait_for(reached.wait(), 30)
        await page.open(f"{url}/view/#/r/{run.task_id}/conversation")
        await page.until(f"{calls}.includes('look place=Bergen running')")
        go_on.set()
        await page.until(f"{calls}.includes('look place=Bergen seen Bergen') && !{calls}.includes('running')")
        await page.until("document.querySelector('.said.model:last-child')?.innerText === 'It is done.'")
        assert await page.run("document.querySelectorAll('.call.selected').length") == 0


async def test_event_that_could_not_be_loaded_can_be_requested_again(
    page: Browser, weather: tuple[EventLog, str]
) -> None:
    log, task_id = weather
    async with Runtime({}, log=log) as runtime:
        app = Cut(create_viewer(runtime)[0])
        app.is_cutting = app.is_ranges = True
        async with serve_app(app) as url:
            await page.open(f"{url}/view/#/r/{task_id}?at=1.13.0")
            await page.until(f"{INSPECTOR}.includes('The event could not be loaded: the server answered 500')")
            app.is_cutting = False
            await page.run(find_button("Again") + ".click()")
            await page.until(f"{INSPECTOR}.includes('9 °C, 4 mm before noon')")


async def answer(runtime: Runtime, question: str) -> None:
    """Start a run and follow it to its end."""
    record = await runtime.start("clerk", question)
    async for _ in runtime.follow(record.task_id):
        pass


async def test_new_runs_wait_until_the_reader_adds_them(page: Browser) -> None:
    agent = Agent(ScriptedModel(*(f"Answer {number}." for number in range(40))), thoughts=False)
    runtime = Runtime({"clerk": agent}, log=MemoryEventLog())
    app = create_application(create_adapters(runtime, ["view"], {}), (), "127.0.0.1", keys=False)
    async with runtime, serve_app(app) as url:
        for number in range(12):
            await answer(runtime, f"Question {number} about place{number}x")
        await page.open(f"{url}/view/")
        await page.until(f"{RUNS}.length === 12 && {RUNS}[11].innerText.includes('Question 0')")
        await answer(runtime, "Question 12")
        await page.until(find_button("1 new run") + " !== undefined")
        assert await page.run(f"{RUNS}.length") == 12
        await page.run(find_button("1 new run") + ".click()")
        await page.until(f"{RUNS}.length === 13 && {RUNS}[0].innerText.includes('Question 12')")
        await fill(page, "state:completed place7x")
        await page.until(f"{RUNS}.length === 1")
        await page.reload()
        await page.until(f"{RUNS}.length === 1 && {RUNS}[0].innerText.includes('Question 7')")
        # Only the log contains the answers.
        await fill(page, "agent:clerk Answer 5.")
        await page.until(f"{RUNS}.length === 1 && {RUNS}[0].innerText.includes('Question 5')")


async def test_page_asks_for_the_key_of_the_server(page: Browser, weather: tuple[EventLog, str]) -> None:
    runtime = Runtime({}, log=weather[0])
    adapters = create_adapters(runtime, ["view"], {"secret-key-of-ann-1": "ann"})
    app = create_application(adapters, (), "127.0.0.1", keys=True)
    async with runtime, serve_app(app) as url:
        await page.open(f"{url}/view")
        await page.until("location.pathname === '/view/' && document.querySelector('input[type=password]') !== null")
        await page.run(
            "{ const field = document.querySelector('input'); field.value = 'secret-key-of-ann-1';"
            "field.dispatchEvent(new Event('input', { bubbles: true })); }"
        )
        await page.press("Tab")
        await page.run(find_button("Open") + ".click()")
        await page.until("document.body.innerText.includes('No run yet')")
