"""Fixture `page`: a Playwright page of Chromium that fails the test if the page reports a problem (see `problems`).

Tests need the marks `service("chromium")` and `asyncio(loop_scope="module")`. `until` waits for conditions.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from support.processes.services import AXE, CHROMIUM, SERVICES

if TYPE_CHECKING:
    from playwright.async_api import Browser, ConsoleMessage, Page, Request, expect

__all__ = ["expect"]

FLAGS = ["--disable-quic", "--disable-dev-shm-usage"]
TIME_LIMIT = 30_000
"""Milliseconds that a page may need for anything."""

_REPORT_VIOLATIONS = """addEventListener('securitypolicyviolation', event =>
    console.error(`policy violation: ${event.violatedDirective} by ${event.blockedURI}`), true)"""

_FIND_BARRIERS = """rules => axe.run(document, rules.length ? { runOnly: rules } : {})
    .then(({ violations }) => violations.filter(({ impact }) => impact === 'serious' || impact === 'critical')
    .flatMap(({ id, nodes }) => nodes.map(node => `${id}: ${node.html.slice(0, 200)} ${node.failureSummary}`)))"""


def __getattr__(name: str) -> Any:
    # This module is a plugin of all tests, and few of them need a browser.
    if name != "expect":
        raise AttributeError(name)
    if find_spec("playwright") is None:
        pytest.skip(SERVICES["chromium"][1], allow_module_level=True)
    from playwright.async_api import expect

    expect.set_options(timeout=TIME_LIMIT)
    return expect


@contextlib.asynccontextmanager
async def start_chromium() -> AsyncGenerator[Browser]:
    """Start Chromium, and stop it at the end."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, chromium_sandbox=False, args=FLAGS)
        yield browser
        await browser.close()


@contextlib.asynccontextmanager
async def open_page(browser: Browser, **options: Any) -> AsyncGenerator[Page]:
    """Open an empty page in a context of its own.

    Args:
        browser: Running browser.
        **options: Options of `Browser.new_context`.
    """
    options = {"viewport": {"width": 1680, "height": 960}, "color_scheme": "dark", **options}
    async with await browser.new_context(**options) as context:
        context.set_default_timeout(TIME_LIMIT)
        yield await context.new_page()


async def watch(page: Page, problems: list[str]) -> None:
    """Collect uncaught errors, errors on the console, requests to another host and violations of the CSP.

    Args:
        page: Page that has not been opened yet.
        problems: List to which the problems are added.
    """

    def note_message(message: ConsoleMessage) -> None:
        # Tests break connections on purpose, and the page has to show that to its reader.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            problems.append(message.text)

    def note_request(request: Request) -> None:
        url, opener = urlsplit(request.url), urlsplit(page.url)
        is_local = url.hostname in ("127.0.0.1", None) if request.is_navigation_request() else url[:2] == opener[:2]
        if not is_local and url.scheme not in ("data", "blob"):
            problems.append(f"request to another host: {request.url}")

    page.on("pageerror", lambda error: problems.append(f"{error.name}: {error.message}"))
    page.on("console", note_message)
    page.on("request", note_request)
    await page.add_init_script(_REPORT_VIOLATIONS)


async def find_barriers(page: Page, *rules: str) -> list[str]:
    """Return the serious and critical findings of axe-core, one line for each element. Needs the service `axe`.

    Args:
        page: Open page.
        *rules: Rules to check instead of all.
    """
    if not await page.evaluate("'axe' in window"):
        await page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[str] = await page.evaluate(_FIND_BARRIERS, rules)
    return found


async def until(page: Page, condition: str) -> Any:
    """Wait until a JavaScript condition is truthy, then return its value.

    `Page.wait_for_function` evaluates strings in the page, which the content security policy of the viewer forbids.
    """
    from playwright.async_api import Error

    look = f"let found = false; try {{ found = {condition}; }} catch {{}}"
    again = "if (found) done(found); else setTimeout(look, 5);"
    while True:
        try:
            return await page.evaluate(f"new Promise(done => {{ const look = () => {{ {look} {again} }}; look(); }})")
        except Error as error:
            # The page has navigated while it was examined.
            if "navigation" not in error.message:
                raise


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncGenerator[Browser]:
    """Browser shared by all tests of a module, because starting Chromium is slow."""
    async with start_chromium() as started:
        yield started


@pytest.fixture
def problems() -> list[str]:
    """Problems that `page` has reported. A test that expects some has to remove them."""
    return []


@pytest_asyncio.fixture(loop_scope="module")
async def page(chromium: Browser, problems: list[str]) -> AsyncGenerator[Page]:
    """Empty page with a dark theme. At the end of the test, it must not have reported problems."""
    async with open_page(chromium) as opened:
        await watch(opened, problems)
        yield opened
    assert problems == []
