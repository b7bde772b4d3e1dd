from collections.abc import Callable
from typing import Any

import pytest
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.errors import ConfigurationError
from rxloop.operators.views.filters import after
from rxloop.protocol.events import ContentDeltaEvent, CustomEvent, Event, GapEvent

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed


def event(seq: int, sub: int = 0, attempt: int = 1, task_id: str = "run") -> Event:
    cls: Any = ContentDeltaEvent if sub else CustomEvent
    own: dict[str, Any] = {"delta": "a"} if sub else {"name": "a"}
    return cls(seq=seq, sub=sub, attempt=attempt, task_id=task_id, **own)


def seen(cursor: str, *events: Event) -> list[str]:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(*(on_next(210 + n, each) for n, each in enumerate(events)))
    messages: list[Any] = [*scheduler.start(lambda: source.pipe(after(cursor))).messages]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 1000)]
    values: list[Event] = [message.value.value for message in messages]
    return [
        f"gap {each.reason}" if isinstance(each, GapEvent) else f"{each.attempt}.{each.seq}.{each.sub}"
        for each in values
    ]


WHOLE = [event(1), event(2), event(2, 1), event(2, 2), event(3)]


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        ("run/1.0.0", ["1.1.0", "1.2.0", "1.2.1", "1.2.2", "1.3.0"]),
        ("run/1.1.0", ["1.2.0", "1.2.1", "1.2.2", "1.3.0"]),
        ("run/1.2.0", ["1.2.1", "1.2.2", "1.3.0"]),
        ("run/1.2.1", ["1.2.2", "1.3.0"]),
        ("run/1.3.0", []),
        ("run/1.99.0", []),
    ],
)
def test_what_the_reader_has_is_left_out(cursor: str, expected: list[str]) -> None:  # L132
    assert seen(cursor, *WHOLE) == expected


def test_a_reader_of_the_attempt_before_goes_on_without_a_gap() -> None:
    assert seen("run/1.3.0", event(4, attempt=2), event(5, attempt=2))[-2:] == ["2.4.0", "2.5.0"]


def test_a_reader_who_was_ahead_of_what_is_left_is_told() -> None:  # L133
    assert seen("run/1.7.0", event(4, attempt=2), event(5, attempt=2)) == ["gap lost-attempt", "2.4.0", "2.5.0"]


def test_a_cursor_of_another_run_is_told() -> None:  # L133
    assert seen("other/1.1.0", *WHOLE)[:2] == ["gap unknown-cursor", "1.1.0"]


@pytest.mark.parametrize("cursor", ["", "7", "run/1", "run/1.2", "run/1.2.x", "run/1.2.3 "])
def test_what_is_no_cursor_is_refused_at_once(cursor: str) -> None:
    with pytest.raises(ConfigurationError, match="a cursor must have the form"):
        after(cursor)
