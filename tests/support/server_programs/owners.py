"""Program of several processes that serve one log to several owners: `owners.py FILE_OR_DSN SCHEMA PORT`."""

from __future__ import annotations

import sys

import uvicorn

from rxloop import Agent, EventLog, ModelRequest, PostgresEventLog, Runtime, SqliteEventLog
from rxloop.providers.script import Turn
from rxloop.server import api, bearer
from rxloop.testing import ScriptedModel, frames


def answer(request: ModelRequest) -> Turn:
    """Return all user messages that the model received."""
    texts = [message.text for message in request.messages if message.role == "user"]
    return frames("-on and on", 0.01) if "for ever" in texts[-1] else ", ".join(texts)


def open_shared_log(address: str, schema: str) -> EventLog:
    return PostgresEventLog(address, schema=schema) if schema else SqliteEventLog(address)


def main(address: str, schema: str, port: str) -> None:
    agent = Agent(ScriptedModel(*[answer] * 10_000), thoughts=False)
    runtime = Runtime({"clerk": agent}, log=open_shared_log(address, schema), grace=0.2)
    app = api(runtime, auth=bearer({"ann-key": "ann", "bob-key": "bob"}))
    uvicorn.run(app, port=int(port), log_level="critical")


if __name__ == "__main__":
    main(*sys.argv[1:])
