"""`run.send(..., interrupt=True)`: the answer that is being written is cut off, and what there is of it stays."""

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
from support.runs import collect, first_events, letters, shape


@tool
async def look(at: str) -> str:
    """Look at something."""
    await asyncio.sleep(1)
    return f"{at} is blue"


class Open:
    """A model that pushes what it is given, and then keeps its stream open until it is disposed."""

    name = "open"

    def __init__(self, *pieces: Event, then: str = "I see.") -> None:
        self._pieces = pieces
        self._then = ScriptedModel(then, then)
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
        """Nothing is open."""


def interrupted(model: Any, *, at: float, **options: Any) -> list[Event]:
    """The events of a run that is interrupted so many seconds after its start."""
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


def cut(events: list[Event]) -> ContentCompleteEvent:
    [message] = [
        event for event in events if isinstance(event, ContentCompleteEvent) and event.finish_reason == "interrupted"
    ]
    return message


def test_what_was_said_of_the_answer_stays_and_the_model_goes_on() -> None:
    model = Open(ContentDeltaEvent(delta="The sky "), ContentDeltaEvent(delta="is"), ContentDeltaEvent(delta=" never"))
    events = interrupted(model, at=0.25)

    assert letters(events) == "twlmcklckF"
    assert cut(events).content == "The sky is"
    assert messages(events) == [
        "user: Which colour?",
        "assistant: The sky is",
        "user: In short.",
        "assistant: I see.",
    ]
    assert shape(model.requests[1].messages) == messages(events)[:3]


def test_the_stream_of_the_provider_is_closed() -> None:
    model = Open(ContentDeltaEvent(delta="The sky"))
    interrupted(model, at=0.25)

    assert model.disposed == 1


def test_it_is_closed_before_the_next_request_leaves() -> None:
    """For a provider that is limited to one request at a time."""
    seen: list[str] = []

    class One(Open):
        def call(self, request: ModelRequest) -> Observable[Event]:
            seen.append("asked")
            return super().call(request).pipe(ops.finally_action(lambda: seen.append("closed")))

    # Nothing waits at the end of such an iteration: the next one begins inside of it.
    interrupted(One(ContentDeltaEvent(delta="The sky")), at=0.25, loop=[op.call_model(), op.run_tools()])

    assert seen == ["asked", "closed", "asked", "closed"]


def test_a_thought_that_was_being_thought_is_kept_as_incomplete_and_not_sent_back() -> None:
    model = Open(ThoughtDeltaEvent(delta="Blue, "), ThoughtDeltaEvent(delta="or"), ContentDeltaEvent(delta="Well,"))
    events = interrupted(model, at=0.35)

    [thought] = [event for event in events if isinstance(event, ThoughtStreamEvent)]
    assert (thought.content, thought.source, thought.incomplete) == ("Blue, or", "reasoning", True)
    assert cut(events).reasoning == "Blue, or"
    assert model.requests[1].messages[1].reasoning is None


def test_thoughts_that_are_complete_stay_as_they_are() -> None:
    model = Open(
        ThoughtDeltaEvent(delta="Blue"),
        ThoughtStreamEvent(thought_id="a", content="Blue", source="reasoning"),
        ContentDeltaEvent(delta="Well,"),
    )
    events = interrupted(model, at=0.35)

    assert [event.content for event in events if isinstance(event, ThoughtStreamEvent)] == ["Blue"]


def test_an_answer_that_has_not_begun_leaves_no_message() -> None:
    events = interrupted(Open(ThoughtDeltaEvent(delta="Blue")), at=0.25)

    assert messages(events) == ["user: Which colour?", "user: In short.", "assistant: I see."]


def test_calls_that_were_being_written_are_not_carried_out() -> None:
    delta = ToolCallDeltaEvent(index=0, tool_call_id="a", name="look", fragment='{"at": ')
    events = interrupted(Open(ContentDeltaEvent(delta="I look."), delta), at=0.25, tools=[look])

    assert cut(events).tool_calls == []
    assert not any(event.kind == "tool-start" for event in events)
    assert messages(events)[1] == "assistant: I look."


def test_the_tokens_that_were_reported_count() -> None:
    model = Open(UsageEvent(input_tokens=7, output_tokens=1), ContentDeltaEvent(delta="Well,"))
    events = interrupted(model, at=0.25)

    assert fold_all(events).usage.input_tokens == 7


def test_tools_that_run_are_not_cut_off() -> None:
    model = ScriptedModel(call("look", at="it"), "Blue.")
    events = interrupted(model, at=0.5, tools=[look])

    assert messages(events) == [
        "user: Which colour?",
        "assistant: look",
        "tool: it is blue",
        "user: In short.",
        "assistant: Blue.",
    ]


def test_each_of_several_answers_can_be_cut_off() -> None:
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


def test_a_reader_of_the_answer_may_cut_it_off_at_the_piece_that_it_reads() -> None:
    with virtual_time() as time:
        model = ScriptedModel(frames("-one-two-three-|"), "Stopped.")
        run = Agent(model).run("Count")
        said: list[Event] = []

        def on_next(event: Event) -> None:
            if isinstance(event, ContentDeltaEvent) and event.delta == "two":
                run.send("Stop!", interrupt=True)
            said.append(event)

        async def main() -> None:
            run.events.subscribe(on_next)
            result = await run
            assert shape(result.messages) == [
                "user: Count",
                "assistant: onetwo",
                "user: Stop!",
                "assistant: Stopped.",
            ]
            durable = [event for event in said if event.durable]
            assert durable == await collect(run)

        time.run(main())


def test_an_answer_that_comes_all_at_once_is_complete_before_it_can_be_cut_off() -> None:
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


def test_the_limits_hold() -> None:
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


def test_an_operator_that_holds_the_model_back_does_not_mind() -> None:
    """What stands between the call and the loop is disposed, and begun anew, with the iteration."""

    def watched(seen: list[str]) -> Callable[[Observable[Any]], Observable[Any]]:
        def operator(source: Observable[Any]) -> Observable[Any]:
            def subscribe(
                observer: abc.ObserverBase[Any], scheduler: abc.SchedulerBase | None = None
            ) -> abc.DisposableBase:
                seen.append("subscribed")

                def on_completed() -> None:
                    seen.append("completed")
                    observer.on_completed()

                return source.subscribe(observer.on_next, observer.on_error, on_completed, scheduler=scheduler)

            return Observable(subscribe)

        return operator

    seen: list[str] = []
    interrupted(ScriptedModel(frames("-a--------------------"), "b"), at=0.1, loop=[*op.standard(), watched(seen)])

    assert seen == ["subscribed", "completed"] * 2


async def test_a_run_is_resumed_behind_an_interrupted_answer() -> None:
    log = MemoryEventLog()
    run: Run[str] = Agent(ScriptedModel(frames("-a---", 0.001), "b"), log=log).run("Go").start()
    await anext(aiter(run.text()))
    run.send("On!", interrupt=True)
    await run
    place = next(e.seq for e in await log.read(run.task_id) if isinstance(e, ContentCompleteEvent))
    again = await Agent(ScriptedModel("c"), log=await first_events(log, run.task_id, place)).resume(run.task_id)

    assert shape(again.messages) == ["user: Go", "assistant: a", "user: On!", "assistant: c"]


def test_a_call_is_one_call() -> None:
    """The calls that a model may make after it was cut off are its own."""
    model = ScriptedModel(frames("-a-"), call("look", at="it"), "Blue.")
    events = interrupted(model, at=0.1, tools=[look])

    [started] = [event for event in events if event.kind == "tool-start"]
    assert isinstance(getattr(started, "call", None), ToolCall)
    assert messages(events)[-2:] == ["tool: it is blue", "assistant: Blue."]
