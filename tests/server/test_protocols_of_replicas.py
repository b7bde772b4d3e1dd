"""The other doors over servers and workers in processes of their own: official clients show what the log has."""

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
"""Those who have no pieces, but whole messages."""
STORY = "".join(f"word{number} " for number in range(40))
"""What the agent tells, in two seconds."""


@pytest.fixture(scope="module")
def processes(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with database(postgres_server) as dsn, cluster(dsn, tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture
def two(processes: Cluster) -> Cluster:
    """All processes, those too that the test before has killed."""
    processes.wait_until_ready()
    return processes


class Crowd:
    """A client of each kind, each with a run of its own."""

    def __init__(self, two: Cluster, log: PostgresEventLog, clients: dict[str, OfficialClient]) -> None:
        self.two, self.log, self.clients = two, log, clients

    async def each(self, act: Callable[[OfficialClient], Any]) -> dict[str, ClientView | BaseException]:
        """Have all of them do something at the same time."""
        done = await asyncio.gather(*(act(each) for each in self.clients.values()), return_exceptions=True)
        return dict(zip(self.clients, done, strict=True))

    async def until(self, kind: str, number: int = 1) -> None:
        """Wait until every run has so many events of a kind."""

        async def one(client: OfficialClient) -> None:
            left = number
            async for event in self.log.follow(await client.task_id(), deltas=True, until="end"):
                left -= event.kind == kind
                if not left:
                    return

        await asyncio.gather(*(one(each) for each in self.clients.values()))

    async def judged(self, shown: dict[str, Any]) -> list[str]:
        """All that is wrong."""
        wrong: list[str] = []
        for kind, its in shown.items():
            if isinstance(its, BaseException):
                wrong.append(f"{kind}: {its}")
            else:
                wrong += await find_mismatches(kind, its, self.log, await self.clients[kind].task_id())
        return wrong


@asynccontextmanager
async def crowd(two: Cluster) -> AsyncGenerator[Crowd]:
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
async def test_all_come_back_to_the_other_server_when_theirs_is_killed_in_the_middle_of_a_message(
    two: Cluster, says: str, piece: str
) -> None:
    one, other = two.urls
    async with crowd(two) as made:
        saying = asyncio.create_task(made.each(lambda each: each.send(one, says)))
        await made.until(piece, 5)
        two.servers[0].kill()
        broken = await saying
        assert all(isinstance(each, BaseException) for each in broken.values()), broken
        shown = await made.each(lambda each: each.reconnect(other))
        assert await made.judged(shown) == []


@with_node
async def test_all_are_told_the_whole_story_when_the_workers_are_killed_in_the_middle_of_a_tool_and_of_a_message(
    two: Cluster,
) -> None:
    async with crowd(two) as made:
        saying = asyncio.create_task(made.each(lambda each: each.send(two.urls[0], "Look and tell")))
        await made.until("tool-progress", 5)
        for each in two.workers:
            each.kill()
        two.workers[0].restart()
        await made.until("content-delta", 5)
        two.workers[0].kill()
        two.workers[0].restart()
        shown = await saying
        assert await made.judged(shown) == []
        pieces = {
            kind: each.pieces for kind, each in shown.items() if isinstance(each, ClientView) and kind not in WHOLE
        }
        assert min(pieces.values()) > 25, pieces


@with_node
async def test_all_answer_at_the_other_server(two: Cluster) -> None:
    one, other = two.urls
    async with crowd(two) as made:
        await made.each(lambda each: each.send(one, "Pay 5"))
        assert await made.judged(await made.each(lambda each: each.answer(other, True))) == []


@with_node
async def test_all_are_told_that_their_run_is_cancelled_at_the_other_server(two: Cluster) -> None:
    one, _ = two.urls
    async with crowd(two) as made, two.clients() as (_, b):
        saying = asyncio.create_task(made.each(lambda each: each.send(one, "Talk for ever")))
        await made.until("content-delta")
        for each in made.clients.values():
            await b.cancel(await each.task_id())
        assert await made.judged(await saying) == []


async def test_a_response_of_openai_outlives_its_worker_and_is_answered_at_another_server(two: Cluster) -> None:
    one, other = (AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) for url in two.urls)
    async with one, other, two.clients() as (a, _):
        async with one.responses.stream(model="clerk", input="Tell") as stream:
            deltas = 0
            async for event in stream:
                deltas += event.type == "response.output_text.delta"
                if event.type == "response.output_text.delta" and deltas == 5:
                    [run] = (await a.runs(limit=1)).runs
                    (await two.owner(run.task_id)).kill()
            response = await stream.get_final_response()
        assert (response.status, response.output_text) == ("completed", STORY)
        assert deltas > 25
        asks = await one.responses.create(model="clerk", input="Pay 5")
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": asks.output[-1].id, "approve": True}
        paid = await other.responses.create(model="clerk", previous_response_id=asks.id, input=[answer])
        assert paid.output_text == "It is paid 5."


async def test_a_task_of_a2a_is_subscribed_to_at_another_server_and_outlives_its_worker(two: Cluster) -> None:
    async with httpx.AsyncClient(timeout=60) as http:
        one, other = [await create_client(f"{url}/a2a", ClientConfig(httpx_client=http)) for url in two.urls]
        started = aiter(one.send_message(message_request("Tell")))
        task_id = (await anext(started)).task.id
        pieces = 0
        async for update in other.subscribe(pb.SubscribeToTaskRequest(id=task_id)):
            pieces += update.HasField("artifact_update")
            if update.HasField("artifact_update") and pieces == 5:
                (await two.owner(task_id)).kill()
        rest = await collect_responses(started)
        task = await other.get_task(pb.GetTaskRequest(id=task_id))
    assert pieces > 25
    assert rest[-1].status_update.status.state == pb.TASK_STATE_COMPLETED
    assert task.artifacts[0].parts[0].text == STORY


async def test_the_requests_of_an_older_client_of_mcp_go_round_the_servers(two: Cluster) -> None:
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with (
        load_balancer(*two.urls, round_robin=True) as url,
        httpx2.AsyncClient(timeout=60, limits=limits) as http,
        McpClient(streamable_http_client(f"{url}/mcp", http_client=http), mode=LEGACY) as client,
    ):
        for _ in range(3):
            assert [each.name for each in (await client.list_tools()).tools] == ["clerk", "continue_run"]
        assert result_text(await client.call_tool("clerk", {"prompt": "Tell"})) == STORY
