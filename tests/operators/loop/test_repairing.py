"""What leaves for the model is checked in one place, whatever operators have made of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import pytest

from rxloop import Agent, AnyEvent, Event, MemoryEventLog, Message, ModelRequest, Signal, SlidingWindowCompressor, op
from rxloop.context import repair
from rxloop.protocol.events import LLMCallEvent, MessageAddedEvent, StatusUpdateEvent
from rxloop.protocol.messages import ToolCall
from rxloop.testing import ScriptedModel, call, turn
from support.long_runs import collect_run, look, look_calls, request_messages
from support.runs import is_well_formed, shape

Made = Callable[[Sequence[Message]], Any]


def making(make: Made) -> Any:
    """An operator that makes something of the messages."""

    @op.on(ModelRequest)
    async def trims(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield request.replace(messages=make(request.messages))

    return trims


def problems(events: Iterable[Event]) -> list[list[str]]:
    """What was wrong with each request."""
    return [event.problems for event in events if isinstance(event, LLMCallEvent)]


def ended(events: Sequence[Event]) -> str:
    last = events[-1]
    assert isinstance(last, StatusUpdateEvent)
    return last.state


async def test_results_without_their_call_do_not_leave() -> None:
    model = ScriptedModel(*look_calls(4), "Done.")
    events = await collect_run(model, making(lambda messages: messages[-3:]))
    assert ended(events) == "completed"
    for request in model.requests:
        assert is_well_formed(request.messages)
    # The newest call is there, its result behind it, and so is the question.
    assert shape(model.requests[3].messages)[0] == "user: Find the crate."
    assert model.requests[3].messages[-1].role == "tool"


async def test_the_newest_results_are_put_back_and_older_calls_without_results_go() -> None:
    model = ScriptedModel(*look_calls(3), "Done.")
    events = await collect_run(model, making(lambda messages: [each for each in messages if each.role != "tool"]))
    assert ended(events) == "completed"
    last = model.requests[3].messages
    assert [each.role for each in last] == ["user", "assistant", "tool"]
    assert [each.endswith("has no result") for each in problems(events)[3]] == [True, True, True]
    assert "At 2" in last[-1].text


async def test_a_note_between_a_call_and_its_result_is_put_before_them() -> None:
    model = ScriptedModel(*look_calls(1), "Done.")
    events = await collect_run(model, making(lambda messages: [*messages[:-1], Message.user("Mind."), *messages[-1:]]))
    assert ended(events) == "completed"
    assert is_well_formed(model.requests[1].messages)
    assert "user: Mind." in shape(model.requests[1].messages)


async def test_results_that_were_put_in_another_order_are_put_back_into_that_of_the_calls() -> None:
    model = ScriptedModel(turn("", calls=[call("look", place=1), call("look", place=2)]), "Done.")
    events = await collect_run(model, making(lambda messages: [*messages[:-2], *reversed(messages[-2:])]))
    assert is_well_formed(model.requests[1].messages)
    assert "not in the order" in problems(events)[1][0]


async def test_a_result_that_is_there_twice_leaves_once() -> None:
    model = ScriptedModel(*look_calls(1), "Done.")
    events = await collect_run(model, making(lambda messages: [*messages, *messages[2:]]))
    assert is_well_formed(model.requests[1].messages)
    assert "more than one result" in problems(events)[1][0]


async def test_a_call_that_an_operator_made_up_does_not_leave() -> None:
    made_up = Message.assistant("", tool_calls=[ToolCall(id="x", name="look")])
    model = ScriptedModel(*look_calls(1), "Done.")
    await collect_run(model, making(lambda messages: [*messages, made_up]))
    assert all(made_up not in request.messages for request in model.requests)


@pytest.mark.parametrize("made", [None, 5, "text", b"bytes", [1], [None], ["Hi"], {"role": "user"}, [{"role": "user"}]])
async def test_what_is_no_list_of_messages_is_thrown_away(made: Any) -> None:
    model = ScriptedModel(*look_calls(1), "Done.")
    events = await collect_run(model, making(lambda messages: made))
    assert ended(events) == "completed"
    assert shape(model.requests[1].messages) == ["user: Find the crate.", "assistant: look", f"tool: {look(0)}"]
    assert "the history was sent" in problems(events)[0][0]


async def test_an_empty_list_leaves_with_the_question() -> None:
    model = ScriptedModel("Done.")
    await collect_run(model, making(lambda messages: []))
    assert shape(model.requests[0].messages) == ["user: Find the crate."]


async def two_turns(operator: Any, *turns: Any) -> tuple[ScriptedModel, list[AnyEvent]]:
    """A conversation of two questions; the events of the second."""
    model = ScriptedModel("One.", *turns)
    agent = Agent(
        model, tools=[look], loop=op.standard(before_model=[operator]), log=MemoryEventLog(), instructions="Be brief."
    )
    await agent.run("First?", context_id="c")
    events = [event async for event in agent.run("Second?", context_id="c")]
    return model, events


async def test_the_newest_message_of_the_user_is_put_back() -> None:
    model, events = await two_turns(making(lambda messages: messages[:1]), "Two.")
    assert shape(model.requests[1].messages) == ["user: First?", "user: Second?"]
    assert problems(events) == [["message 2 of the history has to be there"]]


async def test_the_question_of_the_run_stays_when_a_note_is_newer() -> None:
    @op.on(ModelRequest)
    async def notes(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield MessageAddedEvent(content="By the way.")
        yield request

    cut = making(lambda messages: [each for each in messages if each.text != "Second?"])
    model, _ = await two_turns(op.compose(notes, cut), "Two.")
    said = shape(model.requests[1].messages)
    assert said.index("user: Second?") < said.index("user: By the way.", said.index("user: Second?"))


async def test_what_an_operator_has_rewritten_stands_for_what_is_gone() -> None:
    def redacted(messages: Sequence[Message]) -> list[Message]:
        return [each.model_copy(update={"content": each.text.replace("crate", "***")}) for each in messages]

    model = ScriptedModel(*look_calls(2), "Done.")
    events = await collect_run(model, making(redacted), prompt=[Message.user("Find the crate.", pinned=True)])
    assert problems(events) == [[], [], []]
    assert all("crate" not in str(request_messages(request)) for request in model.requests)


async def test_pinned_messages_are_put_back_in_their_place() -> None:
    model = ScriptedModel("Done.")
    prompt = ["One.", Message.user("Rule.", pinned=True), "Two."]
    await collect_run(model, making(lambda messages: messages[-1:]), prompt=prompt)
    assert shape(model.requests[0].messages) == ["user: Rule.", "user: Two."]


async def test_the_system_prompt_is_put_back() -> None:
    @op.on(ModelRequest)
    async def drops(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield request.replace(system=())

    model = ScriptedModel("Done.")
    events = await collect_run(model, drops, instructions="Be brief.")
    assert shape(model.requests[0].system) == ["system: Be brief."]
    assert problems(events) == [["the system prompt was left out"]]


async def test_a_system_prompt_of_an_operators_own_stands() -> None:
    @op.on(ModelRequest)
    async def rewrites(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield request.replace(system=(Message.system("Be long."),))

    model = ScriptedModel("Done.")
    events = await collect_run(model, rewrites, instructions="Be brief.")
    assert shape(model.requests[0].system) == ["system: Be long."]
    assert problems(events) == [[]]


async def test_the_culprit_is_named_once_a_run(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(*look_calls(5), "Done.")
    with caplog.at_level(logging.WARNING, "rxloop"):
        await collect_run(model, making(lambda messages: messages[-1:]))
    warnings = [each.getMessage() for each in caplog.records if "had to be repaired" in each.getMessage()]
    assert len(warnings) == 1
    assert "trims" in warnings[0]


async def test_a_request_that_nobody_touched_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "pair_problems", lambda *_: pytest.fail("there was nothing to check"))
    model = ScriptedModel(*look_calls(5), "Done.")
    await collect_run(model, op.compress(SlidingWindowCompressor(100_000)), instructions="Be brief.")
    assert len(model.requests) == 6


async def test_of_messages_that_grow_at_their_end_only_the_new_ones_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    original = repair.blocks_of

    def counting(messages: Iterable[Message]) -> Any:
        given = list(messages)
        looked.append(len(given))
        return original(given)

    monkeypatch.setattr(repair, "blocks_of", counting)
    model = ScriptedModel(*look_calls(60), "Done.")
    await collect_run(model, op.compress(SlidingWindowCompressor(6_000)))
    assert len(looked) > 20
    # Each request has one more call and its result; a cut has the whole view looked at.
    assert sorted(looked)[len(looked) * 3 // 4] <= 4
