"""An agent that learns a skill, writes a report in parts as the skill says, and goes on with it in a later run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from rxloop import Agent, ArtifactUpdateEvent, Event, SqliteEventLog, ToolCompleteEvent, artifact_tools, skills
from rxloop.testing import ScriptedModel, call

SKILLS = Path(__file__).with_name("skills")

# A model would find these calls by itself; here they are written down, so that the example runs with no key.
WRITES = ScriptedModel(
    call("learn_skill", name="weather-report"),
    call("read_skill_file", skill="weather-report", path="references/words.md"),
    call("create_artifact", artifact_id="oslo.md", content="# Oslo\n\n", media_type="text/markdown"),
    call("append_to_artifact", artifact_id="oslo.md", content="Light rain, 9 degrees.\n"),
    "The report is in oslo.md.",
)
READS = ScriptedModel(
    call("list_artifacts"),
    call("read_artifact", artifact_id="oslo.md"),
    call("append_to_artifact", artifact_id="oslo.md", content="\nTake a raincoat.\n", last=True),
    "I have added what to wear.",
)


def show(event: Event) -> None:
    """Print what happens to files, and what the model reads."""
    match event:
        case ArtifactUpdateEvent(artifact_id=name, index=index, data=data):
            print(f"  {name} [{index}] {data!r}")
        case ToolCompleteEvent(name=name, content=content):
            print(f"{name}: {content.splitlines()[0]}")
        case _:
            pass


async def main() -> None:
    """Run it twice in one conversation, with another agent each time, as after a restart."""
    with TemporaryDirectory() as folder:
        for model, question in ((WRITES, "A report on the weather in Oslo."), (READS, "Add what to wear.")):
            # The artifacts are in the file of the log.
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
