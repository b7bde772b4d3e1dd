"""Forks requested by clients, which must not repeat effects or forge results without the scope `effects`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from rxloop import Agent, MemoryEventLog, RunContext, client_tool, tool
from rxloop.server import Principal, bearer
from rxloop.testing import ScriptedModel, call
from support.api_server import TOKENS, RunningApi, serve_api

effects: list[str] = []
DEVELOPER = Principal("ann", frozenset({"effects"}))


@pytest.fixture(autouse=True)
def forget_effects() -> None:
    effects.clear()


def make_tools(**options: Any) -> list[Any]:
    @tool(approve=True, **options)
    async def pay(ctx: RunContext[Any], amount: int) -> str:
        """Pay."""
        effects.append(ctx.idempotency_key)
        return f"paid {amount}"

    @tool(**options)
    async def send(ctx: RunContext[Any]) -> str:
        """Send without approval."""
        effects.append(ctx.idempotency_key)
        return "sent"

    @tool(hidden=True)
    async def allow() -> str:
        """Check in secret."""
        return "refuse"

    return [pay, send, allow, client_tool("show", {"type": "object", "properties": {}})]


@asynccontextmanager
async def serve(*turns: Any, **options: Any) -> AsyncGenerator[tuple[RunningApi, httpx.AsyncClient]]:
    agent = Agent(ScriptedModel(*turns), tools=make_tools(**options), name="clerk")
    tokens = {**TOKENS, "developer-key": DEVELOPER}
    async with (
        serve_api(agent, log=MemoryEventLog(), auth=bearer(tokens)) as served,
        httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer ann-key"}, timeout=30) as client,
    ):
        yield served, client


async def start(client: httpx.AsyncClient) -> dict[str, Any]:
    return (await client.post("/runs?wait=10", json={"input": "Go"})).json()


async def answer(client: httpx.AsyncClient, run: dict[str, Any], value: Any = True) -> dict[str, Any]:
    inputs = {each["inputId"]: value for each in run["pending"]}
    return (await client.post(f"/runs/{run['taskId']}/resume?wait=10", json={"inputs": inputs})).json()


async def fork(client: httpx.AsyncClient, task_id: str, at: int, *, user: str = "ann", **body: Any) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {user}-key"}
    forked = await client.post(f"/runs/{task_id}/fork", json={"at": at, **body}, headers=headers)
    assert forked.status_code == 202, forked.text
    return (await client.get(f"/runs/{forked.json()['taskId']}?wait=10")).json()


async def find(served: RunningApi, task_id: str, kind: str) -> int:
    return next(event.seq for event in await served.runtime.log.read(task_id) if event.kind == kind)


@pytest.mark.parametrize("kind", ["content-complete", "input-required", "input-received", "tool-start"])
async def test_client_cannot_repeat_an_approved_call_with_forks(kind: str) -> None:
    async with serve(call("pay", amount=5), *["Done."] * 9) as (served, client):
        run = await start(client)
        await answer(client, run)
        assert len(effects) == 1
        at = await find(served, run["taskId"], kind)

        forks = [await fork(client, run["taskId"], at) for _ in range(3)]
        again = [await fork(client, forks[0]["taskId"], at) for _ in range(2)]

        assert [each["state"] for each in (*forks, *again)] == ["completed"] * 5
        assert len(effects) == 1
        messages = (await client.get(f"/runs/{again[0]['taskId']}/state")).json()["messages"]
        assert "was not made again" in messages[2]["content"]


async def test_client_asks_again_in_a_fork_when_the_original_run_still_waits() -> None:
    async with serve(call("pay", amount=5), *["Done."] * 9) as (served, client):
        run = await start(client)
        at = await find(served, run["taskId"], "input-required")
        forked = await fork(client, run["taskId"], at)
        assert forked["state"] == "input-required"
        assert effects == []
        assert (await answer(client, forked))["state"] == "completed"
        assert len(effects) == 1
        assert (await answer(client, run))["state"] == "completed"
        assert len(set(effects)) == 2


async def test_client_asks_again_in_a_fork_when_the_original_call_was_refused() -> None:
    async with serve(call("pay", amount=5), *["Done."] * 9) as (served, client):
        run = await start(client)
        await answer(client, run, value=False)
        forked = await fork(client, run["taskId"], await find(served, run["taskId"], "input-received"))
        assert forked["state"] == "input-required"
        assert effects == []


async def test_client_cannot_repeat_a_call_without_approval() -> None:
    async with serve(call("send"), *["Done."] * 9) as (served, client):
        run = await start(client)
        assert len(effects) == 1
        for kind in ("content-complete", "tool-start"):
            forked = await fork(client, run["taskId"], await find(served, run["taskId"], kind))
            assert forked["state"] == "completed"
        assert len(effects) == 1


async def test_idempotent_call_is_repeated_with_the_key_of_the_original_run() -> None:
    async with serve(call("send"), *["Done."] * 9, idempotent=True) as (served, client):
        run = await start(client)
        at = await find(served, run["taskId"], "content-complete")
        first = await fork(client, run["taskId"], at)
        await fork(client, first["taskId"], at)
        assert len(effects) == 3
        assert len(set(effects)) == 1


async def test_principal_with_the_scope_effects_can_repeat_an_approved_call() -> None:
    async with serve(call("pay", amount=5), *["Done."] * 9) as (served, client):
        run = await start(client)
        await answer(client, run)
        at = await find(served, run["taskId"], "input-received")
        forked = await fork(client, run["taskId"], at, user="developer")
        assert forked["state"] == "input-required"
        await answer(client, forked)
        assert len(set(effects)) == 2
        # Without the scope, the fork of the fork repeats neither call.
        assert (await fork(client, forked["taskId"], at))["state"] == "completed"
        assert len(effects) == 2


async def test_fork_of_a_trusted_fork_does_not_repeat_the_call_of_the_first_run() -> None:
    async with serve(call("pay", amount=5), *["Done."] * 9) as (served, client):
        run = await start(client)
        await answer(client, run)
        at = await find(served, run["taskId"], "input-required")
        trusted = await fork(client, run["taskId"], at, user="developer")
        assert trusted["state"] == "input-required"
        assert (await fork(client, trusted["taskId"], at))["state"] == "completed"
        assert len(effects) == 1


async def test_results_of_server_tools_are_refused_without_the_scope_effects() -> None:
    async with serve(call("send", _id="s"), *["Done."] * 9) as (served, client):
        run = await start(client)
        end = await find(served, run["taskId"], "tool-complete")
        for at in (end, end - 1, end - 2):
            for name in ("s", "1/0"):
                refused = await client.post(f"/runs/{run['taskId']}/fork", json={"at": at, "results": {name: "forged"}})
                assert refused.status_code == 403
                assert refused.json()["error"]["code"] == "forbidden"
                assert "`effects`" in refused.text
        forked = await fork(client, run["taskId"], end, user="developer", results={"s": "forged"})
        messages = (await client.get(f"/runs/{forked['taskId']}/state")).json()["messages"]
        assert messages[2]["content"] == "forged"


async def test_result_of_a_hidden_tool_is_refused_like_an_unknown_call() -> None:
    async with serve([call("allow", _id="secret")], *["Done."] * 9) as (served, client):
        run = await start(client)
        at = await find(served, run["taskId"], "tool-complete")
        answers = [
            await client.post(f"/runs/{run['taskId']}/fork", json={"at": at, "results": {name: "allow"}})
            for name in ("secret", "1/0", "unknown")
        ]
        assert {each.status_code for each in answers} == {422}
        assert len({each.text for each in answers}) == 1


async def test_client_may_replace_results_of_client_tools() -> None:
    async with serve(call("show", _id="s"), *["Done."] * 9) as (served, client):
        run = await start(client)
        await answer(client, run, value="shown")
        for kind in ("content-complete", "input-required", "input-received", "tool-complete"):
            at = await find(served, run["taskId"], kind)
            forked = await fork(client, run["taskId"], at, results={"s": "seen"})
            messages = (await client.get(f"/runs/{forked['taskId']}/state")).json()["messages"]
            assert messages[2]["content"] == "seen"


async def test_client_tool_is_asked_again_in_a_fork() -> None:
    async with serve(call("show", _id="s"), *["Done."] * 9) as (served, client):
        run = await start(client)
        await answer(client, run, value="shown")
        forked = await fork(client, run["taskId"], await find(served, run["taskId"], "input-received"))
        assert [each["inputKind"] for each in forked["pending"]] == ["tool"]


async def test_forks_are_restricted_without_authentication() -> None:
    agent = Agent(ScriptedModel(call("pay", _id="p", amount=5), *["Done."] * 9), tools=make_tools(), name="clerk")
    async with (
        serve_api(agent, log=MemoryEventLog(), auth=None) as served,
        httpx.AsyncClient(base_url=served.url, timeout=30) as client,
    ):
        run = await start(client)
        await answer(client, run)
        at = await find(served, run["taskId"], "input-received")
        forked = (await client.post(f"/runs/{run['taskId']}/fork", json={"at": at})).json()
        assert (await client.get(f"/runs/{forked['taskId']}?wait=10")).json()["state"] == "completed"
        refused = await client.post(f"/runs/{run['taskId']}/fork", json={"at": at, "results": {"p": "paid"}})
        assert refused.status_code == 403
        assert len(effects) == 1


async def test_call_of_a_working_run_is_not_repeated_by_a_fork() -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        """Work."""
        effects.append("slow")
        started.set()
        await finish.wait()
        return "worked"

    agent = Agent(ScriptedModel(call("slow"), *["Done."] * 9), tools=[slow], name="clerk")
    async with (
        serve_api(agent, log=MemoryEventLog()) as served,
        httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer ann-key"}, timeout=30) as client,
    ):
        run = (await client.post("/runs", json={"input": "Go"})).json()
        await started.wait()
        at = await find(served, run["taskId"], "content-complete")
        assert (await fork(client, run["taskId"], at))["state"] == "completed"
        finish.set()
        assert (await client.get(f"/runs/{run['taskId']}?wait=10")).json()["state"] == "completed"
    assert effects == ["slow"]


async def test_nested_calls_of_the_original_run_are_not_repeated() -> None:
    def make_agent(*turns: Any) -> Agent[Any, str]:
        inner = Agent(ScriptedModel(call("send"), *["Sent."] * 9), tools=make_tools(), name="inner")
        return Agent(ScriptedModel(*turns), tools=[inner.as_tool()], name="clerk")

    async with (
        serve_api(make_agent(call("inner", prompt="Send"), *["Done."] * 30), log=MemoryEventLog()) as served,
        httpx.AsyncClient(base_url=served.url, headers={"authorization": "Bearer ann-key"}, timeout=30) as client,
    ):
        run = await start(client)
        assert len(effects) == 1
        events = await served.runtime.log.read(run["taskId"])
        first = next(event.seq for event in events if event.kind == "content-complete")
        last = next(event.seq for event in events if event.kind == "tool-complete" and event.parent_task_id is None)
        for at in range(first, last):
            await fork(client, run["taskId"], at)
            assert len(effects) == 1, at
