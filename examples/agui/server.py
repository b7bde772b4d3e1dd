"""A bank that pays when it is allowed to, over AG-UI: `python server.py 8000`, then `node client.mjs`.

The client script is the official one, @ag-ui/client: `npm install @ag-ui/client`.
"""

import sys

import uvicorn

from rxloop import Agent, MemoryEventLog, Runtime, tool
from rxloop.server import agui
from rxloop.testing import ScriptedModel, call, frames


@tool(approve=True)
async def pay(amount: int, to: str) -> str:
    """Pay somebody."""
    return f"paid {amount} to {to}"


# A model by its name, such as "openai/gpt-5-mini", in the place of the script.
model = ScriptedModel(call("pay", amount=20, to="Ann"), frames("Ann -has her -20.|"))
bank = Agent(model, tools=[pay], thoughts=False)
app = agui(Runtime({"bank": bank}, log=MemoryEventLog()))

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, log_level="warning")
