"""Pairs of corresponding events of two runs."""

from __future__ import annotations

from typing import Any

from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, ToolCompleteEvent, ToolStartEvent
from rxloop.protocol.messages import ToolCall
from rxloop.recorded.pairs import EqualEvents, EventPair, fold_equal_pairs, pair_events


def make_events(task_id: str, *slots: tuple[int, str]) -> list[Event]:
    """Return the start and the end of a tool call for each index and result."""
    events: list[Event] = []
    for index, result in slots:
        fields: dict[str, Any] = {
            "call": ToolCall(id=str(index), name="look", arguments={}),
            "step": "1",
            "index": index,
            "task_id": task_id,
            "context_id": "talk",
            "attempt": 1,
        }
        events.append(ToolStartEvent(seq=len(events) + 1, idempotency_key="key", **fields))
        events.append(ToolCompleteEvent(seq=len(events) + 1, success=True, result=result, content=result, **fields))
    return events


def list_pairs(a: list[Event], b: list[Event]) -> list[tuple[str, int | None, int | None]]:
    pairs = pair_events(a, b)
    return [(each.change, each.a and each.a.seq, each.b and each.b.seq) for each in pairs]


def test_events_of_the_same_call_correspond_in_any_order() -> None:
    a, b = make_events("a", (0, "x"), (1, "y")), make_events("b", (1, "z"), (0, "x"))
    assert list_pairs(a, b) == [("same", 1, 3), ("same", 2, 4), ("same", 3, 1), ("changed", 4, 2)]


def test_unpaired_event_of_the_second_run_follows_its_predecessor() -> None:
    a, b = make_events("a", (0, "x"), (2, "x")), make_events("b", (0, "x"), (1, "x"), (2, "x"), (3, "x"))
    assert list_pairs(a, b) == [
        *(("same", 1, 1), ("same", 2, 2), ("only", None, 3), ("only", None, 4)),
        *(("same", 3, 5), ("same", 4, 6), ("only", None, 7), ("only", None, 8)),
    ]
    assert [each for each in list_pairs(b, a) if each[0] == "only"] == [("only", seq, None) for seq in (3, 4, 7, 8)]


def test_consecutive_equal_pairs_are_folded() -> None:
    a, b = make_events("a", (0, "x"), (1, "x"), (2, "x")), make_events("b", (0, "x"), (1, "y"), (2, "x"))
    first, changed, last = fold_equal_pairs(pair_events(a, b))
    assert isinstance(first, EqualEvents)
    assert isinstance(changed, EventPair)
    assert isinstance(last, EqualEvents)
    assert (first.size, changed.change, last.size) == (3, "changed", 2)
    assert [each.a and each.a.seq for each in (first.first, first.last, changed, last.first)] == [1, 3, 4, 5]


def make_step(number: int, content: str, *names: str) -> list[Event]:
    """Return the request and the message of a step, without their numbers."""
    fields: dict[str, Any] = {"step": str(number), "task_id": "run", "context_id": "talk", "attempt": 1}
    calls = [ToolCall(id=str(index), name=name, arguments={}) for index, name in enumerate(names)]
    sizes = {"message_count": 2 * number, "tool_count": 1, "estimated_input_tokens": 9}
    call = LLMCallEvent(model="m", iteration=number, **sizes, **fields)
    return [call, ContentCompleteEvent(content=content, tool_calls=calls, finish_reason="stop", **fields)]


def make_run(*steps: tuple[str, ...]) -> list[Event]:
    """Return the events of a run with a step for each content and its calls."""
    events = [event for number, step in enumerate(steps, start=1) for event in make_step(number, *step)]
    return [event.model_copy(update={"seq": seq}) for seq, event in enumerate(events, start=1)]


def test_events_after_an_additional_step_are_the_same() -> None:
    a, b = (
        make_run(("x", "look"), ("y", "read"), ("end",)),
        make_run(("x", "look"), ("new", "ask"), ("y", "read"), ("end",)),
    )
    expected = [("same", 1, 1), ("same", 2, 2), ("only", None, 3), ("only", None, 4)]
    assert list_pairs(a, b) == [*expected, ("same", 3, 5), ("same", 4, 6), ("same", 5, 7), ("same", 6, 8)]
    assert [each for each in list_pairs(b, a) if each[0] != "same"] == [("only", 3, None), ("only", 4, None)]


def test_steps_with_other_texts_correspond_by_the_names_of_their_calls() -> None:
    a, b = make_run(("x", "look"), ("y", "read")), make_run(("new", "ask"), ("z", "look"), ("y", "read"))
    changes = list_pairs(a, b)
    assert [each for each in changes if each[0] == "changed"] == [("changed", 2, 4)]
    assert [each for each in changes if each[0] == "only"] == [("only", None, 1), ("only", None, 2)]


def test_replaced_steps_correspond_in_order() -> None:
    a, b = make_run(("x", "look"), ("y", "read")), make_run(("v", "ask"), ("w", "tell"))
    assert [each for each in list_pairs(a, b) if each[0] == "only"] == []


def test_many_equal_steps_correspond_by_their_position() -> None:
    a, b = make_run(*[("x", "look")] * 3_000), make_run(*[("x", "look")] * 2_999)
    assert [each for each in list_pairs(a, b) if each[0] != "same"] == [("only", 5_999, None), ("only", 6_000, None)]
