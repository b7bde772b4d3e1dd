"""`steering=` sends the messages of an Observable or async iterable to a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import reactivex as rx
from reactivex import Observable, abc
from reactivex import operators as ops
from reactivex.disposable import Disposable
from reactivex.subject import Subject

from rxloop import Agent, ConfigurationError, MemoryEventLog, Message, ModelRequest, RunError, op, tool
from rxloop.agents import Steer
from rxloop.run.spec import SteeringMessage
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.runs import outcome, shape


class RecordingSource:
    """Source that records subscriptions."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.subject: Subject[SteeringMessage] = Subject()
        self.events: Observable[SteeringMessage] = Observable(self._subscribe)

    def _subscribe(
        self, observer: abc.ObserverBase[SteeringMessage], scheduler: abc.SchedulerBase | None = None
    ) -> abc.DisposableBase:
        self.calls.append("subscribed")
        subscription = self.subject.subscribe(observer, scheduler=scheduler)

        def dispose() -> None:
            self.calls.append("disposed")
            subscription.dispose()

        return Disposable(dispose)


def test_messages_of_an_observable_are_added_to_the_history() -> None:
    """model --a------|b---|; steering ----x--------; request 2 contains x."""
    with virtual_time() as time:
        source: Observable[SteeringMessage] = rx.timer(0.1).pipe(ops.map(lambda _: "In short."))
        model = ScriptedModel(frames("-a-------|"), frames("-b-|"))
        result = time.run(Agent(model).run("Go", steering=source).result())

        assert shape(result.messages) == ["user: Go", "assistant: a", "user: In short.", "assistant: b"]


def test_immediate_messages_are_part_of_the_first_request() -> None:
    with virtual_time() as time:
        model = ScriptedModel("Hi")
        result = time.run(Agent(model).run("Go", steering=rx.of("one", Message.user("two"))).result())

        assert shape(result.messages) == ["user: Go", "user: one", "user: two", "assistant: Hi"]


def test_source_can_interrupt_an_answer() -> None:
    with virtual_time() as time:
        source: Observable[SteeringMessage] = rx.timer(0.06).pipe(ops.map(lambda _: Steer("Stop.", interrupt=True)))
        model = ScriptedModel(frames("-a-b-c-d-e-|"), "Stopped.")
        result = time.run(Agent(model).run("Go", steering=source).result())

        assert shape(result.messages) == ["user: Go", "assistant: a", "user: Stop.", "assistant: Stopped."]


async def test_source_is_subscribed_at_the_start_and_disposed_at_the_end() -> None:
    source = RecordingSource()
    run = Agent(ScriptedModel(frames("-a-|", 0.001))).run("Go", steering=source.events)
    assert source.calls == []
    await run.begin()
    assert source.calls == ["subscribed"]
    await run

    assert source.calls == ["subscribed", "disposed"]


async def test_source_is_disposed_when_the_run_is_canceled() -> None:
    source = RecordingSource()
    async with Agent(ScriptedModel(frames("--"))).run("Go", steering=source.events) as run:
        await run.begin()

    assert source.calls == ["subscribed", "disposed"]


async def test_completed_source_does_not_end_the_run() -> None:
    result = await Agent(ScriptedModel("Hi")).run("Go", steering=rx.empty())

    assert result.output == "Hi"


def test_error_of_the_source_fails_the_run() -> None:
    with virtual_time() as time:
        source: Observable[SteeringMessage] = rx.timer(0.1).pipe(
            ops.flat_map(lambda _: rx.throw(ValueError("the socket broke")))
        )
        run = Agent(ScriptedModel(frames("--"))).run("Go", steering=source)
        with pytest.raises(RunError, match=r"steering=.*ValueError: the socket broke"):
            time.run(run.result())


async def test_invalid_message_of_the_source_fails_the_run() -> None:
    source: Observable[Any] = rx.of(7)
    with pytest.raises(RunError, match="steering="):
        await Agent(ScriptedModel(frames("--"))).run("Go", steering=source)


def test_async_iterable_is_consumed_and_closed() -> None:
    closed: list[str] = []

    async def messages() -> AsyncIterator[str]:
        try:
            await asyncio.sleep(0.1)
            yield "In short."
            await asyncio.sleep(1000)
        finally:
            closed.append("closed")

    with virtual_time() as time:
        model = ScriptedModel(frames("-a-------|"), frames("-b-|"))
        result = time.run(Agent(model).run("Go", steering=messages()).result())

        assert shape(result.messages) == ["user: Go", "assistant: a", "user: In short.", "assistant: b"]
        assert closed == ["closed"]
        assert time.now < 1


def test_stuck_run_fails_although_its_source_is_open() -> None:
    async def silent() -> AsyncIterator[str]:
        await asyncio.Event().wait()
        yield ""

    with virtual_time() as time:
        never: Any = op.answer_requests(ModelRequest, lambda request: rx.never())
        run = Agent(ScriptedModel(), loop=[never]).run("Go", steering=silent())
        with pytest.raises(RunError, match="the run cannot continue"):
            time.run(run.result())


async def test_thoughts_of_another_run_can_be_the_source() -> None:
    teacher = Agent(ScriptedModel(call("think_aloud", thought="Use blue.", thought_type="decision"), "Done."))
    lesson = teacher.run("Plan it.")
    source: Observable[SteeringMessage] = lesson.pipe(op.thoughts()).pipe(ops.map(lambda thought: thought.content))
    released = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait for the lesson."""
        await released.wait()
        return "ready"

    model = ScriptedModel(call("wait"), "Blue.")
    pupil = Agent(model, tools=[wait]).run("Paint.", steering=source)
    await pupil.begin()
    await lesson
    released.set()
    result = await pupil

    assert "user: Use blue." in shape(result.messages)


async def test_resume_accepts_a_source() -> None:
    log = MemoryEventLog()
    async with Agent(ScriptedModel(frames("--")), log=log).run("Go") as run:
        await run.begin()
    model = ScriptedModel("Hi")
    result = await outcome(Agent(model, log=log).resume(run.task_id, steering=rx.of("On.")))

    assert shape(result.messages) == ["user: Go", "user: On.", "assistant: Hi"]


@pytest.mark.parametrize("value", ["text", ["a", "b"], 7])
def test_run_rejects_invalid_source(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="steering must be"):
        Agent(ScriptedModel()).run("Go", steering=value)


async def test_late_message_of_a_source_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    subject: Subject[SteeringMessage] = Subject()
    async with Agent(ScriptedModel(frames("--"))).run("Go", steering=subject) as run:
        await run.begin()
        run.cancel()
        subject.on_next("late")

    assert "Dropping a steering= message sent too late" in caplog.text
