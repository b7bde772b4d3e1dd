"""Export recorded runs as JSON lines, and evaluate them.

Use this to analyse production runs with your own tools, or to use their questions as cases for an experiment.
"""

import asyncio
import json
from collections import Counter
from pathlib import Path

from rxloop import Agent, MemoryEventLog, ToolError, tool
from rxloop.evals import Case, experiment, score
from rxloop.testing import ScriptedModel, call


@tool
async def find_order(number: str) -> str:
    """Find an order."""
    if number == "B-3":
        raise ToolError("There is no such order.")
    return "arrives on Friday"


async def main() -> list[bytes]:
    log = MemoryEventLog()  # or SqliteEventLog("runs.db")
    model = ScriptedModel(call("find_order", number="A-7"), "On Friday.", call("find_order", number="B-3"), "Never.")
    agent = Agent(model, tools=[find_order], log=log)
    for order in ["A-7", "B-3"]:
        await agent.run(f"When does {order} arrive?")

    records = await log.list_runs(states=["completed"])
    lines = [event.to_json(public=True) for record in records for event in await log.read(record.task_id)]

    # Use recorded questions and answers as cases.
    cases = await Case.from_log(log, expected=True)
    cheap = Agent(ScriptedModel("On Friday.", "On Monday."), tools=[find_order])  # or "openai:gpt-5-mini"
    print(await experiment(cases, cheap, [score.exact()], concurrency=1).run())
    return lines


path = Path("runs.jsonl")
path.write_bytes(b"\n".join(asyncio.run(main())))
events = [json.loads(line) for line in path.read_text().splitlines()]
print(Counter(event["kind"] for event in events).most_common(3))
results = [event for event in events if event["kind"] == "tool-complete"]
print("failed calls:", [result["content"] for result in results if result["error"]])

# Output:
# experiment: 2 of 2 trials, 2 cases
#                    agent
# exact         0.5 [0, 1]
# no answer              0
# tokens used            0
# [('status-update', 4), ('llm-call', 4), ('content-complete', 4)]
# failed calls: ['There is no such order.']
