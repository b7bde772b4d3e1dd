"""`run.say`: what is said to a run that goes on enters its history, and the model hears it once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import reactivex
import reactivex.operators as rx
from pydantic import BaseModel
from reactivex import Observable

from rxloop import (
    Agent,
    CheckpointEvent,
    ConfigurationError,
    ContentCompleteEvent,
    Event,
    LimitReached,
    Limits,
    MemoryEventLog,
    Message,
    MessageAddedEvent,
    Operator,
    Run,
    RunContext,
    StatusUpdateEvent,
    ToolStartEvent,
    op,
    replay,
    tool,
)
from rxloop.agents import Steer
from rxloop.errors import InvalidEvent, RunOver
from rxloop.run.steering import say
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import collect, first_events, letters, outcome, shape


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


def say_at(run: Run[Any], fits: Callable[[Event], bool], *said: Any, **options: Any) -> None:
    """Say something at the first event that fits."""
    waiting = list(said)

    def on_next(event: Event) -> None:
        if waiting and fits(event):
            run.send(waiting.pop(0), **options)

    run.events.subscribe(on_next)


def heard(model: ScriptedModel) -> list[list[str]]:
    """What each request has carried, in short."""
    return [shape(request.messages) for request in model.requests]


async def test_a_model_that_has_just_answered_is_asked_once_more() -> None:
    model = ScriptedModel("Blue.", "Green, then.")
    run = Agent(model).run("Which colour?")
    say_at(run, lambda event: isinstance(event, ContentCompleteEvent), "Another one.")
    result = await run

    assert result.output == "Green, then."
    assert heard(model)[1] == ["user: Which colour?", "assistant: Blue.", "user: Another one."]
    assert shape(result.messages) == [*heard(model)[1], "assistant: Green, then."]


async def test_what_is_said_after_the_last_iteration_was_checked_still_counts() -> None:
    model = ScriptedModel("Blue.", "Green.")
    run = Agent(model, loop=[*op.standard(), op.checkpoint()]).run("Which colour?")
    say_at(run, lambda event: isinstance(event, CheckpointEvent), "Another one.")

    assert (await run).output == "Green."
    assert len(model.requests) == 2


def test_what_is_said_while_the_model_writes_comes_after_its_message() -> None:
    with virtual_time() as time:
        model = ScriptedModel(frames("-The sky-is blue.-|"), "I see.")
        run = Agent(model).run("Which colour?")

        async def main() -> None:
            run.start()
            await asyncio.sleep(0.06)
            run.send("In short.")
            assert run._attempt.state().held  # pyright: ignore[reportPrivateUsage]
            result = await run
            assert shape(result.messages)[1:] == [
                "assistant: The skyis blue.",
                "user: In short.",
                "assistant: I see.",
            ]

        time.run(main())


async def test_what_is_said_while_tools_run_comes_after_the_whole_batch() -> None:
    model = ScriptedModel([call("look", at="a"), call("look", at="b")], "Blue.")
    run = Agent(model, tools=[look]).run("Look.")
    say_at(run, lambda event: isinstance(event, ToolStartEvent), "Hurry.")
    await run

    assert heard(model)[1] == [
        "user: Look.",
        "assistant: look,look",
        "tool: a is blue",
        "tool: b is blue",
        "user: Hurry.",
    ]


async def test_a_tool_steers_its_own_run() -> None:
    runs: list[Run[str]] = []

    @tool
    async def remember() -> str:
        """Remember something."""
        runs[0].send("By the way, it is Monday.")
        return "done"

    model = ScriptedModel(call("remember"), "Monday.")
    runs.append(Agent(model, tools=[remember]).run("Which day?"))
    await runs[0]

    assert heard(model)[1][-2:] == ["tool: done", "user: By the way, it is Monday."]


def test_several_messages_enter_in_order_under_ids_of_their_own() -> None:
    with virtual_time() as time:
        model = ScriptedModel(frames("---a-|"), "b")
        run = Agent(model).run("Go")

        async def main() -> None:
            run.start()
            await asyncio.sleep(0.01)
            run.send(["one", Message.system("two"), Message.user("three").model_copy(update={"message_id": "mine"})])
            result = await run
            assert shape(result.messages)[2:5] == ["user: one", "system: two", "user: three"]
            assert result.messages[4].message_id == "mine"

        time.run(main())


async def test_what_is_said_before_the_run_begins_follows_its_prompt() -> None:
    model = ScriptedModel("Hi")
    run = Agent(model).run("Hello")
    run.send("And be brief.")

    assert not run.started
    assert letters(await collect(run)).startswith("twm")
    assert heard(model) == [["user: Hello", "user: And be brief."]]


@pytest.mark.parametrize("wrong", ["", [], 7, Message.tool("x", "y"), Message(role="assistant", content="hi")])
async def test_what_cannot_be_said_is_refused(wrong: Any) -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    with pytest.raises(ConfigurationError):
        run.send(wrong)
    await run


async def test_what_cannot_be_said_is_called_a_message_and_not_a_prompt() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    steer: Any = Steer("Stop", interrupt=True)
    with pytest.raises(ConfigurationError, match=r"the message is Steer.*use send\(text, interrupt=True\)"):
        run.send(steer)
    with pytest.raises(ConfigurationError, match="the message must be a string"):
        run.send(7)  # pyright: ignore[reportArgumentType]
    await run


async def test_who_is_too_late_is_told_so() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    late: list[Exception] = []

    def on_next(event: Event) -> None:
        if isinstance(event, StatusUpdateEvent) and event.final:
            try:
                run.send("too late")
            except RunOver as error:
                late.append(error)

    run.events.subscribe(on_next)
    result = await run

    assert len(late) == 1
    assert run.task_id in str(late[0])
    with pytest.raises(RunOver):
        run.send("much too late")
    assert "too late" not in str(result.messages)


async def test_a_run_that_is_cancelled_hears_nothing_more() -> None:
    async with Agent(ScriptedModel(frames("--"))).run("Hello") as run:
        await run.begin()
        run.cancel()
        with pytest.raises(RunOver):
            run.send("wait")


async def test_another_thread_steers_and_waits_until_it_is_said() -> None:
    model = ScriptedModel(frames("-a-|", 0.2), "b")
    run = Agent(model).run("Hello").start()
    said: list[list[str]] = []

    def speak() -> None:
        run.send("from afar")
        said.append([message.text for message in run._attempt.state().held])  # pyright: ignore[reportPrivateUsage]

    await asyncio.sleep(0)
    thread = threading.Thread(target=speak)
    thread.start()
    result = await run
    await asyncio.to_thread(thread.join)

    assert said == [["from afar"]]
    assert shape(result.messages)[-2:] == ["user: from afar", "assistant: b"]


async def test_another_thread_is_told_that_it_is_too_late() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    await run

    with pytest.raises(RunOver):
        await asyncio.to_thread(run.send, "too late")


def test_a_thread_that_speaks_to_a_closed_event_loop_is_told_too() -> None:
    runs: list[Run[str]] = []

    async def main() -> None:
        runs.append(Agent(ScriptedModel("Hi")).run("Hello"))
        await runs[0]

    thread = threading.Thread(target=asyncio.run, args=[main()])
    thread.start()
    thread.join()
    with pytest.raises(RunOver):
        runs[0].send("too late")


async def test_the_limits_of_the_run_hold_for_what_is_said() -> None:
    model = ScriptedModel("Blue.", "never")
    run = Agent(model, limits=Limits(iterations=1)).run("Which colour?")
    say_at(run, lambda event: isinstance(event, ContentCompleteEvent), "Another one.")
    with pytest.raises(LimitReached) as caught:
        await run

    assert caught.value.code == "max_iterations"
    assert shape(caught.value.result.messages)[-1] == "user: Another one."


class Colour(BaseModel):
    name: str


@pytest.mark.parametrize("kind", [ContentCompleteEvent, CheckpointEvent])
async def test_an_answer_of_a_type_is_given_once_more(kind: type[Event]) -> None:
    model = ScriptedModel('{"name": "blue"}', '{"name": "green"}')
    agent = Agent(model, output_type=Colour, output_mode="prompted", loop=[*op.standard(), op.checkpoint()])
    run = agent.run("Which colour?")
    say_at(run, lambda event: isinstance(event, kind), "Another one.")

    assert (await run).output == Colour(name="green")


async def test_an_answer_by_a_tool_is_given_once_more() -> None:
    answers = [call("final_answer", name=name) for name in ("blue", "green")]
    model = ScriptedModel(*answers)
    run = Agent(model, output_type=Colour, output_mode="tool").run("Which colour?")
    say_at(run, lambda event: event.kind == "tool-complete", "Another one.")

    assert (await run).output == Colour(name="green")
    assert heard(model)[1][-1] == "user: Another one."


async def test_what_was_said_is_for_clients() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    run.send("And be brief.")
    shown = [event async for event in run.pipe(op.public())]

    assert any(isinstance(event, MessageAddedEvent) and event.cause == "steering" for event in shown)


async def test_a_message_that_cannot_be_written_is_for_who_says_it() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    with pytest.raises(InvalidEvent):
        say(run._attempt, [Message.user("x")], metadata={"a": object()})  # pyright: ignore[reportPrivateUsage]
    assert (await run).output == "Hi"


async def steered_run() -> tuple[MemoryEventLog, str, list[str]]:
    """A run with tools that was steered twice: while a tool ran, and behind its answer."""
    log = MemoryEventLog()
    model = ScriptedModel(call("look", at="it"), "Blue.", "Green.")
    run = Agent(model, tools=[look], log=log).run("Look.")
    say_at(run, lambda event: isinstance(event, ToolStartEvent), "Hurry.")
    say_at(run, lambda event: isinstance(event, ContentCompleteEvent) and not event.tool_calls, "Sure?")
    return log, run.task_id, shape((await run).messages)


async def test_a_replay_has_the_same_history() -> None:
    log, task_id, messages = await steered_run()

    assert shape(fold_all(await collect(replay(log, task_id))).messages) == messages
    assert messages == [
        "user: Look.",
        "assistant: look",
        "tool: it is blue",
        "user: Hurry.",
        "assistant: Blue.",
        "user: Sure?",
        "assistant: Green.",
    ]


async def test_a_run_that_was_cut_anywhere_is_resumed_with_what_was_said() -> None:
    log, task_id, _ = await steered_run()
    events = await log.read(task_id)
    for seq in range(1, len(events)):
        cut = await first_events(log, task_id, seq)
        model = ScriptedModel("Blue.", "Green.", "Green.")
        result = await outcome(Agent(model, tools=[look], log=cut).resume(task_id))
        said = [event.content for event in events[:seq] if isinstance(event, MessageAddedEvent)]
        assert [message.text for message in result.messages if message.role == "user"] == ["Look.", *said]
        assert result.messages[-1].role == "assistant"
        assert not model.requests or heard(model)[-1] == shape(result.messages[:-1])


async def test_a_request_that_is_made_again_after_a_crash_carries_what_was_said_meanwhile() -> None:
    log = MemoryEventLog()
    async with Agent(ScriptedModel(frames("-a-")), log=log).run("Hello") as run:
        await run.begin()
        await asyncio.sleep(0)
        run.send("And be brief.")
    events = await log.read(run.task_id)
    said = next(event.seq for event in events if isinstance(event, MessageAddedEvent))
    cut = await first_events(log, run.task_id, said)
    model = ScriptedModel("Hi")
    await Agent(model, log=cut).resume(run.task_id)

    assert heard(model) == [["user: Hello", "user: And be brief."]]


async def test_a_fork_of_a_steered_run_has_what_was_said_before_it() -> None:
    log, task_id, messages = await steered_run()
    said = [event.seq for event in await log.read(task_id) if isinstance(event, MessageAddedEvent)]
    agent = Agent(ScriptedModel("Red."), tools=[look], log=log)
    fork = await agent.fork(task_id, at=said[1])

    assert shape(fork.messages) == [*messages[:-1], "assistant: Red."]


async def test_mail_is_known_by_its_number() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    say(run._attempt, [Message.user("x")], metadata={"mail_id": 7})  # pyright: ignore[reportPrivateUsage]
    await run

    assert run._attempt.state().mail == 7  # pyright: ignore[reportPrivateUsage]


async def test_what_is_said_in_vain_before_a_run_that_is_over_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi"), log=log)
    result = await agent.run("Hello")
    again = agent.resume(result.task_id)
    again.send("And be brief.")
    await again

    assert "was over before it heard" in caplog.text


def test_an_operator_around_the_loop_that_is_slow_to_end_loses_nothing() -> None:
    """The loop has decided that it is done, and the run has not: what is said in between is heard."""

    def slow(pipeline: Operator[Any]) -> Operator[Any]:
        pause: Observable[Any] = reactivex.timer(1.0).pipe(rx.ignore_elements())
        return op.compose(op.iterate(pipeline), rx.concat(pause))

    with virtual_time() as time:
        run = Agent(ScriptedModel("Blue.", "Green."), strategy=slow).run("Which colour?")

        async def main() -> None:
            run.start()
            await asyncio.sleep(0.5)
            run.send("Another one.")
            assert (await run).output == "Green."

        time.run(main())


async def test_a_context_emits_steering_as_well() -> None:
    @tool
    async def nudge(ctx: RunContext[None]) -> str:
        """Nudge."""
        ctx.emit(MessageAddedEvent(content="Nudged."))
        return "ok"

    model = ScriptedModel(call("nudge"), turn("Hi"))
    await Agent(model, tools=[nudge]).run("Go")

    assert heard(model)[1][-1] == "user: Nudged."
