"""Remember conversations across restarts.

Use one `context_id` per conversation. The log stores the messages, so any process can answer the next question.
"""

import asyncio

from rxloop import Agent, SqliteEventLog, history
from rxloop.testing import ScriptedModel


async def chat(customer: str, question: str, model: ScriptedModel) -> None:
    log = SqliteEventLog("chats.db")
    async with Agent(model, instructions="You sell bicycles.", log=log) as agent:  # or Agent("openai:gpt-5", ...)
        result = await agent.run(question, context_id=customer)
        print(f"{customer}: {question} {result.output} ({len(model.requests[0].messages)} messages sent)")
    await log.aclose()


async def print_history(customer: str) -> None:
    log = SqliteEventLog("chats.db")
    for message in await history(log, customer, public=True):
        print(f"  {message.role}: {message.text}")
    await log.aclose()


asyncio.run(chat("ann", "I am 1.80 m tall.", ScriptedModel("You need a frame of 58 cm.")))
asyncio.run(chat("bob", "Do you repair bells?", ScriptedModel("Yes, on Mondays.")))
asyncio.run(chat("ann", "Which frame did you say?", ScriptedModel("58 cm.")))  # after a restart
asyncio.run(print_history("ann"))

# Output:
# ann: I am 1.80 m tall. You need a frame of 58 cm. (1 messages sent)
# bob: Do you repair bells? Yes, on Mondays. (1 messages sent)
# ann: Which frame did you say? 58 cm. (3 messages sent)
#   user: I am 1.80 m tall.
#   assistant: You need a frame of 58 cm.
#   user: Which frame did you say?
#   assistant: 58 cm.
