"""Program that writes an artifact and may be killed: `artifact_writer.py FOLDER KIND TASK`.

Prints a line for each published chunk, and `done` at the end. An existing run is resumed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from rxloop import Agent, ArtifactUpdateEvent, RunContext, SqliteEventLog, op, tool
from rxloop.errors import UnknownRun
from rxloop.pipeline import ArtifactStore
from rxloop.storage import FolderArtifacts
from rxloop.testing import ScriptedModel, call

CHUNKS = 60


def stores(folder: Path, kind: str) -> tuple[SqliteEventLog, ArtifactStore]:
    log = SqliteEventLog(folder / "app.db", lease=0.2)
    return log, FolderArtifacts(folder / "files") if kind == "folder" else log.artifacts


@tool(idempotent=True)
async def report(ctx: RunContext[None]) -> str:
    """Write a report in many chunks, partly in parallel."""
    draft = await ctx.artifacts.create("report.md")
    for n in range(0, CHUNKS, 3):
        await asyncio.gather(*(draft.append(f"line {n + m}\n") for m in range(3)))
    return "written"


async def main(folder: Path, kind: str, task_id: str) -> None:
    log, store = stores(folder, kind)
    try:
        await log.get_record(task_id)
        is_started = True
    except UnknownRun:
        is_started = False
    model = (
        ScriptedModel("Done.")
        if await has_requested_tool(log, task_id, is_started)
        else ScriptedModel(call("report"), "Done.")
    )
    agent = Agent(model, tools=[report], log=log, artifacts=store)
    run = agent.resume(task_id, when_busy="wait") if is_started else agent.run("Write.", task_id=task_id)
    async for event in run.pipe(op.of_type(ArtifactUpdateEvent)):
        print(event.index, flush=True)
    await run
    print("done", flush=True)
    await agent.aclose()
    await log.aclose()


async def has_requested_tool(log: SqliteEventLog, task_id: str, is_started: bool) -> bool:
    """Return True if the model has already called the tool, so the script starts after the call."""
    return is_started and any(event.kind == "content-complete" for event in await log.read(task_id))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
