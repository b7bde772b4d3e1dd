"""Chat page example in a browser, including its build."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from rxloop import Agent, tool
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_app
from support.browser import expect

if TYPE_CHECKING:
    from playwright.async_api import Page

EXAMPLES = Path(__file__).parents[2] / "examples"


def example() -> Any:
    spec = importlib.util.spec_from_file_location("chat_page", EXAMPLES / "chat_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@tool(approve="Refund {order}?")
async def refund(order: str) -> str:
    """Refund an order."""
    return f"refunded {order}"


async def submit(page: Page, text: str) -> None:
    """Type text into the page and submit it."""
    await page.get_by_role("textbox").fill(text)
    await click(page, "Send")


async def click(page: Page, name: str) -> None:
    await page.get_by_role("button", name=name, exact=True).click()


async def wait_until_idle(page: Page, text: str) -> str:
    """Wait until the page contains a text and is idle, then return its text."""
    main = page.get_by_role("main")
    await expect(main.and_(page.locator("[data-status=ready]"))).to_contain_text(text)
    return await main.inner_text()


@pytest.mark.service("chromium")
@pytest.mark.asyncio(loop_scope="module")
async def test_page_supports_questions_approval_cancellation_and_reload(page: Page) -> None:
    turns = [
        call("refund", order="A1"),
        "It is done.",
        call("refund", order="A2"),
        "As you like.",
        frames("-one -two -three -four -five -six |", 0.1),
        frames("-seven -and so on -and on -and on -and on -and on|", 0.2),
        "Another end.",
    ]
    site = example().make_site(Agent(ScriptedModel(*turns), tools=[refund]))
    async with site.router.lifespan_context(site), serve_app(site) as url:
        await page.goto(url)
        await submit(page, "Refund A1")
        await expect(page.get_by_text("Refund A1?")).to_be_visible()
        await page.reload()
        await click(page, "Approve")
        assert '"refunded A1"' in await wait_until_idle(page, "It is done.")
        await submit(page, "And A2")
        await click(page, "Refuse")
        assert "refused" in await wait_until_idle(page, "As you like.")
        await submit(page, "Count")
        await expect(page.get_by_role("main")).to_contain_text("two")
        await page.reload()
        shown = await wait_until_idle(page, "six")
        assert "one two three four five six" in shown
        await submit(page, "Count on")
        await expect(page.get_by_role("main")).to_contain_text("seven")
        await click(page, "Stop")
        assert "Count on" in await wait_until_idle(page, "seven")
        await click(page, "Again")
        shown = await wait_until_idle(page, "Another end.")
        assert "seven" not in shown
        await page.reload()
        assert await wait_until_idle(page, "Another end.") == shown


@pytest.mark.service("chromium")
@pytest.mark.asyncio(loop_scope="module")
async def test_answer_that_is_completed_between_the_requests_of_a_reload_is_shown(page: Page) -> None:
    is_held, release = asyncio.Event(), asyncio.Event()

    @tool
    async def hold() -> str:
        """Wait."""
        is_held.set()
        await release.wait()
        return "held"

    site = example().make_site(Agent(ScriptedModel(call("hold"), "It is done."), tools=[hold], thoughts=False))

    async def finish_run_before_stream(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the page. Before the request for the stream, let the run end."""
        if scope["path"].endswith("/stream") and is_held.is_set():
            release.set()
            chat = scope["path"].removesuffix("/stream")
            async with httpx.AsyncClient(base_url=url) as client:
                while '"state":"completed"' not in (await client.get(chat)).text:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        await site(scope, receive, send)

    async with site.router.lifespan_context(site), serve_app(finish_run_before_stream) as url:
        await page.goto(url)
        await submit(page, "Hold")
        await asyncio.wait_for(is_held.wait(), 30)
        await page.reload()
        assert "held" in await wait_until_idle(page, "It is done.")


@pytest.mark.service("node-clients")
def test_built_page_is_up_to_date(tmp_path: Path) -> None:
    built = tmp_path / "page.html"
    subprocess.run([EXAMPLES / "chat_page/build", built], check=True, timeout=60)
    assert built.read_bytes() == (EXAMPLES / "chat_page/page.html").read_bytes(), "run examples/chat_page/build"
