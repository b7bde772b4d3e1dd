"""Notify people when a run waits for them or fails.

Use this to post to a chat or an on-call service. The view sees the runs of all agents of a process.
"""

import asyncio

import httpx

from rxloop import Agent, InputRequiredEvent, MemoryEventLog, Runtime, StatusUpdateEvent, op, tool
from rxloop.testing import ScriptedModel, call


@tool(approve="Delete {count} customers?")
async def delete_customers(count: int) -> str:
    """Delete inactive customers."""
    return f"deleted {count}"


chat: asyncio.Queue[str] = asyncio.Queue()


def receive(request: httpx.Request) -> httpx.Response:
    chat.put_nowait(request.content.decode())
    return httpx.Response(204)


async def notify(runtime: Runtime, client: httpx.AsyncClient) -> None:
    """Post a message for each question and each failed run."""
    async for event in runtime.events.pipe(op.of_type(InputRequiredEvent, StatusUpdateEvent)):
        match event:
            case InputRequiredEvent(input=question):
                text = f"Please answer: {question.prompt}"
            case StatusUpdateEvent(final=True, state="failed", error=error):
                text = f"A run has failed: {error and error.code}"
            case _:
                continue
        await client.post("https://chat.example/hooks/T1", json={"text": text})


async def main() -> None:
    cleaner = Agent(ScriptedModel(call("delete_customers", count=40)), tools=[delete_customers])  # or "openai:gpt-5"
    broken = Agent(ScriptedModel())  # fails at its first request
    runtime = Runtime({"cleaner": cleaner, "broken": broken}, log=MemoryEventLog())
    client = httpx.AsyncClient(transport=httpx.MockTransport(receive))  # for real requests, httpx.AsyncClient()
    async with client, asyncio.TaskGroup() as group, runtime:
        group.create_task(notify(runtime, client))
        for name in ("cleaner", "broken"):
            await runtime.start(name, "Clean up.")
            print("chat:", await chat.get())


asyncio.run(main())

# Output:
# chat: {"text":"Please answer: Delete 40 customers?"}
# chat: {"text":"A run has failed: script"}
