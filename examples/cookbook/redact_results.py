"""Remove personal data from tool results before clients, the log and the model receive them.

Use `redact` for tools that return emails or card numbers. It also redacts errors, progress messages and MCP toolsets.
"""

import asyncio
import re

from rxloop import Agent, MemoryEventLog, RunContext, op, tool
from rxloop.testing import ScriptedModel, call
from rxloop.tools import redact

PERSONAL = {"email": re.compile(r"[\w.]+@[\w.]+\w"), "card": re.compile(r"\b(?:\d{4} ?){4}\b")}


def hide(text: str, ctx: RunContext[None]) -> str:
    for name, pattern in PERSONAL.items():
        text = pattern.sub(f"[{name}]", text)
    return text


@tool
async def find_customer(name: str) -> dict[str, str]:
    """Look up a customer."""
    return {"name": name, "email": "ann@example.org", "card": "4111 1111 1111 1111", "since": "2019"}


async def main() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("find_customer", name="Ann"), "Ann is a customer since 2019.")  # or "openai:gpt-5"
    run = Agent(model, tools=[redact(find_customer, hide)], log=log).run("Since when is Ann a customer?")
    async for event in run.pipe(op.tool_calls()):
        print("clients:", event.content)
    print("model:  ", model.requests[1].messages[-1].text)
    stored = b"\n".join([event.to_json() for event in await log.read(run.task_id)])
    print("log:    ", "unsafe" if b"4111" in stored or b"@" in stored else "safe")


asyncio.run(main())

# Output:
# clients: {"name":"Ann","email":"[email]","card":"[card]","since":"2019"}
# model:   {"name":"Ann","email":"[email]","card":"[card]","since":"2019"}
# log:     safe
