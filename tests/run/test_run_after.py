from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rxloop import Agent, RunContext, follow, replay, tool
from rxloop.protocol import public_events
from rxloop.protocol.events import (
    ContentDeltaEvent,
    CustomEvent,
    Event,
    GapEvent,
    TaskEvent,
)
from rxloop.storage import MemoryEventLog
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.run_checks import Recorder, events_of
from support.sum_tools import add, two_steps


async def test_a_reader_that_comes_back_gets_what_it_has_not() -> None:  # L132
    run = Agent(two_steps(), tools=[add]).run("Add.")
    live = await events_of(run)
    kept = [event for event in live if event.durable]
    for place, event in enumerate(kept):
        assert [later async for later in run.stream(after=event.cursor)] == kept[place + 1 :]


def test_a_reader_that_comes_back_in_the_middle_misses_nothing_and_gets_nothing_twice() -> None:  # L132
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("-a-b-c-d-|"))).run("Go.")
        live = Recorder()
        back: list[tuple[int, Recorder]] = []

        def leave_and_come_back(event: Event) -> None:
            live.events.append(event)
            back.append((len(live.events), Recorder(run.stream(after=event.cursor))))

        async def main() -> None:
            run.events.subscribe(leave_and_come_back)
            await run

        time.run(main())
        for place, recorder in back:
            assert recorder.events == live.events[place:]


def test_a_reader_that_comes_back_into_a_message_of_five_thousand_deltas_gets_its_rest() -> None:  # L132
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("-".join("abcdefghijklmnopqrstuvwxyz" * 200) + "-|"))).run("Go.")
        live = Recorder()
        back: list[tuple[int, Recorder]] = []

        def come_back(event: Event) -> None:
            live.events.append(event)
            if len(live.events) == 5_000:
                places = (3, 4, 900, 2_500, 4_990)
                back.extend((at, Recorder(run.stream(after=live.events[at].cursor))) for at in places)

        async def main() -> None:
            run.events.subscribe(come_back)
            await run

        time.run(main())
        assert back[-1][1].events == live.events[4_991:]
        for at, recorder in back:
            deltas = [event for event in live.events[at + 1 :] if isinstance(event, ContentDeltaEvent)]
            came = [event for event in recorder.events if isinstance(event, ContentDeltaEvent)]
            assert "".join(event.delta for event in came) == "".join(event.delta for event in deltas)
            assert [event for event in recorder.events if event.durable] == [
                event for event in live.events[at + 1 :] if event.durable
            ]


async def test_a_reader_that_had_all_of_an_earlier_attempt_goes_on_without_a_gap() -> None:  # L132
    @tool
    async def asks(ctx: RunContext) -> str:
        """Ask."""
        return "yes" if await ctx.ask("Sure?") else "no"

    agent = Agent(ScriptedModel(call("asks"), "ok"), tools=[asks], log=MemoryEventLog())
    paused = agent.run("Go.")
    before = await events_of(paused)
    [question] = (await paused).pending
    resumed = agent.resume(paused.task_id, inputs={question.input_id: True})
    live = await events_of(resumed)
    assert live[0].seq == before[-1].seq + 1
    assert [event async for event in resumed.stream(after=before[-1].cursor)] == [e for e in live if e.durable]
    # What it has not of the earlier attempt comes from the log.
    kept = [event for event in [*before, *live] if event.durable]
    for place, event in enumerate(kept):
        assert [later async for later in resumed.stream(after=event.cursor)] == kept[place + 1 :]
    gap, *rest = [event async for event in resumed.stream(after="another/1.2.0")]
    assert isinstance(gap, GapEvent)
    assert (gap.reason, rest) == ("unknown-cursor", kept)
    assert [event async for event in resumed] == [event for event in live if event.durable]


async def test_a_reader_of_a_lost_part_of_an_attempt_is_told_and_gets_all_of_the_next_one() -> None:  # L133
    log = MemoryEventLog()
    run = Agent(two_steps(), tools=[add], log=log).run("Add.")
    live = await events_of(run)
    crashed = MemoryEventLog()
    await crashed.append(run.task_id, (await log.read(run.task_id))[:6], expected_seq=0)
    resumed = Agent(ScriptedModel("The sums are 3 and 7."), tools=[add], log=crashed).resume(run.task_id)
    rest = [event for event in await events_of(resumed) if event.durable]

    for lost in [event for event in live if event.seq > 6]:
        gap, *later = [event async for event in resumed.stream(after=lost.cursor)]
        assert isinstance(gap, GapEvent)
        assert (gap.reason, later) == ("lost-attempt", rest)
    frames = await frames_of(resumed.sse(after=live[-1].cursor, heartbeat=None))
    assert [event.kind for _, event in frames][:2] == ["gap", "status-update"]


async def test_what_a_nested_run_did_before_the_cursor_does_not_come_again() -> None:  # L10, L132
    @tool
    async def delegates(ctx: RunContext) -> str:
        """Has a run of its own."""
        for name in ("a", "b"):
            ctx.emit(CustomEvent(name=name, task_id="child", parent_task_id=ctx.task_id))
        return "mine"

    run = Agent(ScriptedModel(call("delegates"), "ok"), tools=[delegates]).run("Go.")
    kept = [event for event in await events_of(run) if event.durable]
    assert {event.task_id for event in kept} == {run.task_id, "child"}
    for place, event in enumerate(kept):
        assert [later async for later in run.stream(after=event.cursor)] == kept[place + 1 :]


def nested(depth: int, log: MemoryEventLog | None = None) -> Agent[None]:
    """An agent that asks another one, and so on, so many levels deep."""
    if depth == 0:
        return Agent(ScriptedModel("deep"), name="0", log=log)
    below = nested(depth - 1)

    @tool
    async def delegates(ctx: RunContext) -> str:
        """Asks the agent below."""
        run = below.run("Go.")
        async for event in run:
            ctx.emit(event)
        return (await run).output

    return Agent(ScriptedModel(call("delegates"), "ok"), tools=[delegates], name=str(depth), log=log)


async def test_a_cursor_of_a_nested_run_names_the_run_whose_stream_it_is_in() -> None:  # L10, L132
    log = MemoryEventLog()
    run = nested(3, log).run("Go.")
    kept = [event for event in await events_of(run) if event.durable]
    assert len({event.task_id for event in kept}) == 4
    assert {event.root_task_id for event in kept} == {run.task_id}
    assert [event.cursor for event in await log.read(run.task_id)] == [event.cursor for event in kept]
    for place, event in enumerate(kept):
        assert Event.from_json(event.to_json()).cursor == event.cursor
        assert [later async for later in run.stream(after=event.cursor)] == kept[place + 1 :]
        assert [later async for later in follow(log, run.task_id, after=event.cursor)] == kept[place + 1 :]
    for place, (cursor, event) in enumerate(frames := await frames_of(run.sse(heartbeat=None))):
        if event.durable:
            later = [each for each in frames[place + 1 :] if each[1].durable]
            assert await frames_of(run.sse(after=cursor, heartbeat=None)) == later


async def test_the_cursors_of_a_fork_are_its_own_in_what_it_took_over_of_nested_runs_too() -> None:  # L132
    log = MemoryEventLog()
    agent = nested(2, log)
    run = agent.run("Go.")
    taken = [event for event in await events_of(run) if event.durable]
    answered = next(event.seq for event in taken if event.kind == "tool-complete" and event.task_id == run.task_id)
    fork = agent.fork(run.task_id, at=answered, model=ScriptedModel("Another."))
    kept = [event for event in await events_of(fork) if event.durable]
    assert {event.root_task_id for event in kept} == {fork.task_id}
    below = [event for event in kept if event.kind == "task"][1:]
    assert [event.to_json() for event in below if event.parent_task_id != fork.task_id] == [
        event.to_json().replace(run.task_id.encode(), fork.task_id.encode())
        for event in taken
        if event.kind == "task" and event.parent_task_id not in (None, run.task_id)
    ]
    for place, event in enumerate(kept):
        assert [later async for later in fork.stream(after=event.cursor)] == kept[place + 1 :]


async def test_the_cursor_of_another_run_is_answered_by_a_gap_and_everything() -> None:  # L133
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    await run
    gap, *rest = [event async for event in run.stream(after="another/1.2.0")]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "unknown-cursor"
    assert rest == await events_of(run)


async def test_a_cursor_that_is_older_than_the_memory_is_answered_by_a_gap() -> None:  # L133, L134
    @tool
    async def chatter(ctx: RunContext) -> str:
        """Emit."""
        for _ in range(10_100):
            ctx.emit(CustomEvent(name="x"))
        return ""

    run = Agent(ScriptedModel(call("chatter"), "ok"), tools=[chatter]).run("Go.")
    await run
    gap, *rest = [event async for event in run.stream(after=f"{run.task_id}/1.5.0", buffer=20_000)]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "trimmed"
    assert len(rest) == 10_000
    assert gap.seq == rest[0].seq - 1
    last = rest[4_999]
    assert [event async for event in run.stream(after=last.cursor, buffer=20_000)] == rest[5_000:]
    assert [event async for event in run.stream(after=gap.cursor, buffer=20_000)] == rest


async def test_a_gap_before_the_events_of_a_nested_run_is_one_of_the_root_run() -> None:  # L10, L133, L134
    @tool
    async def delegates(ctx: RunContext) -> str:
        """Has a run of its own, which says much."""
        for number in range(10_100):
            ctx.emit(CustomEvent(name=f"{number}", task_id="child"))
        return ""

    run = Agent(ScriptedModel(call("delegates"), "ok"), tools=[delegates]).run("Go.")
    await run
    gap, *rest = [event async for event in run.stream(buffer=20_000)]
    assert isinstance(gap, GapEvent)
    assert (rest[0].task_id, gap.task_id, gap.reason) == ("child", run.task_id, "trimmed")
    assert [event async for event in run.stream(after=gap.cursor, buffer=20_000)] == rest
    assert [event async for event in run.stream(after=rest[0].cursor, buffer=20_000)] == rest[1:]


@tool
async def chatters(ctx: RunContext) -> str:
    """Emit."""
    for number in range(10_100):
        ctx.emit(CustomEvent(name=f"{number}"))
    return ""


async def test_what_is_too_old_for_the_memory_comes_from_the_log() -> None:  # L134
    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("chatters"), "ok"), tools=[chatters], log=log).run("Go.")
    came: list[Event] = []
    early = run.events.subscribe(came.append)
    await run
    early.dispose()
    whole = [event for event in came if event.durable]
    assert len(whole) > 10_100

    for stream in (run.events, run.stream(buffer=20_000), run.stream(buffer=20_000, after=f"{run.task_id}/1.0.0")):
        assert [event async for event in stream] == whole
    later = run.stream(after=whole[4].cursor, buffer=20_000)
    assert [event async for event in later] == whole[5:]
    frames = [frame async for frame in run.sse(after=whole[4].cursor, heartbeat=None)]
    assert len(frames) == len(public_events(whole[5:]))


def test_what_comes_while_the_log_is_read_waits_behind_it() -> None:  # L134
    class Slow(MemoryEventLog):
        async def read(self, *arguments: Any, **options: Any) -> Sequence[Event]:
            await asyncio.sleep(0.5)
            return await super().read(*arguments, **options)

    @tool
    async def chatters_on(ctx: RunContext) -> str:
        """Emit, and go on."""
        for number in range(10_100):
            ctx.emit(CustomEvent(name=f"{number}"))
        for number in range(10):
            await asyncio.sleep(0.1)
            ctx.emit(CustomEvent(name=f"{number}"))
        return ""

    with virtual_time() as time:
        run = Agent(ScriptedModel(call("chatters_on"), "ok"), tools=[chatters_on], log=Slow()).run("Go.")
        late, left = Recorder(), Recorder()
        time.at(0.25, lambda: run.events.subscribe(late))
        time.at(0.25, lambda: time.at(0.35, run.events.subscribe(left).dispose))
        came: list[Event] = []

        async def main() -> None:
            run.events.subscribe(came.append)
            await run

        time.run(main())
        time.advance(1)

    assert [event for event in late.events if event.durable] == [event for event in came if event.durable]
    assert late.completed
    assert left.events == []


async def test_a_log_that_cannot_be_read_leaves_a_gap() -> None:  # L134
    class Broken(MemoryEventLog):
        async def read(self, *arguments: Any, **options: Any) -> Sequence[Event]:
            raise OSError("the disk is gone")

    run = Agent(ScriptedModel(call("chatters"), "ok"), tools=[chatters], log=Broken()).run("Go.")
    await run
    gap, *rest = [event async for event in run.stream(buffer=20_000)]

    assert isinstance(gap, GapEvent)
    assert (gap.reason, len(rest)) == ("trimmed", 10_000)


def _fields(frame: bytes) -> dict[str, str]:
    lines = (line.partition(": ") for line in frame.decode().split("\n") if line)
    return {name: value for name, _, value in lines}


async def frames_of(stream: AsyncIterator[bytes]) -> list[tuple[str, Event]]:
    found: list[tuple[str, Event]] = []
    async for data in stream:
        lines = _fields(data)
        found.append((lines.get("id", ""), Event.from_json(lines["data"], strict=True)))
    return found


async def test_the_server_sent_events_of_a_run_are_its_public_events() -> None:  # L136, L139
    run = Agent(two_steps(), tools=[add]).run("Line one\nline two: data: x\n\n")
    live = Recorder(run.events)
    got = await frames_of(run.sse())
    assert [event for _, event in got] == public_events(live.events)
    assert [cursor for cursor, _ in got] == [event.cursor for event in live.events if event.public]


async def test_server_sent_events_go_on_behind_the_last_id() -> None:  # L132
    run = Agent(two_steps(), tools=[add]).run("Add.")
    got = await frames_of(run.sse())
    kept = [(cursor, event) for cursor, event in got if event.durable]
    for place, (cursor, _) in enumerate(kept):
        assert await frames_of(run.sse(after=cursor)) == kept[place + 1 :]


async def test_an_id_that_is_none_is_answered_by_a_gap_and_everything() -> None:  # L133
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    await run
    everything = await frames_of(run.sse())
    for nonsense in ("nonsense", "a/b/c", "x/1.2", "a/1.1.1.1"):
        [(cursor, gap), *rest] = await frames_of(run.sse(after=nonsense))
        assert isinstance(gap, GapEvent), nonsense
        assert cursor == "", "a gap is no place to come back to"
        assert gap.reason == "unknown-cursor"
        assert rest == everything


async def test_a_client_at_the_end_of_a_finished_run_is_told_that_there_is_no_more() -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel("Hi"), log=log).run("Hi")
    assert await run.has_more(f"{run.task_id}/1.99.0")
    events = [event async for event in run]
    for reader in (run, follow(log, run.task_id), replay(log, run.task_id)):
        assert not await reader.has_more(events[-1].cursor)
        assert not await reader.has_more(f"{run.task_id}/1.99.0")
        for cursor in (None, "", "no cursor", f"other/{events[-1].cursor.partition('/')[2]}", events[0].cursor):
            assert await reader.has_more(cursor)


async def test_of_a_run_that_goes_on_there_is_always_more() -> None:
    log = MemoryEventLog()
    begun = TaskEvent(messages=[], model="m", agent_name="a", task_id="t", context_id="c", seq=1, attempt=1)
    await log.append("t", [begun], expected_seq=0)
    assert await follow(log, "t").has_more("t/1.1.0")
    assert await follow(log, "t").has_more("t/1.7.0")


async def test_a_cursor_with_a_number_without_end_is_none() -> None:
    run = Agent(ScriptedModel("Hi"), log=MemoryEventLog()).run("Hi")
    await run
    frames_of = [frame async for frame in run.sse(after=f"{run.task_id}/1.{'9' * 5000}.0", heartbeat=None)]
    assert frames_of[0].startswith(b"event: gap")
