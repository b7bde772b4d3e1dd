"""FastAPI application with users: a streaming endpoint, and the HTTP API of the agents below a path.

`/ask` streams a run and cancels it if its client disconnects. Reconnecting clients read from the log. `/agents` serves
runs that continue without their client. Each user can only access their own runs. Start it with
`uvicorn embed_fastapi:app --app-dir examples`. As a script, this file starts a server and simulates two users.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated

import httpx
from starlette.requests import HTTPConnection

from rxloop import (
    Agent,
    ContentDeltaEvent,
    Event,
    EventLog,
    MemoryEventLog,
    RunContext,
    RunRecord,
    Runtime,
    follow,
    tool,
)
from rxloop.errors import UnknownRun
from rxloop.server import Principal, api
from rxloop.testing import ScriptedModel, call, frames

try:
    import uvicorn
    from fastapi import Depends, FastAPI, Form, Header, HTTPException, Response
    from fastapi.responses import StreamingResponse
except ImportError as error:
    sys.exit(f"This example needs FastAPI and uvicorn ({error}): pip install fastapi python-multipart uvicorn")

PASSWORDS = {"ann": "blue", "bob": "green"}  # store hashes in a real application
ORDERS = {"ann": ["A1: a lamp"], "bob": ["B7: a chair"]}
sessions: dict[str, str] = {}


@dataclass
class User:
    """User data for tools."""

    name: str


@tool(read_only=True)
async def list_orders(ctx: RunContext[User]) -> list[str]:
    """List all orders of the current user."""
    return ORDERS[ctx.deps.name]


async def load_deps(record: RunRecord) -> User:
    """Create the deps based on the recorded owner, because clients cannot change it."""
    return User(record.owner or "")


async def get_user(request: HTTPConnection) -> str:
    """Return the name of the logged-in user, for routes of the application."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token not in sessions:
        raise HTTPException(401, "log in first")
    return sessions[token]


async def auth(request: HTTPConnection) -> Principal | None:
    """Authenticate requests to the HTTP API. The user becomes the owner of new runs."""
    try:
        return Principal(await get_user(request))
    except HTTPException:
        return None


def make_app(agent: Agent[User, str], log: EventLog) -> FastAPI:
    """Create a web application for an agent with this log."""
    runtime = Runtime({"clerk": agent}, log=log, deps=load_deps)
    agents = api(runtime, auth=auth)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with runtime:
            yield
            await agents.drain(5)

    app = FastAPI(lifespan=lifespan)

    @app.post("/login")
    async def login(name: Annotated[str, Form()], password: Annotated[str, Form()]) -> str:
        if not secrets.compare_digest(PASSWORDS.get(name, "").encode(), password.encode()) or not password:
            raise HTTPException(401, "unknown user or wrong password")
        token = secrets.token_urlsafe()
        sessions[token] = name
        return token

    # Use POST, because a browser's EventSource reconnects after the end and would start another run.
    @app.post("/ask")
    async def ask(question: str, user: Annotated[str, Depends(get_user)]) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            async with agent.run(question, deps=User(user), owner=user) as run:
                async for frame in run.sse(heartbeat=15):
                    yield frame

        return StreamingResponse(body(), media_type="text/event-stream")

    # Browsers reconnect an EventSource automatically and send the id of the last event.
    @app.get("/ask/{task_id}/events")
    async def events(
        task_id: str, user: Annotated[str, Depends(get_user)], last_event_id: Annotated[str | None, Header()] = None
    ) -> Response:
        stream = follow(log, task_id, after=last_event_id or None, strict=False)
        try:
            if (await log.get_record(task_id)).owner != user:
                return Response(status_code=404)
            if not await stream.has_more(last_event_id):
                # Status 204 prevents the EventSource from reconnecting.
                return Response(status_code=204)
        except UnknownRun:
            return Response(status_code=404)
        return StreamingResponse(stream.sse(), media_type="text/event-stream")

    app.mount("/agents", agents)
    return app


# To use a real model, pass a model string such as "openai:gpt-5" instead.
answer = frames("-Those -are -your -orders.|", 0.05)
model = ScriptedModel(*[call("list_orders"), answer] * 3)
log = MemoryEventLog()
clerk = Agent(model, name="clerk", tools=[list_orders], deps_type=User, log=log)
app = make_app(clerk, log)


class Server(uvicorn.Server):
    """Server that sets an event when it accepts connections."""

    def __init__(self, app: FastAPI) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning"))
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


@asynccontextmanager
async def connect(url: str, name: str) -> AsyncGenerator[httpx.AsyncClient]:
    """Log in, and yield a client of the user."""
    async with httpx.AsyncClient(base_url=url, timeout=30) as client:
        token = (await client.post("/login", data={"name": name, "password": PASSWORDS[name]})).json()
        client.headers["authorization"] = f"Bearer {token}"
        yield client


async def read(client: httpx.AsyncClient, *, words: int | None = None) -> list[Event]:
    """Start a run and read its events. If `words` is set, disconnect when the answer is long enough."""
    events: list[Event] = []
    async with client.stream("POST", "/ask", params={"question": "What have I ordered?"}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                events.append(Event.from_json(line.removeprefix("data: ")))
            if sum(isinstance(event, ContentDeltaEvent) for event in events) == words:
                break
    return events


async def main() -> None:
    """Disconnect early as Ann, ask again, and check that Bob cannot read her runs."""
    async with clerk, serve(app) as url, connect(url, "ann") as ann, connect(url, "bob") as bob:
        task_id = (await read(ann, words=2))[0].task_id
        path = f"/agents/runs/{task_id}"
        print("Ann disconnects:", (await ann.get(path, params={"wait": 5})).json()["state"])
        print("Ann asks again: ", (await read(ann))[-1])
        run = (await ann.post("/agents/runs?wait=10", json={"input": "What have I ordered?"})).json()
        print("Over the API:   ", run["state"], run["content"])
        for name, client in (("Ann", ann), ("Bob", bob)):
            listed = (await client.get("/agents/runs")).json()["runs"]
            print(f"{name}: {len(listed)} runs,", (await client.get(path)).status_code)


if __name__ == "__main__":
    asyncio.run(main())
