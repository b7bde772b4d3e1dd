"""A log in Postgres whose network fails: it swallows, delays, cuts off in the middle, or forgets one end."""

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
from rxloop.testing.event_log_contract.toolkit import begun, end, note
from support.postgres.logs import MakeLog
from support.postgres.proxies import Proxy, proxy

pytestmark = pytest.mark.service("postgres")

LEASE = 2.0
FOUND_OUT = LEASE + 3
"""Seconds after which an owner that is cut off knows it."""


@pytest.fixture
async def way(postgres: str) -> AsyncIterator[Proxy]:
    """The way to the server that fails."""
    async with proxy(postgres) as made:
        yield made


class Lost(asyncio.Event):
    """Set when a turn is lost."""

    def __call__(self) -> None:
        self.set()


async def taken(log: PostgresEventLog, task_id: str = "run") -> float:
    """Take the turn as soon as it is free; give the seconds until then."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(20):
        while not await log.acquire_lease("c", task_id, pytest.fail):  # noqa: ASYNC110 it is not told
            await asyncio.sleep(0.02)
    return loop.time() - began


async def owned(log: PostgresEventLog) -> Lost:
    """Begin a run with its turn."""
    lost = Lost()
    assert await log.acquire_lease("c", "run", lost)
    await log.append("run", begun(context_id="c"), expected_seq=0, writer="owner")
    return lost


# -- nothing passes any more


async def test_the_tools_of_an_owner_that_is_cut_off_stop_and_its_run_goes_on_elsewhere(
    way: Proxy, new_log: MakeLog
) -> None:
    working, stopped = asyncio.Event(), asyncio.Event()

    @tool
    async def work() -> str:
        """Works for an hour."""
        working.set()
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.set()
        return "done"

    model = ScriptedModel(call("work"), "It was interrupted.")

    def agent(log: PostgresEventLog) -> Agent[None, str]:
        return Agent(model, name="a", tools=[work], log=log)

    here, there = new_log(way.address, lease=LEASE), new_log(lease=LEASE)
    run = agent(here).run("Work", context_id="c")
    await run.begin()
    await asyncio.wait_for(working.wait(), 10)

    way.black_hole()
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(FOUND_OUT):
        await stopped.wait()
    with pytest.raises(RunError) as caught:
        await run
    assert caught.value.code == "fenced"
    while not await there.list_orphaned():  # noqa: ASYNC110 it is not told
        await asyncio.sleep(0.05)
    assert loop.time() - began < FOUND_OUT
    working.clear()
    # It is not idempotent, and so is not begun again.
    assert (await agent(there).get_run(run.task_id).execute()).state == "completed"
    assert not working.is_set()

    way.heal()
    events = await here.read(run.task_id)
    assert [event.seq for event in events] == [*range(1, len(events) + 1)]
    assert [e.state for e in events if isinstance(e, StatusUpdateEvent) and e.final] == ["completed"]


async def test_what_an_owner_has_sent_into_a_dead_network_does_no_harm_when_it_arrives(
    way: Proxy, new_log: MakeLog
) -> None:
    cut_off, second = new_log(way.address, lease=LEASE), new_log(lease=LEASE)
    lost = await owned(cut_off)
    way.black_hole()
    late = asyncio.create_task(cut_off.append("run", [note(3)], expected_seq=2, writer="owner"))
    assert await taken(second) < FOUND_OUT
    await asyncio.wait_for(lost.wait(), FOUND_OUT)
    await second.append("run", [note(3), note(4)], expected_seq=2, writer="second")
    way.heal()
    with pytest.raises(Fenced):
        await asyncio.wait_for(late, 10)
    assert not await cut_off.has_lease("c", "run")
    assert not await cut_off.acquire_lease("c", "run", pytest.fail)
    await second.append("run", [end(5)], expected_seq=4, writer="second")
    assert len(await cut_off.read("run")) == 5


async def test_an_owner_that_is_cut_off_for_less_than_the_lease_keeps_its_turn(way: Proxy, new_log: MakeLog) -> None:
    owner, second = new_log(way.address, lease=4), new_log()
    lost = await owned(owner)
    way.black_hole()
    late = asyncio.create_task(owner.append("run", [note(3)], expected_seq=2, writer="owner"))
    lane = owner._engine().turns.lane
    async with asyncio.timeout(4):
        while not lane.silent > 1:  # noqa: ASYNC110 it is not told
            await asyncio.sleep(0.02)
    way.heal()
    await asyncio.wait_for(late, 10)
    assert await owner.has_lease("c", "run")
    assert not await second.acquire_lease("c", "run", pytest.fail)
    assert not lost.is_set()


# -- one end is forgotten


async def test_an_owner_whose_session_the_server_takes_for_open_ends_it_and_keeps_its_turn(
    way: Proxy, new_log: MakeLog
) -> None:
    owner, second = new_log(way.address, lease=1000), new_log()
    lost = await owned(owner)
    way.forget_clients()
    assert await owner.has_lease("c", "run")
    await owner.append("run", [note(3)], expected_seq=2, writer="owner")
    assert not await second.acquire_lease("c", "run", pytest.fail)
    await owner.release_lease("c", "run")
    assert await second.acquire_lease("c", "run", pytest.fail)
    assert not lost.is_set()


async def test_an_owner_whose_session_has_ended_unseen_has_its_turn_again_before_the_lease_is_over(
    way: Proxy, new_log: MakeLog
) -> None:
    owner, second = new_log(way.address, lease=LEASE), new_log()
    lost = await owned(owner)
    first = owner._engine().turns._session
    owner._engine().write._answers_in = 0.5
    way.forget_server()
    async with asyncio.timeout(FOUND_OUT):
        while owner._engine().turns._session == first:  # noqa: ASYNC110 it is not told
            await asyncio.sleep(0.02)
    assert await owner.has_lease("c", "run")
    assert not await second.acquire_lease("c", "run", pytest.fail)
    await owner.append("run", [note(3)], expected_seq=2, writer="owner")
    assert not lost.is_set()


async def test_an_owner_whose_session_has_ended_unseen_finds_out_that_another_has_its_turn(
    way: Proxy, new_log: MakeLog
) -> None:
    owner, second = new_log(way.address, lease=LEASE), new_log()
    lost = await owned(owner)
    owner._engine().write._answers_in = 0.5
    way.forget_server()
    await taken(second)
    await asyncio.wait_for(lost.wait(), FOUND_OUT)
    with pytest.raises(Fenced):
        await owner.append("run", [note(3)], expected_seq=2, writer="owner")
    assert len(await second.read("run")) == 2


async def test_what_is_written_over_a_connection_that_the_server_has_forgotten_is_written_over_another_one(
    way: Proxy, new_log: MakeLog
) -> None:
    log = new_log(way.address, patience=0.1)
    await log.append("run", begun(), expected_seq=0)
    log._engine().write._answers_in = 0.5
    way.forget_server()
    await log.append("run", [note(3)], expected_seq=2)


# -- answers


async def test_a_batch_whose_answer_is_cut_off_in_the_middle_is_there_once(way: Proxy, new_log: MakeLog) -> None:
    log = new_log(way.address)
    await log.append("run", begun(), expected_seq=0, writer="owner")
    for seq in range(3, 23):
        way.cut_after = 3 * (seq - 3)
        await log.append("run", [note(seq)], expected_seq=seq - 1, writer="owner" if seq % 2 else "")
        assert way.cut_after is None
    assert [event.seq for event in await log.read("run")] == [*range(1, 23)]


async def test_a_long_way_to_the_server_costs_no_turn_and_few_round_trips(
    way: Proxy, new_log: MakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = 0

    async def counting(*given: Any) -> Any:
        nonlocal statements
        statements += 1
        return await write(*given)

    monkeypatch.setattr("rxloop.storage.postgres.engine.write", counting)
    way.delay = 0.15
    far, near = new_log(way.address, lease=LEASE), new_log()
    lost = await owned(far)
    statements = 0

    async def run(name: str) -> None:
        await far.append(name, begun(name), expected_seq=0, writer=name)
        for seq in range(3, 18, 3):
            await far.append(name, [note(seq), note(seq + 1), note(seq + 2)], expected_seq=seq - 1, writer=name)

    await asyncio.gather(*(run(f"far{number}") for number in range(100)))
    # Six batches each, and each batch of all runs goes together.
    assert statements <= 14
    beats = far._engine().turns.lane
    session = beats._connection
    for _ in range(8):
        await asyncio.sleep(LEASE / 4)
        assert not await near.acquire_lease("c", "run", pytest.fail)
    assert beats._connection is session
    assert not lost.is_set()
    way.delay = 0
