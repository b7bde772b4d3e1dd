"""Streaming endpoint that cancels a run when its client disconnects. Reconnecting clients read from the log.

As a script, this file starts a server on a free port and simulates two clients. The first one disconnects.
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
    """Create a web application for an agent."""
    app = FastAPI()

    # Use POST, because a browser's EventSource reconnects after the end and would start another run.
    @app.post("/ask")
    async def ask(question: str) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            async with agent.run(question) as run:
                async for frame in run.sse(heartbeat=15):
                    yield frame

        return StreamingResponse(body(), media_type="text/event-stream")

    # Browsers reconnect an EventSource automatically and send the id of the last event.
    @app.get("/runs/{task_id}/events")
    async def events(task_id: str, last_event_id: Annotated[str | None, Header()] = None) -> Response:
        if agent.log is None:
            # Other requests can only read a run if the agent has a log.
            return Response(status_code=404)
        stream = follow(agent.log, task_id, after=last_event_id or None, strict=False)
        try:
            if not await stream.has_more(last_event_id):
                # Status 204 prevents the EventSource from reconnecting.
                return Response(status_code=204)
        except UnknownRun:
            return Response(status_code=404)
        return StreamingResponse(stream.sse(), media_type="text/event-stream")

    return app


class Server(uvicorn.Server):
    """Server that sets an event when it accepts connections."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning", lifespan="off"))
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        self.is_listening.set()


@asynccontextmanager
async def serve(app: FastAPI) -> AsyncGenerator[str]:
    """Serve an application on a free port, and yield its address."""
    with socket.socket(proto=socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        server = Server(app)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        await server.is_listening.wait()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


async def read(url: str, *, words: int | None = None) -> list[Event]:
    """Start a run and read its events. If `words` is set, disconnect when the answer is long enough."""
    events: list[Event] = []
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        async with client.stream("POST", "/ask", params={"question": QUESTION}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    events.append(Event.from_json(line.removeprefix("data: ")))
                if words is not None and len(join_text(events).split()) >= words:
                    break
    return events


def join_text(events: list[Event]) -> str:
    """Join the text received so far."""
    return "".join(event.delta for event in events if isinstance(event, ContentDeltaEvent))


async def main() -> None:
    """Run two clients. The first client disconnects early, and the second client reads all events."""
    log = MemoryEventLog()
    async with Agent(demo_model(delay=0.03), log=log) as agent, serve(make_app(agent)) as url:
        received = await read(url, words=4)
        print(f"The first client read {len(received)} events and the text {join_text(received)!r}, then disconnected.")
        async for event in log.follow(received[0].task_id):
            if isinstance(event, StatusUpdateEvent) and event.error is not None:
                print(f"Its run ended in the state {event.state}: {event.error.message}.")

        received = await read(url)
        print(f"The second client read all {len(received)} events, up to {received[-1].kind} {received[-1].cursor}.")


if __name__ == "__main__":
    asyncio.run(main())
