"""Merged streams of runs."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.subject import Subject

from rxloop import Agent, MemoryEventLog, merge, op
from rxloop.errors import ConfigurationError, ContextBusy, RxloopError, ServerError
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event, StatusUpdateEvent
from rxloop.testing import ScriptedModel, assert_marbles, frames, turn, virtual_time
from support.run_checks import Recorder, assert_no_tasks, run_ready_tasks, wait_until


def make_agent(line: str, **options: Any) -> Agent[None, str]:
    return Agent(ScriptedModel(turn(frames(line))), **options)


def join_deltas(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, ContentDeltaEvent))


def test_events_of_all_runs_arrive_in_order_until_the_last_run_ends() -> None:
    with virtual_time():
        assert_marbles(merge(make_agent("-a--b|").run("1"), make_agent("--x|").run("2")), "(twltwl)---(cF)--(cF|)")


def test_events_are_distinguished_by_run_and_views_combine_them() -> None:
    with virtual_time() as time:
        first, second = make_agent("-a-b|").run("1"), make_agent("--x-y|").run("2")
        both = merge(first, second)

        async def read() -> tuple[list[Any], Any]:
            return [event async for event in both], await both.pipe(op.stats(1.0))

        events, figures = time.run(read())
    assert {event.task_id for event in events} == {first.task_id, second.task_id}
    assert join_deltas([event for event in events if event.task_id == second.task_id]) == "xy"
    assert figures.model_calls == 2


def test_failed_run_does_not_end_the_merged_stream() -> None:
    failing = Agent(ScriptedModel(ServerError("503")))
    with virtual_time() as time:
        runs = failing.run("1"), make_agent("----b|").run("2")

        async def read() -> list[Any]:
            events = [event async for event in merge(*runs)]
            with pytest.raises(RxloopError):
                await runs[0]
            return events

        events = time.run(read())
    assert [e.state for e in events if isinstance(e, StatusUpdateEvent) and e.final] == ["failed", "completed"]


async def test_error_of_a_refused_run_is_raised_after_all_runs_have_ended() -> None:
    log = MemoryEventLog()
    talking = Agent(ScriptedModel(turn(frames("-a-|", 0.001))), log=log)
    first, refused = talking.run("1", context_id="c"), talking.run("2", context_id="c")
    seen: list[Any] = []
    with pytest.raises(ContextBusy):
        await merge(first, refused).pipe(ops.do_action(seen.append))
    assert seen[-1].final


def test_several_errors_are_raised_as_a_group() -> None:
    with virtual_time() as time, pytest.raises(ExceptionGroup) as raised:
        time.run(merge(rx.throw(ValueError("a")), rx.just(1), rx.throw(KeyError("b"))))
    assert [type(error) for error in raised.value.exceptions] == [ValueError, KeyError]


async def test_slow_blocking_reader_holds_back_every_run() -> None:
    runs = [make_agent(f"-{character}" * 200 + "|").run("?") for character in "ab"]
    for run in runs:
        run.hold.start()
    reader = aiter(merge(*runs, overflow="block", buffer=4))
    await anext(reader)
    await wait_until(lambda: all(run.hold.gate.closed for run in runs))
    async for _ in reader:
        if not any(run.hold.gate.closed for run in runs):
            break
    else:
        pytest.fail("the gates never opened")
    await reader.aclose()
    assert not any(run.hold.gate.closed for run in runs)
    for run in runs:
        await run.aclose()


async def test_deltas_of_concurrent_runs_are_merged_per_run() -> None:
    models = [ScriptedModel(turn(frames(f"{character}-" * 500 + "|", 0.0001))) for character in "abc"]
    runs = [Agent(model).run("?") for model in models]
    reader = aiter(merge(*runs, buffer=20))
    first = await anext(reader)
    await asyncio.gather(*(run.result() for run in runs))
    events = [first] + [event async for event in reader]
    for run, character in zip(runs, "abc", strict=True):
        assert join_deltas([event for event in events if event.task_id == run.task_id]) == character * 500
    # 20 buffered events, then per run one merged delta and its durable events.
    assert len(events) <= 20 + 3 * 5


async def test_dropped_stream_cancels_only_runs_without_other_readers() -> None:
    dropped, other_agent = make_agent(f"-a{'-' * 400}|"), make_agent("-b|")
    other_run = other_agent.run("2")
    reader = aiter(merge(dropped.run("1"), other_run))
    await anext(reader)
    await reader.aclose()
    del reader
    gc.collect()
    assert (await other_run).output == "b"
    await assert_no_tasks(turns=50)


async def test_runs_start_at_the_first_use_of_the_stream() -> None:
    runs = [make_agent("-a|").run(str(number)) for number in range(3)]
    stream = merge(*runs)
    assert not any(run.started for run in runs)
    recorder = Recorder(stream)
    assert all(run.started for run in runs)
    await asyncio.gather(*(run.result() for run in runs))
    await run_ready_tasks()
    assert recorder.completed


def test_event_caused_by_a_subscriber_follows_its_cause() -> None:
    first: Subject[int] = Subject()
    second: Subject[int] = Subject()
    seen: list[int] = []

    async def read() -> None:
        def on_next(item: int) -> None:
            if item == 1:
                second.on_next(2)
            seen.append(item)

        merge(first, second).subscribe(on_next)
        first.on_next(1)

    with virtual_time() as time:
        time.run(read())
    assert seen == [1, 2]


def test_time_operators_use_the_event_loop() -> None:
    async def read() -> list[Any]:
        return [item async for item in merge(rx.timer(60).pipe(ops.map(lambda _: "late")), rx.just("now"))]

    with virtual_time() as time:
        assert time.run(read()) == ["now", "late"]
        assert time.now == 60


async def test_merge_of_nothing_completes_immediately() -> None:
    assert [item async for item in merge()] == []


async def test_text_streams_are_merged_and_their_errors_raised() -> None:
    failing = Agent(ScriptedModel(ServerError("503")))
    pieces: list[str] = []
    texts = merge(failing.run("1").text(), make_agent("-a-b|").run("2").text())
    with pytest.raises(RxloopError, match="503"):
        await texts.pipe(ops.do_action(pieces.append))
    assert "".join(pieces) == "ab"


@pytest.mark.parametrize("wrong", ["a text", None, [1]])
async def test_invalid_source_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="sources must be runs, streams or Observables"):
        merge(wrong)


async def test_unknown_overflow_policy_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="overflow must be"):
        merge(overflow="sometimes")  # type: ignore[arg-type]


def test_merged_stream_can_be_merged() -> None:
    with virtual_time() as time:

        async def read() -> list[str]:
            runs = [make_agent(line).run("?") for line in ("-a|", "--b|", "---c|")]
            nested = merge(merge(*runs[:2]), runs[2])
            return [e.content async for e in nested.pipe(op.of_type(ContentCompleteEvent))]

        assert time.run(read()) == ["a", "b", "c"]
