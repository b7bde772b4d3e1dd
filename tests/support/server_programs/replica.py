"""Program of several processes that serve one log: `replica.py runs.db PORT`."""

from __future__ import annotations

import socket
import sys

import uvicorn

from rxloop import Agent, ModelRequest, Runtime, SqliteEventLog, tool
from rxloop.providers.script import Turn
from rxloop.server import Api, api, bearer
from rxloop.testing import ScriptedModel, call, frames


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


class Server(uvicorn.Server):
    """Server that drains before shutdown, as documented in docs/server.md."""

    def __init__(self, app: Api, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self.app.drain(0.5)
        await super().shutdown(sockets)


def answer(request: ModelRequest) -> Turn:
    """Return an answer that depends only on the messages, so that any process can resume the run."""
    last = request.messages[-1]
    if last.role == "tool":
        return frames(f"-It is -{last.text}-.|", 0.01)
    return frames("-on and on", 0.02) if "for ever" in last.text else call("pay", amount=5)


def main(file: str, port: str) -> None:
    agent = Agent(ScriptedModel(*[answer] * 1_000), tools=[pay], thoughts=False)
    runtime = Runtime({"clerk": agent}, log=SqliteEventLog(file, lease=2), adopt_every=0.3, grace=0.2)
    app = api(runtime, auth=bearer({"ann-key": "ann"}))
    Server(app, uvicorn.Config(app, port=int(port), log_level="critical")).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
