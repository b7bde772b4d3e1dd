"""Folding parallel tool calls and their results."""

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rxloop.protocol.events import (
    Event,
    MessageAddedEvent,
    ToolCompleteEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.state.fold import fold, fold_all
from rxloop.state.history import Ledger
from rxloop.state.run_state import RunState
from support.fold_events import (
    any_event,
    content_complete,
    llm_call,
    state_with_answers,
    task,
    tool_call,
    tool_complete,
    tool_start,
)
from support.runs import is_well_formed, shape


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_results_are_in_call_order(order: tuple[int, ...]) -> None:  # L77
    calls = [tool_call("f", "a"), tool_call("g", "b"), tool_call("h", "c")]
    state = fold_all([task(), llm_call(), content_complete("", *calls)])
    for index in order:
        state = fold(state, tool_complete(index, f"answer {index}"))

    answers = state.messages[2:]
    assert [(message.tool_call_id, message.text) for message in answers] == [
        ("a", "answer 0"),
        ("b", "answer 1"),
        ("c", "answer 2"),
    ]
    assert state.batch is None


def test_calls_with_equal_ids_have_their_own_results() -> None:
    events = [
        task(),
        llm_call(),
        content_complete("", tool_call("f", "0"), tool_call("g", "0")),
        tool_complete(1, "of g"),
        tool_complete(0, "of f"),
    ]
    events += [llm_call("2"), content_complete("", tool_call("h", "0"), step="2"), tool_complete(0, "of h", step="2")]

    state = fold_all(events)

    assert shape(state.messages)[1:] == ["assistant: f,g", "tool: of f", "tool: of g", "assistant: h", "tool: of h"]
    assert is_well_formed(state.messages)


@pytest.mark.parametrize("index", [-1, 2, 7])
def test_result_for_a_missing_call_is_ignored(index: int) -> None:
    state = fold_all([task(), llm_call(), content_complete("", tool_call(), tool_call()), tool_complete(index)])
    assert state.batch is not None
    assert state.batch.open == [0, 1]


def test_results_of_many_calls_are_counted_and_not_searched() -> None:
    class CountingLedger(Ledger[int, ToolCompleteEvent]):
        count = 0

        def __contains__(self, key: object) -> bool:
            CountingLedger.count += 1
            return super().__contains__(key)

    state = fold_all([task(), llm_call(), content_complete("", *[tool_call()] * 1_000)])
    assert state.batch is not None
    state = replace(state, batch=replace(state.batch, answers=CountingLedger()))
    for index in range(999):
        state = fold(state, tool_complete(index))
    # The fold looks up a result, and so does the ledger.
    assert CountingLedger.count == 2 * 999
    assert state.batch is not None
    assert state.batch.open == [999]
    assert fold(state, tool_complete(999)).batch is None


def test_messages_of_a_batch_read_each_result_once() -> None:
    class CountingLedger(Ledger[int, ToolCompleteEvent]):
        count = 0

        def __getitem__(self, key: int) -> ToolCompleteEvent:
            CountingLedger.count += 1
            return super().__getitem__(key)

    state = fold_all([task(), llm_call(), content_complete("", *[tool_call()] * 3)])
    assert state.batch is not None
    state = replace(state, batch=replace(state.batch, answers=CountingLedger()))
    for index in range(2):
        state = fold(state, tool_complete(index))
    assert state.batch is not None
    assert len(state.batch.messages()) == 4
    assert CountingLedger.count == 2


def test_memory_of_states_grows_linearly_with_the_calls() -> None:
    def measure_states(calls: int) -> int:
        state = fold_all([task(), llm_call(), content_complete("", *[tool_call()] * calls)])
        answers = [tool_complete(index) for index in range(calls - 1)]
        tracemalloc.start()
        states = [state]
        for answer in answers:
            states.append(fold(states[-1], answer))
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return size

    assert measure_states(800) < 2.5 * measure_states(400)


def test_second_result_for_a_slot_is_ignored() -> None:
    state = fold_all(
        [
            task(),
            llm_call(),
            content_complete("", tool_call(), tool_call()),
            tool_complete(0, "first"),
            tool_complete(0, "second"),
        ]
    )
    assert state.batch is not None
    assert state.batch.open == [1]

    state = fold_all([tool_complete(1, "other"), tool_complete(1, "late")], state)

    assert shape(state.messages)[2:] == ["tool: first", "tool: other"]


@pytest.mark.parametrize(
    "stray",
    [
        tool_complete(0, step="9"),
        tool_complete(5),
        tool_complete(-1),
        tool_complete(0, step="1", parent_task_id="p"),
        tool_start(3, step="7"),
    ],
)
def test_result_without_a_slot_changes_nothing(stray: Event) -> None:
    for before in [
        fold_all([task()]),
        fold_all([task(), llm_call()]),
        fold_all([task(), llm_call(), content_complete("", tool_call())]),
        fold_all([task(), llm_call(), content_complete("done")]),
    ]:
        assert fold(before, stray) == before


def test_message_added_during_an_open_message_follows_it() -> None:
    steering = MessageAddedEvent(content="Faster!")
    state = fold_all([task(), llm_call(), steering])
    assert shape(state.messages) == ["user: Hi"]

    state = fold_all([content_complete("Hello.")], state)

    assert shape(state.messages) == ["user: Hi", "assistant: Hello.", "user: Faster!"]
    assert not state.done  # the model has to answer the new message


@pytest.mark.parametrize("position", range(5))
def test_message_added_during_a_batch_follows_it(position: int) -> None:
    events: list[Event] = [
        llm_call(),
        content_complete("", tool_call("f"), tool_call("g")),
        tool_start(0),
        tool_complete(1),
        tool_complete(0),
    ]
    events.insert(position + 1, MessageAddedEvent(content="Faster!", role="system"))

    state = fold_all([task(), *events])

    assert shape(state.messages) == ["user: Hi", "assistant: f,g", "tool: ok", "tool: ok", "system: Faster!"]
    assert state.held == ()


def test_several_held_messages_keep_their_order() -> None:
    messages = [MessageAddedEvent(content=text) for text in "abc"]
    state = fold_all(
        [task(), llm_call(), messages[0], content_complete("", tool_call()), messages[1], tool_complete(0), messages[2]]
    )

    assert shape(state.messages)[-3:] == ["user: a", "user: b", "user: c"]


@given(st.lists(any_event, max_size=25))
@settings(max_examples=150, deadline=None)
def test_history_is_well_formed_after_any_events(events: list[Event]) -> None:
    state = RunState()
    sizes = [0]
    for event in events:
        state = fold(state, event)
        sizes.append(len(state.messages))
        assert is_well_formed(state.messages)
        if state.batch is not None:
            assert state.batch.open

    assert sizes == sorted(sizes)


@pytest.mark.parametrize(
    ("successes", "content", "retries"),
    [
        ((True,), "0", 0),
        ((None, True, True), "1", 0),
        ((False, True), "1", 0),
        ((False, False), None, 1),
        ((None,), None, 0),
    ],
)
def test_answer_tool_in_a_batch_may_complete_the_run(
    successes: tuple[bool | None, ...], content: str | None, retries: int
) -> None:
    state = state_with_answers(*successes)

    assert state.done is (content is not None)
    assert state.content == (content or "")
    assert state.retries == retries
    assert state.messages[-1].role == "tool"
    assert not fold(state, MessageAddedEvent(content="More.")).done
    other = ToolCall(id="x", name="f")
    continued = fold(state, content_complete("", other, step="2"))
    assert not continued.done
    assert not fold(continued, ToolCompleteEvent(call=other, step="2", success=True, content="")).done
