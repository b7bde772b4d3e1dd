"""Forks with an idempotency key."""

from __future__ import annotations

import asyncio
from typing import Any

from rxloop import Agent, MemoryEventLog
from rxloop.client import Client
from rxloop.server import ServerLimits
from rxloop.testing import ScriptedModel
from support.api_server import make_client, serve_api

KEY = {"idempotency-key": "fork-1"}


def make_clerk() -> Agent[Any, Any]:
    return Agent(ScriptedModel(*["Hello."] * 12), name="clerk")


async def test_key_creates_one_fork_per_owner() -> None:
    log = MemoryEventLog()
    async with (
        serve_api(make_clerk(), log=log) as served,
        make_client(served.url) as ann,
        make_client(served.url, "bob-key") as bob,
    ):
        original = (
            await ann.post("/runs?wait=10", json={"input": "Hi"}, headers=KEY | {"idempotency-key": "a"})
        ).json()
        of_bob = (await bob.post("/runs?wait=10", json={"input": "Hi"})).json()
        path = f"/runs/{original['taskId']}/fork"
        forks = await asyncio.gather(*(ann.post(path, json={"at": 1}, headers=KEY) for _ in range(5)))
        again = await ann.post(path, json={"at": 1}, headers=KEY)
        unrelated = await bob.post(f"/runs/{of_bob['taskId']}/fork", json={"at": 1}, headers=KEY)
        runs = await log.list_runs(owner="ann")
    assert {each.status_code for each in [*forks, again, unrelated]} == {202}
    [fork_id] = {each.json()["taskId"] for each in [*forks, again]}
    assert {each.task_id for each in runs} == {original["taskId"], fork_id}
    assert unrelated.json()["taskId"] != fork_id


async def test_key_cannot_be_used_for_a_different_request() -> None:
    async with serve_api(make_clerk()) as served, make_client(served.url) as ann:
        first = (await ann.post("/runs?wait=10", json={"input": "Hi"}, headers=KEY)).json()
        second = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        of_start = await ann.post(f"/runs/{first['taskId']}/fork", json={"at": 1}, headers=KEY)
        key = {"idempotency-key": "fork-2"}
        fork = await ann.post(f"/runs/{first['taskId']}/fork", json={"at": 1}, headers=key)
        others = [
            await ann.post(f"/runs/{first['taskId']}/fork", json={"at": 1, "input": "Bye"}, headers=key),
            await ann.post(f"/runs/{second['taskId']}/fork", json={"at": 1}, headers=key),
            await ann.post("/runs", json={"input": "Hi"}, headers=key),
        ]
    assert fork.status_code == 202
    assert [(each.status_code, each.json()["error"]["code"]) for each in [of_start, *others]] == [(422, "key_used")] * 4


async def test_forks_without_a_key_are_different_runs() -> None:
    async with serve_api(make_clerk()) as served, make_client(served.url) as ann:
        original = (await ann.post("/runs?wait=10", json={"input": "Hi"}, headers=KEY)).json()
        forks = [await ann.post(f"/runs/{original['taskId']}/fork", json={"at": 1}) for _ in range(2)]
    assert len({each.json()["taskId"] for each in forks}) == 2


async def test_client_repeats_a_fork_with_its_key() -> None:
    async with serve_api(make_clerk(), limits=ServerLimits(runs=1)) as served:
        async with Client(served.url, token="ann-key") as ann:
            run = await ann.start(None, "Ask", wait=10)
            forks = [await ann.fork(run.task_id, 1, key="fork-1") for _ in range(2)]
    assert forks[0].task_id == forks[1].task_id


async def test_position_of_a_fork_must_be_a_number() -> None:
    async with serve_api(make_clerk()) as served, make_client(served.url) as ann:
        original = (await ann.post("/runs?wait=10", json={"input": "Hi"})).json()
        response = await ann.post(f"/runs/{original['taskId']}/fork", json={"at": True})
    assert response.status_code == 422
    assert response.json()["error"]["fields"]["at"] == "Input should be a number, not true or false"


async def test_settings_must_be_numbers() -> None:
    settings = ("temperature", "top_p", "max_tokens", "seed")
    async with serve_api(make_clerk(), settings=settings) as served, make_client(served.url) as ann:
        for name in ("temperature", "topP", "maxTokens", "seed"):
            response = await ann.post("/runs", json={"input": "Hi", "settings": {name: True}})
            assert response.status_code == 422
            assert f"settings.{name}" in response.json()["error"]["fields"]
