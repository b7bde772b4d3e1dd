"""Tests for replaying recorded runs."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reactivex import operators as ops

from rxloop import (
    Agent,
    ConfigurationError,
    ContentDeltaEvent,
    Event,
    Limits,
    MemoryEventLog,
    RunContext,
    RunState,
    RxloopError,
    StatusUpdateEvent,
    ToolError,
    op,
    replay,
    tool,
)
from rxloop.errors import UnknownRun
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol import public_events
from rxloop.recorded import Replay
from rxloop.state import fold
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import collect, is_well_formed, outcome, shape


@tool
async def work(seconds: float) -> float:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return seconds


@tool
async def fail() -> None:
    """Fails."""
    raise ToolError("it failed")


@tool
async def sure(ctx: RunContext[Any]) -> str:
    """Asks."""
    return "yes" if await ctx.ask("Sure?") else "no"


THOUGHT = call("think_aloud", thought="Both at once.", thought_type="planning", thought_id="plan")


def agent(log: MemoryEventLog, *turns: Any) -> Agent:
    return Agent(ScriptedModel(*turns), tools=[work, fail, sure], log=log)


def run_work(log: MemoryEventLog) -> Any:
    """Start a run with thoughts, concurrent calls and a slow answer."""
    return agent(log, [THOUGHT, call("work", seconds=2), call("work", seconds=1)], frames("--It is--done.|", 0.25))


async def collect_all(stream: Any) -> list[Any]:
    return [event async for event in stream]


def is_durable(event: Any) -> bool:
    return event.durable


async def measure_arrivals(stream: Any) -> list[tuple[float, int]]:
    """Measure event times relative to the first event."""
    came = [(asyncio.get_running_loop().time(), event.seq) async for event in stream]
    return [(round(at - came[0][0], 3), seq) for at, seq in came]


def test_replay_emits_the_recorded_events_for_every_view() -> None:
    log = MemoryEventLog()
    with virtual_time() as time:
        run = run_work(log).run("Go")
        live = time.run(collect(run))
        result = time.run(run.result())
        began = time.now

        again = replay(log, run.task_id)
        events = time.run(collect_all(again))
        thoughts = time.run(collect_all(again.pipe(op.thoughts())))
        text = time.run(collect_all(again.pipe(op.text())))
        graph = time.run(again.pipe(op.thought_graph(), ops.last()))  # type: ignore[arg-type]
        last = time.run(again)
        recorded = time.run(again.result())

        assert time.now == began

    assert isinstance(again, Replay)
    assert [event for event in events if event.durable] == [event for event in live if event.durable]
    assert [thought.thought_id for thought in thoughts] == ["plan"]
    assert "".join(text) == "It isdone."
    assert graph.tree() == result.thoughts.tree() == recorded.thoughts.tree()
    assert last == live[-1]
    assert (recorded.output, recorded.messages, recorded.usage) == (result.output, result.messages, result.usage)
    assert (recorded.state, recorded.context_id) == ("completed", run.context_id)


@pytest.mark.parametrize("speed", [1, 4, 0.5])
def test_replay_keeps_the_pace_times_the_speed(speed: float) -> None:
    log = MemoryEventLog()
    with virtual_time() as time:
        run = run_work(log).run("Go")
        live = time.run(measure_arrivals(run.pipe(ops.filter(is_durable))))
        again = time.run(measure_arrivals(replay(log, run.task_id, speed=speed)))

    assert live[-1][0] == 3.5
    assert again == [(at / speed, seq) for at, seq in live]


def test_slow_reader_of_a_replay_loses_no_events() -> None:
    log = MemoryEventLog()
    with virtual_time() as time:
        run = run_work(log).run("Go")
        time.run(run.result())
        began = time.now

        async def read_slowly() -> list[int]:
            seen: list[int] = []
            async for event in replay(log, run.task_id, speed=1):
                await asyncio.sleep(0.01)
                seen.append(event.seq)
            return seen

        seen = time.run(read_slowly())

        assert seen == list(range(1, len(seen) + 1))
        assert 3.5 <= time.now - began < 3.6


def test_attempts_are_replayed_without_a_pause() -> None:
    log = MemoryEventLog()
    with virtual_time() as time:
        paused = time.run(agent(log, [call("work", seconds=1), call("sure")]).run("Go"))
        time.advance(86_400)
        time.run(agent(log, "Well then.").resume(paused.task_id, inputs={paused.pending[0].input_id: True}))
        again = time.run(measure_arrivals(replay(log, paused.task_id, speed=1)))
        events = time.run(collect_all(replay(log, paused.task_id)))

    assert [seq for _, seq in again] == list(range(1, len(again) + 1))
    assert again[-1][0] == 1
    assert {event.attempt for event in events} == {1, 2}


async def test_replay_ends_at_the_given_event() -> None:
    log = MemoryEventLog()
    result = await agent(log, call("fail"), "Well then.").run("Go")
    whole = await collect_all(replay(log, result.task_id))

    for seq in range(1, len(whole) + 3):
        again = replay(log, result.task_id).until(seq)
        assert await collect_all(again) == whole[:seq]
        assert await collect_all(again.until(4)) == whole[: min(seq, 4)]
    before = await replay(log, result.task_id).until(4).result()
    assert (before.state, before.content, shape(before.messages)) == ("working", "", ["user: Go"])
    with pytest.raises(ConfigurationError, match="1"):
        replay(log, result.task_id).until(0)


class WithDeltas(MemoryEventLog):
    """Log that stores transient events."""

    def __init__(self) -> None:
        super().__init__(keep_deltas=True)
        self.whole: list[Event] = []

    async def read(self, task_id: str, *, after_seq: int = 0, deltas: bool = False) -> Sequence[Event]:
        return self.whole if deltas else await super().read(task_id, after_seq=after_seq)

    async def follow(self, task_id: str, **options: Any) -> AsyncIterator[Event]:
        for event in self.whole:
            if event.durable or options.get("deltas"):
                yield event


def test_stored_deltas_are_replayed_with_their_timing() -> None:
    log = WithDeltas()
    with virtual_time() as time:
        run = agent(log, call("work", seconds=1), frames("-a-b-c-d|", 0.25)).run("Go")
        live = log.whole = time.run(collect(run))
        again = replay(log, run.task_id, speed=0.5)
        assert time.run(collect_all(again)) == live
        pieces = time.run(measure_arrivals(again.pipe(ops.filter(lambda event: isinstance(event, ContentDeltaEvent)))))
        short = time.run(collect_all(again.until(7)))
        without = time.run(collect_all(replay(log, run.task_id, deltas=False)))

    assert [at for at, _ in pieces] == [0, 1, 2, 3]
    assert "".join(event.delta for event in live if isinstance(event, ContentDeltaEvent)) == "abcd"
    assert short == live[: live.index(short[-1]) + 1]
    assert (short[-1].seq, short[-1].sub) == (7, 0)
    assert without == [event for event in live if event.durable]


async def test_many_deltas_are_replayed_one_by_one() -> None:
    log = WithDeltas()
    run = agent(log, "Hello.").run("Hi")
    log.whole = await collect(run)
    place = next(place for place, event in enumerate(log.whole) if isinstance(event, ContentDeltaEvent))
    log.whole[place : place + 1] = [log.whole[place].model_copy(update={"sub": sub + 1}) for sub in range(5_000)]

    assert await collect_all(replay(log, run.task_id)) == log.whole


async def test_replay_raises_unknown_run() -> None:
    nowhere = replay(MemoryEventLog(), "nowhere")

    with pytest.raises(UnknownRun, match="nowhere"):
        await collect_all(nowhere)
    with pytest.raises(UnknownRun, match="nowhere"):
        await nowhere
    with pytest.raises(UnknownRun, match="nowhere"):
        await nowhere.get_state(1)
    with pytest.raises(UnknownRun, match="nowhere"):
        await nowhere.result()


async def test_invalid_speed_is_rejected() -> None:
    for speed in (0, -1, float("nan")):
        with pytest.raises(ConfigurationError, match="speed"):
            replay(MemoryEventLog(), "run", speed=speed)


def test_replay_needs_an_event_loop() -> None:
    with pytest.raises(RxloopError, match="event loop"):
        replay(MemoryEventLog(), "run").subscribe(print)


async def test_closed_reader_ends_its_replay() -> None:
    log = MemoryEventLog()
    result = await agent(log, "Hello.").run("Hi")
    events = aiter(replay(log, result.task_id, speed=0.001))
    await anext(events)
    await events.aclose()  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_replay_can_be_served_as_server_sent_events() -> None:
    log = MemoryEventLog()
    run = agent(log, call("fail"), "Well then.").run("Go")
    live = [frame async for frame in run.sse()]
    recorded = [frame async for frame in replay(log, run.task_id).sse()]

    assert len(recorded) == len(public_events(await log.read(run.task_id)))
    assert [frame for frame in live if b".0\n" in frame] == recorded


async def test_state_of_an_earlier_event_has_the_previous_conversation() -> None:
    log = MemoryEventLog()
    await agent(log, "Hello Ann.").run("I am Ann.", context_id="c")
    second = await agent(log, call("fail"), "Ann.").run("Who am I?", context_id="c")
    await agent(log, "Bye.").run("Bye", context_id="c")
    again = replay(log, second.task_id)

    assert shape((await again.get_state(1)).messages) == ["user: I am Ann.", "assistant: Hello Ann.", "user: Who am I?"]
    last = len(await log.read(second.task_id))
    assert list((await again.get_state(last)).messages) == second.messages
    assert (await again.result()).messages == second.messages
    for seq in (0, last + 1):
        with pytest.raises(ConfigurationError, match=f"1 to {last}"):
            await again.get_state(seq)


# Runs of any shape.

CALLS = st.one_of(
    st.builds(call, st.just("work"), seconds=st.sampled_from([0, 0.1, 0.1, 0.2])),
    st.just(call("fail")),
    st.just(call("sure")),
    st.just(call("nowhere", "0")),
    st.just(THOUGHT),
)
TURNS = st.builds(
    lambda text, calls, slow: turn(frames(f"{text}-{text}-|") if slow else text, calls=calls, reasoning=text or None),
    st.sampled_from(["", "So", "Well"]),
    st.lists(CALLS, min_size=1, max_size=4),
    st.booleans(),
)


class Recorded:
    """Run with several attempts and the live state for each event."""

    def __init__(self, turns: list[Any]) -> None:
        self.log = MemoryEventLog()
        self.states: dict[int, RunState] = {}
        self.turns = turns

    def turn(self, request: ModelRequest) -> Any:
        done = sum(message.role == "assistant" for message in request.messages[2:])
        return self.turns[done] if done < len(self.turns) else "done"

    def agent(self) -> Agent:
        # Scripts may consist of failing calls, so disable the limit.
        limits = Limits(tool_failures=None)
        return Agent(ScriptedModel(*[self.turn] * 20), tools=[work, fail, sure], log=self.log, limits=limits)

    def observe(self, run: Any) -> Any:
        """Record the run state whenever a durable event is numbered."""
        recorder = run._attempt.recorder
        record = recorder._record

        def note_state(event: Event, fields: Any) -> Event:
            event = record(event, fields)
            self.states[event.seq] = recorder.state()
            return event

        recorder._record = note_state
        return run

    def play(self, time: Any, cancel_time: float | None) -> str:
        time.run(agent(self.log, "Hello.").run("Hi", context_id="c"))
        run = self.observe(self.agent().run("Go", context_id="c"))
        for _ in range(12):
            if cancel_time is not None:
                time.at(time.now + cancel_time, run.cancel)
            cancel_time = None
            result = time.run(outcome(run))
            if result.state in ("completed", "failed"):
                break
            inputs = {question.input_id: True for question in result.pending[:1]}
            run = self.observe(self.agent().resume(run.task_id, inputs=inputs))
        return run.task_id


@settings(max_examples=40, deadline=None)
@given(turns=st.lists(TURNS, max_size=4), cancel_time=st.sampled_from([None, 0.05, 0.1, 0.15, 0.3]))
def test_fold_of_the_log_equals_the_live_state_at_every_event(
    turns: list[Any], cancel_time: float | None
) -> None:  # L144
    recorded = Recorded(turns)
    with virtual_time() as time:
        task_id = recorded.play(time, cancel_time)
        again = replay(recorded.log, task_id)
        events = time.run(collect_all(again))
        states = {event.seq: time.run(again.get_state(event.seq)) for event in events if event.durable}
        before = time.run(asyncio.wait_for(read(recorded.log, "c"), 1))

    assert states == recorded.states
    state = RunState()
    for event in before:
        state = fold(state, event)
    last = recorded.states[len(recorded.states)]
    assert list(state.messages) == list(last.messages)
    assert isinstance(events[-1], StatusUpdateEvent)


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(TURNS, min_size=1, max_size=3),
    cancel_time=st.sampled_from([None, 0.05, 0.15]),
    part=st.floats(0, 1),
    prompt=st.sampled_from([None, "And now?"]),
)
def test_fold_of_a_fork_equals_its_live_state(
    turns: list[Any], cancel_time: float | None, part: float, prompt: str | None
) -> None:  # L144
    recorded = Recorded(turns)
    with virtual_time() as time:
        task_id = recorded.play(time, cancel_time)
        at = max(1, round(part * len(recorded.states)))
        before = dict(recorded.states)
        recorded.states.clear()
        run = recorded.observe(recorded.agent().fork(task_id, at, prompt=prompt))
        result = time.run(outcome(run))
        again = replay(recorded.log, run.task_id)
        states = {seq: time.run(again.get_state(seq)) for seq in recorded.states}
        copied = [time.run(again.get_state(seq)) for seq in range(1, at + 1)] if prompt is None else []

    assert result.state in ("completed", "input-required")
    assert states == recorded.states
    assert min(states) == at + 1
    # The copied events must have identical states.
    assert [list(before[state.seq].messages) for state in copied] == [list(state.messages) for state in copied]
    assert is_well_formed(result.messages)


async def read(log: MemoryEventLog, context_id: str) -> list[Event]:
    records = await log.list_runs(context_id=context_id)
    return [event for record in records for event in await log.read(record.task_id)]
