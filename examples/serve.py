"""An agent behind an HTTP API: users with runs of their own, and a question that is answered over the network.

As a script, it serves on a free port and plays two users itself. `uvicorn serve:app --app-dir examples` stays:

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
    """What the tools of a run know: whose it is."""

    user: str


@tool(approve=True)
async def get_weather(ctx: RunContext[Deps], city: str) -> dict[str, float | str]:
    """Current weather of a city; each look costs the user a cent."""
    ctx.progress(f"{ctx.deps.user} pays a cent")
    return {"temperature": 18.0, "unit": "C", "sky": "sunny", "city": city}


def deps_of(record: RunRecord) -> Deps:
    """Make the deps of a run of what the log knows of it, and never of what a client says."""
    return Deps(user=record.owner or "nobody")


def make_app() -> Api:
    """Make the application; it enters the runtime when it is served."""
    support = Agent(demo_model(), tools=[get_weather], deps_type=Deps)
    runtime = Runtime({"support": support}, log=MemoryEventLog(), deps=deps_of)
    return api(runtime, auth=bearer({"ann-key": "ann", "bob-key": "bob"}))


app = make_app()


class Server(uvicorn.Server):
    """A server that comes to its end in order: runs first, then streams, then connections."""

    def __init__(self, app: Api) -> None:
        super().__init__(uvicorn.Config(app, log_level="warning"))
        self.app = app
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the port."""
        await super().startup(sockets)
        self.listens.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain before the connections are closed: uvicorn itself would wait for streams that never end."""
        await self.app.drain(10)
        await super().shutdown(sockets)


@asynccontextmanager
async def serving(app: Api) -> AsyncGenerator[str]:
    """Serve the application on a free port, and yield its address."""
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


async def ask(client: Client, question: str) -> str:
    """Ask, agree to what the agent wants to do, and give the id of the run."""
    run = await client.start("support", question)
    async for event in client.follow(run.task_id):
        if isinstance(event, InputRequiredEvent):
            print(f"  {event.input.prompt} yes")
            await client.answer(run.task_id, {event.input_id: True})
    print(" ", "".join([text async for text in client.follow(run.task_id).pipe(op.text())]))
    return run.task_id


async def main() -> None:
    """Let Ann ask, and Bob look."""
    async with serving(app) as url:
        async with Client(url, token="ann-key") as ann, Client(url, token="bob-key") as bob:
            print("Ann asks.")
            task_id = await ask(ann, "Is it warm in Oslo?")
            print("Bob looks at her run.")
            try:
                await bob.record(task_id)
            except ApiError as error:
                print(f"  {error}")
            print(f"Ann has {len((await ann.runs()).runs)} run, Bob has {len((await bob.runs()).runs)}.")


if __name__ == "__main__":
    asyncio.run(main())
