"""HTTP API of an agent for multiple users, including a question that is answered by a client.

As a script, this file starts a server on a free port and simulates two users. To start only the server, run
`uvicorn serve:app --app-dir examples`. To send a request, run

    curl -N localhost:8000/runs -H 'Authorization: Bearer ann-key' -H 'Content-Type: application/json' \\
         -H 'Accept: text/event-stream' -d '{"input": "Is it warm in Oslo?"}'
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rxloop import Agent, InputRequiredEvent, MemoryEventLog, RunContext, RunRecord, Runtime, op, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.testing import demo_model

try:
    import uvicorn

    from rxloop.server import Api, api, bearer
except (ImportError, ValueError) as error:
    sys.exit(f"This example needs starlette and uvicorn ({error}): pip install 'rxloop[server]' uvicorn")


@dataclass
class Deps:
    """User data for tools."""

    user: str


@tool(approve=True)
async def get_weather(ctx: RunContext[Deps], city: str) -> dict[str, float | str]:
    """Current weather in a city. Costs the user one cent per call."""
    ctx.progress(f"{ctx.deps.user} pays a cent")
    return {"temperature": 18.0, "unit": "C", "sky": "sunny", "city": city}


def load_deps(record: RunRecord) -> Deps:
    """Create the deps based on the recorded owner, because clients cannot change it."""
    return Deps(user=record.owner or "anonymous")


def make_app() -> Api:
    """Create the application. It starts and stops the runtime."""
    support = Agent(demo_model(), tools=[get_weather], deps_type=Deps)
    runtime = Runtime({"support": support}, log=MemoryEventLog(), deps=load_deps)
    return api(runtime, auth=bearer({"ann-key": "ann", "bob-key": "bob"}))


app = make_app()


class Server(uvicorn.Server):
    """Server that closes its streams before shutting down."""

    def __init__(self, app: Api) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning"))
        self.app = app
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        self.is_listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain the application first, because uvicorn waits for open streams."""
        await self.app.drain(10)
        await super().shutdown(sockets)


@asynccontextmanager
async def serve(app: Api) -> AsyncGenerator[str]:
    """Serve the application on a free port, and yield its address."""
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


async def ask(client: Client, question: str) -> str:
    """Start a run, approve all tool calls, print the answer, and return the run's id."""
    run = await client.start("support", question)
    async for event in client.follow(run.task_id):
        if isinstance(event, InputRequiredEvent):
            print(f"  {event.input.prompt} yes")
            await client.answer(run.task_id, {event.input_id: True})
    print(" ", "".join([text async for text in client.follow(run.task_id).pipe(op.text())]))
    return run.task_id


async def main() -> None:
    """Start a run as Ann and check that Bob cannot read it."""
    async with serve(app) as url:
        async with Client(url, token="ann-key") as ann, Client(url, token="bob-key") as bob:
            print("Ann starts a run.")
            task_id = await ask(ann, "Is it warm in Oslo?")
            print("Bob tries to read it.")
            try:
                await bob.record(task_id)
            except ApiError as error:
                print(f"  {error}")
            print(f"Ann has {len((await ann.runs()).runs)} run, Bob has {len((await bob.runs()).runs)}.")


if __name__ == "__main__":
    asyncio.run(main())
