"""Continue a run after its process has crashed.

Use a log on disk for runs with effects. Completed calls are not repeated. The model is told that the effect of an
interrupted call is unknown. Add `idempotent=True` to a tool if it can be called again.
"""

import asyncio
import os
import subprocess
import sys

from rxloop import Agent, RunContext, SqliteEventLog, replay, tool
from rxloop.testing import ScriptedModel, call

BILLS = [call("pay", bill="rent", amount=900), call("pay", bill="power", amount=80)]


@tool
async def pay(ctx: RunContext[None], bill: str, amount: int) -> str:
    """Pay a bill."""
    print(f"paying {amount} for {bill}", flush=True)
    if bill == "power" and len(sys.argv) > 1:
        os._exit(1)  # Simulates a crash during the payment.
    return f"paid {amount}"


async def start() -> None:
    agent = Agent(ScriptedModel(*BILLS), tools=[pay], log=SqliteEventLog("bills.db"))  # or "openai:gpt-5"
    await agent.run("Pay the bills.")


async def resume() -> None:
    log = SqliteEventLog("bills.db")
    async with Agent(ScriptedModel("Please check the payment for power."), tools=[pay], log=log) as agent:
        for record in await log.list_orphaned():
            if record.agent_name == agent.name:
                await agent.get_run(record.task_id).execute()
            for message in (await replay(log, record.task_id).result()).messages:
                print(f"{message.role}: {message.text[:60] or message.tool_calls[0].arguments}")
    await log.aclose()


if len(sys.argv) > 1:
    asyncio.run(start())
else:
    crashed = subprocess.run([sys.executable, __file__, "start"], stdout=subprocess.PIPE, text=True, check=False)
    print(crashed.stdout, end="")
    asyncio.run(resume())

# Output:
# paying 900 for rent
# paying 80 for power
# user: Pay the bills.
# assistant: {'bill': 'rent', 'amount': 900}
# tool: paid 900
# assistant: {'bill': 'power', 'amount': 80}
# tool: This call was interrupted, effect unknown: it was started, a
# assistant: Please check the payment for power.
