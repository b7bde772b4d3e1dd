"""This example uses a skill that describes how to write reports. A later run extends the report."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from rxloop import Agent, ArtifactUpdateEvent, Event, SqliteEventLog, ToolCompleteEvent, artifact_tools, skills
from rxloop.testing import ScriptedModel, call

SKILLS = Path(__file__).with_name("skills")

# The model is scripted, so the example does not need an API key.
WRITER = ScriptedModel(
    call("learn_skill", name="weather-report"),
    call("read_skill_file", skill="weather-report", path="references/words.md"),
    call("create_artifact", artifact_id="oslo.md", content="# Oslo\n\n", media_type="text/markdown"),
    call("append_to_artifact", artifact_id="oslo.md", content="Light rain, 9 degrees.\n"),
    "The report is in oslo.md.",
)
EDITOR = ScriptedModel(
    call("list_artifacts"),
    call("read_artifact", artifact_id="oslo.md"),
    call("append_to_artifact", artifact_id="oslo.md", content="\nTake a raincoat.\n", last=True),
    "I have added what to wear.",
)


def show(event: Event) -> None:
    """Print artifact updates and tool results."""
    match event:
        case ArtifactUpdateEvent(artifact_id=name, index=index, data=data):
            print(f"  {name} [{index}] {data!r}")
        case ToolCompleteEvent(name=name, content=content):
            print(f"{name}: {content.splitlines()[0]}")
        case _:
            pass


async def main() -> None:
    """Run twice in the same conversation. Each run uses a new agent and log, as if the program had been restarted."""
    with TemporaryDirectory() as folder:
        for model, question in ((WRITER, "A report on the weather in Oslo."), (EDITOR, "Add what to wear.")):
            # This file also stores the artifacts.
            log = SqliteEventLog(Path(folder) / "app.db")
            agent = Agent(model, tools=[skills(SKILLS), *artifact_tools()], log=log)
            run = agent.run(question, context_id="ann")
            run.events.subscribe(show)
            print(f"> {question}\n{(await run).output}")
            report = (await run.artifacts.read("oslo.md")).decode()
            await agent.aclose()
            await log.aclose()
        print(report)
        assert report == "# Oslo\n\nLight rain, 9 degrees.\n\nTake a raincoat.\n"


if __name__ == "__main__":
    asyncio.run(main())
