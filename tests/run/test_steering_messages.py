"""Messages sent to working runs."""

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
from rxloop.run.steering import send_messages
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import collect, copy_first_events, format_marbles, outcome, shape


@tool
async def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


def send_on_event(run: Run[Any], matches: Callable[[Event], bool], *texts: Any, **options: Any) -> None:
    """Send messages, one at each matching event."""
    remaining = list(texts)

    def on_next(event: Event) -> None:
        if remaining and matches(event):
            run.send(remaining.pop(0), **options)

    run.events.subscribe(on_next)


def request_shapes(model: ScriptedModel) -> list[list[str]]:
    """Return message shapes for each request."""
    return [shape(request.messages) for request in model.requests]


async def test_message_after_the_answer_causes_another_request() -> None:
    model = ScriptedModel("Blue.", "Green, then.")
    run = Agent(model).run("Which colour?")
    send_on_event(run, lambda event: isinstance(event, ContentCompleteEvent), "Another one.")
    result = await run

    assert result.output == "Green, then."
    assert request_shapes(model)[1] == ["user: Which colour?", "assistant: Blue.", "user: Another one."]
    assert shape(result.messages) == [*request_shapes(model)[1], "assistant: Green, then."]


async def test_message_at_the_last_checkpoint_causes_another_request() -> None:
    model = ScriptedModel("Blue.", "Green.")
    run = Agent(model, loop=[*op.standard(), op.checkpoint()]).run("Which colour?")
    send_on_event(run, lambda event: isinstance(event, CheckpointEvent), "Another one.")

    assert (await run).output == "Green."
    assert len(model.requests) == 2


def test_message_during_an_answer_follows_the_answer() -> None:
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


async def test_message_during_tool_calls_follows_the_batch() -> None:
    model = ScriptedModel([call("look", at="a"), call("look", at="b")], "Blue.")
    run = Agent(model, tools=[look]).run("Look.")
    send_on_event(run, lambda event: isinstance(event, ToolStartEvent), "Hurry.")
    await run

    assert request_shapes(model)[1] == [
        "user: Look.",
        "assistant: look,look",
        "tool: a is blue",
        "tool: b is blue",
        "user: Hurry.",
    ]


async def test_tool_can_send_a_message_to_its_own_run() -> None:
    runs: list[Run[str]] = []

    @tool
    async def remember() -> str:
        """Remember something."""
        runs[0].send("By the way, it is Monday.")
        return "done"

    model = ScriptedModel(call("remember"), "Monday.")
    runs.append(Agent(model, tools=[remember]).run("Which day?"))
    await runs[0]

    assert request_shapes(model)[1][-2:] == ["tool: done", "user: By the way, it is Monday."]


def test_several_messages_are_added_in_order_with_their_ids() -> None:
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


async def test_message_before_the_start_follows_the_prompt() -> None:
    model = ScriptedModel("Hi")
    run = Agent(model).run("Hello")
    run.send("And be brief.")

    assert not run.started
    assert format_marbles(await collect(run)).startswith("twm")
    assert request_shapes(model) == [["user: Hello", "user: And be brief."]]


@pytest.mark.parametrize("wrong", ["", [], 7, Message.tool("x", "y"), Message(role="assistant", content="hi")])
async def test_send_rejects_invalid_message(wrong: Any) -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    with pytest.raises(ConfigurationError):
        run.send(wrong)
    await run


async def test_error_of_send_calls_the_value_a_message() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    steer: Any = Steer("Stop", interrupt=True)
    with pytest.raises(ConfigurationError, match=r"got Steer.*use send\(text, interrupt=True\)"):
        run.send(steer)
    with pytest.raises(ConfigurationError, match="the message must be a string"):
        run.send(7)  # pyright: ignore[reportArgumentType]
    await run


async def test_send_raises_at_and_after_the_final_event() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    errors: list[Exception] = []

    def on_next(event: Event) -> None:
        if isinstance(event, StatusUpdateEvent) and event.final:
            try:
                run.send("too late")
            except RunOver as error:
                errors.append(error)

    run.events.subscribe(on_next)
    result = await run

    assert len(errors) == 1
    assert run.task_id in str(errors[0])
    with pytest.raises(RunOver):
        run.send("much too late")
    assert "too late" not in str(result.messages)


async def test_send_to_a_canceled_run_raises() -> None:
    async with Agent(ScriptedModel(frames("--"))).run("Hello") as run:
        await run.begin()
        run.cancel()
        with pytest.raises(RunOver):
            run.send("wait")


async def test_send_from_another_thread_returns_when_the_message_is_queued() -> None:
    model = ScriptedModel(frames("-a-|", 0.2), "b")
    run = Agent(model).run("Hello").start()
    texts: list[list[str]] = []

    def send_from_thread() -> None:
        run.send("from afar")
        texts.append([message.text for message in run._attempt.state().held])  # pyright: ignore[reportPrivateUsage]

    await asyncio.sleep(0)
    thread = threading.Thread(target=send_from_thread)
    thread.start()
    result = await run
    await asyncio.to_thread(thread.join)

    assert texts == [["from afar"]]
    assert shape(result.messages)[-2:] == ["user: from afar", "assistant: b"]


async def test_send_from_another_thread_to_a_finished_run_raises() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    await run

    with pytest.raises(RunOver):
        await asyncio.to_thread(run.send, "too late")


def test_send_to_a_run_of_a_closed_event_loop_raises() -> None:
    runs: list[Run[str]] = []

    async def main() -> None:
        runs.append(Agent(ScriptedModel("Hi")).run("Hello"))
        await runs[0]

    thread = threading.Thread(target=asyncio.run, args=[main()])
    thread.start()
    thread.join()
    with pytest.raises(RunOver):
        runs[0].send("too late")


async def test_iteration_limit_applies_to_requests_caused_by_messages() -> None:
    model = ScriptedModel("Blue.", "never")
    run = Agent(model, limits=Limits(iterations=1)).run("Which colour?")
    send_on_event(run, lambda event: isinstance(event, ContentCompleteEvent), "Another one.")
    with pytest.raises(LimitReached) as caught:
        await run

    assert caught.value.code == "max_iterations"
    assert shape(caught.value.result.messages)[-1] == "user: Another one."


class Colour(BaseModel):
    name: str


@pytest.mark.parametrize("kind", [ContentCompleteEvent, CheckpointEvent])
async def test_typed_answer_is_given_again_after_a_message(kind: type[Event]) -> None:
    model = ScriptedModel('{"name": "blue"}', '{"name": "green"}')
    agent = Agent(model, output_type=Colour, output_mode="prompted", loop=[*op.standard(), op.checkpoint()])
    run = agent.run("Which colour?")
    send_on_event(run, lambda event: isinstance(event, kind), "Another one.")

    assert (await run).output == Colour(name="green")


async def test_answer_by_output_tool_is_given_again_after_a_message() -> None:
    answers = [call("final_answer", name=name) for name in ("blue", "green")]
    model = ScriptedModel(*answers)
    run = Agent(model, output_type=Colour, output_mode="tool").run("Which colour?")
    send_on_event(run, lambda event: event.kind == "tool-complete", "Another one.")

    assert (await run).output == Colour(name="green")
    assert request_shapes(model)[1][-1] == "user: Another one."


async def test_steering_message_is_public() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    run.send("And be brief.")
    public_events = [event async for event in run.pipe(op.public())]

    assert any(isinstance(event, MessageAddedEvent) and event.cause == "steering" for event in public_events)


async def test_message_that_is_not_json_raises_for_the_sender() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    with pytest.raises(InvalidEvent):
        send_messages(run._attempt, [Message.user("x")], metadata={"a": object()})  # pyright: ignore[reportPrivateUsage]
    assert (await run).output == "Hi"


async def run_with_messages() -> tuple[MemoryEventLog, str, list[str]]:
    """Run with two messages, sent during a tool call and after its answer."""
    log = MemoryEventLog()
    model = ScriptedModel(call("look", at="it"), "Blue.", "Green.")
    run = Agent(model, tools=[look], log=log).run("Look.")
    send_on_event(run, lambda event: isinstance(event, ToolStartEvent), "Hurry.")
    send_on_event(run, lambda event: isinstance(event, ContentCompleteEvent) and not event.tool_calls, "Sure?")
    return log, run.task_id, shape((await run).messages)


async def test_replay_has_the_same_history() -> None:
    log, task_id, messages = await run_with_messages()

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


async def test_run_interrupted_after_any_event_keeps_its_messages() -> None:
    log, task_id, _ = await run_with_messages()
    events = await log.read(task_id)
    for seq in range(1, len(events)):
        truncated_log = await copy_first_events(log, task_id, seq)
        model = ScriptedModel("Blue.", "Green.", "Green.")
        result = await outcome(Agent(model, tools=[look], log=truncated_log).resume(task_id))
        texts = [event.content for event in events[:seq] if isinstance(event, MessageAddedEvent)]
        assert [message.text for message in result.messages if message.role == "user"] == ["Look.", *texts]
        assert result.messages[-1].role == "assistant"
        assert not model.requests or request_shapes(model)[-1] == shape(result.messages[:-1])


async def test_request_repeated_after_a_crash_contains_the_messages() -> None:
    log = MemoryEventLog()
    async with Agent(ScriptedModel(frames("-a-")), log=log).run("Hello") as run:
        await run.begin()
        await asyncio.sleep(0)
        run.send("And be brief.")
    events = await log.read(run.task_id)
    texts = next(event.seq for event in events if isinstance(event, MessageAddedEvent))
    truncated_log = await copy_first_events(log, run.task_id, texts)
    model = ScriptedModel("Hi")
    await Agent(model, log=truncated_log).resume(run.task_id)

    assert request_shapes(model) == [["user: Hello", "user: And be brief."]]


async def test_fork_keeps_the_messages_before_its_fork_point() -> None:
    log, task_id, messages = await run_with_messages()
    texts = [event.seq for event in await log.read(task_id) if isinstance(event, MessageAddedEvent)]
    agent = Agent(ScriptedModel("Red."), tools=[look], log=log)
    fork = await agent.fork(task_id, at=texts[1])

    assert shape(fork.messages) == [*messages[:-1], "assistant: Red."]


async def test_number_of_the_message_command_is_recorded_in_the_state() -> None:
    run = Agent(ScriptedModel("Hi")).run("Hello")
    send_messages(run._attempt, [Message.user("x")], metadata={"command_id": 7})  # pyright: ignore[reportPrivateUsage]
    await run

    assert run._attempt.state().last_command == 7  # pyright: ignore[reportPrivateUsage]


async def test_message_to_a_finished_run_that_is_resumed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("Hi"), log=log)
    result = await agent.run("Hello")
    resumed = agent.resume(result.task_id)
    resumed.send("And be brief.")
    await resumed

    assert "ended before reading" in caplog.text


def test_message_between_the_end_of_the_loop_and_the_end_of_the_run_is_processed() -> None:
    """An operator around the loop delays completion."""

    def delay_completion(pipeline: Operator[Any]) -> Operator[Any]:
        pause: Observable[Any] = reactivex.timer(1.0).pipe(rx.ignore_elements())
        return op.compose(op.iterate(pipeline), rx.concat(pause))

    with virtual_time() as time:
        run = Agent(ScriptedModel("Blue.", "Green."), strategy=delay_completion).run("Which colour?")

        async def main() -> None:
            run.start()
            await asyncio.sleep(0.5)
            run.send("Another one.")
            assert (await run).output == "Green."

        time.run(main())


async def test_message_emitted_by_a_tool_reaches_the_model() -> None:
    @tool
    async def nudge(ctx: RunContext[None]) -> str:
        """Nudge."""
        ctx.emit(MessageAddedEvent(content="Nudged."))
        return "ok"

    model = ScriptedModel(call("nudge"), turn("Hi"))
    await Agent(model, tools=[nudge]).run("Go")

    assert request_shapes(model)[1][-1] == "user: Nudged."
