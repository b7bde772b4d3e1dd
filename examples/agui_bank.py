"""A bank that pays when it is allowed to, over AG-UI.

`uvicorn agui_bank:app --app-dir examples` serves it, `node examples/agui_bank/client.mjs http://localhost:8000/` is the
official client (`npm install @ag-ui/client`). As a script, this plays the client itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import httpx

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.testing import ScriptedModel, call, frames

try:
    from rxloop.server import agui
except (ImportError, ValueError) as error:
    sys.exit(f"This example needs the extra agui ({error}): pip install 'rxloop[agui]'")


@tool(approve=True)
async def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


# A model by its name, such as "openai:gpt-5", in the place of the script.
model = ScriptedModel(call("pay", amount=20, to="Ann"), frames("Ann -has her -20.|"))
bank = Agent(model, tools=[pay], thoughts=False)
runtime = Runtime({"bank": bank}, log=MemoryEventLog())
app = agui(runtime)


async def ask(client: httpx.AsyncClient, run_id: str, **asked: Any) -> list[dict[str, Any]]:
    """Send what a client of AG-UI sends, print what comes, and give the questions that are open at the end."""
    body: dict[str, Any] = {
        "threadId": "t1",
        "runId": run_id,
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    questions: list[dict[str, Any]] = []
    async with client.stream("POST", "/", json={**body, **asked}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                print(event["type"], event.get("delta") or event.get("content") or "")
                questions += event.get("outcome", {}).get("interrupts", [])
    return questions


async def main() -> None:
    """Play the client."""
    hello = {"id": "m1", "role": "user", "content": "Pay Ann 20."}
    transport = httpx.ASGITransport(app)
    async with runtime, httpx.AsyncClient(transport=transport, base_url="http://bank") as client:
        [question] = await ask(client, "r1", messages=[hello])
        print(question["message"])
        allowed = {"interruptId": question["id"], "status": "resolved", "payload": True}
        await ask(client, "r2", messages=[hello], resume=[allowed])


if __name__ == "__main__":
    asyncio.run(main())
