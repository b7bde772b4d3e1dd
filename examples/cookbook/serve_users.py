"""Serve an agent over HTTP to several users, each with a key.

Use an adapter if browsers or other programs start runs. Users only see their own runs. `rxloop serve` starts the same
server from the command line.
"""

import asyncio

import httpx

from rxloop import Agent, MemoryEventLog, Runtime
from rxloop.server import api, bearer
from rxloop.testing import ScriptedModel

support = Agent(ScriptedModel("Your order arrives on Friday."))  # or Agent("openai:gpt-5")
runtime = Runtime({"support": support}, log=MemoryEventLog())  # or SqliteEventLog("runs.db")
app = api(runtime, auth=bearer({"key-of-ann-0123456789": "ann", "key-of-bob-0123456789": "bob"}))
# uvicorn serve_users:app


async def main() -> None:
    async with runtime, httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        ann, bob = ({"authorization": f"Bearer key-of-{user}-0123456789"} for user in ("ann", "bob"))
        run = (await client.post("/runs?wait=5", json={"input": "Where is my order?"}, headers=ann)).json()
        print("Ann:", run["state"], run["content"])
        for user, headers in {"Ann": ann, "Bob": bob, "nobody": {}}.items():
            response = await client.get(f"/runs/{run['taskId']}", headers=headers)
            print(f"{user}: {response.status_code}")
        print("Bob's runs:", (await client.get("/runs", headers=bob)).json())


asyncio.run(main())

# Output:
# Ann: completed Your order arrives on Friday.
# Ann: 200
# Bob: 404
# nobody: 401
# Bob's runs: {'runs': [], 'next': None}
