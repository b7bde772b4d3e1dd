"""Stop a run after a timeout, or from another task.

Use this for stop buttons and deadlines. Requests and tools are cancelled, and the partial result remains valid.
"""

import asyncio

from rxloop import Agent, LimitReached, Limits, Run, RunCancelled
from rxloop.testing import ScriptedModel, frames

model = ScriptedModel(*[frames("-Once -upon -a time", 0.001)] * 3)  # endless streams; or "openai:gpt-5"
agent = Agent(model, instructions="You tell stories.")


async def press_stop(run: Run[str]) -> None:
    async for text in run.text():
        if "time" in text:
            run.cancel("The user pressed stop.")


async def stop_button() -> None:
    async with asyncio.TaskGroup() as group:
        run = agent.run("Tell me a story.")
        group.create_task(press_stop(run))
        try:
            await run
        except RunCancelled as end:
            print(f"{end} So far: {end.result.content!r}")


async def time_limit() -> None:
    try:
        await agent.run("Tell me a story.", limits=Limits(seconds=0.1))
    except LimitReached as end:
        print(f"{end}: {end.result.state}")


async def timeout_of_the_caller() -> None:
    try:
        async with asyncio.timeout(0.1):
            await agent.run("Tell me a story.")
    except TimeoutError:
        print("The caller has stopped waiting.")


async def main() -> None:
    await stop_button()
    await time_limit()
    await timeout_of_the_caller()
    print("open requests:", model.open)


asyncio.run(main())

# Output:
# The user pressed stop. So far: 'Once upon a time'
# the run took longer than 0.1 s (limits.seconds): failed
# The caller has stopped waiting.
# open requests: 0
