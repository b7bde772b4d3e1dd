from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from rxloop import Agent, Run, RunContext, follow, replay, tool
from rxloop.protocol import public_events
from rxloop.protocol.events import (
    ContentDeltaEvent,
    CustomEvent,
    Event,
    GapEvent,
    TaskEvent,
)
from rxloop.storage import MemoryEventLog
from rxloop.stream.hub import Hub
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.run_checks import Recorder, collect_events, run_ready_tasks
from support.sum_tools import add, make_two_step_model


async def test_stream_after_a_cursor_yields_the_later_events() -> None:  # L132
    run = Agent(make_two_step_model(), tools=[add]).run("Add.")
    live = await collect_events(run)
    durable_events = [event for event in live if event.durable]
    for index, event in enumerate(durable_events):
        assert [later async for later in run.stream(after=event.cursor)] == durable_events[index + 1 :]


def test_reconnecting_reader_gets_each_event_once_during_a_run() -> None:  # L132
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("-a-b-c-d-|"))).run("Go.")
        live = Recorder()
        readers: list[tuple[int, Recorder]] = []

        def record_and_reconnect(event: Event) -> None:
            live.events.append(event)
            readers.append((len(live.events), Recorder(run.stream(after=event.cursor))))

        async def main() -> None:
            run.events.subscribe(record_and_reconnect)
            await run

        time.run(main())
        for index, recorder in readers:
            assert recorder.events == live.events[index:]


def test_reconnecting_reader_gets_the_remaining_deltas_of_a_long_message() -> None:  # L132
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("-".join("abcdefghijklmnopqrstuvwxyz" * 200) + "-|"))).run("Go.")
        live = Recorder()
        readers: list[tuple[int, Recorder]] = []

        def record_and_reconnect_later(event: Event) -> None:
            live.events.append(event)
            if len(live.events) == 5_000:
                places = (3, 4, 900, 2_500, 4_990)
                readers.extend(
                    (position, Recorder(run.stream(after=live.events[position].cursor))) for position in places
                )

        async def main() -> None:
            run.events.subscribe(record_and_reconnect_later)
            await run

        time.run(main())
        assert readers[-1][1].events == live.events[4_991:]
        for position, recorder in readers:
            deltas = [event for event in live.events[position + 1 :] if isinstance(event, ContentDeltaEvent)]
            received = [event for event in recorder.events if isinstance(event, ContentDeltaEvent)]
            assert "".join(event.delta for event in received) == "".join(event.delta for event in deltas)
            assert [event for event in recorder.events if event.durable] == [
                event for event in live.events[position + 1 :] if event.durable
            ]


async def test_stream_continues_after_a_cursor_of_an_earlier_attempt() -> None:  # L132
    @tool
    async def asks(ctx: RunContext) -> str:
        """Ask."""
        return "yes" if await ctx.ask("Sure?") else "no"

    agent = Agent(ScriptedModel(call("asks"), "ok"), tools=[asks], log=MemoryEventLog())
    paused = agent.run("Go.")
    before = await collect_events(paused)
    [question] = (await paused).pending
    resumed = agent.resume(paused.task_id, inputs={question.input_id: True})
    live = await collect_events(resumed)
    assert live[0].seq == before[-1].seq + 1
    assert [event async for event in resumed.stream(after=before[-1].cursor)] == [e for e in live if e.durable]
    # Missing events of the earlier attempt come from the log.
    durable_events = [event for event in [*before, *live] if event.durable]
    for index, event in enumerate(durable_events):
        assert [later async for later in resumed.stream(after=event.cursor)] == durable_events[index + 1 :]
    gap, *remaining = [event async for event in resumed.stream(after="another/1.2.0")]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "unknown-cursor"
    assert remaining == durable_events
    assert [event async for event in resumed] == [event for event in live if event.durable]


async def test_cursor_of_a_lost_event_yields_a_gap_and_the_next_attempt() -> None:  # L133
    log = MemoryEventLog()
    run = Agent(make_two_step_model(), tools=[add], log=log).run("Add.")
    live = await collect_events(run)
    crashed = MemoryEventLog()
    await crashed.append(run.task_id, (await log.read(run.task_id))[:6], expected_seq=0)
    resumed = Agent(ScriptedModel("The sums are 3 and 7."), tools=[add], log=crashed).resume(run.task_id)
    remaining = [event for event in await collect_events(resumed) if event.durable]

    for lost_event in [event for event in live if event.seq > 6]:
        gap, *later = [event async for event in resumed.stream(after=lost_event.cursor)]
        assert isinstance(gap, GapEvent)
        assert gap.reason == "lost-attempt"
        assert later == remaining
    frames = await read_frames(resumed.sse(after=live[-1].cursor, heartbeat=None))
    assert [event.kind for _, event in frames][:2] == ["gap", "status-update"]


async def test_stream_after_a_cursor_skips_earlier_events_of_nested_runs() -> None:  # L10, L132
    @tool
    async def delegates(ctx: RunContext) -> str:
        """Emit events for a nested run."""
        for name in ("a", "b"):
            ctx.emit(CustomEvent(name=name, task_id="child", parent_task_id=ctx.task_id))
        return "mine"

    run = Agent(ScriptedModel(call("delegates"), "ok"), tools=[delegates]).run("Go.")
    durable_events = [event for event in await collect_events(run) if event.durable]
    assert {event.task_id for event in durable_events} == {run.task_id, "child"}
    for index, event in enumerate(durable_events):
        assert [later async for later in run.stream(after=event.cursor)] == durable_events[index + 1 :]


def make_nested_agents(depth: int, log: MemoryEventLog | None = None) -> Agent[None]:
    """Return an agent with `depth` levels of nested agents."""
    if depth == 0:
        return Agent(ScriptedModel("deep"), name="0", log=log)
    inner_agent = make_nested_agents(depth - 1)

    @tool
    async def delegates(ctx: RunContext) -> str:
        """Asks the agent below."""
        run = inner_agent.run("Go.")
        async for event in run:
            ctx.emit(event)
        return (await run).output

    return Agent(ScriptedModel(call("delegates"), "ok"), tools=[delegates], name=str(depth), log=log)


async def test_cursor_of_nested_event_names_the_root_run() -> None:  # L10, L132
    log = MemoryEventLog()
    run = make_nested_agents(3, log).run("Go.")
    durable_events = [event for event in await collect_events(run) if event.durable]
    assert len({event.task_id for event in durable_events}) == 4
    assert {event.root_task_id for event in durable_events} == {run.task_id}
    assert [event.cursor for event in await log.read(run.task_id)] == [event.cursor for event in durable_events]
    for index, event in enumerate(durable_events):
        assert Event.from_json(event.to_json()).cursor == event.cursor
        assert [later async for later in run.stream(after=event.cursor)] == durable_events[index + 1 :]
        assert [later async for later in follow(log, run.task_id, after=event.cursor)] == durable_events[index + 1 :]
    for index, (cursor, event) in enumerate(frames := await read_frames(run.sse(heartbeat=None))):
        if event.durable:
            later = [frame for frame in frames[index + 1 :] if frame[1].durable]
            assert await read_frames(run.sse(after=cursor, heartbeat=None)) == later


async def test_copied_events_of_a_fork_have_cursors_of_the_fork() -> None:  # L132
    log = MemoryEventLog()
    agent = make_nested_agents(2, log)
    run = agent.run("Go.")
    parent_events = [event for event in await collect_events(run) if event.durable]
    answered = next(
        event.seq for event in parent_events if event.kind == "tool-complete" and event.task_id == run.task_id
    )
    fork = agent.fork(run.task_id, at=answered, model=ScriptedModel("Another."))
    durable_events = [event for event in await collect_events(fork) if event.durable]
    assert {event.root_task_id for event in durable_events} == {fork.task_id}
    nested_tasks = [event for event in durable_events if event.kind == "task"][1:]
    assert [event.to_json() for event in nested_tasks if event.parent_task_id != fork.task_id] == [
        event.to_json().replace(run.task_id.encode(), fork.task_id.encode())
        for event in parent_events
        if event.kind == "task" and event.parent_task_id not in (None, run.task_id)
    ]
    for index, event in enumerate(durable_events):
        assert [later async for later in fork.stream(after=event.cursor)] == durable_events[index + 1 :]


async def test_cursor_of_another_run_yields_a_gap_and_all_events() -> None:  # L133
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    await run
    gap, *remaining = [event async for event in run.stream(after="another/1.2.0")]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "unknown-cursor"
    assert remaining == await collect_events(run)


async def test_cursor_older_than_the_buffer_yields_a_gap() -> None:  # L133, L134
    @tool
    async def chatter(ctx: RunContext) -> str:
        """Emit."""
        for _ in range(10_100):
            ctx.emit(CustomEvent(name="x"))
        return ""

    run = Agent(ScriptedModel(call("chatter"), "ok"), tools=[chatter]).run("Go.")
    await run
    gap, *remaining = [event async for event in run.stream(after=f"{run.task_id}/1.5.0", buffer=20_000)]
    assert isinstance(gap, GapEvent)
    assert gap.reason == "trimmed"
    assert len(remaining) == 10_000
    assert gap.seq == remaining[0].seq - 1
    last = remaining[4_999]
    assert [event async for event in run.stream(after=last.cursor, buffer=20_000)] == remaining[5_000:]
    assert [event async for event in run.stream(after=gap.cursor, buffer=20_000)] == remaining


async def test_gap_before_nested_events_belongs_to_the_root_run() -> None:  # L10, L133, L134
    @tool
    async def delegates(ctx: RunContext) -> str:
        """Emit many events for a nested run."""
        for number in range(10_100):
            ctx.emit(CustomEvent(name=f"{number}", task_id="child"))
        return ""

    run = Agent(ScriptedModel(call("delegates"), "ok"), tools=[delegates]).run("Go.")
    await run
    gap, *remaining = [event async for event in run.stream(buffer=20_000)]
    assert isinstance(gap, GapEvent)
    assert remaining[0].task_id == "child"
    assert (gap.task_id, gap.reason) == (run.task_id, "trimmed")
    assert [event async for event in run.stream(after=gap.cursor, buffer=20_000)] == remaining
    assert [event async for event in run.stream(after=remaining[0].cursor, buffer=20_000)] == remaining[1:]


@tool
async def chatters(ctx: RunContext) -> str:
    """Emit."""
    for number in range(10_100):
        ctx.emit(CustomEvent(name=f"{number}"))
    return ""


async def test_events_older_than_the_buffer_come_from_the_log() -> None:  # L134
    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("chatters"), "ok"), tools=[chatters], log=log).run("Go.")
    received: list[Event] = []
    subscription = run.events.subscribe(received.append)
    await run
    subscription.dispose()
    durable_events = [event for event in received if event.durable]
    assert len(durable_events) > 10_100

    for stream in (run.events, run.stream(buffer=20_000), run.stream(buffer=20_000, after=f"{run.task_id}/1.0.0")):
        assert [event async for event in stream] == durable_events
    later = run.stream(after=durable_events[4].cursor, buffer=20_000)
    assert [event async for event in later] == durable_events[5:]
    frames = [frame async for frame in run.sse(after=durable_events[4].cursor, heartbeat=None)]
    assert len(frames) == len(public_events(durable_events[5:]))


def test_live_events_follow_the_events_that_are_read_from_a_slow_log() -> None:  # L134
    class SlowReadLog(MemoryEventLog):
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
        run = Agent(ScriptedModel(call("chatters_on"), "ok"), tools=[chatters_on], log=SlowReadLog()).run("Go.")
        late_reader, disposed = Recorder(), Recorder()
        time.at(0.25, lambda: run.events.subscribe(late_reader))
        time.at(0.25, lambda: time.at(0.35, run.events.subscribe(disposed).dispose))
        received: list[Event] = []

        async def main() -> None:
            run.events.subscribe(received.append)
            await run

        time.run(main())
        time.advance(1)

    assert [event for event in late_reader.events if event.durable] == [event for event in received if event.durable]
    assert late_reader.completed
    assert disposed.events == []


async def test_unreadable_log_yields_a_gap() -> None:  # L134
    class UnreadableLog(MemoryEventLog):
        async def read(self, *arguments: Any, **options: Any) -> Sequence[Event]:
            raise OSError("the disk is gone")

    run = Agent(ScriptedModel(call("chatters"), "ok"), tools=[chatters], log=UnreadableLog()).run("Go.")
    await run
    gap, *remaining = [event async for event in run.stream(buffer=20_000)]

    assert isinstance(gap, GapEvent)
    assert gap.reason == "trimmed"
    assert len(remaining) == 10_000


def _fields(frame: bytes) -> dict[str, str]:
    lines = (line.partition(": ") for line in frame.decode().split("\n") if line)
    return {name: value for name, _, value in lines}


async def read_frames(stream: AsyncIterator[bytes]) -> list[tuple[str, Event]]:
    frames: list[tuple[str, Event]] = []
    async for data in stream:
        lines = _fields(data)
        frames.append((lines.get("id", ""), Event.from_json(lines["data"], strict=True)))
    return frames


async def test_sse_yields_the_public_events_of_a_run() -> None:  # L136, L139
    run = Agent(make_two_step_model(), tools=[add]).run("Line one\nline two: data: x\n\n")
    live = Recorder(run.events)
    frames_received = await read_frames(run.sse())
    assert [event for _, event in frames_received] == public_events(live.events)
    assert [cursor for cursor, _ in frames_received] == [event.cursor for event in live.events if event.public]


async def test_sse_continues_after_the_last_id() -> None:  # L132
    run = Agent(make_two_step_model(), tools=[add]).run("Add.")
    frames_received = await read_frames(run.sse())
    durable_events = [(cursor, event) for cursor, event in frames_received if event.durable]
    for index, (cursor, _) in enumerate(durable_events):
        assert await read_frames(run.sse(after=cursor)) == durable_events[index + 1 :]


async def test_sse_with_an_invalid_id_yields_a_gap_and_all_events() -> None:  # L133
    run = Agent(ScriptedModel("Hi.")).run("Go.")
    await run
    everything = await read_frames(run.sse())
    for invalid_id in ("nonsense", "a/b/c", "x/1.2", "a/1.1.1.1"):
        [(cursor, gap), *remaining] = await read_frames(run.sse(after=invalid_id))
        assert isinstance(gap, GapEvent), invalid_id
        assert cursor == "", "a gap must not have a cursor"
        assert gap.reason == "unknown-cursor"
        assert remaining == everything


async def test_has_more_is_false_at_the_end_of_a_finished_run() -> None:
    log = MemoryEventLog()
    run = Agent(ScriptedModel("Hi"), log=log).run("Hi")
    assert await run.has_more(f"{run.task_id}/1.99.0")
    events = [event async for event in run]
    for reader in (run, follow(log, run.task_id), replay(log, run.task_id)):
        assert not await reader.has_more(events[-1].cursor)
        assert not await reader.has_more(f"{run.task_id}/1.99.0")
        for cursor in (None, "", "no cursor", f"other/{events[-1].cursor.partition('/')[2]}", events[0].cursor):
            assert await reader.has_more(cursor)


async def test_has_more_is_true_for_a_working_run() -> None:
    log = MemoryEventLog()
    task = TaskEvent(messages=[], model="m", agent_name="a", task_id="t", context_id="c", seq=1, attempt=1)
    await log.append("t", [task], expected_seq=0)
    assert await follow(log, "t").has_more("t/1.1.0")
    assert await follow(log, "t").has_more("t/1.7.0")


async def test_cursor_with_a_huge_number_is_invalid() -> None:
    run = Agent(ScriptedModel("Hi"), log=MemoryEventLog()).run("Hi")
    await run
    received = [frame async for frame in run.sse(after=f"{run.task_id}/1.{'9' * 5000}.0", heartbeat=None)]
    assert received[0].startswith(b"event: gap")


async def read_kinds(run: Run[Any], cursor: str) -> list[str]:
    """Return the kinds of later events, without deltas."""
    return [event.kind async for event in run.stream(after=cursor) if not isinstance(event, ContentDeltaEvent)]


async def test_client_of_a_long_fork_gets_no_gap_if_its_cursor_is_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hub.__init__, "__defaults__", (5, 4096))
    log, answered = MemoryEventLog(), asyncio.Event()

    @tool
    async def look(place: int) -> str:
        """Look somewhere."""
        if place == 9:
            started.set()
            await answered.wait()
        return "nothing"

    started = asyncio.Event()
    calls = [call("look", place=place) for place in range(4)]
    original = await Agent(ScriptedModel(*calls, "Done."), tools=[look], log=log).run("Look.")
    last = (await log.get_record(original.task_id)).seq
    agent = Agent(ScriptedModel(call("look", place=9), "Done."), tools=[look], log=log)
    fork = agent.fork(original.task_id, at=last - 3).start()
    await started.wait()
    cursor = (await log.read(fork.task_id))[-1].cursor
    # The copied events belong to the first attempt, and the cursor to the second one.
    reader = asyncio.create_task(read_kinds(fork, cursor))
    await run_ready_tasks(20)
    answered.set()
    await fork
    rest = ["tool-complete", "checkpoint", "llm-call", "content-complete", "checkpoint", "status-update"]
    assert await reader == rest
