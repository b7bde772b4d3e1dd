"""A run as a streaming endpoint: when the client leaves, the run is cancelled. A client that reconnects reads the log.

As a script, it serves on a free port and plays two clients itself: one that leaves and one that stays.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import httpx

from rxloop import Agent, ContentDeltaEvent, Event, MemoryEventLog, StatusUpdateEvent, follow
from rxloop.errors import UnknownRun
from rxloop.testing import demo_model

try:
    import uvicorn
    from fastapi import FastAPI, Header, Response
    from fastapi.responses import StreamingResponse
except ImportError as error:
    sys.exit(f"This example needs FastAPI and uvicorn ({error}): pip install fastapi uvicorn")

QUESTION = "Plan a weekend in Oslo."


def make_app(agent: Agent) -> FastAPI:
    """Make a web application around an agent."""
    app = FastAPI()

    @app.post("/ask")  # POST: a browser's EventSource reconnects after every end, and would ask the model again
    async def ask(question: str) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            async with agent.run(question) as run:
                async for frame in run.sse(heartbeat=15):
                    yield frame

        return StreamingResponse(body(), media_type="text/event-stream")

    @app.get("/runs/{task_id}/events")  # an EventSource reconnects here by itself, with the last id that it saw
    async def events(task_id: str, last_event_id: Annotated[str | None, Header()] = None) -> Response:
        if agent.log is None:
            return Response(status_code=404)  # a run without a log ends with its request
        stream = follow(agent.log, task_id, after=last_event_id or None, strict=False)
        try:
            if not await stream.has_more(last_event_id):
                return Response(status_code=204)  # nothing more to come: tells the EventSource not to reconnect
        except UnknownRun:
            return Response(status_code=404)
        return StreamingResponse(stream.sse(), media_type="text/event-stream")

    return app


class Server(uvicorn.Server):
    """A server that says when it is listening."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        self.listens.set()


@asynccontextmanager
async def serving(app: FastAPI) -> AsyncGenerator[str]:
    """Serve an application on a free port, and yield its address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(app)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.listens.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def read(url: str, *, words: int | None = None) -> list[Event]:
    """Read the events of a run as a client, to the end or up to some words of the answer."""
    events: list[Event] = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        async with client.stream("POST", "/ask", params={"question": QUESTION}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    events.append(Event.from_json(line.removeprefix("data: ")))
                if words is not None and len(text_of(events).split()) >= words:
                    break
    return events


def text_of(events: list[Event]) -> str:
    """Return the text of the answer so far."""
    return "".join(event.delta for event in events if isinstance(event, ContentDeltaEvent))


async def main() -> None:
    """Serve, leave, look what became of the run, then ask again and stay."""
    log = MemoryEventLog()
    async with Agent(demo_model(delay=0.03), log=log) as agent, serving(make_app(agent)) as url:
        seen = await read(url, words=4)
        print(f"The first client read {len(seen)} events, saw {text_of(seen)!r}, and left.")
        async for event in log.follow(seen[0].task_id):
            if isinstance(event, StatusUpdateEvent) and event.error is not None:
                print(f"Its run: {event.state}, because {event.error.message}.")

        seen = await read(url)
        print(f"The second client read all {len(seen)} events, to {seen[-1].kind} {seen[-1].cursor}.")


if __name__ == "__main__":
    asyncio.run(main())
