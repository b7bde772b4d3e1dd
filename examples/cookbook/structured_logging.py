"""Write all events of a service as JSON to its log.

Use this to search runs in the tools that you already have. `runtime.events` contains all runs of a process.
"""

import asyncio
import json
import logging
import sys

from rxloop import Agent, Event, MemoryEventLog, Runtime, op, tool
from rxloop.testing import ScriptedModel, call

logger = logging.getLogger("agents")
logger.setLevel(logging.INFO)
logger.addHandler(logging.StreamHandler(sys.stdout))


def write(event: Event) -> None:
    if event.durable:  # omits the fragments of answers
        fields = {"seq": event.seq, "kind": event.kind, "text": event.describe()}  # or event.to_json()
        logger.info("%s", json.dumps(fields))


@tool
async def find_order(number: str) -> str:
    """Find an order."""
    return "arrives on Friday"


async def main() -> None:
    model = ScriptedModel(call("find_order", number="A-7"), "On Friday.")  # or "openai:gpt-5"
    runtime = Runtime({"support": Agent(model, tools=[find_order])}, log=MemoryEventLog())
    async with runtime:
        runtime.events.pipe(op.public()).subscribe(write)
        record = await runtime.start("support", "When does A-7 arrive?")
        await runtime.follow(record.task_id).pipe(op.until_final())


asyncio.run(main())

# Output:
# {"seq": 1, "kind": "task", "text": "When does A-7 arrive?"}
# {"seq": 2, "kind": "status-update", "text": "working"}
# {"seq": 3, "kind": "llm-call", "text": "scripted, 1 messages"}
# {"seq": 4, "kind": "content-complete", "text": "find_order(number='A-7')"}
# {"seq": 5, "kind": "tool-start", "text": "find_order(number='A-7')"}
# {"seq": 6, "kind": "tool-complete", "text": "find_order = arrives on Friday"}
# {"seq": 7, "kind": "checkpoint", "text": ""}
# {"seq": 8, "kind": "llm-call", "text": "scripted, 3 messages"}
# {"seq": 9, "kind": "content-complete", "text": "On Friday."}
# {"seq": 10, "kind": "checkpoint", "text": ""}
# {"seq": 11, "kind": "status-update", "text": "completed, On Friday."}
