"""Bank agent with payment approval, served over AG-UI.

Start the server with `uvicorn agui_bank:app --app-dir examples`, and the official client (`npm install @ag-ui/client`)
with `node examples/agui_bank/client.mjs http://localhost:8000/`. As a script, this file simulates the client.
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
    """Pay a recipient."""
    return f"paid {amount} to {to}"


# To use a real model, pass a model string such as "openai:gpt-5" instead.
model = ScriptedModel(call("pay", amount=20, to="Ann"), frames("Ann -has her -20.|"))
bank = Agent(model, tools=[pay], thoughts=False)
runtime = Runtime({"bank": bank}, log=MemoryEventLog())
app = agui(runtime)


async def ask(client: httpx.AsyncClient, run_id: str, **fields: Any) -> list[dict[str, Any]]:
    """Send a request like an AG-UI client, print the response, and return the open questions."""
    body: dict[str, Any] = {
        "threadId": "t1",
        "runId": run_id,
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }
    questions: list[dict[str, Any]] = []
    async with client.stream("POST", "/", json={**body, **fields}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                event = json.loads(line[6:])
                print(event["type"], event.get("delta") or event.get("content") or "")
                questions += event.get("outcome", {}).get("interrupts", [])
    return questions


async def main() -> None:
    """Simulate the client."""
    message = {"id": "m1", "role": "user", "content": "Pay Ann 20."}
    transport = httpx.ASGITransport(app)
    async with runtime, httpx.AsyncClient(transport=transport, base_url="http://bank") as client:
        [question] = await ask(client, "r1", messages=[message])
        print(question["message"])
        approval = {"interruptId": question["id"], "status": "resolved", "payload": True}
        await ask(client, "r2", messages=[message], resume=[approval])


if __name__ == "__main__":
    asyncio.run(main())
