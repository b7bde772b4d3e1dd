"""A chat that does not wait for the end of an answer: whatever is typed meanwhile steers the run that goes on.

Somebody types three lines. The first asks. The second comes while a tool works, and is heard with its result. The third
comes in the middle of an answer and begins with "no": it cuts the answer off. All of it is one run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from rxloop import Agent, ContentCompleteEvent, ContentDeltaEvent, LLMCallEvent, MessageAddedEvent, ToolStartEvent, tool
from rxloop.agents import Steer
from rxloop.testing import ScriptedModel, call, frames

TYPED = [(0.2, "Only trains, please."), (0.5, "No, on Saturday!")]
"""What is typed into the chat, and after how many seconds."""


@tool
async def connections(to: str) -> list[str]:
    """Trains and flights to a city."""
    await asyncio.sleep(0.3)
    return ["Fri 16:25 train", "Fri 18:10 flight", "Sat 08:25 train"]


async def keyboard() -> AsyncIterator[str | Steer]:
    """The lines that somebody types; a websocket would do as well."""
    for seconds, line in TYPED:
        await asyncio.sleep(seconds)
        yield Steer(line, interrupt=line.lower().startswith("no"))


async def main() -> None:
    """Ask, and let the keyboard steer."""
    model = ScriptedModel(
        call("connections", to="Bergen"),
        frames("Take the train on -Friday-, at 16:25-. It runs through -the mountains-, and -you arrive|", 0.05),
        frames("On Saturday -there is a train -at 08:25.|", 0.05),
    )
    async with Agent(model, tools=[connections]) as agent:
        run = agent.run("How do I get to Bergen?", steering=keyboard())
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
                    print("  (cut off)", end="")
                case _:
                    pass
        result = await run

    print("\n\nThe history of the one run:")
    for message in result.messages:
        print(f"  {message.role:<9} {message.text or '(calls a tool)'}")


if __name__ == "__main__":
    asyncio.run(main())
