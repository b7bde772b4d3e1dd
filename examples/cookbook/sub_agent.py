"""Let an agent call other agents as tools.

Use sub-agents for tasks with their own models, instructions and limits. Sub-agents run concurrently and publish their
events on the stream of the calling agent.
"""

import asyncio

from rxloop import Agent, Limits, StatusUpdateEvent, ToolStartEvent, Usage, op, tool
from rxloop.testing import ScriptedModel, call, turn


@tool
async def search(query: str) -> str:
    """Search the archive."""
    return f"3 documents about {query}"


def make_researcher(topic: str) -> Agent[None, str]:
    used = Usage(input_tokens=200, output_tokens=20)
    model = ScriptedModel(turn(calls=[call("search", query=topic)], usage=used), turn(f"{topic}: up 3 %.", usage=used))
    return Agent(model, name=topic, tools=[search])  # or Agent("ollama:qwen3", ...)


async def main() -> None:
    topics = ["prices", "wages"]
    limits = Limits(iterations=3)
    tools = [make_researcher(topic).as_tool(description=f"Research {topic}.", limits=limits) for topic in topics]
    calls = [call(topic, prompt=f"How did {topic} change?") for topic in topics]
    model = ScriptedModel(turn(calls=calls, usage=Usage(input_tokens=300)), turn("Both rose.", usage=Usage()))
    run = Agent(model, name="editor", tools=tools).run("Prices and wages?")  # or Agent("openai:gpt-5", ...)
    lines: list[str] = []
    async for event in run.pipe(op.of_type(ToolStartEvent, StatusUpdateEvent)):
        path = " > ".join(("editor", *event.agent_path))
        match event:
            case ToolStartEvent(call=started):
                lines.append(f"{path} calls {started.name}")
            case StatusUpdateEvent(final=True, usage=Usage() as usage):
                lines.append(f"{path} used {usage.total_tokens} tokens")
            case _:
                pass
    print(*sorted(lines), (await run).output, sep="\n")


asyncio.run(main())

# Output:
# editor > prices calls search
# editor > prices used 440 tokens
# editor > wages calls search
# editor > wages used 440 tokens
# editor calls prices
# editor calls wages
# editor used 1180 tokens
# Both rose.
