"""HTTP API with servers and workers in separate processes that share a Postgres database."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import cast

import httpx
import psycopg
import pytest

from rxloop import AnyEvent, GapEvent, PostgresEventLog
from rxloop.client import Client
from rxloop.protocol.events import Event
from support.postgres.server import database
from support.processes.cluster import Cluster, cluster, load_balancer

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(180)]

READERS = 200
CONNECTIONS = {"server": 7, "worker": 8}
"""Maximum number of connections per process, including a listener for jobs in workers."""
STORY = "".join(f"word{number} " for number in range(40))
"""Answer that the agent streams for four seconds."""
_CONNECTIONS = """
SELECT application_name, count(*) FROM pg_stat_activity
WHERE datname = current_database() AND application_name <> 'counting' GROUP BY 1
"""


@pytest.fixture(scope="module")
def processes(postgres_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with database(postgres_server) as dsn, cluster(dsn, tmp_path_factory.mktemp("cluster"), flags=()) as started:
        yield started


@pytest.fixture
def replicas(processes: Cluster) -> Cluster:
    """Return the cluster after restarting the processes that the previous test killed."""
    processes.wait_until_ready()
    return processes


async def read_sse(url: str, task_id: str, last: str = "") -> AsyncGenerator[AnyEvent]:
    """Yield the server-sent events of a single connection."""
    headers = {"accept": "text/event-stream", **({"last-event-id": last} if last else {})}
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        client.stream("GET", f"/runs/{task_id}/events", headers=headers) as answer,
    ):
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                yield cast("AnyEvent", Event.from_json(line[5:]))


async def wait_for_command(dsn: str, task_id: str) -> None:
    async with aclosing(PostgresEventLog(dsn)) as log:
        while not await log.read_commands(task_id):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def read_until_delta(events: AsyncIterator[AnyEvent]) -> None:
    async for event in events:
        if event.kind == "content-delta":
            return


def check_complete(events: Sequence[AnyEvent]) -> None:
    """Check that all durable events occur once and the run is completed."""
    assert [event.seq for event in events if event.durable] == list(range(1, events[-1].seq + 1))
    assert getattr(events[-1], "state", None) == "completed"


def list_deltas(events: Sequence[AnyEvent], attempt: int) -> list[str]:
    return [event.delta for event in events if event.kind == "content-delta" and event.attempt == attempt]


async def test_deltas_of_a_run_can_be_followed_at_another_server(replicas: Cluster) -> None:
    async with replicas.clients() as (a, _):
        run = await a.start("clerk", "Tell")
        events = [event async for event in read_sse(replicas.urls[1], run.task_id)]
    check_complete(events)
    assert len(list_deltas(events, 1)) > 20


async def test_reader_that_connects_during_the_answer_receives_the_later_deltas(replicas: Cluster) -> None:
    async with replicas.clients() as (a, b):
        run = await a.start("clerk", "Talk for ever")
        for client in (a, b):
            async with aclosing(aiter(client.follow(run.task_id))) as events:
                await read_until_delta(events)
        assert (await b.cancel(run.task_id)).state == "canceled"


async def test_connection_continues_when_the_worker_is_killed_during_the_answer(replicas: Cluster) -> None:
    events: list[AnyEvent] = []
    async with replicas.clients() as (a, _):
        run = await a.start("clerk", "Tell")
        async for event in read_sse(replicas.urls[1], run.task_id):
            events.append(event)
            if event.kind == "content-delta" and len(list_deltas(events, 1)) == 8 and event.attempt == 1:
                (await replicas.owner(run.task_id)).kill()
    check_complete(events)
    [resumed] = [event for event in events if event.kind == "status-update" and event.resumed]
    assert resumed.attempt == 2
    assert len(list_deltas(events, 2)) > 20, "no deltas from the second worker"
    assert "".join(list_deltas(events, 2)) == STORY, "the second attempt must stream the complete message"


async def test_reader_that_changes_the_server_during_a_takeover_misses_nothing(replicas: Cluster) -> None:
    events: list[AnyEvent] = []
    async with replicas.clients() as (a, _):
        run = await a.start("clerk", "Tell")
        async with aclosing(read_sse(replicas.urls[0], run.task_id)) as first:
            async for event in first:
                events.append(event)
                if len(list_deltas(events, 1)) == 8:
                    break
        (await replicas.owner(run.task_id)).kill()
        while (await a.record(run.task_id)).attempt < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        events += [event async for event in read_sse(replicas.urls[1], run.task_id, events[-1].cursor)]
    check_complete(events)
    # The reader has deltas from the lost attempt, so it must be told to discard them.
    assert [event.reason for event in events if isinstance(event, GapEvent)] == ["lost-attempt"]
    assert len({event.cursor for event in events}) == len(events)
    assert len(list_deltas(events, 2)) > 20


async def test_client_continues_at_another_server_when_its_server_is_killed(replicas: Cluster) -> None:
    events: list[AnyEvent] = []
    async with load_balancer(*reversed(replicas.urls)) as url, replicas.clients() as (a, _), Client(url) as client:
        run = await a.start("clerk", "Tell")
        async for event in client.follow(run.task_id):
            events.append(event)
            if len(list_deltas(events, 1)) == 8 and event.kind == "content-delta":
                replicas.servers[1].kill()
    check_complete(events)
    assert {event.attempt for event in events} == {1}, "the run must not be restarted"
    assert len(list_deltas(events, 1)) > 20


async def test_run_of_a_worker_can_be_cancelled_at_another_server(replicas: Cluster) -> None:
    async with replicas.clients() as (a, b):
        run = await a.start("clerk", "Talk for ever")
        remaining_events = aiter(a.follow(run.task_id))
        await read_until_delta(remaining_events)
        assert (await b.cancel(run.task_id, "enough")).state == "canceled"
        remaining = [event async for event in remaining_events if event.durable]
    assert [(event.kind, event.attempt) for event in remaining] == [("content-complete", 1), ("status-update", 1)]
    assert all(f"Adopting orphaned run {run.task_id}" not in worker.log_text for worker in replicas.workers)


@pytest.mark.parametrize("has_workers", [True, False], ids=["other workers run", "no worker runs"])
async def test_run_of_a_dead_worker_can_be_cancelled_at_another_server(replicas: Cluster, has_workers: bool) -> None:
    async with replicas.clients() as (a, b):
        run = await a.start("clerk", "Talk for ever")
        remaining_events = aiter(a.follow(run.task_id))
        await read_until_delta(remaining_events)
        victims = [await replicas.owner(run.task_id)] if has_workers else replicas.workers
        # Freeze the owner first to prevent adoption before the command is stored.
        for each in victims:
            each.send(signal.SIGSTOP)
        async with asyncio.timeout(30):
            cancelling = asyncio.create_task(b.cancel(run.task_id, "enough"))
            await wait_for_command(replicas.dsn, run.task_id)
            for each in victims:
                each.kill()
            await cancelling
            remaining = [event async for event in remaining_events]
    assert [event.state for event in remaining if event.kind == "status-update" and event.final] == ["canceled"]
    assert remaining[-1].kind == "status-update"
    assert not [event for event in remaining if event.kind == "llm-call"], "the model must not be called again"


async def test_question_can_be_answered_at_another_server(replicas: Cluster) -> None:
    async with replicas.clients() as (a, b):
        run = await a.start("clerk", "Pay 5")
        events: list[AnyEvent] = []
        async for event in a.follow(run.task_id):
            events.append(event)
            if event.kind == "status-update" and event.pending:
                assert event.state == "input-required"
                await b.answer(run.task_id, {event.pending[0].input_id: True})
        assert (await b.record(run.task_id)).content == "It is paid 5."
    check_complete(events)


async def test_two_hundred_readers_need_no_additional_connection(replicas: Cluster) -> None:
    peak: Counter[str] = Counter()
    async with replicas.clients() as (a, _), AsyncExitStack() as stack:
        runs = [await a.start("clerk", "Talk on") for _ in range(10)]
        limits = httpx.Limits(max_connections=None)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=replicas.urls[1], timeout=60, limits=limits))
        counting = await psycopg.AsyncConnection.connect(f"{replicas.dsn}?application_name=counting", autocommit=True)
        await stack.enter_async_context(counting)
        live = [asyncio.Event() for _ in range(READERS)]

        async def read(number: int) -> None:
            async with http.stream("GET", f"/runs/{runs[number % len(runs)].task_id}/events") as answer:
                async for line in answer.aiter_lines():
                    if '"content-delta"' in line:
                        live[number].set()

        reading = asyncio.gather(*(read(number) for number in range(READERS)))
        await asyncio.gather(*(each.wait() for each in live))
        # By now, earlier and temporary connections are closed.
        for _ in range(10):
            rows = await (await counting.execute(_CONNECTIONS)).fetchall()
            peak |= Counter({str(name): int(count) for name, count in rows})
            await asyncio.wait([reading], timeout=0.05)
        for run in runs:
            await a.cancel(run.task_id)
        await reading
    for each in (*replicas.servers, *replicas.workers):
        assert 0 < peak.pop(each.name) <= CONNECTIONS[each.name[:-1]]
    assert not peak
