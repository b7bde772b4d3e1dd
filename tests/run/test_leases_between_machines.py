"""Conversation leases across machines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rxloop import RunCancelled, RunError, StatusUpdateEvent
from rxloop.errors import ContextBusy, Fenced
from rxloop.protocol.events import CustomEvent
from rxloop.testing import call, frames, virtual_time
from support.processes.machines import LEASE, Machines, states
from support.run_checks import assert_no_tasks, durable_events, final_events, kinds, wait_until
from support.runs import collect


def test_run_of_another_machine_makes_the_conversation_busy(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            await running.begin()
            with pytest.raises(ContextBusy, match="or another process"):
                await b.agent("two").run("2", context_id="c")
            assert (await b.agent("two").run("2", context_id="d")).output == "two"
            assert (await running).output == "done"
            assert (await b.agent("two").run("2", context_id="c")).messages[0].text == "1"

        time.run(main())
    assert a.log.shared.leases == {}


def test_waiting_run_polls_the_lease_every_half_second(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> float:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            await running.begin()
            result = await b.agent("two").run("2", context_id="c", when_busy="wait")
            assert [message.text for message in result.messages][-3:] == ["done", "2", "two"]
            return time.now

        assert 60 <= time.run(main()) <= 60.5


def test_live_run_cannot_be_resumed_by_another_machine(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = await a.agent(call("work"), "done").run("1").begin()
            with pytest.raises(ContextBusy):
                await b.agent("mine").resume(running.task_id)
            assert (await running).output == "done"
            assert [event.state for event in final_events(await a.log.read(running.task_id))] == ["completed"]

        time.run(main())
    assert (a.started, a.canceled) == (1, 0)
    assert b.started == 0


@pytest.mark.parametrize("on_other_machine", [True, False])
def test_next_run_starts_after_the_final_event_although_the_lease_is_released_later(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, on_other_machine: bool
) -> None:
    a, b = machines
    release = a.log.release_lease

    async def release_slowly(context_id: str, task_id: str) -> None:
        await asyncio.sleep(1)
        await release(context_id, task_id)

    monkeypatch.setattr(a.log, "release_lease", release_slowly)
    with virtual_time() as time:

        async def main() -> None:
            first = a.agent("one").run("1", context_id="c").start()
            async for _ in a.log.follow((await first.begin()).task_id):
                pass
            assert "c" in a.log.shared.leases
            second = await (b if on_other_machine else a).agent("two").run("2", context_id="c")
            assert [message.text for message in second.messages] == ["1", "one", "2", "two"]
            assert 1 <= time.now < 2.1
            await first
            await assert_no_tasks()

        time.run(main())


def test_lease_that_an_idle_run_does_not_release_makes_the_conversation_busy(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            await a.agent("one").run("1", context_id="c")
            a.log.shared.leases["c"] = a.log, "another", lambda: None
            with pytest.raises(ContextBusy):
                await b.agent().run("2", context_id="c")
            assert time.now == pytest.approx(2, abs=0.1)
            await assert_no_tasks()

        time.run(main())


def test_run_canceled_while_waiting_for_the_lease_raises_run_canceled(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            await a.agent("one").run("1", context_id="c")
            a.log.shared.leases["c"] = a.log, "another", lambda: None
            second = b.agent().run("2", context_id="c").start()
            await asyncio.sleep(1)
            second.cancel()
            with pytest.raises(RunCancelled):
                await second
            await assert_no_tasks()

        time.run(main())


async def test_finished_run_returns_its_result_while_another_run_holds_the_lease(machines: Machines) -> None:
    a, b = machines
    finished = await a.agent("done").run("1", context_id="c")
    async with a.agent(frames("-never")).run("2", context_id="c") as running:
        await running.begin()
        assert (await b.agent().resume(finished.task_id)).output == "done"


def test_resume_that_waits_for_a_live_run_returns_its_result_immediately(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = await a.agent(call("work"), "done").run("1").begin()
            result = await b.agent().resume(running.task_id, when_busy="wait")
            assert result.output == "done"
            assert time.now == 60

        time.run(main())


async def test_lease_is_released_at_any_end_of_an_attempt(machines: Machines) -> None:
    a, _ = machines
    leases = a.log.shared.leases
    await a.agent("done").run("1", context_id="c")
    with pytest.raises(RunError):
        await a.agent(RuntimeError("broken")).run("1", context_id="c")
    unfinished = await a.agent(frames("-never")).run("1", context_id="c").begin()
    assert list(leases) == ["c"]
    await unfinished.aclose()
    released = await a.agent(frames("-never")).run("1", context_id="c").begin()
    await released.release()
    assert leases == {}
    with pytest.raises(ContextBusy):
        async with a.agent(frames("-never")).run("1", context_id="c"):
            await a.agent("no").run("1", context_id="c")
    assert leases == {}
    assert a.log.acquired == ["c"] * 5
    await assert_no_tasks()


def test_machine_that_lost_its_lease_stops_its_tools_and_writes_no_final_event(
    machines: Machines, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            live = asyncio.ensure_future(collect(running))
            await wait_until(lambda: a.started)
            notify_loss = a.log.lose_lease("c")
            resumed = await b.agent("mine").resume(running.task_id)
            recorded = await a.log.read(running.task_id)
            notify_loss()

            with pytest.raises(RunError, match="lost its lease") as caught:
                await running
            assert caught.value.code == "fenced"
            assert a.canceled == 1
            assert resumed.output == "mine"
            assert await a.log.read(running.task_id) == recorded
            # The other machine has logged the end, so no operator has to act.
            assert [each.levelname for each in caplog.records if "log the end" in each.message] == ["WARNING"]
            last = (await live)[-1]
            assert isinstance(last, StatusUpdateEvent)
            assert last.final
            assert last.state == "working"
            assert kinds(durable_events(live.result()))[:-1] == kinds(
                [event for event in recorded if event.attempt == 1]
            )
            # The lease belongs to another run, so it is not released.
            await b.agent("next").run("2", context_id="c")
            await assert_no_tasks()

        time.run(main())


@pytest.fixture
def immediate_lease_loss(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze the first machine after its first lease, which expires before the machine wakes up."""
    a, _ = machines
    acquire = a.log.acquire_lease

    async def acquire_and_lose(context_id: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        monkeypatch.undo()
        assert await acquire(context_id, task_id, on_lost)
        await a.log.release_lease(context_id, task_id)
        asyncio.get_running_loop().call_soon(on_lost)
        return True

    monkeypatch.setattr(a.log, "acquire_lease", acquire_and_lose)


@pytest.mark.usefixtures("immediate_lease_loss")
async def test_run_that_loses_its_lease_before_it_starts_is_not_recorded(machines: Machines) -> None:
    a, b = machines
    with pytest.raises(RunError, match="lost its lease") as caught:
        await a.agent("done").run("1", context_id="c")
    assert caught.value.code == "fenced"
    assert await b.log.list_runs() == []


@pytest.mark.usefixtures("immediate_lease_loss")
async def test_submitted_run_completes_after_a_lease_loss_before_its_start(machines: Machines) -> None:
    a, _ = machines
    submitted = await a.agent().submit("Go", context_id="c")
    assert (await a.agent("done").get_run(submitted.task_id).execute()).state == "completed"
    assert await states(a, submitted.task_id) == ["completed"]


@pytest.mark.usefixtures("immediate_lease_loss")
async def test_cancel_succeeds_after_its_lease_is_lost(machines: Machines) -> None:
    a, _ = machines
    submitted = await a.agent().submit("Go", context_id="c")
    await a.agent().get_run(submitted.task_id).cancel()
    assert await states(a, submitted.task_id) == ["canceled"]


async def test_run_with_a_chosen_id_raises_fenced_when_it_loses_its_lease(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    append = a.log.append

    async def freeze_and_append(*arguments: Any, **options: Any) -> None:
        a.log.lose_lease("c")
        await append(*arguments, **options)

    monkeypatch.setattr(a.log, "append", freeze_and_append)
    with pytest.raises(Fenced, match="belongs to another owner"):
        await a.agent("done").run("1", context_id="c", task_id="7f6f5a3e-0000-4000-8000-000000000001")
    assert await b.log.list_runs() == []


def test_events_of_a_frozen_machine_do_not_reach_readers_after_its_wakeup(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:

        async def main() -> list[str]:
            running = a.agent(frames("One-------two|", frame=2)).run("1", context_id="c").start()
            received: list[str] = []
            running.text().subscribe(received.append, lambda error: received.append(type(error).__name__))
            await asyncio.sleep(1)
            # The machine is frozen between two tokens without noticing.
            a.log.lose_lease("c")
            with pytest.raises(RunError) as caught:
                await running
            assert caught.value.code == "fenced"
            return received

        assert time.run(main()) == ["One", "RunError"]
    assert a.log.shared.lease_checks == 1


def test_lease_check_after_a_long_silence_delays_events_only_briefly(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:

        async def main() -> list[tuple[float, str]]:
            running = a.agent(frames("One-------two-three|", frame=1)).run("1").start()
            received: list[tuple[float, str]] = []
            running.text().subscribe(lambda text: received.append((time.now, text)))
            assert (await running).output == "Onetwothree"
            return received

        assert time.run(main()) == [(0, "One"), (8, "two"), (10, "three")]
    assert a.log.shared.lease_checks == 1
    assert a.log.shared.leases == {}


def test_run_without_silence_does_not_check_its_lease(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:
        assert time.run(a.agent(frames("-".join(["on"] * 20) + "|", frame=LEASE / 4)).run("1")).output == "on" * 20
    assert a.log.shared.lease_checks == 0


def test_end_after_a_silence_is_published_once_it_is_durable(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:
        running = a.agent(call("work"), "done").run("1")
        events = time.run(collect(running))
        assert durable_events(events) == list(time.run(a.log.read(running.task_id)))
    assert a.log.shared.lease_checks == 1


def test_events_of_a_tool_after_a_freeze_are_not_published(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            live = asyncio.ensure_future(collect(running))
            await wait_until(lambda: a.started)
            a.log.lose_lease("c")
            await b.agent("mine").resume(running.task_id)
            events = await live
            assert not any(isinstance(event, CustomEvent) or event.kind == "tool-complete" for event in events)
            assert [event.state for event in final_events(await b.log.read(running.task_id))] == ["completed"]

        time.run(main())


async def test_second_release_of_a_lease_does_not_release_the_lease_of_another_run(machines: Machines) -> None:
    a, _ = machines
    first = await a.agent(frames("-never")).run("1", context_id="c").begin()
    lease = first._attempt.lease
    assert lease is not None
    await first.release()
    async with a.agent(frames("-never")).run("2", context_id="c") as second:
        await second.begin()
        await lease.release()
        with pytest.raises(ContextBusy):
            await a.agent("no").run("3", context_id="c")
