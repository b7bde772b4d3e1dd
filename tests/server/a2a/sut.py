"""Server for the official A2A TCK (`sut.py port`). Message id prefixes select the behavior."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import uvicorn

from rxloop import Agent, ArtifactUpdateEvent, MemoryEventLog, ModelRequest, RunContext, Runtime, tool
from rxloop.providers.script import Turn
from rxloop.server import PushOptions, a2a
from rxloop.testing import ScriptedModel, call, frames


@tool
async def artifact(ctx: RunContext[Any], name: str) -> str:
    """Create an artifact."""
    if name == "output.txt":
        draft = await ctx.artifacts.create(f"{ctx.task_id}.txt", name=name, media_type="text/plain")
        await draft.append(b"Generated file content", last=True)
    elif name == "chunks":
        draft = await ctx.artifacts.create(f"{ctx.task_id}.txt", name=name)
        await draft.append("chunk-1 ")
        await draft.append("chunk-2", last=True)
    else:
        url = {"url": "https://example.com/output.txt"}
        data: Any = {"name": "output.txt", "media_type": "text/plain", "data": url} if name == "url" else {}
        data = data or {"data": {"key": "value", "count": 42}}
        ctx.emit(ArtifactUpdateEvent(artifact_id=name, index=0, last=True, **data))
    return "made"


@tool
async def ask(ctx: RunContext[Any]) -> str:
    """Ask until the answer contains no history message."""
    reply = ""
    while "history message" in reply or not reply:
        reply = await ctx.ask("What else?", str)
    return reply


@tool
async def wait() -> str:
    """Wait for some time."""
    await asyncio.sleep(4)
    return "done"


ANSWERS: dict[str, Turn] = {
    "tck-artifact-text": "Generated text content",
    "tck-artifact-file-url": call("artifact", name="url"),
    "tck-artifact-file": call("artifact", name="output.txt"),
    "tck-artifact-data": call("artifact", name="data"),
    "tck-message-response": "Direct message response",
    "tck-input-required": call("ask"),
    "tck-stream-001": frames("-Stream hello -from TCK|", 0.01),
    "tck-stream-003": "Stream task lifecycle",
    "tck-stream-ordering-001": "Ordered output",
    "tck-stream-artifact-text": "Streamed text content",
    "tck-stream-artifact-file": call("artifact", name="output.txt"),
    "tck-stream-artifact-chunked": call("artifact", name="chunks"),
    "test-resubscribe-message-id": call("wait"),
}


def answer(request: ModelRequest) -> Turn:
    """Return the expected answer for a message id."""
    last = request.messages[-1]
    if last.role == "tool":
        return "Hello from TCK" if last.text not in ("made", "done") else ""
    return next(
        (reply for prefix, reply in ANSWERS.items() if (last.message_id or "").startswith(prefix)), "Hello from TCK"
    )


def main(port: int) -> None:
    """Serve the agent with webhooks in the private network."""
    agent = Agent(ScriptedModel(*[answer] * 10_000), tools=[artifact, ask, wait], thoughts=False)
    runtime = Runtime({"tck": agent}, log=MemoryEventLog(), grace=0.2)
    uvicorn.run(a2a(runtime, push=PushOptions(allow_private=True)), port=port, log_level="warning")


if __name__ == "__main__":
    main(int(sys.argv[1]))
