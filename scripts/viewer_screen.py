"""Picture of the viewer for the documents. Shows a recorded run in Chromium and writes build/screens/view.png.

The run is recorded in virtual time. It needs neither a key nor a network.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "build/screens/view.png"
PLACE = "?at=1.45.0"
"""Selected event: the warning of the nested agent."""

sys.path.insert(0, str(ROOT / "tests"))

from rxloop import MemoryEventLog, Runtime  # noqa: E402
from rxloop.cli.commands.view import create_viewer  # noqa: E402
from support.api_server import serve_app  # noqa: E402
from support.browser import open_page, start_chromium  # noqa: E402
from support.processes.services import SERVICES  # noqa: E402
from support.viewer_runs import record_weather_run  # noqa: E402


async def take_picture(log: MemoryEventLog, task_id: str, theme: str) -> bytes:
    """Return a picture of the page of a run.

    Args:
        log: Event log with the run.
        task_id: Id of the run.
        theme: Either `dark` or `light`.
    """
    async with (
        Runtime({}, log=log) as runtime,
        serve_app(create_viewer(runtime)[0]) as url,
        start_chromium() as browser,
        open_page(browser, color_scheme=theme) as page,
    ):
        await page.goto(f"{url}/view/#/r/{task_id}{PLACE}")
        await page.locator(".inspector .block").first.wait_for()
        return await page.screenshot()


def main() -> int:
    """Write the picture and return the exit code. An argument names the theme and the file."""
    is_available, missing = SERVICES["chromium"]
    if not is_available():
        sys.stderr.write(f"The picture of the viewer is missing, because {missing}.\n")
        return 0
    theme, file = sys.argv[1:3] if len(sys.argv) > 2 else ("dark", FILE)
    log = MemoryEventLog()
    task_id = record_weather_run(log)
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(asyncio.run(take_picture(log, task_id, theme)))
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
