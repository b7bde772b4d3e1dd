"""Process many documents, and continue after an interruption.

Use `agent.map` with a name and a log. After crashes and outages, run the program again. Finished
documents are read from the log, and only the others are processed.
"""

import asyncio
from collections.abc import Callable

from rxloop import Agent, ModelRequest, SqliteEventLog
from rxloop.errors import ServerError
from rxloop.testing import ScriptedModel

TICKETS = {1: "My parcel is late!", 2: "Great service.", 3: "Where is my bike?", 4: "Thank you!", 5: "The app crashes."}


def classify(request: ModelRequest) -> str:
    return "happy" if request.messages[-1].text in ("Great service.", "Thank you!") else "unhappy"


def fail_sometimes(request: ModelRequest) -> str | Exception:
    return ServerError("The service is down.") if "?" in request.messages[-1].text else classify(request)


async def process(answer: Callable[[ModelRequest], str | Exception]) -> None:
    log = SqliteEventLog("moods.db")
    model = ScriptedModel(*[answer] * 5)  # or "openai:gpt-5-mini"
    async with Agent(model, instructions="Name the mood in one word.", log=log) as agent:
        outcomes = agent.map(
            TICKETS.items(), name="moods", key=lambda item: item[0], prompt=lambda item: item[1], concurrency=2
        )
        moods = {outcome.key: outcome.output if not outcome.error else "failed" async for outcome in outcomes}
    print(f"{len(model.requests)} model calls: {dict(sorted(moods.items()))}")
    await log.aclose()


asyncio.run(process(fail_sometimes))
asyncio.run(process(classify))

# Output:
# 5 model calls: {'1': 'unhappy', '2': 'happy', '3': 'failed', '4': 'happy', '5': 'unhappy'}
# 1 model calls: {'1': 'unhappy', '2': 'happy', '3': 'unhappy', '4': 'happy', '5': 'unhappy'}
