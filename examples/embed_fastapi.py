"""A run as a streaming endpoint: the client leaves, and the run is cancelled.

Run as a script, it serves on a free port and plays two clients itself: one that leaves and one that stays.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from rxloop import Agent, Event, MemoryEventLog, StatusUpdateEvent
from rxloop.testing import demo_model

try:
    import uvicorn
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse
except ImportError as error:
    sys.exit(f"This example needs FastAPI and uvicorn ({error}): pip install fastapi uvicorn")

QUESTION = "Plan a weekend in Oslo."


def make_app(agent: Agent) -> FastAPI:
    """A web application around an agent."""
    app = FastAPI()

    @app.post("/ask")  # POST: a browser's EventSource comes back after every end, and would ask the model again
    async def ask(question: str) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            async with agent.run(question) as run:
                async for frame in run.sse(heartbeat=15):
                    yield frame

        return StreamingResponse(body(), media_type="text/event-stream")

    return app


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Serve an application on a free port, and give its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def read(url: str, *, leave_after: int | None = None) -> list[Event]:
    """Be a client: read the events of a run, all of them or the first few."""
    events: list[Event] = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        async with client.stream("POST", "/ask", params={"question": QUESTION}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    events.append(Event.from_json(line.removeprefix("data: ")))
                if len(events) == leave_after:
                    break
    return events


async def main() -> None:
    """Serve, leave, look what became of the run, and then stay."""
    log = MemoryEventLog()
    async with Agent(demo_model(delay=0.03), log=log) as agent, serving(make_app(agent)) as url:
        seen = await read(url, leave_after=5)
        print(f"the first client read {', '.join(event.kind for event in seen)} and left")
        async for event in log.follow(seen[0].task_id):
            if isinstance(event, StatusUpdateEvent) and event.final:
                print(f"its run ended as {event.state}: {event.error.message if event.error else event.content}")
        seen = await read(url)
        print(f"the second client read {len(seen)} events; the last one is {seen[-1]}")


if __name__ == "__main__":
    asyncio.run(main())
