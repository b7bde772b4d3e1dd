"""Pending questions during later runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from rxloop import RunRecord
from rxloop.errors import ContextBusy
from rxloop.protocol.commands import AnswerCommand, CancelCommand
from rxloop.testing import call, virtual_time
from support.processes.machines import Machines, states
from support.run_checks import assert_no_tasks


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
