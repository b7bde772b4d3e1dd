"""Three concurrent agents with separate thinking sessions. All sessions are stored in the same file."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from rxloop import Agent, Result, sequential_thinking
from rxloop.storage import SqliteArtifacts
from rxloop.testing import ScriptedModel, call
from rxloop.thinking import ThinkingSessions

NAMES = ("architect", "tester", "writer")
STEPS = 5


def offline_model(name: str) -> ScriptedModel:
    """Create a scripted model. To use a real model, pass a model string such as "zai:glm-4.7" to the agent."""
    steps = range(1, STEPS + 1)
    thoughts = [
        call(
            "sequentialthinking",
            thought=f"The {name}'s step {number}.",
            thoughtNumber=number,
            totalThoughts=STEPS,
            nextThoughtNeeded=number < STEPS,
        )
        for number in steps
    ]
    return ScriptedModel(*thoughts, f"The {name} is done.")


async def think(name: str, sessions: ThinkingSessions) -> Result:
    """Run an agent with a thinking session named after it."""
    async with Agent(offline_model(name), name=name, tools=[sequential_thinking(name, sessions=sessions)]) as agent:
        return await agent.run("Think about your part of the release.")


async def main(path: Path) -> None:
    """Run all three agents, then open the file again and read the sessions."""
    sessions = ThinkingSessions(SqliteArtifacts(path))
    for result in await asyncio.gather(*(think(name, sessions) for name in NAMES)):
        print(result.output, f"({len(result.thoughts)} thoughts in its stream)")
    await sessions.aclose()

    reopened = ThinkingSessions(SqliteArtifacts(path))
    for session in await reopened.all_sessions():
        assert len(session) == STEPS
        assert all(session.session_id in thought.thought for thought in session.thoughts)
        print(f"{session.session_id}: {session.status}, {len(session)} thoughts, last: {session.thoughts[-1].thought}")
    await reopened.aclose()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "sessions.db"))
