"""Three agents think at the same time in sessions of one file, and operators of reactivex show how far they are.

`merge` subscribes to all runs as one stream. `scan` counts the thoughts by agent, `distinct_until_changed` hides counts
that have not changed, and a custom operator slows the agents down without a change of their tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import reactivex.operators as rx

from rxloop import (
    Agent,
    AnyEvent,
    RunContext,
    Signal,
    ThoughtStreamEvent,
    ToolRequest,
    merge,
    op,
    sequential_thinking,
)
from rxloop.storage import SqliteArtifacts
from rxloop.testing import ScriptedModel, call
from rxloop.thinking import ThinkingSessions

PAUSES = {"architect": 0.05, "tester": 0.08, "writer": 0.03}
STEPS = 4
Progress = dict[str, int]
"""Number of thoughts by agent."""


@op.on(ToolRequest)
async def pause(request: ToolRequest, ctx: RunContext[str]) -> AsyncIterator[Signal]:
    """Wait before each tool call, as a slower model would. `deps` is the name of the agent."""
    await asyncio.sleep(PAUSES[ctx.deps])
    yield request


def make_agent(name: str, sessions: ThinkingSessions) -> Agent[str, str]:
    """Create an agent with a thinking session named after it. Pass a model string to use a real model."""
    thoughts = [
        call(
            "sequentialthinking",
            thought=f"The {name}'s step {number}.",
            thoughtNumber=number,
            totalThoughts=STEPS,
            nextThoughtNeeded=number < STEPS,
        )
        for number in range(1, STEPS + 1)
    ]
    return Agent(
        ScriptedModel(*thoughts, f"The {name} is done."),
        name=name,
        deps_type=str,
        tools=[sequential_thinking(name, sessions=sessions)],
        loop=op.standard(before_tools=[pause]),
    )


def show(progress: Progress) -> str:
    """Return a bar for each agent."""
    return "  ".join(f"{name} {'#' * progress.get(name, 0):{STEPS}}" for name in PAUSES)


async def main(path: Path) -> None:
    """Show the progress of all three agents, then open the file again and read the sessions."""
    sessions = ThinkingSessions(SqliteArtifacts(path))
    agents = [make_agent(name, sessions) for name in PAUSES]
    runs = [agent.run("Think about your part of the release.", deps=agent.name) for agent in agents]
    names = {run.task_id: agent.name for run, agent in zip(runs, agents, strict=True)}

    def count(progress: Progress, event: AnyEvent) -> Progress:
        if isinstance(event, ThoughtStreamEvent):
            name = names[event.task_id]
            return {**progress, name: progress.get(name, 0) + 1}
        return progress

    async for progress in merge(*runs).pipe(rx.scan(count, Progress()), rx.distinct_until_changed()):
        print(show(progress))
    for run in runs:
        print((await run).output)
    await sessions.aclose()

    reopened = ThinkingSessions(SqliteArtifacts(path))
    for session in await reopened.all_sessions():
        print(f"{session.session_id}: {session.status}, {len(session)} thoughts, last: {session.thoughts[-1].thought}")
    await reopened.aclose()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "sessions.db"))
