"""Chromium for tests, controlled over its debugging pipe without further packages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from support.processes.services import CHROMIUM

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
]


class Browser:
    """Browser with a single page."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._number = 0
        self._session: str | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                message = json.loads((await reader.readuntil(b"\0"))[:-1])
                if waiting := self._waiting.pop(message.get("id", 0), None):
                    waiting.set_result(message)

    async def _do(self, method: str, **params: Any) -> Any:
        self._number += 1
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        self._writer.write(json.dumps(message).encode() + b"\0")
        response = await asyncio.wait_for(waiting, 30)
        assert "error" not in response, response
        return response["result"]

    async def open(self, url: str) -> None:
        """Open a URL."""
        if self._session is None:
            target = await self._do("Target.createTarget", url="about:blank")
            attached = await self._do("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            self._session = attached["sessionId"]
            await self._do("Page.enable")
        await self._do("Page.navigate", url=url)

    async def reload(self) -> None:
        """Reload the page and wait until it has loaded."""
        await self.run("window.reloading = true")
        await self._do("Page.reload")
        await self.until("!window.reloading && document.readyState === 'complete'")

    async def run(self, expression: str) -> Any:
        """Evaluate a JavaScript expression and return its value. Promises are awaited."""
        done = await self._do("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    async def until(self, condition: str) -> Any:
        """Wait until a JavaScript condition is truthy, then return its value."""
        look = f"let found = false; try {{ found = {condition}; }} catch {{}}"
        again = "if (found) done(found); else setTimeout(look, 5);"
        looking = f"new Promise(done => {{ const look = () => {{ {look} {again} }}; look(); }})"
        return await self.run(looking)

    async def close(self) -> None:
        self._writer.close()
        await self._reading


@contextlib.asynccontextmanager
async def browser(profile: Path) -> AsyncGenerator[Browser]:
    """Start Chromium with a profile folder. Kill it at the end."""
    assert CHROMIUM is not None
    (to_read, from_us), (from_it, to_write) = os.pipe(), os.pipe()

    def connect() -> None:
        # Use high numbers first, since `dup2` would close a descriptor that is still needed.
        ours, its = os.dup2(to_read, 100), os.dup2(to_write, 101)
        os.dup2(ours, 3)
        os.dup2(its, 4)

    process = await asyncio.create_subprocess_exec(
        *(CHROMIUM, *FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        close_fds=False,
        preexec_fn=connect,
    )
    os.close(to_read)
    os.close(to_write)
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    reading, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(from_it, "rb"))
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, os.fdopen(from_us, "wb"))
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    opened_browser = Browser(reader, writer)
    try:
        yield opened_browser
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await opened_browser.close()
        reading.close()
