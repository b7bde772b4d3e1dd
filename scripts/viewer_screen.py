"""Pictures of the viewer. Shows a recorded run in Chromium.

Without arguments, writes build/screens/view.png for the documents. `THEME FILE` writes another file. `readme` writes
the pictures of README.md. The run is recorded in virtual time. It needs neither a key nor a network.
"""

from __future__ import annotations

import asyncio
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).parents[1]
FILE = ROOT / "build/screens/view.png"
README = {theme: ROOT / f"docs/pictures/viewer-{theme}.webp" for theme in ("dark", "light")}
PLACE = "?at=1.45.0"
"""Selected event: the warning of the nested agent."""
SIZE = {"width": 1440, "height": 860}
"""Size of the pictures of README.md, which are displayed at about half of this width."""
QUALITY = 70

sys.path.insert(0, str(ROOT / "tests"))

from rxloop import MemoryEventLog  # noqa: E402
from support.browser import open_page, start_chromium  # noqa: E402
from support.processes.services import SERVICES  # noqa: E402
from support.viewer_pages import serve_view  # noqa: E402
from support.viewer_runs import record_weather_run  # noqa: E402


async def take_picture(log: MemoryEventLog, task_id: str, theme: str, *, is_webp: bool = False) -> bytes:
    """Return a picture of the page of a run.

    Args:
        log: Event log with the run.
        task_id: Id of the run.
        theme: Either `dark` or `light`.
        is_webp: Whether to return a small WebP picture instead of a PNG.
    """
    options = {"viewport": SIZE} if is_webp else {}
    async with (
        serve_view(log) as url,
        start_chromium() as browser,
        open_page(browser, color_scheme=theme, **options) as page,
    ):
        await page.goto(f"{url}#/r/{task_id}{PLACE}")
        await page.locator(".inspector .block").first.wait_for()
        if not is_webp:
            return await page.screenshot()
        # Playwright itself only writes PNG and JPEG.
        session = await page.context.new_cdp_session(page)
        answer = await cast("Any", session).send("Page.captureScreenshot", {"format": "webp", "quality": QUALITY})
        return b64decode(answer["data"])


def main() -> int:
    """Write the pictures and return the exit code."""
    is_available, missing = SERVICES["chromium"]
    if not is_available():
        sys.stderr.write(f"The picture of the viewer is missing, because {missing}.\n")
        return 0
    arguments = sys.argv[1:]
    if arguments == ["readme"]:
        pictures = README
    else:
        pictures = {arguments[0]: Path(arguments[1])} if len(arguments) == 2 else {"dark": FILE}
    log = MemoryEventLog()
    task_id = record_weather_run(log)
    for theme, path in pictures.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(asyncio.run(take_picture(log, task_id, theme, is_webp=path.suffix == ".webp")))
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
