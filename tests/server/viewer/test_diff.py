"""Forks that are started from the viewer page, and two runs side by side."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import pytest

from rxloop import Agent, EventLog, MemoryEventLog, tool
from rxloop.server import Principal, bearer
from rxloop.testing import ScriptedModel, call
from support.acting_pages import ActingServer, serve_agents
from support.browser import expect, find_barriers
from support.viewer_pages import find_inspector, get_text, serve_view
from support.viewer_runs import record_hostile_run

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page, Route

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]

AUTH = bearer({"developer-key": Principal("ann", frozenset({"effects"})), "bob-key": "bob"})
SIGN_IN = "sessionStorage.setItem('rxloop.key', 'developer-key')"


@tool
async def read_alerts(region: str) -> dict[str, str]:
    """Read the alerts of a region."""
    return {"region": region, "level": "yellow"}


def make_clerk(*turns: Any, tools: Any = (read_alerts,)) -> Agent[Any, Any]:
    return Agent(ScriptedModel(*turns), name="clerk", tools=list(tools), thoughts=False)


async def start(served: ActingServer, prompt: str = "Is it safe?", owner: str | None = "ann") -> str:
    record = await served.runtime.start("clerk", prompt, owner=owner)
    await served.wait(record.task_id)
    return record.task_id


async def find_seq(served: ActingServer, task_id: str, kind: str) -> int:
    return next(each.seq for each in await served.runtime.log.read(task_id) if each.kind == kind)


def find_pairs(page: Page) -> Locator:
    return page.get_by_role("grid", name="Compared events").locator(".pair")


def find_form(page: Page) -> Locator:
    return find_inspector(page).get_by_role("form", name=re.compile("^Fork at event"))


async def test_fork_with_another_result_runs_live_next_to_its_original(page: Page) -> None:
    gates = {"first": asyncio.Event(), "second": asyncio.Event()}

    @tool
    async def confirm(number: str) -> str:
        """Confirm the plan."""
        await gates[number].wait()
        return f"confirmed {number}"

    confirmations = [call("confirm", number=number) for number in gates]
    turns = (call("read_alerts", region="Vestland"), "Stay at home.", *confirmations, "Go out.")
    clerk = make_clerk(*turns, tools=[read_alerts, confirm])
    async with serve_agents(clerk, auth=AUTH) as served:
        task_id = await start(served)
        at = await find_seq(served, task_id, "tool-complete")
        await page.add_init_script(SIGN_IN)
        await page.goto(served.find_run(task_id, f"?at=1.{at}.0"))
        await expect(find_inspector(page).get_by_role("button", name="Fork here")).to_be_visible()
        await page.keyboard.press("F")
        form = find_form(page)
        result = form.get_by_label("Result of read_alerts")
        await expect(result).to_have_value(re.compile('"level": "yellow"'))
        await expect(form).to_contain_text(f"Copies {at} events. Asks scripted again from step 2.")
        await result.fill('{"region": "Vestland", ')
        await form.get_by_role("button", name="Start the fork").click()
        await expect(form.get_by_role("alert")).to_contain_text("is not JSON")
        await result.fill('{"region": "Vestland", "level": "none"}')
        await form.get_by_role("button", name="Start the fork").click()

        await page.wait_for_url("**#/diff/**")
        b = page.get_by_role("region", name="Run B")
        await expect(b.locator(".state.working")).to_be_visible()
        first = find_pairs(page).first
        await expect(first).to_have_class(re.compile("changed selected"))
        await expect(first).to_have_attribute("data-a", str(at))
        await expect(first).to_contain_text("read_alerts")
        details = page.get_by_role("complementary", name="Difference")
        await expect(details.locator("del").first).to_have_text("yellow")
        await expect(details.locator("ins").first).to_have_text("none")
        await expect(details.get_by_role("heading", name="result.level")).to_be_visible()
        await expect(find_pairs(page).filter(has_text="confirmed")).to_have_count(0)
        gates["first"].set()
        # The fork still works.
        await expect(find_pairs(page).filter(has_text="confirmed first").first).to_be_visible()
        gates["second"].set()
        await expect(b.locator(".state.completed")).to_be_visible()
        await expect(find_pairs(page).filter(has_text="Go out.").first).to_be_visible()
        a = page.get_by_role("region", name="Run A")
        await expect(a).to_contain_text("2 model calls, 1 tool call")
        await expect(b).to_contain_text("since the difference: 3 model calls, 2 tool calls")
        assert len(await get_text(page.get_by_role("region", name=re.compile("^Run [AB]$")))) == 2


async def test_fork_without_a_change_is_the_same(page: Page) -> None:
    async with serve_agents(make_clerk("Yes.", "Yes.")) as served:
        task_id = await start(served, owner=None)
        await page.goto(served.find_run(task_id, "?at=1.1.0"))
        await find_inspector(page).get_by_role("button", name="Fork here").click()
        await find_form(page).get_by_role("button", name="Close").click()
        await expect(find_form(page)).to_have_count(0)
        await find_inspector(page).get_by_role("button", name="Fork here").click()
        await expect(find_form(page)).to_contain_text("Starts from the beginning. Asks scripted again from step 1.")
        await find_form(page).get_by_role("button", name="Start the fork").click()
        await expect(page.get_by_text("The runs are the same, event for event.")).to_be_visible()
        await expect(page.get_by_role("region", name="Run B").locator(".state.completed")).to_be_visible()
        stretch = page.get_by_role("button", name=re.compile(r"\d+ equal events"))
        await stretch.click()
        await expect(find_pairs(page).filter(has_text="Yes.").first).to_be_visible()
        await expect(page.get_by_role("complementary", name="Difference")).to_have_count(0)


async def test_fork_with_a_new_prompt_another_model_and_settings(page: Page) -> None:
    clerk, cheap = make_clerk("It is 4."), ScriptedModel("It is four.")
    clerk.definition.resources.providers["cheap:m"] = cheap
    options: dict[str, Any] = {"models": ("cheap:m",), "settings": ("max_tokens", "temperature")}
    async with serve_agents(clerk, **options) as served:
        task_id = await start(served, "2 + 2", owner=None)
        await page.goto(served.find_run(task_id, "?at=1.1.0"))
        await find_inspector(page).get_by_role("button", name="Fork here").click()
        form = find_form(page)
        await form.get_by_label("New prompt").fill("2 + 2 in words")
        await form.get_by_label("Model").select_option("cheap:m")
        await form.locator("summary").click()
        await form.get_by_label("Maximum number of tokens").fill("9")
        await expect(form).to_contain_text("Asks cheap:m again from step 1.")
        await form.get_by_role("button", name="Start the fork").click()
        await expect(find_pairs(page).filter(has_text="It is four.").first).to_be_visible()
        [request] = cheap.requests
        assert (request.messages[-1].text, request.settings.max_tokens) == ("2 + 2 in words", 9)


async def test_refused_fork_is_explained(page: Page) -> None:
    async with serve_agents(make_clerk(call("read_alerts", region="X"), "Done.")) as served:
        task_id = await start(served, owner=None)
        at = await find_seq(served, task_id, "tool-complete")
        await page.goto(served.find_run(task_id, f"?at=1.{at}.0"))
        await find_inspector(page).get_by_role("button", name="Fork here").click()
        form = find_form(page)
        await expect(form).to_contain_text("Without the scope effects")
        await form.get_by_label("Result of read_alerts").fill('"none"')
        await form.get_by_role("button", name="Start the fork").click()
        await expect(form.get_by_role("alert")).to_contain_text("You may not do this: results of server tools require")
        assert "#/r/" in page.url


async def test_page_without_agents_offers_no_fork(page: Page) -> None:
    log = MemoryEventLog()
    async with serve_agents(make_clerk("Done."), log=log) as served:
        task_id = await start(served, owner=None)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}?at=1.1.0")
        await expect(find_inspector(page).get_by_role("tab", name="State")).to_be_visible()
        await expect(page.get_by_role("button", name="Fork here")).to_have_count(0)


async def test_marked_runs_are_compared_and_keys_step_through_the_differences(page: Page) -> None:
    turns = (call("read_alerts", region="Vestland"), "Stay at home.", call("read_alerts", region="Oslo"), "Go out.")
    async with serve_agents(make_clerk(*turns)) as served:
        for _ in range(2):
            await start(served, owner=None)
        await page.goto(f"{served.url}/view/")
        rows = page.locator(".runs [data-run]")
        await expect(rows).to_have_count(2)
        for key in ("j", "ArrowDown", " ", "k", " ", "m"):
            await page.keyboard.press(key)
        await page.wait_for_url("**#/diff/**")
        await page.go_back()
        marks = rows.get_by_role("checkbox", name="Mark")
        await expect(marks.nth(1)).to_be_checked()
        for mark in await marks.all():
            await mark.uncheck()
        await expect(page.get_by_role("button", name="Compare")).to_have_count(0)
        for mark in await marks.all():
            await mark.check()
        await page.get_by_role("button", name="Compare").click()
        await page.wait_for_url("**#/diff/**")
        tracks = page.locator(".diff .track")
        await expect(tracks.nth(1)).to_be_visible()
        edges = await tracks.evaluate_all("all => all.map(each => each.getBoundingClientRect().x)")
        assert len(set(edges)) == 2
        count = page.locator(".tabs .count").last
        await expect(count).to_have_text(re.compile(r"difference 1 of \d"))
        await page.keyboard.press(";")
        await expect(count).to_have_text(re.compile(r"difference 2 of \d"))
        await expect(page).to_have_url(re.compile(r"at=2$"))
        details = page.get_by_role("complementary", name="Difference")
        await expect(details).to_contain_text("Vestland")
        await find_pairs(page).first.click()
        await expect(count).to_have_text(re.compile(r"difference 1 of \d"))
        await page.get_by_role("button", name="Next difference").click()
        found = re.search(r"#/diff/([^/]+)/([^?]+)", page.url)
        assert found
        for name, task_id in zip("AB", found.groups(), strict=True):
            link = page.get_by_role("region", name=f"Run {name}").get_by_role("link")
            await expect(link).to_have_attribute("href", f"#/r/{task_id}")
            link = details.get_by_role("link", name=f"{name}: seq")
            await expect(link).to_have_attribute("href", re.compile(rf"#/r/{task_id}\?at=1\.\d+\.0$"))
        await page.reload()
        await expect(count).to_have_text(re.compile(r"difference 2 of \d"))
        await page.keyboard.press(",")
        await expect(count).to_have_text(re.compile(r"difference 1 of \d"))


async def test_rows_after_an_additional_step_are_the_same(page: Page) -> None:
    oslo, bergen = call("read_alerts", region="Oslo"), call("read_alerts", region="Bergen")
    async with serve_agents(make_clerk(oslo, "Go out.", oslo, bergen, "Go out.")) as served:
        first, second = [await start(served, owner=None) for _ in range(2)]
        await page.goto(f"{served.url}/view/#/diff/{first}/{second}")
        # Request, message, start and end of the call are the only differences.
        await expect(page.locator(".tabs .count").last).to_have_text("difference 1 of 4")


async def test_comparison_with_an_unknown_run_is_explained(page: Page) -> None:
    async with serve_agents(make_clerk("Done.")) as served:
        task_id = await start(served, owner=None)
        await page.goto(f"{served.url}/view/#/diff/{task_id}/unknown")
        await expect(page.get_by_role("heading", name="No such run")).to_be_visible()


async def test_events_that_could_not_be_loaded_can_be_requested_again(page: Page) -> None:
    turns = (call("read_alerts", region="Vestland"), "Stay at home.", call("read_alerts", region="Oslo"), "Go out.")
    requests = 0

    async def fail(route: Route) -> None:
        nonlocal requests
        requests += 1
        await route.fulfill(status=500)

    async with serve_agents(make_clerk(*turns)) as served:
        a, b = [await start(served, owner=None) for _ in range(2)]
        await page.route("**/events?from=*", fail)
        await page.goto(f"{served.url}/view/#/diff/{a}/{b}")
        details = page.get_by_role("complementary", name="Difference")
        await expect(details).to_contain_text("The events could not be loaded: the server answered 500")
        await page.unroute("**/events?from=*")
        await details.get_by_role("button", name="Again").click()
        await expect(details).to_contain_text("Vestland")
        assert requests == 2


@pytest.mark.parametrize("size", [(1680, 960), (390, 844)])
async def test_hostile_run_is_compared_as_text(
    page: Page, weather: tuple[EventLog, str], size: tuple[int, int]
) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    log, a = weather
    b = await record_hostile_run(log)
    async with serve_view(log) as url:
        await page.goto(f"{url}#/diff/{a}/{b}")
        await expect(find_pairs(page).first).to_be_visible()
        details = page.get_by_role("complementary", name="Difference")
        for _ in range(8):
            await expect(details.locator("section").first).to_be_attached()
            assert await page.evaluate("document.documentElement.scrollWidth") <= size[0]
            await page.keyboard.press(";")
        await expect(page.locator(".heads")).to_contain_text("<img src=x")
        assert await page.evaluate("[window.hacked, document.querySelectorAll('.page img, .page script').length]") == [
            None,
            0,
        ]


@pytest.mark.service("axe")
@pytest.mark.parametrize("size", [(1680, 960), (390, 844)])
async def test_comparison_and_form_have_no_barriers_and_fit_the_screen(page: Page, size: tuple[int, int]) -> None:
    await page.set_viewport_size({"width": size[0], "height": size[1]})
    turns = (call("read_alerts", region="Vestland"), "Stay at home.", call("read_alerts", region="Oslo"), "Go out.")
    async with serve_agents(make_clerk(*turns), settings=("max_tokens",)) as served:
        a, b = [await start(served, owner=None) for _ in range(2)]
        await page.goto(f"{served.url}/view/#/diff/{a}/{b}")
        await expect(find_pairs(page).first).to_be_visible()
        await expect(page.get_by_role("complementary", name="Difference").locator("section").first).to_be_attached()
        assert await find_barriers(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= size[0]
        at = await find_seq(served, a, "tool-complete")
        await page.goto(served.find_run(a, f"?at=1.{at}.0"))
        await expect(page.locator(".waterfall, .inspector").first).to_be_visible()
        await page.keyboard.press("F")
        await expect(find_form(page)).to_be_visible()
        assert await find_barriers(page) == []
        assert await page.evaluate("document.documentElement.scrollWidth") <= size[0]
