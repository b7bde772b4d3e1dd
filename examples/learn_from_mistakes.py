"""An agent that makes a mistake only once, and then reads ahead.

    python examples/learn_from_mistakes.py

The model is scripted, so the example runs offline. It reacts to its requests like a model: it corrects a call after an
error, and uses the lessons that `op.recall` adds from the earlier runs of the same owner.
"""

from __future__ import annotations

import asyncio
from typing import Any

from rxloop import Agent, MemoryEventLog, ModelRequest, ToolError, op, tool
from rxloop.memory import Experience, Memory
from rxloop.testing import ScriptedModel, call


@tool(read_only=True)
def get_weather(city: str) -> str:
    """Return the weather in a city."""
    if "," not in city:
        raise ToolError(f"{city!r} is ambiguous: add the country")
    return f"18 C in {city}"


def decide(request: ModelRequest) -> Any:
    """Decide the next step from the messages, as a model would."""
    newest = request.messages[-1].text
    messages = [*request.messages, *request.tail]
    if "18 C" in newest:
        return f"It is {newest}."
    knows_form = any("Norway" in message.text or "add the country" in message.text for message in messages)
    city = "Bergen" if any("Bergen" in message.text for message in request.messages[-3:]) else "Oslo"
    return call("get_weather", city=f"{city}, Norway" if knows_form else city)


async def ask(agent: Agent[None], question: str, owner: str) -> None:
    """Run the agent, and print how it came to its answer."""
    run = agent.run(question, owner=owner)
    events = [event async for event in run.events]
    failed = sum(event.kind == "tool-complete" and not event.success for event in events)
    models = sum(event.kind == "llm-call" for event in events)
    print(f"{owner}: {question} {(await run).output} ({models} model calls, {failed} failed)")


async def main() -> None:
    log = MemoryEventLog()
    experience = Experience(Memory(log))
    before = [op.recall(experience, tokens=300), op.predict_context(experience)]
    agent = Agent(ScriptedModel(*[decide] * 20), log=log, tools=[get_weather], loop=op.standard(before_model=before))

    # The first run fails once and corrects the call. No later run of Ann fails.
    await ask(agent, "What is the weather in Oslo?", "ann")
    await ask(agent, "What is the weather in Bergen?", "ann")
    await ask(agent, "How is the weather in Bergen now?", "ann")
    # Two similar runs read the same, so the result is now there before the first model call.
    await ask(agent, "How is the weather in Bergen?", "ann")

    print("\nLessons:")
    for lesson in await experience.lessons("ann"):
        print(f"- {lesson.text} (from {len(lesson.task_ids)} run)")

    # Another owner learns nothing from the runs of Ann.
    assert await experience.lessons("bob") == []
    await ask(agent, "What is the weather in Oslo?", "bob")


if __name__ == "__main__":
    asyncio.run(main())
