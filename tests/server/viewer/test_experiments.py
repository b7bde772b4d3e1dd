"""Experiments in a browser, and cases made from runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rxloop import EventLog, MemoryEventLog
from rxloop.evals import Case, experiment, score
from support.browser import expect, find_barriers
from support.capitals import CASES, agent, make_capital_model
from support.viewer_pages import find_rows, get_text, serve_view

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.service("chromium"), pytest.mark.asyncio(loop_scope="module")]


@pytest.mark.service("axe")
async def test_experiment_shows_means_and_links_to_runs(page: Page) -> None:
    log = MemoryEventLog()
    variants = {"good": agent(), "bad": agent(make_capital_model("Fiji"))}
    report = await experiment(CASES, variants, [score.exact(), score.tokens()], name="capitals", log=log).run()
    good = report.of("good")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/x")
        row = find_rows(page, "Experiments")
        await expect(row).to_have_count(1)
        assert await get_text(row) == ["capitals bad, good 4 8 ✕ 3 now"]
        await row.get_by_role("link", name="capitals").click()
        means = page.get_by_role("region", name="Means")
        await expect(means.get_by_role("row", name=re.compile("^good"))).to_contain_text("1 to 1")
        interval = report.of("bad").interval("exact")
        assert interval.low < interval.high
        bad = means.get_by_role("row", name=re.compile("^bad"))
        await expect(bad).to_contain_text(f"{interval.low:.3g} to {interval.high:.3g}")
        line = bad.locator("line").nth(1)
        ends = [float(await line.get_attribute(name) or 0) for name in ("x1", "x2")]
        assert [round((each - 8) / 344, 2) for each in ends] == [round(interval.low, 2), round(interval.high, 2)]
        await expect(means.get_by_role("img", name="mean 1, from 1 to 1")).to_be_visible()
        rows = find_rows(page, "Cases")
        await expect(rows).to_have_count(len(CASES))
        await expect(rows.first.get_by_role("link", name=f"{CASES[0].id}, good, run 1: passed")).to_be_visible()
        await expect(rows.first.locator(".worse")).to_have_count(1)
        assert await find_barriers(page) == []
        await expect(rows.last).to_contain_text("Malta")
        await page.get_by_role("button", name="By difference").click()
        await expect(rows.last).to_contain_text("Fiji")
        await page.get_by_role("combobox", name="Score").select_option("tokens")
        await expect(means.get_by_role("row", name=re.compile("^good"))).to_contain_text(f"{good.mean('tokens'):.0f}")
        await page.set_viewport_size({"width": 390, "height": 844})
        assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        await page.set_viewport_size({"width": 1680, "height": 960})
        links = rows.first.get_by_role("link")
        await links.nth(0).click(modifiers=["Shift"])
        await links.nth(1).press("Space")
        await page.get_by_role("button", name="Compare").click()
        [first, second] = [trial.task_id for trial in report.trials if trial.case == CASES[0].id]
        await expect(page).to_have_url(re.compile(f"#/diff/{first}/{second}"))
        await page.go_back()
        await links.nth(0).click()
        await expect(page).to_have_url(re.compile(f"#/r/{first}"))


async def test_log_without_experiments_says_so(page: Page) -> None:
    async with serve_view(MemoryEventLog()) as url:
        await page.goto(f"{url}#/x")
        await expect(page.get_by_role("heading", name="No experiments")).to_be_visible()
        await page.goto(f"{url}#/x/unknown")
        await expect(page.get_by_role("heading", name="No such experiment")).to_be_visible()


async def test_case_with_another_expected_answer_can_be_read(page: Page, tmp_path: Path) -> None:
    log = MemoryEventLog()
    run = await agent().with_log(log).run("What is the capital of Norway?")
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{run.task_id}")
        await page.get_by_role("button", name="Share").click()
        dialog = page.get_by_role("dialog", name="Share")
        await dialog.get_by_role("radio", name=re.compile("^Case")).check()
        await dialog.get_by_label("Expected answer").fill("Oslo, in the south")
        await expect(dialog.get_by_label("Line of the case")).to_contain_text('"expected":"Oslo, in the south"')
        async with page.expect_download() as waiting:
            await dialog.get_by_role("button", name="Download").click()
        path = tmp_path / "cases.jsonl"
        await (await waiting.value).save_as(path)
    assert Case.read(path) == [Case("What is the capital of Norway?", "Oslo, in the south", id=run.task_id)]


@pytest.mark.service("axe")
async def test_run_becomes_a_case_with_one_click(page: Page, weather: tuple[EventLog, str], tmp_path: Path) -> None:
    log, task_id = weather
    path = tmp_path / "cases.jsonl"
    path.write_text('{"input": "Earlier"}', encoding="utf-8")
    async with serve_view(log, path) as url:
        await page.goto(f"{url}#/r/{task_id}")
        await page.get_by_role("button", name="Make a case").click()
        await expect(page.get_by_text("Case 2 added to cases.jsonl")).to_be_visible()
        assert await find_barriers(page) == []
        earlier, case = Case.read(path)
        assert (earlier.input, case.id, case.input) == ("Earlier", task_id, "Oslo or Bergen for a hike on Saturday?")
        assert str(case.expected).startswith("Oslo is the better choice")
        await page.get_by_role("button", name="Make a case").click()
        await expect(page.get_by_text("already contains a case with the id")).to_be_visible()
        assert len(Case.read(path)) == 2
        path.unlink()
        await page.get_by_role("button", name="Share").click()
        dialog = page.get_by_role("dialog", name="Share")
        await dialog.get_by_role("radio", name="Case").check()
        await dialog.get_by_role("textbox", name="Expected answer").fill("Oslo")
        await dialog.get_by_role("button", name="Make a case").click()
        await expect(dialog.get_by_text("Case 1 added to cases.jsonl")).to_be_visible()
        assert [each.expected for each in Case.read(path)] == ["Oslo"]
    async with serve_view(log) as url:
        await page.goto(f"{url}#/r/{task_id}")
        await expect(page.get_by_role("button", name="Share")).to_be_visible()
        await expect(page.get_by_role("button", name="Make a case")).to_have_count(0)
