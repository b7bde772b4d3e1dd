"""Recordings of event streams in lists and files."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reactivex as rx
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import Agent, ConfigurationError, Event, MemoryEventLog, RunCancelled, op, replay
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent
from rxloop.stream.sources import emit
from rxloop.testing import ScriptedModel, assert_marbles, call, frames, recorded_events, virtual_time
from support.runs import collect

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
DELTA = ContentDeltaEvent(delta="sch\u00f6n\u2028\n", seq=1, sub=1)
MESSAGE = ContentCompleteEvent(content="sch\u00f6n\u2028\n", seq=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def test_events_pass_at_once_and_are_recorded_in_a_list() -> None:
    scheduler = TestScheduler()
    end = ReactiveTest.on_error(230, ValueError("no"))
    source = scheduler.create_hot_observable(on_next(210, DELTA), on_next(220, MESSAGE), end)
    recording: list[Event] = []

    seen = scheduler.start(lambda: source.pipe(op.record(recording)))

    assert seen.messages == [on_next(210, DELTA), on_next(220, MESSAGE), end]
    assert recording == [DELTA, MESSAGE]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 230)]


def test_disposal_ends_the_recording(path: Path) -> None:
    for target in ([], path):
        scheduler = TestScheduler()
        source = scheduler.create_hot_observable(on_next(210, MESSAGE), on_next(220, DELTA), on_next(240, MESSAGE))
        seen = scheduler.start(lambda source=source, target=target: source.pipe(op.record(target)), disposed=230)
        assert seen.messages == [on_next(210, MESSAGE), on_next(220, DELTA)]
        assert (target if isinstance(target, list) else recorded_events(target)) == [MESSAGE, DELTA]
        assert source.subscriptions == [ReactiveTest.subscribe(200, 230)]


def test_live_run_can_be_recorded(path: Path) -> None:
    with virtual_time():
        run = Agent(ScriptedModel(call("f"), frames("--It is--done.|"))).run("Go")
        assert_marbles(run.pipe(op.record(path)), "(twlcxl) 150ms (cF|)")
    lines = path.read_bytes().splitlines(keepends=True)
    assert all(line.endswith(b"}\n") for line in lines)
    assert [Event.from_json(line) for line in lines] == recorded_events(path)
    assert recorded_events(str(path))[-1].kind == "status-update"


async def test_events_read_from_a_recording_equal_the_recorded_events(path: Path) -> None:  # L6
    recording: list[Event] = []
    run = Agent(ScriptedModel(call("f"), "Sch\u00f6n \u2028 \U0001f600\nand \x00.")).run("Go")
    events = await collect(run.pipe(op.record(path), op.record(recording)))
    assert recorded_events(path) == recording == events


async def test_replayed_events_can_be_recorded(path: Path) -> None:
    log = MemoryEventLog()
    result = await Agent(ScriptedModel("Hello."), log=log).run("Hi")
    last = await replay(log, result.task_id).pipe(op.record(path))
    assert recorded_events(path) == list(await log.read(result.task_id))
    again: list[Event] = []
    emit(*recorded_events(path)).pipe(op.record(again)).subscribe()
    assert again[-1] == last


async def test_each_subscription_truncates_the_file_and_extends_the_list(path: Path) -> None:
    recording: list[Event] = []
    for _ in range(2):
        await Agent(ScriptedModel("Hello.")).run("Hi").pipe(op.record(path), op.record(recording))
    assert len(recording) == 2 * len(recorded_events(path))


async def test_recording_of_a_cancelled_run_ends_with_its_final_event(path: Path) -> None:
    run = Agent(ScriptedModel(frames("-It is-|", 0.001))).run("Go")
    stream = run.pipe(op.record(path))
    async for event in stream:
        if event.kind == "content-delta":
            run.cancel()
    with pytest.raises(RunCancelled):
        await run
    kinds = [event.kind for event in recorded_events(path)]
    assert kinds == ["task", "status-update", "llm-call", "content-delta", "content-complete", "status-update"]


@pytest.mark.parametrize("end", [rx.empty(), rx.throw(LookupError("gone"))])
def test_file_is_complete_when_the_subscriber_gets_the_end(end: rx.Observable[Event], path: Path) -> None:
    recorded: list[Event] = []

    def read(*_: Exception) -> None:
        recorded.extend(recorded_events(path))

    rx.concat(emit(MESSAGE, DELTA), end).pipe(op.record(path)).subscribe(on_error=read, on_completed=read)
    assert recorded == [MESSAGE, DELTA]


def test_error_of_the_stream_closes_the_file(path: Path) -> None:
    errors: list[Exception] = []
    rx.concat(emit(MESSAGE), rx.throw(LookupError("gone"))).pipe(op.record(path)).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [LookupError]
    assert recorded_events(path) == [MESSAGE]


CRASH = """
import asyncio, os, signal, sys
from rxloop import Agent, op
from rxloop.testing import ScriptedModel, call, frames

async def main():
    run = Agent(ScriptedModel(call("f"), frames("a-" * 3000 + "b-" + "|", 0.0))).run("Go")
    seen = 0
    async for event in run.pipe(op.record(sys.argv[1])):
        seen += event.kind == "content-delta"
        if seen == 2000:
            os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


def test_recording_has_whole_lines_and_all_durable_events_after_a_crash(path: Path) -> None:
    source = Path(__file__).parents[3] / "src"
    environment = os.environ | {"PYTHONPATH": str(source)}
    done = subprocess.run([sys.executable, "-c", CRASH, path], env=environment, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL

    events = recorded_events(path)
    durable = [event.kind for event in events if event.durable]
    assert durable == [
        "task",
        "status-update",
        "llm-call",
        "content-complete",
        "tool-complete",
        "checkpoint",
        "llm-call",
    ]
    assert sum(event.kind == "content-delta" for event in events) > 100
    assert path.read_bytes().endswith(b"}\n")


async def test_file_that_cannot_be_opened_is_an_error_with_its_path(tmp_path: Path) -> None:
    for target in (tmp_path, tmp_path / "nowhere" / "run.jsonl"):
        with pytest.raises(ConfigurationError, match=f"record cannot write to '{target}'"):
            await Agent(ScriptedModel("Hello.")).run("Hi").pipe(op.record(target))


async def test_full_disk_ends_the_recording_and_not_the_run() -> None:
    run = Agent(ScriptedModel("Hello.")).run("Hi")
    with pytest.raises(ConfigurationError, match="No space left"):
        await run.pipe(op.record("/dev/full"))
    assert (await run).output == "Hello."


async def test_full_disk_is_not_logged_as_a_fault_of_the_subscriber(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = Agent(ScriptedModel("Hello")).run("Go.")
    await run
    errors: list[Exception] = []
    run.pipe(op.record("/dev/full")).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [ConfigurationError]
    assert caplog.records == []


def test_full_disk_is_reported_once() -> None:
    errors: list[Exception] = []
    emit(*[MESSAGE] * 3).pipe(op.record("/dev/full")).subscribe(on_error=errors.append)
    assert [type(error) for error in errors] == [ConfigurationError]


def test_error_for_a_missing_recording_explains_how_to_make_one(path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"cannot read recording .*\(No such file.*; create it with op\.record"
    ):
        recorded_events(path)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("nonsense", "an event must be a JSON object"),
        ("[1]", "an event must be a JSON object"),
        ('{"version":1,"kind":"content-delta","delta":', "invalid event"),
        ('{"version":1,"kind":"content-delta","delta":5}', "kind 'content-delta': delta"),
        ("\udcff", "an event must be a JSON object"),
    ],
)
def test_error_names_the_line_that_is_not_an_event(path: Path, line: str, why: str) -> None:
    good = MESSAGE.to_json().decode()
    path.write_text(f"{good}\n\n{line}\n{good}\n", encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigurationError, match=why) as raised:
        recorded_events(path)
    assert str(raised.value).startswith(f"{path}, line 3: ")


def test_empty_lines_and_other_line_endings_are_accepted(path: Path) -> None:
    good = MESSAGE.to_json()
    path.write_bytes(b"\n" + good + b"\r\n\r\n" + good)
    assert recorded_events(path) == [MESSAGE, MESSAGE]
