"""Chat in which new messages steer the active run.

The user sends three messages, which all belong to the same run. The second message is sent while a tool is running, so
the model receives it with the tool result. The third message starts with "no", and interrupts the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rxloop import Agent, ContentCompleteEvent, ContentDeltaEvent, LLMCallEvent, MessageAddedEvent, ToolStartEvent, tool
from rxloop.agents import Steer
from rxloop.testing import ScriptedModel, call, frames

MESSAGES = [(0.2, "Only trains, please."), (0.5, "No, on Saturday!")]
"""Messages to send, with delays in seconds."""


@tool
async def connections(to: str) -> list[str]:
    """Trains and flights to a city."""
    await asyncio.sleep(0.3)
    return ["Fri 16:25 train", "Fri 18:10 flight", "Sat 08:25 train"]


async def read_messages() -> AsyncIterator[str | Steer]:
    """Yield messages. A real program would read them from a WebSocket, for example."""
    for seconds, line in MESSAGES:
        await asyncio.sleep(seconds)
        yield Steer(line, interrupt=line.lower().startswith("no"))


async def main() -> None:
    """Start a run and steer it. Print all events and the final history."""
    model = ScriptedModel(
        call("connections", to="Bergen"),
        frames("Take the train on -Friday-, at 16:25-. It runs through -the mountains-, and -you arrive|", 0.05),
        frames("On Saturday -there is a train -at 08:25.|", 0.05),
    )
    async with Agent(model, tools=[connections]) as agent:
        run = agent.run("How do I get to Bergen?", steering=read_messages())
        async for event in run:
            match event:
                case LLMCallEvent(iteration=number):
                    print(f"\n{number}. request: ", end="")
                case ContentDeltaEvent(delta=text):
                    print(text, end="", flush=True)
                case ToolStartEvent(name=name):
                    print(f"[{name}]", end="")
                case MessageAddedEvent(content=text):
                    print(f"  <- {text!r}", end="")
                case ContentCompleteEvent(finish_reason="interrupted"):
                    print("  (interrupted)", end="")
                case _:
                    pass
        result = await run

    print("\n\nHistory of the run:")
    for message in result.messages:
        print(f"  {message.role:<9} {message.text or '(calls a tool)'}")


if __name__ == "__main__":
    asyncio.run(main())
