"""Three agents think at the same time, each in its own session, in one file that outlives them."""

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
    """Make a model that plays one of them; replace it with a model string such as "zai:glm-4.7"."""
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
    """Run one agent, whose tool is bound to a session of the agent's name."""
    async with Agent(offline_model(name), name=name, tools=[sequential_thinking(name, sessions=sessions)]) as agent:
        return await agent.run("Think about your part of the release.")


async def main(path: Path) -> None:
    """Run all three, and read their sessions as another process would."""
    sessions = ThinkingSessions(SqliteArtifacts(path))
    for result in await asyncio.gather(*(think(name, sessions) for name in NAMES)):
        print(result.output, f"({len(result.thoughts)} thoughts on its stream)")
    await sessions.aclose()

    again = ThinkingSessions(SqliteArtifacts(path))
    for session in await again.all_sessions():
        assert len(session) == STEPS
        assert all(session.session_id in thought.thought for thought in session.thoughts)
        print(f"{session.session_id}: {session.status}, {len(session)} thoughts, last: {session.thoughts[-1].thought}")
    await again.aclose()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder) / "sessions.db"))
