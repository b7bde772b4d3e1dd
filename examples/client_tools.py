"""Client-side tools that run in the browser.

The page sends its tool definitions (`client_tools`) along with the message. When the model calls one of these tools,
the run pauses until the page sends the result. The model is scripted. To use a real model, run
`RXLOOP_MODEL=zai:glm-4.7 python examples/client_tools.py`.
"""

import asyncio
import os
from typing import Any

from rxloop import Agent, MemoryEventLog, PendingInput, Result
from rxloop.testing import ScriptedModel, call

PAGE_TOOLS: list[dict[str, Any]] = [
    {
        "name": "show_map",
        "description": "Show a city on the user's map.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
    {"name": "read_clock", "description": "The user's local time.", "parameters": {"type": "object", "properties": {}}},
]
"""Tool definitions sent by the page with each message."""


def call_page_tool(question: PendingInput) -> Any:
    """Simulate a tool executed by the page."""
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
        # The first request contains the user's message and the tool definitions.
        result: Result[str] = await agent.run("Show me Oslo. What time is it?", client_tools=PAGE_TOOLS)
        while result.state == "input-required":
            print("waiting for", ", ".join(question.input_id for question in result.pending))
            # The next request contains the results. Any process with access to the log can handle it.
            inputs = {question.input_id: call_page_tool(question) for question in result.pending}
            result = await agent.resume(result.task_id, inputs=inputs)
        print(result.output)


if __name__ == "__main__":
    asyncio.run(main())
