"""Lookups of events from earlier attempts."""

import pytest

from rxloop import ContentCompleteEvent, LLMCallEvent, MessageAddedEvent, StatusUpdateEvent, TaskEvent
from rxloop.protocol.events import LLMFailedEvent
from rxloop.protocol.messages import ErrorInfo
from rxloop.state.earlier_attempts import EarlierAttempts

TASK = TaskEvent(task_id="r", seq=1, messages=[], model="m", agent_name="a")


def make_message(seq: int = 0) -> MessageAddedEvent:
    return MessageAddedEvent(role="user", content="Again.", cause="retry", branch="b", task_id="r", seq=seq)


def test_message_recorded_twice_is_known_twice_after_any_lookups() -> None:
    earlier = EarlierAttempts([TASK, make_message(2), make_message(3)])

    for _ in range(2):
        assert all(earlier.contains(make_message(), "r", 2) for _ in range(5))
        earlier.count_recreated(make_message(), 2)
    assert not earlier.contains(make_message(), "r", 2)


def test_recorded_message_is_known_as_long_as_its_step() -> None:
    message = ContentCompleteEvent(step="1", content="Hi.", task_id="r", seq=2)
    earlier = EarlierAttempts([TASK, message])

    earlier.count_recreated(message, 2)

    assert earlier.contains(message, "r", 2)
    assert earlier.state.content == "Hi."
    assert earlier.messages == {"1": message}


def test_nothing_is_known_without_earlier_attempts() -> None:
    assert not EarlierAttempts().contains(make_message(), "r", 2)


@pytest.mark.parametrize(("is_repeated", "count"), [(True, 1), (False, 2)])
def test_earlier_attempts_count_calls(is_repeated: bool, count: int) -> None:
    error = ErrorInfo(code="context_length" if is_repeated else "connection", message="no")
    request = LLMCallEvent(step="1", iteration=1, model="m", message_count=1, tool_count=0, estimated_input_tokens=1)
    failure = LLMFailedEvent(step="1", error=error, retryable=False)
    resumed = StatusUpdateEvent(state="working", resumed=True)
    message = ContentCompleteEvent(step="1", content="Hi.")
    events = [request, resumed, request, failure, request, message]
    assert EarlierAttempts([TASK, *events]).call_count == count
    assert EarlierAttempts([TASK, *events[:-1]]).call_count == count - 1
