"""Concurrent requests of owners to two server processes with one log."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.postgres.server import new_schema
from support.processes.bound_processes import start_process
from support.processes.replicas import free_port

PROGRAM = Path(__file__).parents[1] / "support/server_programs/owners.py"
PAIRS = 60

Ask = Any


class Servers:
    """Two server processes, with a client of each owner at each server."""

    def __init__(self, urls: list[str]) -> None:
        self.clients = {
            owner: [
                httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {owner}-key"}, timeout=60)
                for url in urls
            ]
            for owner in ("ann", "bob")
        }

    async def wait_ready(self) -> None:
        async with asyncio.timeout(60):
            for client in self.clients["ann"]:
                while True:
                    try:
                        if (await client.get("/readyz")).status_code == 200:
                            break
                    except httpx.TransportError:
                        await asyncio.sleep(0.05)

    async def aclose(self) -> None:
        for clients in self.clients.values():
            for client in clients:
                await client.aclose()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncGenerator[Servers]:
    if request.param == "sqlite":
        address = (str(tmp_path / "runs.db"), "")
    else:
        address = (request.getfixturevalue("postgres"), new_schema())
    ports = [free_port(), free_port()]
    async with AsyncExitStack() as stack:
        for port in ports:
            process = start_process([sys.executable, PROGRAM, *address, str(port)])
            stack.callback(process.wait)
            stack.callback(process.kill)
        servers = Servers([f"http://127.0.0.1:{port}" for port in ports])
        stack.push_async_callback(servers.aclose)
        await servers.wait_ready()
        yield servers


async def read_texts(client: httpx.AsyncClient, context_id: str) -> list[str]:
    messages = (await client.get(f"/contexts/{context_id}/messages")).json()["messages"]
    return [each["content"] for each in messages]


async def test_owners_who_start_one_conversation_at_once_get_separate_conversations(servers: Servers) -> None:
    ann, bob = servers.clients["ann"][0], servers.clients["bob"][1]
    for pair in range(PAIRS):
        body = {"contextId": f"c{pair}"}
        answers = await asyncio.gather(
            ann.post("/runs?wait=30", json={**body, "input": "Ann"}),
            bob.post("/runs?wait=30", json={**body, "input": "Bob"}),
        )
        assert [(each.status_code, each.json()["content"]) for each in answers] == [(200, "Ann"), (200, "Bob")]
    for pair in range(PAIRS):
        assert await read_texts(servers.clients["ann"][1], f"c{pair}") == ["Ann", "Ann"]
        assert await read_texts(servers.clients["bob"][0], f"c{pair}") == ["Bob", "Bob"]


async def test_one_of_two_concurrent_runs_is_refused_when_the_conversation_is_busy(servers: Servers) -> None:
    first, second = servers.clients["ann"]
    for pair in range(PAIRS):
        # Every second conversation already exists.
        if pair % 2:
            await first.post("/runs?wait=30", json={"input": "Hi", "contextId": f"c{pair}"})
        body = {"input": "Talk for ever", "contextId": f"c{pair}", "whenBusy": "refuse"}
        answers = await asyncio.gather(*(client.post("/runs", json=body) for client in (first, second)))
        assert sorted(each.status_code for each in answers) == [202, 409], pair
        [started] = [each.json() for each in answers if each.status_code == 202]
        await first.post(f"/runs/{started['taskId']}/cancel", json={})
