"""Many concurrent runs in a process with few file descriptors.

`many_runs.py URL TRANSPORT FOLDER` prints the results as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rxloop import Agent, RunError, SqliteEventLog
from rxloop.errors import EventLogError
from rxloop.providers import Retry, openai_chat
from rxloop.providers.vendors import Preset
from rxloop.testing import ScriptedModel

RUNS, FILES = 200, 64


def take_descriptors() -> list[int]:
    """Open all remaining file descriptors."""
    descriptors: list[int] = []
    try:
        while True:
            descriptors.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return descriptors


def count_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def outcome(agent: Agent[None, str]) -> str:
    try:
        await agent.run("Hello")
    except RunError as error:
        has_hint = "out of file descriptors" in str(error) and "ulimit -n" in str(error)
        info = error.result.error
        return f"{error.code} {info is not None and info.retryable} {has_hint}"
    return "answered"


async def main(url: str, transport: Any, folder: str) -> None:
    preset = Preset(name="crowd", base_url=url)
    model = openai_chat("demo", preset=preset, api_key="k", transport=transport, retry=Retry(attempts=1))
    log = SqliteEventLog(Path(folder, "runs.db"))
    agent = Agent(model, log=log)
    report: dict[str, Any] = {}
    # The first run imports all modules.
    await agent.run("Hello")
    await model.aclose()
    await log.aclose()
    before = count_descriptors()
    # Open the log before starting runs, as in a service.
    await Agent(ScriptedModel("Hi."), log=log).run("Hello")
    await log.list_runs()
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))

    model = openai_chat("demo", preset=preset, api_key="k", transport=transport, retry=Retry(attempts=1))
    agent = Agent(model, log=log)
    report["crowd"] = Counter(await asyncio.gather(*(outcome(agent) for _ in range(RUNS))))
    await model.aclose()
    await log.aclose()

    # With no descriptors left, connections fail and the log is retried.
    descriptors = take_descriptors()
    model = openai_chat("demo", preset=preset, api_key="k", transport=transport, retry=Retry(attempts=1))
    alone = Agent(model)
    report["no socket"] = await outcome(alone)
    reading = asyncio.create_task(log.list_runs())
    try:
        await reading
    except EventLogError as error:
        report["no file"] = [error.retryable, "out of file descriptors" in str(error)]
    waiting = asyncio.create_task(Agent(ScriptedModel("Hi."), log=log).run("Hello").result())
    done, _ = await asyncio.wait([waiting], timeout=0.5)
    report["waits"] = not done
    for each in descriptors:
        os.close(each)
    report["goes on"] = (await waiting).output
    report["again"] = await outcome(alone)
    await model.aclose()
    await log.aclose()
    for _ in range(10):
        await asyncio.sleep(0)
    report["left"] = count_descriptors() - before
    print(json.dumps(report))


asyncio.run(main(*sys.argv[1:]))
