"""Official clients of all protocols over servers and workers in separate processes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types import a2a_pb2 as pb
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from openai import AsyncOpenAI

from rxloop import PostgresEventLog
from support.clients.a2a import collect_responses, message_request
from support.clients.mcp import LEGACY, result_text
from support.clients.replica_clients import KINDS, MCP, ClientView, OfficialClient, find_mismatches, node, open_client
from support.postgres.server import database
from support.processes.cluster import Cluster, cluster, load_balancer

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(120)]
with_node = pytest.mark.service("node-clients")

BY_HAND = pytest.mark.skipif("RXLOOP_CHAOS_KILLS" not in os.environ, reason="takes long: set RXLOOP_CHAOS_KILLS")
EVERY = [*KINDS, *MCP]
WHOLE = {"OpenAI, in the background", *MCP}
"""Clients that get whole messages instead of deltas."""
STORY = "".join(f"word{number} " for number in range(40))
"""Answer of the agent, which takes two seconds."""


@pytest.fixture(scope="module")
def processes(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with database(postgres_server) as dsn, cluster(dsn, tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def two(processes: Cluster) -> Cluster:
    """All processes, including those that the previous test killed."""
    processes.wait_until_ready()
    return processes


class Crowd:
    """One client of each kind, each with its own run."""

    def __init__(self, two: Cluster, log: PostgresEventLog, clients: dict[str, OfficialClient]) -> None:
        self.two, self.log, self.clients = two, log, clients

    async def run_all(self, act: Callable[[OfficialClient], Any]) -> dict[str, ClientView | BaseException]:
        """Run the same action for all clients concurrently."""
        done = await asyncio.gather(*(act(run_all) for run_all in self.clients.values()), return_exceptions=True)
        return dict(zip(self.clients, done, strict=True))

    async def wait_for_events(self, kind: str, number: int = 1) -> None:
        """Wait until every run has `number` events of a kind."""

        async def wait_for_run(client: OfficialClient) -> None:
            missing = number
            async for event in self.log.follow(await client.task_id(), deltas=True, until="end"):
                missing -= event.kind == kind
                if not missing:
                    return

        await asyncio.gather(*(wait_for_run(run_all) for run_all in self.clients.values()))

    async def find_errors(self, results: dict[str, Any]) -> list[str]:
        """Return all differences from the log."""
        wrong: list[str] = []
        for kind, its in results.items():
            if isinstance(its, BaseException):
                wrong.append(f"{kind}: {its}")
            else:
                wrong += await find_mismatches(kind, its, self.log, await self.clients[kind].task_id())
        return wrong


@asynccontextmanager
async def connect_crowd(two: Cluster) -> AsyncGenerator[Crowd]:
    log = PostgresEventLog(two.dsn)
    async with node() as process:
        yield Crowd(two, log, {kind: await open_client(process, kind, log) for kind in EVERY})
    await log.aclose()


@with_node
@pytest.mark.parametrize(
    ("says", "piece"),
    [
        ("Tell", "content-delta"),
        pytest.param("Think and look", "thought-delta", marks=BY_HAND),
        ("Think and look", "tool-call-delta"),
    ],
)
async def test_clients_reconnect_to_the_other_server_when_theirs_is_killed_within_a_message(
    two: Cluster, says: str, piece: str
) -> None:
    wait_for_run, other = two.urls
    async with connect_crowd(two) as clients:
        saying = asyncio.create_task(clients.run_all(lambda run_all: run_all.send(wait_for_run, says)))
        await clients.wait_for_events(piece, 5)
        two.servers[0].kill()
        broken = await saying
        assert all(isinstance(run_all, BaseException) for run_all in broken.values()), broken
        results = await clients.run_all(lambda run_all: run_all.reconnect(other))
        assert await clients.find_errors(results) == []


@with_node
async def test_clients_get_the_whole_answer_when_workers_are_killed_within_a_tool_and_a_message(
    two: Cluster,
) -> None:
    async with connect_crowd(two) as clients:
        saying = asyncio.create_task(clients.run_all(lambda run_all: run_all.send(two.urls[0], "Look and tell")))
        await clients.wait_for_events("tool-progress", 5)
        for run_all in two.workers:
            run_all.kill()
        two.workers[0].restart()
        await clients.wait_for_events("content-delta", 5)
        two.workers[0].kill()
        two.workers[0].restart()
        results = await saying
        assert await clients.find_errors(results) == []
        pieces = {
            kind: run_all.pieces
            for kind, run_all in results.items()
            if isinstance(run_all, ClientView) and kind not in WHOLE
        }
        assert min(pieces.values()) > 25, pieces


@with_node
async def test_clients_can_answer_at_the_other_server(two: Cluster) -> None:
    wait_for_run, other = two.urls
    async with connect_crowd(two) as clients:
        await clients.run_all(lambda run_all: run_all.send(wait_for_run, "Pay 5"))
        assert await clients.find_errors(await clients.run_all(lambda run_all: run_all.answer(other, True))) == []


@with_node
async def test_clients_are_notified_when_their_run_is_cancelled_at_the_other_server(two: Cluster) -> None:
    wait_for_run, _ = two.urls
    async with connect_crowd(two) as clients, two.clients() as (_, b):
        saying = asyncio.create_task(clients.run_all(lambda run_all: run_all.send(wait_for_run, "Talk for ever")))
        await clients.wait_for_events("content-delta")
        for run_all in clients.clients.values():
            await b.cancel(await run_all.task_id())
        assert await clients.find_errors(await saying) == []


async def test_openai_response_survives_its_worker_and_is_answered_at_another_server(two: Cluster) -> None:
    wait_for_run, other = (AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in two.urls)
    async with wait_for_run, other, two.clients() as (a, _):
        async with wait_for_run.responses.stream(model="clerk", input="Tell") as stream:
            deltas = 0
            async for event in stream:
                deltas += event.type == "response.output_text.delta"
                if event.type == "response.output_text.delta" and deltas == 5:
                    [run] = (await a.runs(limit=1)).runs
                    (await two.owner(run.task_id)).kill()
            response = await stream.get_final_response()
        assert response.status == "completed"
        assert response.output_text == STORY
        assert deltas > 25
        asks = await wait_for_run.responses.create(model="clerk", input="Pay 5")
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asks.output[-1].id, "approve": True}
        paid = await other.responses.create(model="clerk", previous_response_id=asks.id, input=[answer])
        assert paid.output_text == "It is paid 5."


async def test_a2a_task_survives_its_worker_and_can_be_subscribed_to_at_another_server(two: Cluster) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        wait_for_run, other = [await create_client(f"{url}/a2a", ClientConfig(httpx_client=http)) for url in two.urls]
        started = aiter(wait_for_run.send_message(message_request("Tell")))
        task_id = (await anext(started)).task.id
        pieces = 0
        async for update in other.subscribe(pb.SubscribeToTaskRequest(id=task_id)):
            pieces += update.HasField("artifact_update")
            if update.HasField("artifact_update") and pieces == 5:
                (await two.owner(task_id)).kill()
        remaining = await collect_responses(started)
        task = await other.get_task(pb.GetTaskRequest(id=task_id))
    assert pieces > 25
    assert remaining[-1].status_update.status.state == pb.TASK_STATE_COMPLETED
    assert task.artifacts[0].parts[0].text == STORY


async def test_requests_of_an_older_mcp_client_alternate_between_servers(two: Cluster) -> None:
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        load_balancer(*two.urls, round_robin=True) as url,
        httpx2.AsyncClient(timeout=60, limits=limits) as http,
        McpClient(streamable_http_client(f"{url}/mcp", http_client=http), mode=LEGACY) as client,
    ):
        for _ in range(3):
            assert [run_all.name for run_all in (await client.list_tools()).tools] == ["clerk", "continue_run"]
        assert result_text(await client.call_tool("clerk", {"prompt": "Tell"})) == STORY
