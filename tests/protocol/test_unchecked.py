from __future__ import annotations

from typing import Any

import pytest

from rxloop.protocol import events as kinds
from rxloop.protocol.events import (
    CheckpointEvent,
    ContentCompleteEvent,
    Event,
    LLMCallEvent,
    StatusUpdateEvent,
    ToolCompleteEvent,
    ToolStartEvent,
    UsageEvent,
)
from rxloop.protocol.messages import Message, ToolCall, Usage
from rxloop.protocol.model import make_unchecked

CALL = ToolCall(id="c", name="add", arguments={"a": 1}, raw='{"a":1}')
MADE: list[tuple[type[Any], dict[str, Any]]] = [
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


@pytest.mark.parametrize(("model", "values"), MADE, ids=lambda each: getattr(each, "__name__", ""))
def test_what_is_made_without_validation_is_what_the_constructor_makes(
    model: type[Any], values: dict[str, Any]
) -> None:
    made, checked = make_unchecked(model)(**values), model(**values)
    assert made == checked
    assert type(made) is model
    assert list(vars(made)) == list(vars(checked))
    assert made.model_dump_json() == checked.model_dump_json()
    assert repr(made) == repr(checked)
    assert hash(model) == hash(type(made))
    copied = made.model_copy(update={next(iter(values)): next(iter(values.values()))})
    assert copied == checked
    assert copied.model_copy(deep=True) == checked
    with pytest.raises(ValueError, match="frozen"):
        setattr(made, next(iter(values)), None)


@pytest.mark.parametrize(("model", "values"), [each for each in MADE if issubclass(each[0], Event)])
def test_such_an_event_is_read_again_from_its_json(model: type[Event], values: dict[str, Any]) -> None:
    made = make_unchecked(model)(**values)
    assert kinds.from_json(made.to_json(), strict=True) == model(**values)


def test_no_two_of_them_share_what_can_be_changed() -> None:
    make = make_unchecked(StatusUpdateEvent)
    first, second = make(state="working"), make(state="working")
    with pytest.raises(TypeError, match="events are immutable"):
        first.metadata["seen"] = True
    with pytest.raises(TypeError, match="events are immutable"):
        first.pending.append(kinds.PendingInput(input_id="1", prompt="?"))
    assert (second.metadata, second.pending) == ({}, [])
    copied = first.model_copy(update={"reason": "error"})
    assert "reason" in copied.model_fields_set
    assert copied.model_fields_set is not second.model_fields_set
