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

CHAOS_ONLY = pytest.mark.skipif("RXLOOP_CHAOS_KILLS" not in os.environ, reason="takes long: set RXLOOP_CHAOS_KILLS")
ALL_KINDS = [*KINDS, *MCP]
WITHOUT_DELTAS = {"OpenAI, in the background", *MCP}
"""Clients that receive complete messages without deltas."""
STORY = "".join(f"word{number} " for number in range(40))
"""Answer that the agent streams for two seconds."""


@pytest.fixture(scope="module")
def processes(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with database(postgres_server) as dsn, cluster(dsn, tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def replicas(processes: Cluster) -> Cluster:
    """Return the cluster after restarting the processes that the previous test killed."""
    processes.wait_until_ready()
    return processes


class Clients:
    """Set of connected clients, each with its own run."""

    def __init__(self, replicas: Cluster, log: PostgresEventLog, clients: dict[str, OfficialClient]) -> None:
        self.replicas, self.log, self.clients = replicas, log, clients

    async def run_all(self, action: Callable[[OfficialClient], Any]) -> dict[str, ClientView | BaseException]:
        """Run the same action for all clients concurrently."""
        results = await asyncio.gather(*(action(client) for client in self.clients.values()), return_exceptions=True)
        return dict(zip(self.clients, results, strict=True))

    async def wait_for_events(self, kind: str, number: int = 1) -> None:
        async def wait_for_run(client: OfficialClient) -> None:
            missing = number
            async for event in self.log.follow(await client.task_id(), deltas=True, until="end"):
                missing -= event.kind == kind
                if not missing:
                    return

        await asyncio.gather(*(wait_for_run(client) for client in self.clients.values()))

    async def find_errors(self, results: dict[str, Any]) -> list[str]:
        """Return the differences between the clients' views and the log."""
        errors: list[str] = []
        for kind, view in results.items():
            if isinstance(view, BaseException):
                errors.append(f"{kind}: {view}")
            else:
                errors += await find_mismatches(kind, view, self.log, await self.clients[kind].task_id())
        return errors


@asynccontextmanager
async def connect_clients(replicas: Cluster) -> AsyncGenerator[Clients]:
    log = PostgresEventLog(replicas.dsn)
    async with node() as process:
        yield Clients(replicas, log, {kind: await open_client(process, kind, log) for kind in ALL_KINDS})
    await log.aclose()


@with_node
@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("Tell", "content-delta"),
        pytest.param("Think and look", "thought-delta", marks=CHAOS_ONLY),
        ("Think and look", "tool-call-delta"),
    ],
)
async def test_clients_reconnect_to_the_other_server_when_theirs_is_killed_within_a_message(
    replicas: Cluster, prompt: str, kind: str
) -> None:
    first, other = replicas.urls
    async with connect_clients(replicas) as clients:
        sending = asyncio.create_task(clients.run_all(lambda client: client.send(first, prompt)))
        await clients.wait_for_events(kind, 5)
        replicas.servers[0].kill()
        broken = await sending
        assert all(isinstance(result, BaseException) for result in broken.values()), broken
        results = await clients.run_all(lambda client: client.reconnect(other))
        assert await clients.find_errors(results) == []


@with_node
async def test_clients_get_the_complete_answer_when_workers_are_killed_within_a_tool_and_a_message(
    replicas: Cluster,
) -> None:
    async with connect_clients(replicas) as clients:
        sending = asyncio.create_task(clients.run_all(lambda client: client.send(replicas.urls[0], "Look and tell")))
        await clients.wait_for_events("tool-progress", 5)
        for worker in replicas.workers:
            worker.kill()
        replicas.workers[0].restart()
        await clients.wait_for_events("content-delta", 5)
        replicas.workers[0].kill()
        replicas.workers[0].restart()
        results = await sending
        assert await clients.find_errors(results) == []
        chunks = {
            kind: view.pieces
            for kind, view in results.items()
            if isinstance(view, ClientView) and kind not in WITHOUT_DELTAS
        }
        assert min(chunks.values()) > 25, chunks


@with_node
async def test_clients_can_answer_at_the_other_server(replicas: Cluster) -> None:
    first, other = replicas.urls
    async with connect_clients(replicas) as clients:
        await clients.run_all(lambda client: client.send(first, "Pay 5"))
        assert await clients.find_errors(await clients.run_all(lambda client: client.answer(other, True))) == []


@with_node
async def test_clients_are_notified_when_their_run_is_cancelled_at_the_other_server(replicas: Cluster) -> None:
    first, _ = replicas.urls
    async with connect_clients(replicas) as clients, replicas.clients() as (_, b):
        sending = asyncio.create_task(clients.run_all(lambda client: client.send(first, "Talk for ever")))
        await clients.wait_for_events("content-delta")
        for client in clients.clients.values():
            await b.cancel(await client.task_id())
        assert await clients.find_errors(await sending) == []


async def test_openai_response_survives_its_worker_and_is_answered_at_another_server(replicas: Cluster) -> None:
    first, other = (AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in replicas.urls)
    async with first, other, replicas.clients() as (a, _):
        async with first.responses.stream(model="clerk", input="Tell") as stream:
            deltas = 0
            async for event in stream:
                deltas += event.type == "response.output_text.delta"
                if event.type == "response.output_text.delta" and deltas == 5:
                    [run] = (await a.runs(limit=1)).runs
                    (await replicas.owner(run.task_id)).kill()
            response = await stream.get_final_response()
        assert response.status == "completed"
        assert response.output_text == STORY
        assert deltas > 25
        paused = await first.responses.create(model="clerk", input="Pay 5")
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": paused.output[-1].id, "approve": True}
        paid = await other.responses.create(model="clerk", previous_response_id=paused.id, input=[answer])
        assert paid.output_text == "It is paid 5."


async def test_a2a_task_survives_its_worker_and_can_be_subscribed_to_at_another_server(replicas: Cluster) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        first, other = [await create_client(f"{url}/a2a", ClientConfig(httpx_client=http)) for url in replicas.urls]
        started = aiter(first.send_message(message_request("Tell")))
        task_id = (await anext(started)).task.id
        chunks = 0
        async for update in other.subscribe(pb.SubscribeToTaskRequest(id=task_id)):
            chunks += update.HasField("artifact_update")
            if update.HasField("artifact_update") and chunks == 5:
                (await replicas.owner(task_id)).kill()
        remaining = await collect_responses(started)
        task = await other.get_task(pb.GetTaskRequest(id=task_id))
    assert chunks > 25
    assert remaining[-1].status_update.status.state == pb.TASK_STATE_COMPLETED
    assert task.artifacts[0].parts[0].text == STORY


async def test_requests_of_an_older_mcp_client_alternate_between_servers(replicas: Cluster) -> None:
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        load_balancer(*replicas.urls, round_robin=True) as url,
        httpx2.AsyncClient(timeout=60, limits=limits) as http,
        McpClient(streamable_http_client(f"{url}/mcp", http_client=http), mode=LEGACY) as client,
    ):
        for _ in range(3):
            assert [each.name for each in (await client.list_tools()).tools] == ["clerk", "continue_run"]
        assert result_text(await client.call_tool("clerk", {"prompt": "Tell"})) == STORY
