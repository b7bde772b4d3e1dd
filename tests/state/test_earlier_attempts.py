"""Lookups of events from earlier attempts."""

from rxloop import ContentCompleteEvent, MessageAddedEvent, TaskEvent
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
