"""The memory of earlier attempts: asking it changes nothing."""

from rxloop import ContentCompleteEvent, MessageAddedEvent, TaskEvent
from rxloop.state.earlier_attempts import EarlierAttempts

TASK = TaskEvent(task_id="r", seq=1, messages=[], model="m", agent_name="a")


def said(seq: int = 0) -> MessageAddedEvent:
    return MessageAddedEvent(role="user", content="Again.", cause="retry", branch="b", task_id="r", seq=seq)


def test_what_the_log_has_twice_is_known_twice_however_often_it_is_asked() -> None:
    earlier = EarlierAttempts([TASK, said(2), said(3)])

    for _ in range(2):
        assert all(earlier.contains(said(), "r", 2) for _ in range(5))
        earlier.count_recreated(said(), 2)
    assert not earlier.contains(said(), "r", 2)


def test_a_recorded_message_is_known_as_long_as_there_is_its_step() -> None:
    message = ContentCompleteEvent(step="1", content="Hi.", task_id="r", seq=2)
    earlier = EarlierAttempts([TASK, message])

    earlier.count_recreated(message, 2)

    assert earlier.contains(message, "r", 2)
    assert earlier.state.content == "Hi."
    assert earlier.messages == {"1": message}


def test_without_earlier_attempts_nothing_is_known() -> None:
    assert not EarlierAttempts().contains(said(), "r", 2)
