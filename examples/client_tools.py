"""Tools that the browser carries out: their definitions come with the request, and their results with a later one.

The page sends what it can do (`client_tools`), the run pauses for it, and the page's result resumes the run. Any model
will do: `RXLOOP_MODEL=zai:glm-4.7 python examples/client_tools.py`; without one, a script plays it.
"""

import asyncio
import os
from typing import Any

from rxloop import Agent, MemoryEventLog, PendingInput, Result
from rxloop.testing import ScriptedModel, call

CAN_DO: list[dict[str, Any]] = [
    {
        "name": "show_map",
        "description": "Show a city on the user's map.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    {"name": "read_clock", "description": "The user's local time.", "parameters": {"type": "object", "properties": {}}},
]
"""What the page would send with each message."""


def in_the_page(question: PendingInput) -> Any:
    """What the page does with a call; here it only says so."""
    assert question.call is not None
    name, arguments = question.call.name, question.call.arguments
    print(f"  page: {name} {arguments}")
    match name:
        case "show_map":
            return {"shown": arguments["city"]}
        case "read_clock":
            return {"error": "The user has not allowed it."}
        case _:
            return {"error": f"This page has no {name}."}


async def main() -> None:
    script = ScriptedModel(
        [call("show_map", city="Oslo"), call("read_clock")],
        "Oslo is on your map. I could not read your clock.",
    )
    async with Agent(os.environ.get("RXLOOP_MODEL") or script, log=MemoryEventLog(), thoughts=False) as agent:
        # First request: the message of the user, and what the page can do.
        result: Result[str] = await agent.run("Show me Oslo. What time is it?", client_tools=CAN_DO)
        while result.state == "input-required":
            print("waits for", ", ".join(question.input_id for question in result.pending))
            # Next request, here or in any process with the same log: the results.
            inputs = {question.input_id: in_the_page(question) for question in result.pending}
            result = await agent.resume(result.task_id, inputs=inputs)
        print(result.output)


if __name__ == "__main__":
    asyncio.run(main())
