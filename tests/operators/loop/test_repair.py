"""Repair of messages changed by operators."""

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

Rewrite = Callable[[Sequence[Message]], Any]


def rewrite_messages(rewrite: Rewrite) -> Any:
    """Create an operator that replaces the messages of model requests."""

    @op.on(ModelRequest)
    async def trims(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield request.replace(messages=rewrite(request.messages))

    return trims


def list_problems(events: Iterable[Event]) -> list[list[str]]:
    return [event.problems for event in events if isinstance(event, LLMCallEvent)]


def final_state(events: Sequence[Event]) -> str:
    last = events[-1]
    assert isinstance(last, StatusUpdateEvent)
    return last.state


async def test_results_without_their_call_are_not_sent() -> None:
    model = ScriptedModel(*look_calls(4), "Done.")
    events = await collect_run(model, rewrite_messages(lambda messages: messages[-3:]))
    assert final_state(events) == "completed"
    for request in model.requests:
        assert is_well_formed(request.messages)
    # The request contains the question, the newest call, and its result.
    assert shape(model.requests[3].messages)[0] == "user: Find the crate."
    assert model.requests[3].messages[-1].role == "tool"


async def test_newest_results_are_restored_and_older_calls_without_results_removed() -> None:
    model = ScriptedModel(*look_calls(3), "Done.")
    events = await collect_run(
        model, rewrite_messages(lambda messages: [each for each in messages if each.role != "tool"])
    )
    assert final_state(events) == "completed"
    last = model.requests[3].messages
    assert [each.role for each in last] == ["user", "assistant", "tool"]
    assert [each.endswith("has no result") for each in list_problems(events)[3]] == [True, True, True]
    assert "At 2" in last[-1].text


async def test_message_between_a_call_and_its_result_is_moved_before_them() -> None:
    model = ScriptedModel(*look_calls(1), "Done.")
    events = await collect_run(
        model, rewrite_messages(lambda messages: [*messages[:-1], Message.user("Mind."), *messages[-1:]])
    )
    assert final_state(events) == "completed"
    assert is_well_formed(model.requests[1].messages)
    assert "user: Mind." in shape(model.requests[1].messages)


async def test_reordered_results_are_sent_in_the_order_of_their_calls() -> None:
    model = ScriptedModel(turn("", calls=[call("look", place=1), call("look", place=2)]), "Done.")
    events = await collect_run(model, rewrite_messages(lambda messages: [*messages[:-2], *reversed(messages[-2:])]))
    assert is_well_formed(model.requests[1].messages)
    assert "not in the order" in list_problems(events)[1][0]


async def test_duplicated_result_is_sent_once() -> None:
    model = ScriptedModel(*look_calls(1), "Done.")
    events = await collect_run(model, rewrite_messages(lambda messages: [*messages, *messages[2:]]))
    assert is_well_formed(model.requests[1].messages)
    assert "more than one result" in list_problems(events)[1][0]


async def test_invented_tool_call_is_not_sent() -> None:
    invented = Message.assistant("", tool_calls=[ToolCall(id="x", name="look")])
    model = ScriptedModel(*look_calls(1), "Done.")
    await collect_run(model, rewrite_messages(lambda messages: [*messages, invented]))
    assert all(invented not in request.messages for request in model.requests)


@pytest.mark.parametrize(
    "value", [None, 5, "text", b"bytes", [1], [None], ["Hi"], {"role": "user"}, [{"role": "user"}]]
)
async def test_history_is_sent_when_an_operator_returns_no_list_of_messages(value: Any) -> None:
    model = ScriptedModel(*look_calls(1), "Done.")
    events = await collect_run(model, rewrite_messages(lambda messages: value))
    assert final_state(events) == "completed"
    assert shape(model.requests[1].messages) == ["user: Find the crate.", "assistant: look", f"tool: {look(0)}"]
    assert "the history was sent" in list_problems(events)[0][0]


async def test_question_is_sent_when_an_operator_returns_an_empty_list() -> None:
    model = ScriptedModel("Done.")
    await collect_run(model, rewrite_messages(lambda messages: []))
    assert shape(model.requests[0].messages) == ["user: Find the crate."]


async def two_turns(operator: Any, *turns: Any) -> tuple[ScriptedModel, list[AnyEvent]]:
    """Run two conversation turns. Returns the model, and the events of the second turn."""
    model = ScriptedModel("One.", *turns)
    agent = Agent(
        model, tools=[look], loop=op.standard(before_model=[operator]), log=MemoryEventLog(), instructions="Be brief."
    )
    await agent.run("First?", context_id="c")
    events = [event async for event in agent.run("Second?", context_id="c")]
    return model, events


async def test_newest_message_of_the_user_is_restored() -> None:
    model, events = await two_turns(rewrite_messages(lambda messages: messages[:1]), "Two.")
    assert shape(model.requests[1].messages) == ["user: First?", "user: Second?"]
    assert list_problems(events) == [["message 2 of the history has to be there"]]


async def test_question_of_the_run_is_restored_when_another_message_is_newer() -> None:
    @op.on(ModelRequest)
    async def add_note(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield MessageAddedEvent(content="By the way.")
        yield request

    remove_question = rewrite_messages(lambda messages: [each for each in messages if each.text != "Second?"])
    model, _ = await two_turns(op.compose(add_note, remove_question), "Two.")
    lines = shape(model.requests[1].messages)
    assert lines.index("user: Second?") < lines.index("user: By the way.", lines.index("user: Second?"))


async def test_rewritten_messages_replace_the_originals() -> None:
    def redact(messages: Sequence[Message]) -> list[Message]:
        return [each.model_copy(update={"content": each.text.replace("crate", "***")}) for each in messages]

    model = ScriptedModel(*look_calls(2), "Done.")
    events = await collect_run(model, rewrite_messages(redact), prompt=[Message.user("Find the crate.", pinned=True)])
    assert list_problems(events) == [[], [], []]
    assert all("crate" not in str(request_messages(request)) for request in model.requests)


async def test_pinned_messages_are_restored_in_their_position() -> None:
    model = ScriptedModel("Done.")
    prompt = ["One.", Message.user("Rule.", pinned=True), "Two."]
    await collect_run(model, rewrite_messages(lambda messages: messages[-1:]), prompt=prompt)
    assert shape(model.requests[0].messages) == ["user: Rule.", "user: Two."]


async def test_system_prompt_is_restored() -> None:
    @op.on(ModelRequest)
    async def drop_system(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield request.replace(system=())

    model = ScriptedModel("Done.")
    events = await collect_run(model, drop_system, instructions="Be brief.")
    assert shape(model.requests[0].system) == ["system: Be brief."]
    assert list_problems(events) == [["the system prompt was left out"]]


async def test_replaced_system_prompt_is_kept() -> None:
    @op.on(ModelRequest)
    async def replace_system(request: ModelRequest, ctx: Any) -> AsyncIterator[Signal]:
        yield request.replace(system=(Message.system("Be long."),))

    model = ScriptedModel("Done.")
    events = await collect_run(model, replace_system, instructions="Be brief.")
    assert shape(model.requests[0].system) == ["system: Be long."]
    assert list_problems(events) == [[]]


async def test_faulty_operator_is_logged_once_per_run(caplog: pytest.LogCaptureFixture) -> None:
    model = ScriptedModel(*look_calls(5), "Done.")
    with caplog.at_level(logging.WARNING, "rxloop"):
        await collect_run(model, rewrite_messages(lambda messages: messages[-1:]))
    warnings = [each.getMessage() for each in caplog.records if "had made invalid" in each.getMessage()]
    assert len(warnings) == 1
    assert "trims" in warnings[0]


async def test_unchanged_request_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair, "pair_problems", lambda *_: pytest.fail("there was nothing to check"))
    model = ScriptedModel(*look_calls(5), "Done.")
    await collect_run(model, op.compress(SlidingWindowCompressor(100_000)), instructions="Be brief.")
    assert len(model.requests) == 6


async def test_only_new_messages_are_checked_when_the_history_grows_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lengths: list[int] = []
    original = repair.split_blocks

    def count_messages(messages: Iterable[Message]) -> Any:
        batch = list(messages)
        lengths.append(len(batch))
        return original(batch)

    monkeypatch.setattr(repair, "split_blocks", count_messages)
    model = ScriptedModel(*look_calls(60), "Done.")
    await collect_run(model, op.compress(SlidingWindowCompressor(6_000)))
    assert len(lengths) > 20
    # Each request adds one call and its result. The full view is only checked after a compression.
    assert sorted(lengths)[len(lengths) * 3 // 4] <= 4
