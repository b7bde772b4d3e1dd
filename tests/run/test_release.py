"""A released run has no end in the log and can be resumed by any process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, RunCancelled, RunError, StatusUpdateEvent, ToolStartEvent, follow, tool
from rxloop.errors import ConfigurationError
from rxloop.protocol.events import ContentCompleteEvent, ToolCompleteEvent
from rxloop.state.history import INTERRUPTED
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.run_checks import assert_no_tasks, final_events, kinds, wait_until
from support.runs import collect


class Shop:
    """Slow payments and idempotent lookups."""

    def __init__(self) -> None:
        self.log = MemoryEventLog()
        self.paid: list[str] = []
        self.looked = 0

        @tool
        async def pay() -> str:
            """Pays."""
            self.paid.append("begun")
            await asyncio.sleep(1)
            self.paid.append("done")
            return "paid"

        @tool(idempotent=True)
        async def look() -> str:
            """Looks."""
            self.looked += 1
            await asyncio.sleep(60)
            return "seen"

        self.tools = [pay, look]

    def agent(self, *turns: Any) -> Agent[None, str]:
        return Agent(ScriptedModel(*turns), tools=self.tools, log=self.log)


def test_released_run_ends_for_its_readers_but_not_in_the_log() -> None:
    shop = Shop()
    with virtual_time() as time:
        run = shop.agent(call("look")).run("Go")
        time.at(0.5, lambda: asyncio.ensure_future(run.release()))
        live = time.run(collect(run))
        recorded = time.run(shop.log.read(run.task_id))
        [record] = time.run(shop.log.list_runs())

    assert final_events(recorded) == []
    assert kinds(recorded)[-2:] == ["tool-start", "status-update"]
    assert isinstance(recorded[-1], StatusUpdateEvent)
    assert (recorded[-1].state, recorded[-1].reason) == ("working", "released")
    assert record.state == "working"
    last = live[-1]
    assert isinstance(last, StatusUpdateEvent)
    assert last.error is not None
    assert last.final
    assert last.state == "working"
    assert last.error.code == "released"
    assert last.error.retryable
    assert [event for event in live[:-1] if event.durable] == list(recorded)


def test_released_run_can_be_resumed_immediately() -> None:
    shop = Shop()
    with virtual_time() as time:
        run = shop.agent(call("look")).run("Go", context_id="c")
        time.at(0.5, lambda: asyncio.ensure_future(run.release()))
        with pytest.raises(RunError, match="was released") as caught:
            time.run(run)
        assert caught.value.code == "released"
        assert time.now < 1
        result = time.run(shop.agent("done").resume(run.task_id))

    assert result.output == "done"
    assert shop.looked == 2


@pytest.mark.parametrize(("grace", "paid", "answer"), [(5, ["begun", "done"], "paid"), (0.2, ["begun"], INTERRUPTED)])
def test_release_grace_applies_to_tools_that_are_not_idempotent(grace: float, paid: list[str], answer: str) -> None:
    shop = Shop()
    with virtual_time() as time:
        run = shop.agent([call("pay"), call("look")], "never asked").run("Go")
        released: list[float] = []

        async def release() -> None:
            await run.release(grace)
            released.append(time.now)

        time.at(0.5, lambda: asyncio.ensure_future(release()))
        time.run(collect(run))
        assert released == [min(1, 0.5 + grace)]
        assert shop.paid == paid
        resumed = shop.agent("done").resume(run.task_id)
        time.run(resumed)
        events = time.run(shop.log.read(run.task_id))

    [payment_result] = [e.content for e in events if isinstance(e, ToolCompleteEvent) and e.name == "pay"]
    assert payment_result == answer
    assert shop.paid == paid


def test_no_call_starts_during_the_grace_period() -> None:
    shop = Shop()
    with virtual_time() as time:
        # The sixth call waits for a free slot.
        run = shop.agent([call("pay") for _ in range(6)]).run("Go")
        time.at(0.5, lambda: asyncio.ensure_future(run.release(5)))
        time.run(collect(run))
        events = time.run(shop.log.read(run.task_id))

    assert len([event for event in events if isinstance(event, ToolStartEvent)]) == 5
    assert len([event for event in events if isinstance(event, ToolCompleteEvent)]) == 5


def test_interrupted_answer_is_requested_again_after_a_release() -> None:
    shop = Shop()
    with virtual_time() as time:
        run = shop.agent(frames("-late")).run("Go")
        time.at(0.5, lambda: asyncio.ensure_future(run.release()))
        time.run(collect(run))
        result = time.run(shop.agent("early").resume(run.task_id))
        events = time.run(shop.log.read(run.task_id))

    assert result.output == "early"
    assert [event.content for event in events if isinstance(event, ContentCompleteEvent)] == ["early"]


def test_follower_continues_with_the_next_attempt_after_a_release() -> None:
    shop = Shop()
    with virtual_time() as time:

        async def main() -> list[str]:
            run = shop.agent(call("look")).run("Go")
            run.events.subscribe(lambda event: None)
            await wait_until(lambda: shop.looked)
            follower = asyncio.ensure_future(collect(follow(shop.log, run.task_id)))
            await run.release()
            await asyncio.sleep(0)
            assert not follower.done()
            await shop.agent("done").resume(run.task_id)
            return kinds(await follower)

        assert time.run(main())[-1] == "status-update"


def test_aclose_of_agent_releases_its_runs() -> None:
    shop = Shop()
    with virtual_time() as time:

        async def main() -> None:
            agent = shop.agent(call("pay"), call("look"))
            runs = [agent.run("Go") for _ in range(2)]
            for run in runs:
                run.events.subscribe(lambda event: None)
            await wait_until(lambda: shop.paid and shop.looked)
            await agent.aclose(release=5)
            await assert_no_tasks()

        time.run(main())
        records = time.run(shop.log.list_runs())

    assert [record.state for record in records] == ["working", "working"]
    assert shop.paid == ["begun", "done"]


async def test_aclose_of_agent_cancels_a_run_without_log() -> None:
    agent = Agent(ScriptedModel(frames("-late")))
    run = agent.run("Go")
    run.events.subscribe(lambda event: None)
    await asyncio.sleep(0)

    await agent.aclose(release=5)

    with pytest.raises(RunCancelled):
        await run
    with pytest.raises(ConfigurationError, match="has no log"):
        await run.release()


async def test_release_of_finished_run_changes_nothing() -> None:
    shop = Shop()
    run = shop.agent("done").run("Go")
    result = await run
    await run.release()
    assert (await run).output == result.output
    assert len(final_events(await shop.log.read(run.task_id))) == 1


async def test_run_released_before_it_starts_leaves_no_record() -> None:
    shop = Shop()
    blocking_run = shop.agent(call("look")).run("Go", context_id="c")
    blocking_run.events.subscribe(lambda event: None)
    await wait_until(lambda: shop.looked)
    queued = shop.agent("done").run("Go", context_id="c", when_busy="wait")
    queued.events.subscribe(lambda event: None)
    await asyncio.sleep(0)

    await queued.release()

    with pytest.raises(RunCancelled, match="before it started"):
        await queued
    assert len(await shop.log.list_runs()) == 1
    await blocking_run.release()
    await assert_no_tasks()


async def test_release_rejects_negative_grace() -> None:
    run = Shop().agent("done").run("Go")
    with pytest.raises(ConfigurationError, match="grace must be a number of at least 0"):
        await run.release(-1)
    await run
