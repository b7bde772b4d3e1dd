"""The example of a page: in a browser, against a real server, and built of its source."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, tool
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_app
from support.browser import Browser, browser

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


async def type_in(page: Browser, text: str) -> None:
    """Write something into the page, and send it."""
    await page.until("document.querySelector('input') !== null")
    await page.run(
        "{ const field = document.querySelector('input');"
        "Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(field, " + repr(text) + ");"
        "field.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    await click(page, "Send")


async def click(page: Browser, text: str) -> None:
    found = f"[...document.querySelectorAll('button')].find(each => each.textContent === {text!r})"
    await page.until(found + " !== undefined")
    await page.run(found + ".click()")


async def ready(page: Browser, text: str) -> str:
    """Wait until the page has a text and does nothing any more, and give all of its text."""
    said = "document.body.innerText"
    return await page.until(
        f"document.querySelector('main').dataset.status === 'ready' && {said}.includes({text!r}) && {said}"
    )


@pytest.mark.service("chromium")
async def test_a_browser_asks_approves_stops_reloads_and_asks_again(tmp_path: Path) -> None:
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
    async with site.router.lifespan_context(site), serve_app(site) as url, browser(tmp_path / "profile") as page:
        await page.open(url)
        await type_in(page, "Refund A1")
        await page.until("document.body.innerText.includes('Refund A1?')")
        await page.reload()
        await click(page, "Approve")
        assert '"refunded A1"' in await ready(page, "It is done.")
        await type_in(page, "And A2")
        await click(page, "Refuse")
        assert "refused" in await ready(page, "As you like.")
        await type_in(page, "Count")
        await page.until("document.body.innerText.includes('two')")
        await page.reload()
        shown = await ready(page, "six")
        assert "one two three four five six" in shown
        await type_in(page, "Count on")
        await page.until("document.body.innerText.includes('seven')")
        await click(page, "Stop")
        assert "Count on" in await ready(page, "seven")
        await click(page, "Again")
        shown = await ready(page, "Another end.")
        assert "seven" not in shown
        await page.reload()
        assert await ready(page, "Another end.") == shown


@pytest.mark.service("node-clients")
def test_the_page_is_what_its_source_is_built_to(tmp_path: Path) -> None:
    built = tmp_path / "page.html"
    subprocess.run([EXAMPLES / "chat_page/build", built], check=True, timeout=60)
    assert built.read_bytes() == (EXAMPLES / "chat_page/page.html").read_bytes(), "run examples/chat_page/build"
