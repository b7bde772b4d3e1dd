"""Chromium for tests, controlled over its debugging pipe without further packages."""

from __future__ import annotations

import asyncio
import base64
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
        self.problems: list[str] = []
        """Errors of the page and violations of its content security policy, see `watch`."""
        self.requests: list[str] = []
        """URLs of all requests, see `watch`."""
        self._reading = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                message = json.loads((await reader.readuntil(b"\0"))[:-1])
                if waiting := self._waiting.pop(message.get("id", 0), None):
                    if not waiting.done():
                        waiting.set_result(message)
                else:
                    self._note(message.get("method", ""), message.get("params", {}))

    async def _do(self, method: str, **params: Any) -> Any:
        self._number += 1
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        session = {"sessionId": self._session} if self._session else {}
        message = {"id": self._number, "method": method, "params": params, **session}
        self._writer.write(json.dumps(message).encode() + b"\0")
        response = await asyncio.wait_for(waiting, 30)
        assert "error" not in response, response
        return response["result"]

    def _note(self, method: str, params: Any) -> None:
        match method:
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.problems.append(details.get("exception", {}).get("description") or details["text"])
            case "Log.entryAdded" if params["entry"]["level"] == "error" and params["entry"]["source"] != "network":
                self.problems.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
            case _:
                pass

    async def open(self, url: str) -> None:
        """Open a URL."""
        await self._attach()
        await self._do("Page.navigate", url=url)

    async def _attach(self) -> None:
        if self._session is not None:
            return
        target = await self._do("Target.createTarget", url="about:blank")
        attached = await self._do("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        await self._do("Page.enable")

    async def watch(self) -> None:
        """Forget earlier problems and requests, and note those that follow."""
        await self._attach()
        for domain in ("Runtime", "Log", "Network"):
            await self._do(f"{domain}.enable")
        self.problems.clear()
        self.requests.clear()

    async def emulate(self, *, theme: str = "dark", width: int = 1680, height: int = 960) -> None:
        """Set the size of the window and the preferred theme."""
        await self._attach()
        await self._do(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )
        features = [{"name": "prefers-color-scheme", "value": theme}]
        await self._do("Emulation.setEmulatedMedia", features=features)

    async def press(self, *keys: str) -> None:
        """Press keys one after the other, by their names in `KeyboardEvent.key`."""
        for key in keys:
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            await self._do("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
            await self._do("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def take_picture(self) -> bytes:
        """Return a picture of the window as PNG."""
        return base64.b64decode((await self._do("Page.captureScreenshot", format="png"))["data"])

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
        while True:
            try:
                return await self.run(looking)
            except AssertionError as error:
                # The page has navigated while it was examined.
                if "navigated" not in str(error):
                    raise

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
