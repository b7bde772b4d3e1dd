"""Stream an answer from a FastAPI endpoint to a browser.

Use this to embed an agent in your own application. A client that disconnects cancels its run. Start the application
with `uvicorn fastapi_stream:app`, without the last line.
"""

import asyncio
from collections.abc import AsyncIterator

import httpx
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from rxloop import Agent
from rxloop.testing import ScriptedModel

app = FastAPI()
agent = Agent(ScriptedModel("Blue light is scattered."))  # or Agent("openai:gpt-5")


@app.post("/ask")
async def ask(question: str) -> StreamingResponse:
    async def body() -> AsyncIterator[bytes]:
        async with agent.run(question) as run:
            async for frame in run.sse():
                yield frame

    return StreamingResponse(body(), media_type="text/event-stream")


async def read_stream() -> None:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://app") as client:
        async with client.stream("POST", "/ask", params={"question": "Why is the sky blue?"}) as response:
            print(response.status_code, response.headers["content-type"])
            async for line in response.aiter_lines():
                if line.startswith("event:") or '"delta"' in line:
                    print(line.partition('"delta"')[2] or line)


asyncio.run(read_stream())

# Output:
# 200 text/event-stream; charset=utf-8
# event: task
# event: status-update
# event: llm-call
# event: content-delta
# :"Blue light is scattered.","index":0}
# event: content-complete
# event: checkpoint
# event: status-update
