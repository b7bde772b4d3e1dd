"""One run at a time in each conversation, whichever machine it is on; and what a machine does that lost its turn."""

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
from support.run_checks import durable, finals, kinds, nothing_left, until
from support.runs import collect


def test_a_run_elsewhere_makes_a_conversation_busy(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            await running.begin()
            with pytest.raises(ContextBusy, match="or in another one"):
                await b.agent("two").run("2", context_id="c")
            assert (await b.agent("two").run("2", context_id="d")).output == "two"
            assert (await running).output == "done"
            assert (await b.agent("two").run("2", context_id="c")).messages[0].text == "1"

        time.run(main())
    assert a.log.shared.turns == {}


def test_who_waits_for_a_run_elsewhere_tries_again_each_half_a_second(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> float:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            await running.begin()
            result = await b.agent("two").run("2", context_id="c", when_busy="wait")
            assert [message.text for message in result.messages][-3:] == ["done", "2", "two"]
            return time.now

        assert 60 <= time.run(main()) <= 60.5


def test_a_live_run_cannot_be_resumed_elsewhere_and_goes_on(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = await a.agent(call("work"), "done").run("1").begin()
            with pytest.raises(ContextBusy):
                await b.agent("mine").resume(running.task_id)
            assert (await running).output == "done"
            assert [event.state for event in finals(await a.log.read(running.task_id))] == ["completed"]

        time.run(main())
    assert (a.begun, a.cut, b.begun) == (1, 0, 0)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_whoever_has_read_the_end_of_a_run_can_go_on_before_the_run_gives_its_turn_back(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    a, b = machines
    release = a.log.release_lease

    async def late(context_id: str, task_id: str) -> None:
        await asyncio.sleep(1)
        await release(context_id, task_id)

    monkeypatch.setattr(a.log, "release_lease", late)
    with virtual_time() as time:

        async def main() -> None:
            first = a.agent("one").run("1", context_id="c").start()
            async for _ in a.log.follow((await first.begin()).task_id):
                pass
            assert "c" in a.log.shared.turns
            second = await (b if elsewhere else a).agent("two").run("2", context_id="c")
            assert [message.text for message in second.messages] == ["1", "one", "2", "two"]
            assert 1 <= time.now < 2.1
            await first
            await nothing_left()

        time.run(main())


def test_a_turn_that_a_run_at_rest_does_not_give_back_makes_the_conversation_busy(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            await a.agent("one").run("1", context_id="c")
            a.log.shared.turns["c"] = a.log, "another", lambda: None
            with pytest.raises(ContextBusy):
                await b.agent().run("2", context_id="c")
            assert time.now == pytest.approx(2, abs=0.1)
            await nothing_left()

        time.run(main())


def test_a_run_that_is_cancelled_before_the_turn_is_given_back_is_cancelled_and_not_refused(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            await a.agent("one").run("1", context_id="c")
            a.log.shared.turns["c"] = a.log, "another", lambda: None
            second = b.agent().run("2", context_id="c").start()
            await asyncio.sleep(1)
            second.cancel()
            with pytest.raises(RunCancelled):
                await second
            await nothing_left()

        time.run(main())


async def test_a_run_that_is_over_gives_its_end_whoever_has_the_turn(machines: Machines) -> None:
    a, b = machines
    over = await a.agent("done").run("1", context_id="c")
    async with a.agent(frames("-never")).run("2", context_id="c") as running:
        await running.begin()
        assert (await b.agent().resume(over.task_id)).output == "done"


def test_who_waits_to_resume_a_live_run_gets_the_end_that_it_had_elsewhere_at_once(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = await a.agent(call("work"), "done").run("1").begin()
            result = await b.agent().resume(running.task_id, when_busy="wait")
            assert (result.output, time.now) == ("done", 60)

        time.run(main())


async def test_the_turn_is_given_back_however_an_attempt_ends(machines: Machines) -> None:
    a, _ = machines
    turns = a.log.shared.turns
    await a.agent("done").run("1", context_id="c")
    with pytest.raises(RunError):
        await a.agent(RuntimeError("broken")).run("1", context_id="c")
    cancelled = await a.agent(frames("-never")).run("1", context_id="c").begin()
    assert list(turns) == ["c"]
    await cancelled.aclose()
    released = await a.agent(frames("-never")).run("1", context_id="c").begin()
    await released.release()
    assert turns == {}
    with pytest.raises(ContextBusy):
        async with a.agent(frames("-never")).run("1", context_id="c"):
            await a.agent("no").run("1", context_id="c")
    assert turns == {}
    assert a.log.taken == ["c"] * 5
    await nothing_left()


def test_a_machine_that_lost_its_turn_stops_its_tools_and_writes_no_end(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            live = asyncio.ensure_future(collect(running))
            await until(lambda: a.begun)
            lost = a.log.freezes("c")
            resumed = await b.agent("mine").resume(running.task_id)
            held = await a.log.read(running.task_id)
            lost()

            with pytest.raises(RunError, match="lost the turn") as caught:
                await running
            assert (caught.value.code, a.cut) == ("fenced", 1)
            assert (resumed.output, await a.log.read(running.task_id)) == ("mine", held)
            last = (await live)[-1]
            assert isinstance(last, StatusUpdateEvent)
            assert (last.final, last.state) == (True, "working")
            assert kinds(durable(live.result()))[:-1] == kinds([event for event in held if event.attempt == 1])
            # Its turn belongs to somebody else, and is not given back.
            await b.agent("next").run("2", context_id="c")
            await nothing_left()

        time.run(main())


@pytest.fixture
def lost_at_once(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first machine freezes as soon as it has taken its first turn, and the turn is free again when it wakes up."""
    a, _ = machines
    take = a.log.acquire_lease

    async def taken(context_id: str, task_id: str, on_lost: Callable[[], None]) -> bool:
        monkeypatch.undo()
        assert await take(context_id, task_id, on_lost)
        await a.log.release_lease(context_id, task_id)
        asyncio.get_running_loop().call_soon(on_lost)
        return True

    monkeypatch.setattr(a.log, "acquire_lease", taken)


@pytest.mark.usefixtures("lost_at_once")
async def test_a_run_that_loses_its_turn_before_it_begins_never_comes_into_the_log(machines: Machines) -> None:
    a, b = machines
    with pytest.raises(RunError, match="lost the turn") as caught:
        await a.agent("done").run("1", context_id="c")
    assert caught.value.code == "fenced"
    assert await b.log.list_runs() == []


@pytest.mark.usefixtures("lost_at_once")
async def test_a_submitted_run_outlives_the_turn_that_is_lost_before_it_begins(machines: Machines) -> None:
    a, _ = machines
    submitted = await a.agent().submit("Go", context_id="c")
    assert (await a.agent("done").get_run(submitted.task_id).execute()).state == "completed"
    assert await states(a, submitted.task_id) == ["completed"]


@pytest.mark.usefixtures("lost_at_once")
async def test_a_run_is_cancelled_though_the_turn_for_that_is_lost(machines: Machines) -> None:
    a, _ = machines
    submitted = await a.agent().submit("Go", context_id="c")
    await a.agent().get_run(submitted.task_id).cancel()
    assert await states(a, submitted.task_id) == ["canceled"]


async def test_a_run_with_an_id_of_its_own_that_loses_its_turn_is_not_said_to_exist(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = machines
    append = a.log.append

    async def late(*arguments: Any, **options: Any) -> None:
        a.log.freezes("c")
        await append(*arguments, **options)

    monkeypatch.setattr(a.log, "append", late)
    with pytest.raises(Fenced, match="belongs to somebody else"):
        await a.agent("done").run("1", context_id="c", task_id="7f6f5a3e-0000-4000-8000-000000000001")
    assert await b.log.list_runs() == []


def test_nothing_of_a_frozen_machine_reaches_a_reader_when_it_wakes_up(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:

        async def main() -> list[str]:
            running = a.agent(frames("One-------two|", frame=2)).run("1", context_id="c").start()
            seen: list[str] = []
            running.text().subscribe(seen.append, lambda error: seen.append(type(error).__name__))
            await asyncio.sleep(1)
            # The machine is frozen between two tokens, and does not know it.
            a.log.freezes("c")
            with pytest.raises(RunError) as caught:
                await running
            assert caught.value.code == "fenced"
            return seen

        assert time.run(main()) == ["One", "RunError"]
    assert a.log.shared.asked == 1


def test_a_silence_that_was_none_holds_nothing_back_for_long(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:

        async def main() -> list[tuple[float, str]]:
            running = a.agent(frames("One-------two-three|", frame=1)).run("1").start()
            seen: list[tuple[float, str]] = []
            running.text().subscribe(lambda text: seen.append((time.now, text)))
            assert (await running).output == "Onetwothree"
            return seen

        assert time.run(main()) == [(0, "One"), (8, "two"), (10, "three")]
    assert (a.log.shared.asked, a.log.shared.turns) == (1, {})


def test_a_run_that_never_falls_silent_never_asks(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:
        assert time.run(a.agent(frames("-".join(["on"] * 20) + "|", frame=LEASE / 4)).run("1")).output == "on" * 20
    assert a.log.shared.asked == 0


def test_an_end_after_a_silence_is_told_once_the_log_has_it(machines: Machines) -> None:
    a, _ = machines
    with virtual_time() as time:
        running = a.agent(call("work"), "done").run("1")
        events = time.run(collect(running))
        assert durable(events) == list(time.run(a.log.read(running.task_id)))
    assert a.log.shared.asked == 1


def test_what_a_tool_says_after_a_freeze_is_not_told(machines: Machines) -> None:
    a, b = machines
    with virtual_time() as time:

        async def main() -> None:
            running = a.agent(call("work"), "done").run("1", context_id="c").start()
            live = asyncio.ensure_future(collect(running))
            await until(lambda: a.begun)
            a.log.freezes("c")
            await b.agent("mine").resume(running.task_id)
            events = await live
            assert not any(isinstance(event, CustomEvent) or event.kind == "tool-complete" for event in events)
            assert [event.state for event in finals(await b.log.read(running.task_id))] == ["completed"]

        time.run(main())


async def test_a_turn_that_is_given_back_twice_is_taken_from_nobody(machines: Machines) -> None:
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
