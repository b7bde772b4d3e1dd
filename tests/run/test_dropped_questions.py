"""Pending questions during later runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

import pytest

from rxloop import Agent, Event, MemoryEventLog, RunRecord, tool
from rxloop.errors import ContextBusy, LogUnreachable
from rxloop.pipeline.records import Snapshot
from rxloop.protocol.commands import AnswerCommand, CancelCommand, Command
from rxloop.support.tasks import GRACE
from rxloop.testing import ScriptedModel, call, virtual_time
from support.processes.machines import Machines, states
from support.run_checks import assert_no_tasks, final_events


async def test_unstarted_later_run_drops_no_question(machines: Machines) -> None:
    a, b = machines
    first = (
        await a.agent(call("pay", amount=5)).get_run((await a.agent().submit("Pay", context_id="c")).task_id).execute()
    )
    second = await a.agent().submit("And now?", context_id="c")
    await a.agent().get_run(first.task_id).answer({"1.0.1": True})

    records = await asyncio.gather(
        b.agent("later").get_run(second.task_id).execute(), a.agent("paid").get_run(first.task_id).execute()
    )

    assert [record.state for record in records] == ["completed", "completed"]
    result = await b.agent().resume(second.task_id)
    assert [message.text for message in result.messages][-3:] == ["paid", "And now?", "later"]


async def test_answer_to_a_dropped_question_does_not_change_the_run(machines: Machines) -> None:
    a, b = machines
    first = (
        await a.agent(call("pay", amount=5)).get_run((await a.agent().submit("Pay", context_id="c")).task_id).execute()
    )
    await a.agent("never mind").run("And now?", context_id="c")
    # The answer was sent at the moment when the later run started.
    await a.log.send_command(first.task_id, AnswerCommand(inputs={"1.0.1": True}))

    assert (await b.agent().get_run(first.task_id).execute()).state == "canceled"
    assert b.paid == []
    third = await a.agent().submit("And then?", context_id="c")
    assert (await b.agent("well").get_run(third.task_id).execute()).state == "completed"


def test_cancel_command_ends_a_run_with_a_dropped_question(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            first = (
                await a.agent(call("pay", amount=5))
                .get_run((await a.agent().submit("Pay", context_id="c")).task_id)
                .execute()
            )
            # Simulate a sender crash before this run is closed.
            await a.log.send_command(first.task_id, CancelCommand(reason="enough"))
            later = await b.agent(call("work"), "never").run("And now?", context_id="c").begin()
            await later.release()

            async with asyncio.timeout(100):
                records = await asyncio.gather(
                    a.agent().get_run(first.task_id).execute(),
                    b.agent("done").get_run(later.task_id).execute(),
                    return_exceptions=True,
                )
            assert [record.state for record in records if isinstance(record, RunRecord)] == ["canceled", "completed"]
            assert await states(a, first.task_id) == ["input-required", "canceled"]

        time.run(main())


async def test_new_run_does_not_drop_an_answered_question(machines: Machines) -> None:
    a, b = machines
    first = (
        await a.agent(call("pay", amount=5)).get_run((await a.agent().submit("Pay", context_id="c")).task_id).execute()
    )
    await a.agent().get_run(first.task_id).answer({"1.0.1": True})

    with pytest.raises(ContextBusy, match=f"{first.task_id}.* was answered"):
        await b.agent("never").run("And now?", context_id="c")
    queued_run = b.agent("later").run("And then?", context_id="c", when_busy="wait").start()
    assert (await a.agent("paid").get_run(first.task_id).execute()).state == "completed"
    assert [message.text for message in (await queued_run).messages][-3:] == ["paid", "And then?", "later"]
    assert a.paid == [5]
    await assert_no_tasks()


async def test_resumed_submitted_run_does_not_drop_an_answered_question(machines: Machines) -> None:
    a, b = machines
    first = (
        await a.agent(call("pay", amount=5)).get_run((await a.agent().submit("Pay", context_id="c")).task_id).execute()
    )
    second = await a.agent().submit("And now?", context_id="c")
    await a.agent().get_run(first.task_id).answer({"1.0.1": True})
    with pytest.raises(ContextBusy, match=first.task_id):
        await b.agent("never").resume(second.task_id)


async def test_cancel_command_does_not_block_a_new_run(machines: Machines) -> None:
    a, b = machines
    first = (
        await a.agent(call("pay", amount=5)).get_run((await a.agent().submit("Pay", context_id="c")).task_id).execute()
    )
    await a.log.send_command(first.task_id, CancelCommand(reason="enough"))
    assert (await b.agent("later").run("And now?", context_id="c")).output == "later"


def test_answer_that_arrives_before_a_run_starts_is_not_dropped(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            first = (
                await a.agent(call("pay", amount=5))
                .get_run((await a.agent().submit("Pay", context_id="c")).task_id)
                .execute()
            )
            second = await a.agent().submit("And now?", context_id="c")
            acquire_lease = b.log.acquire_lease

            async def answer_and_acquire(conversation: str, task_id: str, on_lost: Callable[[], None]) -> bool:
                b.log.acquire_lease = acquire_lease
                await a.agent().get_run(first.task_id).answer({"1.0.1": True})
                return await acquire_lease(conversation, task_id, on_lost)

            b.log.acquire_lease = answer_and_acquire
            later = asyncio.ensure_future(b.agent("later").get_run(second.task_id).execute())
            await asyncio.sleep(3)
            assert await states(b, second.task_id) == []
            assert (await a.agent("paid").get_run(first.task_id).execute()).state == "completed"
            assert (await later).state == "completed"
            assert a.paid == [5]

        time.run(main())


class UnavailableLog(MemoryEventLog):
    """Log that does not store the end of one run, or stalls while the attempt that ends the run reads it."""

    failure: Literal["append", "snapshot"] | None = None
    task_id = ""
    is_dropped = False

    async def append(self, task_id: str, events: Sequence[Event], *, expected_seq: int, writer: str = "") -> None:
        if self.failure == "append" and task_id == self.task_id:
            raise OSError("the server restarts")
        await super().append(task_id, events, expected_seq=expected_seq, writer=writer)

    async def send_command(self, task_id: str, command: Command) -> int:
        self.is_dropped = True
        return await super().send_command(task_id, command)

    async def snapshot(self, task_id: str, **options: Any) -> Snapshot:
        # After the drop command, the new run reads only newer events.
        if self.failure == "snapshot" and task_id == self.task_id and self.is_dropped and options.get("since") is None:
            await asyncio.sleep(2 * GRACE)
        return await super().snapshot(task_id, **options)


@pytest.mark.parametrize(
    ("failure", "message"),
    [("append", r"the server restarts.*: start the later run again"), ("snapshot", "before its run was read")],
)
def test_new_run_is_refused_when_the_end_of_the_waiting_run_is_not_logged(
    failure: Literal["append", "snapshot"], message: str
) -> None:
    log = UnavailableLog()

    @tool(approve=True)
    async def pay(amount: int) -> str:
        """Pays."""
        return f"paid {amount}"

    with virtual_time() as time:
        agent = Agent(ScriptedModel(call("pay", amount=5), "Fine."), tools=[pay], log=log)
        log.task_id = time.run(agent.run("Pay", context_id="c")).task_id
        log.failure = failure
        with pytest.raises(LogUnreachable, match=message):
            time.run(agent.run("Never mind", context_id="c"))
        assert [record.task_id for record in time.run(log.list_runs())] == [log.task_id]
        log.failure = None
        assert time.run(agent.run("Never mind", context_id="c")).output == "Fine."
        events = time.run(log.read(log.task_id))
    assert [event.state for event in final_events(events)] == ["input-required", "canceled"]
