"""Network failures between a log and Postgres."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import Agent, PostgresEventLog, RunError, tool
from rxloop.errors import Fenced
from rxloop.protocol.events import StatusUpdateEvent
from rxloop.storage.postgres.rows import write
from rxloop.testing import ScriptedModel, call
from rxloop.testing.event_log_contract.toolkit import end, note, start_events
from support.postgres.logs import MakeLog
from support.postgres.proxies import Proxy, proxy

pytestmark = pytest.mark.service("postgres")

LEASE = 2.0
DETECTION = LEASE + 3
"""Seconds until a disconnected owner must notice the loss of its lease."""


@pytest.fixture
async def network(postgres: str) -> AsyncIterator[Proxy]:
    """Proxy that can simulate network failures."""
    async with proxy(postgres) as server_proxy:
        yield server_proxy


class LostLease(asyncio.Event):
    """Callback that sets an event when the lease is lost."""

    def __call__(self) -> None:
        self.set()


async def measure_acquisition(log: PostgresEventLog, task_id: str = "run") -> float:
    """Try until the lease is acquired, and return the elapsed seconds."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.timeout(20):
        while not await log.acquire_lease("c", task_id, pytest.fail):  # noqa: ASYNC110 (no notification exists)
            await asyncio.sleep(0.02)
    return loop.time() - start


async def start_owned_run(log: PostgresEventLog) -> LostLease:
    lost = LostLease()
    assert await log.acquire_lease("c", "run", lost)
    await log.append("run", start_events(context_id="c"), expected_seq=0, writer="owner")
    return lost


# -- no data passes


async def test_disconnected_owner_stops_its_tools_and_the_run_continues_elsewhere(
    network: Proxy, new_log: MakeLog
) -> None:
    working, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Work for an hour."""
        working.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return "done"

    model = ScriptedModel(call("work"), "It was interrupted.")

    def make_agent(log: PostgresEventLog) -> Agent[None, str]:
        return Agent(model, name="a", tools=[work], log=log)

    here, there = new_log(network.address, lease=LEASE), new_log(lease=LEASE)
    run = make_agent(here).run("Work", context_id="c")
    await run.begin()
    await asyncio.wait_for(working.wait(), 10)

    network.black_hole()
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with asyncio.timeout(DETECTION):
        await stopped.wait()
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "fenced"
    while not await there.list_orphaned():  # noqa: ASYNC110 (no notification exists)
        await asyncio.sleep(0.05)
    assert loop.time() - start < DETECTION
    working.clear()
    # Interrupted tools run again only if they are idempotent.
    assert (await make_agent(there).get_run(run.task_id).execute()).state == "completed"
    assert not working.is_set()

    network.heal()
    events = await here.read(run.task_id)
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert [e.state for e in events if isinstance(e, StatusUpdateEvent) and e.final] == ["completed"]


async def test_late_batch_of_a_disconnected_owner_is_fenced(network: Proxy, new_log: MakeLog) -> None:
    disconnected, second = new_log(network.address, lease=LEASE), new_log(lease=LEASE)
    lost = await start_owned_run(disconnected)
    network.black_hole()
    late = asyncio.create_task(disconnected.append("run", [note(3)], expected_seq=2, writer="owner"))
    assert await measure_acquisition(second) < DETECTION
    await asyncio.wait_for(lost.wait(), DETECTION)
    await second.append("run", [note(3), note(4)], expected_seq=2, writer="second")
    network.heal()
    with pytest.raises(Fenced):
        await asyncio.wait_for(late, 10)
    assert not await disconnected.has_lease("c", "run")
    assert not await disconnected.acquire_lease("c", "run", pytest.fail)
    await second.append("run", [end(5)], expected_seq=4, writer="second")
    assert len(await disconnected.read("run")) == 5


async def test_owner_disconnected_for_less_than_the_lease_keeps_its_lease(network: Proxy, new_log: MakeLog) -> None:
    owner, second = new_log(network.address, lease=4), new_log()
    lost = await start_owned_run(owner)
    network.black_hole()
    late = asyncio.create_task(owner.append("run", [note(3)], expected_seq=2, writer="owner"))
    connection = owner._engine().leases.connection
    async with asyncio.timeout(4):
        while not connection.silence > 1:  # noqa: ASYNC110 (no notification exists)
            await asyncio.sleep(0.02)
    network.heal()
    await asyncio.wait_for(late, 10)
    assert await owner.has_lease("c", "run")
    assert not await second.acquire_lease("c", "run", pytest.fail)
    assert not lost.is_set()


# -- one side loses the connection


async def test_owner_replaces_a_session_that_the_server_still_considers_open(network: Proxy, new_log: MakeLog) -> None:
    owner, second = new_log(network.address, lease=1000), new_log()
    lost = await start_owned_run(owner)
    network.forget_clients()
    assert await owner.has_lease("c", "run")
    await owner.append("run", [note(3)], expected_seq=2, writer="owner")
    assert not await second.acquire_lease("c", "run", pytest.fail)
    await owner.release_lease("c", "run")
    assert await second.acquire_lease("c", "run", pytest.fail)
    assert not lost.is_set()


async def test_owner_reacquires_its_lease_when_its_session_ended_unnoticed(network: Proxy, new_log: MakeLog) -> None:
    owner, second = new_log(network.address, lease=LEASE), new_log()
    lost = await start_owned_run(owner)
    first = owner._engine().leases._session
    owner._engine().write._timeout = 0.5
    network.forget_server()
    async with asyncio.timeout(DETECTION):
        while owner._engine().leases._session == first:  # noqa: ASYNC110 (no notification exists)
            await asyncio.sleep(0.02)
    assert await owner.has_lease("c", "run")
    assert not await second.acquire_lease("c", "run", pytest.fail)
    await owner.append("run", [note(3)], expected_seq=2, writer="owner")
    assert not lost.is_set()


async def test_owner_learns_that_another_process_has_acquired_its_lease(network: Proxy, new_log: MakeLog) -> None:
    owner, second = new_log(network.address, lease=LEASE), new_log()
    lost = await start_owned_run(owner)
    owner._engine().write._timeout = 0.5
    network.forget_server()
    await measure_acquisition(second)
    await asyncio.wait_for(lost.wait(), DETECTION)
    with pytest.raises(Fenced):
        await owner.append("run", [note(3)], expected_seq=2, writer="owner")
    assert len(await second.read("run")) == 2


async def test_write_over_a_forgotten_connection_is_repeated_over_a_new_one(network: Proxy, new_log: MakeLog) -> None:
    log = new_log(network.address, timeout=0.1)
    await log.append("run", start_events(), expected_seq=0)
    log._engine().write._timeout = 0.5
    network.forget_server()
    await log.append("run", [note(3)], expected_seq=2)


# -- answers


async def test_batch_is_stored_once_when_its_answer_is_truncated(network: Proxy, new_log: MakeLog) -> None:
    log = new_log(network.address)
    await log.append("run", start_events(), expected_seq=0, writer="owner")
    for seq in range(3, 23):
        network.cut_after = 3 * (seq - 3)
        await log.append("run", [note(seq)], expected_seq=seq - 1, writer="owner" if seq % 2 else "")
        assert network.cut_after is None
    assert [event.seq for event in await log.read("run")] == [*range(1, 23)]


async def test_slow_network_loses_no_lease_and_needs_few_round_trips(
    network: Proxy, new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = 0

    async def count(*arguments: Any) -> Any:
        nonlocal statements
        statements += 1
        return await write(*arguments)

    monkeypatch.setattr("rxloop.storage.postgres.engine.write", count)
    network.delay = 0.15
    far, near = new_log(network.address, lease=LEASE), new_log()
    lost = await start_owned_run(far)
    statements = 0

    async def run(name: str) -> None:
        await far.append(name, start_events(name), expected_seq=0, writer=name)
        for seq in range(3, 18, 3):
            await far.append(name, [note(seq), note(seq + 1), note(seq + 2)], expected_seq=seq - 1, writer=name)

    await asyncio.gather(*(run(f"far{number}") for number in range(100)))
    # Concurrent batches share a statement, so six rounds need few statements.
    assert statements <= 14
    lease_connection = far._engine().leases.connection
    session = lease_connection._connection
    for _ in range(8):
        await asyncio.sleep(LEASE / 4)
        assert not await near.acquire_lease("c", "run", pytest.fail)
    assert lease_connection._connection is session
    assert not lost.is_set()
    network.delay = 0
