"""Streaming endpoint of the FastAPI example, using real sockets."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rxloop import Agent, Event, MemoryEventLog, RunContext, tool
from rxloop.protocol import public_events
from rxloop.testing import ScriptedModel, call, frames

PATH = Path(__file__).parents[2] / "examples/embed_fastapi.py"
SECONDS = 5.0


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("embed_fastapi", PATH)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    # Dataclasses look up their module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    module.sessions |= {"ann-key": "ann", "bob-key": "bob"}
    yield module
    del sys.modules[spec.name]


AUTHORIZATION = {"authorization": "Bearer ann-key"}


@tool
async def get_weather(city: str) -> str:
    """Current weather."""
    return f"It is 7 C in {city}."


class Client:
    """HTTP client that can disconnect during a response, like a browser."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def ask(cls, url: str, question: str) -> Client:
        host, port = urlsplit(url).netloc.split(":")
        client = cls(*await asyncio.open_connection(host, int(port)))
        head = (
            f"POST /ask?question={question} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
            "authorization: Bearer ann-key\r\ncontent-length: 0\r\n\r\n"
        )
        client.writer.write(head.encode())
        assert b"200 OK" in await client.reader.readline()
        return client

    async def read_event(self) -> Any:
        """Return the next event, or None if the server has closed the connection."""
        while line := await self.reader.readline():
            if line.startswith(b"data: "):
                return Event.from_json(line.removeprefix(b"data: "))
        return None

    async def disconnect(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def read_until(client: Client, kind: str) -> Any:
    while event := await client.read_event():
        if event.kind == kind:
            return event
    raise AssertionError(f"the stream ended with no {kind}")


async def final_event(log: MemoryEventLog, task_id: str) -> Any:
    return [event async for event in log.follow(task_id)][-1]


async def has_no_run_tasks() -> None:
    tasks = [task for task in asyncio.all_tasks() if task.get_name().startswith(("rxloop-run-", "scripted"))]
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_run_is_cancelled_when_the_client_disconnects_during_a_stream(example: Any) -> None:
    # The second stream never ends. The first iteration is stored before it starts.
    log, model = MemoryEventLog(), ScriptedModel(call("get_weather", city="Oslo"), frames("-It-is", 0.01))
    async with asyncio.timeout(SECONDS):
        async with Agent(model, tools=[get_weather], deps_type=example.User, log=log) as agent:
            # On exit, `serve` waits for connections and their handlers.
            async with example.serve(example.make_app(agent, log)) as url:
                client = await Client.ask(url, "Weather?")
                seen = await read_until(client, "content-delta")
                assert model.open == 1
                await client.disconnect()
                final = await final_event(log, seen.task_id)
                await has_no_run_tasks()

    assert (final.kind, final.state) == ("status-update", "canceled")
    assert model.open == 0


async def test_tool_is_cancelled_when_the_client_disconnects(example: Any) -> None:
    cancelled: list[str] = []

    @tool
    async def slow_weather(ctx: RunContext[None], city: str) -> str:
        """Current weather, which never arrives."""
        ctx.progress("asking")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(city)
            raise
        return "unreachable"

    log, model = MemoryEventLog(), ScriptedModel(call("slow_weather", city="Oslo"))
    async with asyncio.timeout(SECONDS):
        async with Agent(model, tools=[slow_weather], deps_type=example.User, log=log) as agent:
            async with example.serve(example.make_app(agent, log)) as url:
                client = await Client.ask(url, "Weather?")
                seen = await read_until(client, "tool-progress")
                await client.disconnect()
                final = await final_event(log, seen.task_id)
                await has_no_run_tasks()

    assert (final.kind, final.state) == ("status-update", "canceled")
    assert cancelled == ["Oslo"]


async def test_client_receives_every_public_event_in_order(example: Any) -> None:
    log = MemoryEventLog()
    model = ScriptedModel(call("get_weather", city="Oslo"), frames("-It is-7 C.|", 0.001))
    async with asyncio.timeout(SECONDS):
        async with Agent(model, tools=[get_weather], deps_type=example.User, log=log) as agent:
            async with example.serve(example.make_app(agent, log)) as url:
                client = await Client.ask(url, "Weather?")
                seen: list[Any] = []
                while event := await client.read_event():
                    seen.append(event)
                await client.disconnect()
            recorded = await log.read(seen[0].task_id)

    assert [event for event in seen if event.durable] == public_events(recorded)
    places = [(event.seq, event.sub) for event in seen]
    assert places == sorted(set(places))
    assert "".join(event.delta for event in seen if event.kind == "content-delta") == "It is7 C."
    assert (seen[-1].kind, seen[-1].state, seen[-1].final) == ("status-update", "completed", True)


async def test_reconnected_browser_continues_and_stops_at_the_end(example: Any) -> None:
    log, model = MemoryEventLog(), ScriptedModel("It is 7 C.")
    async with asyncio.timeout(SECONDS), Agent(model, deps_type=example.User, log=log) as agent:
        result = await agent.run("Weather?", deps=example.User("ann"), owner="ann")
        recorded = public_events(await log.read(result.task_id))
        serving = example.serve(example.make_app(agent, log))
        async with (
            serving as url,
            httpx.AsyncClient(base_url=f"{url}/ask/{result.task_id}", headers=AUTHORIZATION) as client,
        ):
            whole = await client.get("/events")
            rest = await client.get("/events", headers={"last-event-id": recorded[1].cursor})
            at_the_end = await client.get("/events", headers={"last-event-id": recorded[-1].cursor})
            foreign = await client.get("/events", headers={"last-event-id": "elsewhere/1.99.0"})
            unknown = await client.get(f"{url}/ask/nobody/events")
            bob = await client.get("/events", headers={"authorization": "Bearer bob-key"})
            anonymous = await client.get("/events", headers={"authorization": ""})

    assert [each.status_code for each in (whole, rest, at_the_end, foreign, unknown)] == [200, 200, 204, 200, 404]
    assert [bob.status_code, anonymous.status_code] == [404, 401]
    assert whole.text.count("event: ") == len(recorded)
    assert rest.text.count("event: ") == len(recorded) - 2
    assert at_the_end.content == b""
    assert foreign.text.startswith("event: gap")


async def test_concurrent_clients_get_separate_runs(example: Any) -> None:
    log, model = MemoryEventLog(), ScriptedModel(frames("-One.|", 0.01), frames("-Two.|", 0.01))
    async with asyncio.timeout(SECONDS):
        async with (
            Agent(model, deps_type=example.User, log=log) as agent,
            example.serve(example.make_app(agent, log)) as url,
        ):
            clients = await asyncio.gather(Client.ask(url, "a"), Client.ask(url, "b"))
            finals = await asyncio.gather(*(read_until(client, "content-complete") for client in clients))
            await asyncio.gather(*(client.disconnect() for client in clients))

    assert sorted(final.content for final in finals) == ["One.", "Two."]
    assert finals[0].task_id != finals[1].task_id


@pytest.mark.parametrize(("password", "status"), [("blue", 200), ("green", 401), ("", 422)])
async def test_login_checks_the_password(example: Any, password: str, status: int) -> None:
    transport = httpx.ASGITransport(example.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        assert (await client.post("/login", data={"name": "ann", "password": password})).status_code == status


async def test_each_user_sees_only_their_own_runs(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    async with asyncio.timeout(SECONDS):
        await example.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Ann disconnects: canceled"
    assert lines[2:] == ["Over the API:    completed Those are your orders.", "Ann: 3 runs, 200", "Bob: 0 runs, 404"]
