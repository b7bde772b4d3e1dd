"""Writes an artifact in a process of its own, which is there to be killed: `artifact_writer.py FOLDER KIND TASK`.

A line for each chunk that is on the stream, and at the end `done`. The run is begun, or gone on with if it is there.
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
    """Write a report in many parts, some of them at once."""
    draft = await ctx.artifacts.create("report.md")
    for n in range(0, CHUNKS, 3):
        await asyncio.gather(*(draft.append(f"line {n + m}\n") for m in range(3)))
    return "written"


async def main(folder: Path, kind: str, task_id: str) -> None:
    log, store = stores(folder, kind)
    try:
        await log.get_record(task_id)
        begun = True
    except UnknownRun:
        begun = False
    model = ScriptedModel("Done.") if await asked(log, task_id, begun) else ScriptedModel(call("report"), "Done.")
    agent = Agent(model, tools=[report], log=log, artifacts=store)
    run = agent.resume(task_id, when_busy="wait") if begun else agent.run("Write.", task_id=task_id)
    async for event in run.pipe(op.of_type(ArtifactUpdateEvent)):
        print(event.index, flush=True)
    await run
    print("done", flush=True)
    await agent.aclose()
    await log.aclose()


async def asked(log: SqliteEventLog, task_id: str, begun: bool) -> bool:
    """Whether the model has asked for the tool already, so that its script begins after that."""
    return begun and any(event.kind == "content-complete" for event in await log.read(task_id))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3]))
