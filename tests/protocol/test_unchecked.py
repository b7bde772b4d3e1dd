from __future__ import annotations

from typing import Any

import pytest

from rxloop.protocol import events as kinds
from rxloop.protocol.envelope import EVENT_TYPES
from rxloop.protocol.events import (
    CheckpointEvent,
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    StatusUpdateEvent,
    TaskEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message, ToolCall, Usage
from rxloop.protocol.model import make_unchecked

CALL = ToolCall(id="c", name="add", arguments={"a": 1}, raw='{"a":1}')
CASES: list[tuple[type[Any], dict[str, Any]]] = [
    (Usage, {"input_tokens": 3}),
    (ToolCall, {"id": "c", "name": "add"}),
    (Message, {"role": "assistant", "content": "Hi", "tool_calls": (CALL,)}),
    (LLMCallEvent, {"iteration": 1, "model": "m", "message_count": 2, "tool_count": 0, "estimated_input_tokens": 9}),
    (ContentCompleteEvent, {"content": "Hi", "tool_calls": [CALL], "provider_state": {"a": [1]}, "step": "1"}),
    (UsageEvent, {"input_tokens": 5, "step": "1"}),
    (ToolStartEvent, {"call": CALL, "idempotency_key": "t:1:0", "step": "1", "branch": "b"}),
    (ToolCompleteEvent, {"call": CALL, "success": True, "content": "2", "result": 2, "duration": 0.5}),
    (CheckpointEvent, {"iteration": 1, "message_count": 3, "usage": Usage(output_tokens=2), "durable_seq": None}),
]


@pytest.mark.parametrize(("model", "values"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_unchecked_model_equals_a_validated_one(model: type[Any], values: dict[str, Any]) -> None:
    unvalidated, checked = make_unchecked(model)(**values), model(**values)
    assert unvalidated == checked
    assert type(unvalidated) is model
    assert list(vars(unvalidated)) == list(vars(checked))
    assert unvalidated.model_dump_json() == checked.model_dump_json()
    assert repr(unvalidated) == repr(checked)
    assert hash(model) == hash(type(unvalidated))
    copied = unvalidated.model_copy(update={next(iter(values)): next(iter(values.values()))})
    assert copied == checked
    assert copied.model_copy(deep=True) == checked
    with pytest.raises(ValueError, match="frozen"):
        setattr(unvalidated, next(iter(values)), None)


@pytest.mark.parametrize(("model", "values"), [each for each in CASES if issubclass(each[0], Event)])
def test_unchecked_event_survives_json(model: type[Event], values: dict[str, Any]) -> None:
    unvalidated = make_unchecked(model)(**values)
    assert kinds.from_json(unvalidated.to_json(), strict=True) == model(**values)


def test_unchecked_events_share_no_mutable_state() -> None:
    make = make_unchecked(StatusUpdateEvent)
    first, second = make(state="working"), make(state="working")
    with pytest.raises(TypeError, match="events are immutable"):
        first.metadata["seen"] = True
    with pytest.raises(TypeError, match="events are immutable"):
        first.pending.append(kinds.PendingInput(input_id="1", prompt="?"))
    assert second.metadata == {}
    assert second.pending == []
    copied = first.model_copy(update={"reason": "error"})
    assert "reason" in copied.model_fields_set
    assert copied.model_fields_set is not second.model_fields_set


def test_parsed_events_share_the_names_of_their_fields() -> None:
    event = ToolCompleteEvent(
        call=CALL, success=True, content="2", messages=[Message(role="system", content="Hi")], step="1"
    )
    start = TaskEvent(model="m", agent_name="a", messages=[Message.user("Go.")])
    message = ContentCompleteEvent(content="", tool_calls=[CALL])
    for each, count in ((event, 3), (start, 2), (message, 2)):
        first, second = _parse_parts(each), _parse_parts(each)
        assert len(first) == count
        for one, other in zip(first, second, strict=True):
            assert one.model_fields_set is other.model_fields_set
            assert one.model_fields_set == type(one).model_fields.keys()


def _parse_parts(event: Event) -> list[Any]:
    parsed: Any = Event.from_json(event.to_json())
    parts = [getattr(parsed, "call", None), *getattr(parsed, "messages", ()), *getattr(parsed, "tool_calls", ())]
    return [parsed, *(each for each in parts if each is not None)]


def test_parsed_event_of_a_user_keeps_the_names_of_its_set_fields() -> None:
    class RatedEvent(Event):
        kind: str = "test-rated"
        stars: int = 5
        text: str = ""

    EVENT_TYPES["test-rated"] = RatedEvent
    try:
        data = Event.from_json(b'{"kind": "test-rated", "version": 1, "stars": 4}')
    finally:
        del EVENT_TYPES["test-rated"]
    assert "stars" in data.model_fields_set
    assert "text" not in data.model_fields_set
