"""Runtime served by another process. As a program, it uses hypercorn: `clerk.py PORT`."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config

from rxloop import Agent, ModelRequest, RunContext, Runtime, SqliteEventLog, tool
from rxloop.providers.script import Turn
from rxloop.server import Shutdown, api, bearer
from rxloop.testing import ScriptedModel, call, frames

GRACE = float(os.environ.get("GRACE", "0.3"))


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool(idempotent=True)
async def hold(ctx: RunContext[Any]) -> str:
    """Wait for a file."""
    ctx.progress("begun")
    while not Path("go").exists():  # noqa: ASYNC110 (there is no event for it)
        await asyncio.sleep(0.01)
    return "held"


def answer(request: ModelRequest) -> Turn:
    """Return an answer that depends only on the messages, so that any process can resume the run."""
    last = request.messages[-1]
    if last.role == "tool":
        return frames(f"-It is -{last.text}-.|", 0.01)
    if "for ever" in last.text:
        return frames("-on and on", 0.02)
    return call("hold") if "Hold" in last.text else call("pay", amount=5)


def runtime() -> Runtime:
    """Create a runtime on the shared log."""
    agent = Agent(ScriptedModel(*[answer] * 1_000), tools=[pay, hold], thoughts=False)
    return Runtime({"clerk": agent}, log=SqliteEventLog("runs.db", lease=2), adopt_every=0.3, grace=GRACE)


async def main(port: str) -> None:
    """Serve under hypercorn as documented in docs/server.md."""
    app: Any = api(runtime(), auth=bearer({os.environ["CLERK_KEY"]: "ann"}))
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    shutdown = Shutdown(app, seconds=GRACE)
    await serve(app, config, shutdown_trigger=shutdown.run_on_signal)


if __name__ == "__main__":
    logging.basicConfig(level="INFO", format="%(message)s")
    asyncio.run(main(sys.argv[1]))
