"""Viewer pages in a browser: servers for them, and their parts by role and name."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rxloop import Agent, EventLog, Runtime, tool
from rxloop.cli.commands.view import create_viewer
from rxloop.testing import ScriptedModel, call, frames
from support.api_server import serve_app

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page


@contextlib.asynccontextmanager
async def serve_view(log: EventLog, cases: Path | None = None) -> AsyncGenerator[str]:
    """Serve the application of `rxloop view` and yield the URL of the page."""
    async with Runtime({}, log=log) as runtime:
        app, adapters = create_viewer(runtime, cases)
        async with serve_app(app) as url:
            try:
                yield f"{url}/view/"
            finally:
                # The list of runs is a stream without an end.
                await adapters[0].drain(0)


async def open_page_anew(page: Page, url: str) -> None:
    """Open a URL that may differ from the current one in its fragment only."""
    await page.goto("about:blank")
    await page.goto(url)


def find_rows(page: Page, name: str) -> Locator:
    """Return the rows of the waterfall, or of a table with a name such as `Events`, without the row of titles."""
    return page.get_by_label(name, exact=True).get_by_role("row").and_(page.locator("[aria-rowindex]"))


def find_inspector(page: Page) -> Locator:
    """Return the inspector."""
    return page.get_by_role("complementary", name="Inspector")


def find_filter(page: Page) -> Locator:
    """Return the field of the filter."""
    return page.get_by_role("searchbox", name=re.compile("^Filter"))


async def get_text(locator: Locator) -> list[str]:
    """Return the text of each element, with single spaces."""
    return [" ".join(each.split()) for each in await locator.all_inner_texts()]


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
