"""`run.send(..., interrupt=True)` stops the current answer and keeps its received part."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from reactivex import Observable, abc
from reactivex import operators as ops

from rxloop import (
    Agent,
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LimitReached,
    Limits,
    MemoryEventLog,
    ModelRequest,
    Run,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    UsageEvent,
    op,
    tool,
)
from rxloop.protocol.messages import ToolCall
from rxloop.state.fold import fold_all
from rxloop.stream.sources import Push, from_task
from rxloop.testing import ScriptedModel, call, frames, virtual_time
from support.runs import collect, copy_first_events, format_marbles, shape


@tool
async def look(at: str) -> str:
    """Look at something."""
    await asyncio.sleep(1)
    return f"{at} is blue"


class OpenStreamModel:
    """Model that pushes events and leaves its stream open."""

    name = "open"

    def __init__(self, *pieces: Event, final_answer: str = "I see.") -> None:
        self._pieces = pieces
        self._then = ScriptedModel(final_answer, final_answer)
        self.disposed = 0
        self.requests: list[ModelRequest] = []

    def call(self, request: ModelRequest) -> Observable[Event]:
        self.requests.append(request)
        if len(self.requests) > 1:
            return self._then.call(request)

        async def work(push: Push[Event]) -> None:
            for piece in self._pieces:
                await asyncio.sleep(0.1)
                push(piece)
            try:
                await asyncio.sleep(60)
            finally:
                self.disposed += 1

        return from_task(work, request.ctx, shielded=True)

    async def aclose(self) -> None:
        """Do nothing."""


def run_and_interrupt(model: Any, *, at: float, **options: Any) -> list[Event]:
    """Interrupt a run after `at` seconds and return its events."""
    with virtual_time() as time:
        log = MemoryEventLog()
        run = Agent(model, log=log, **options).run("Which colour?")

        async def main() -> list[Event]:
            run.start()
            await asyncio.sleep(at)
            run.send("In short.", interrupt=True)
            events = await collect(run)
            assert fold_all(await log.read(run.task_id)).messages == (await run).messages
            assert [event async for event in run.pipe(op.grammar())]
            return events

        return time.run(main())


def messages(events: list[Event]) -> list[str]:
    return shape(fold_all(events).messages)


def find_interrupted_message(events: list[Event]) -> ContentCompleteEvent:
    [message] = [
        event for event in events if isinstance(event, ContentCompleteEvent) and event.finish_reason == "interrupted"
    ]
    return message


def test_interrupted_answer_is_kept_and_the_model_is_called_again() -> None:
    model = OpenStreamModel(
        ContentDeltaEvent(delta="The sky "), ContentDeltaEvent(delta="is"), ContentDeltaEvent(delta=" never")
    )
    events = run_and_interrupt(model, at=0.25)

    assert format_marbles(events) == "twlmcklckF"
    assert find_interrupted_message(events).content == "The sky is"
    assert messages(events) == [
        "user: Which colour?",
        "assistant: The sky is",
        "user: In short.",
        "assistant: I see.",
    ]
    assert shape(model.requests[1].messages) == messages(events)[:3]


def test_interruption_closes_the_stream_of_the_provider() -> None:
    model = OpenStreamModel(ContentDeltaEvent(delta="The sky"))
    run_and_interrupt(model, at=0.25)

    assert model.disposed == 1


def test_interrupted_stream_is_closed_before_the_next_request() -> None:
    """Providers may be limited to one concurrent request."""
    calls: list[str] = []

    class Recording(OpenStreamModel):
        def call(self, request: ModelRequest) -> Observable[Event]:
            calls.append("requested")
            return super().call(request).pipe(ops.finally_action(lambda: calls.append("closed")))

    # Nothing waits at the end of such an iteration, so the next iteration starts inside it.
    run_and_interrupt(Recording(ContentDeltaEvent(delta="The sky")), at=0.25, loop=[op.call_model(), op.run_tools()])

    assert calls == ["requested", "closed", "requested", "closed"]


def test_interrupted_thought_is_kept_as_incomplete_and_not_sent_back() -> None:
    model = OpenStreamModel(
        ThoughtDeltaEvent(delta="Blue, "), ThoughtDeltaEvent(delta="or"), ContentDeltaEvent(delta="Well,")
    )
    events = run_and_interrupt(model, at=0.35)

    [thought] = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert (thought.content, thought.source) == ("Blue, or", "reasoning")
    assert thought.incomplete
    assert find_interrupted_message(events).reasoning == "Blue, or"
    assert model.requests[1].messages[1].reasoning is None


def test_interruption_keeps_complete_thoughts() -> None:
    model = OpenStreamModel(
        ThoughtDeltaEvent(delta="Blue"),
        ThoughtStreamEvent(thought_id="a", content="Blue", source="reasoning"),
        ContentDeltaEvent(delta="Well,"),
    )
    events = run_and_interrupt(model, at=0.35)

    assert [event.content for event in events if isinstance(event, ThoughtStreamEvent)] == ["Blue"]


def test_interruption_before_the_answer_leaves_no_message() -> None:
    events = run_and_interrupt(OpenStreamModel(ThoughtDeltaEvent(delta="Blue")), at=0.25)

    assert messages(events) == ["user: Which colour?", "user: In short.", "assistant: I see."]


def test_interrupted_tool_call_is_not_executed() -> None:
    delta = ToolCallDeltaEvent(index=0, tool_call_id="a", name="look", fragment='{"at": ')
    events = run_and_interrupt(OpenStreamModel(ContentDeltaEvent(delta="I look."), delta), at=0.25, tools=[look])

    assert find_interrupted_message(events).tool_calls == []
    assert not any(event.kind == "tool-start" for event in events)
    assert messages(events)[1] == "assistant: I look."


def test_usage_reported_before_the_interruption_counts() -> None:
    model = OpenStreamModel(UsageEvent(input_tokens=7, output_tokens=1), ContentDeltaEvent(delta="Well,"))
    events = run_and_interrupt(model, at=0.25)

    assert fold_all(events).usage.input_tokens == 7


def test_interruption_does_not_stop_running_tools() -> None:
    model = ScriptedModel(call("look", at="it"), "Blue.")
    events = run_and_interrupt(model, at=0.5, tools=[look])

    assert messages(events) == [
        "user: Which colour?",
        "assistant: look",
        "tool: it is blue",
        "user: In short.",
        "assistant: Blue.",
    ]


def test_consecutive_answers_can_be_interrupted() -> None:
    with virtual_time() as time:
        model = ScriptedModel(*[frames(f"-{n}-") for n in "abc"], "d")
        run = Agent(model).run("Go")

        async def main() -> None:
            run.start()
            for n in "123":
                await asyncio.sleep(0.1)
                run.send(n, interrupt=True)
            result = await run
            assert [message.text for message in result.messages] == ["Go", "a", "1", "b", "2", "c", "3", "d"]

        time.run(main())


def test_subscriber_can_interrupt_the_answer_at_the_current_delta() -> None:
    with virtual_time() as time:
        model = ScriptedModel(frames("-one-two-three-|"), "Stopped.")
        run = Agent(model).run("Count")
        received: list[Event] = []

        def on_next(event: Event) -> None:
            if isinstance(event, ContentDeltaEvent) and event.delta == "two":
                run.send("Stop!", interrupt=True)
            received.append(event)

        async def main() -> None:
            run.events.subscribe(on_next)
            result = await run
            assert shape(result.messages) == [
                "user: Count",
                "assistant: onetwo",
                "user: Stop!",
                "assistant: Stopped.",
            ]
            durable = [event for event in received if event.durable]
            assert durable == await collect(run)

        time.run(main())


def test_answer_in_one_piece_is_complete_when_its_subscriber_interrupts() -> None:
    model = ScriptedModel("Blue.", "Green.")
    with virtual_time() as time:
        run = Agent(model).run("Which colour?")

        def on_next(event: Event) -> None:
            if isinstance(event, ContentDeltaEvent) and event.delta == "Blue.":
                run.send("Another one.", interrupt=True)

        async def main() -> None:
            run.events.subscribe(on_next)
            result = await run
            assert shape(result.messages)[1:] == ["assistant: Blue.", "user: Another one.", "assistant: Green."]

        time.run(main())


def test_iteration_limit_applies_after_an_interruption() -> None:
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("-a-"), "never"), limits=Limits(iterations=1)).run("Go")

        async def main() -> None:
            run.start()
            await asyncio.sleep(0.1)
            run.send("On!", interrupt=True)
            with pytest.raises(LimitReached) as caught:
                await run
            assert caught.value.result.content == "a"

        time.run(main())


def test_operators_of_an_interrupted_iteration_are_disposed_and_resubscribed() -> None:
    def make_recording_operator(calls: list[str]) -> Callable[[Observable[Any]], Observable[Any]]:
        def operator(source: Observable[Any]) -> Observable[Any]:
            def subscribe(
                observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
            ) -> abc.DisposableBase:
                calls.append("subscribed")

                def on_completed() -> None:
                    calls.append("completed")
                    observer.on_completed()

                return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

            return Observable(subscribe)

        return operator

    calls: list[str] = []
    run_and_interrupt(
        ScriptedModel(frames("-a--------------------"), "b"),
        at=0.1,
        loop=[*op.standard(), make_recording_operator(calls)],
    )

    assert calls == ["subscribed", "completed"] * 2


async def test_run_is_resumed_after_an_interrupted_answer() -> None:
    log = MemoryEventLog()
    run: Run[str] = Agent(ScriptedModel(frames("-a---", 0.001), "b"), log=log).run("Go").start()
    await anext(aiter(run.text()))
    run.send("On!", interrupt=True)
    await run
    seq = next(e.seq for e in await log.read(run.task_id) if isinstance(e, ContentCompleteEvent))
    resumed = await Agent(ScriptedModel("c"), log=await copy_first_events(log, run.task_id, seq)).resume(run.task_id)

    assert shape(resumed.messages) == ["user: Go", "assistant: a", "user: On!", "assistant: c"]


def test_model_can_call_tools_after_an_interruption() -> None:
    model = ScriptedModel(frames("-a-"), call("look", at="it"), "Blue.")
    events = run_and_interrupt(model, at=0.1, tools=[look])

    [started] = [event for event in events if event.kind == "tool-start"]
    assert isinstance(getattr(started, "call", None), ToolCall)
    assert messages(events)[-2:] == ["tool: it is blue", "assistant: Blue."]
