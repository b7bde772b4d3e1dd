from collections.abc import Callable
from typing import Any

import pytest
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.errors import ConfigurationError
from rxloop.operators.views.after import after
from rxloop.protocol.events import ContentDeltaEvent, CustomEvent, Event, GapEvent

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed


def make_event(seq: int, sub: int = 0, attempt: int = 1, task_id: str = "run") -> Event:
    cls: Any = ContentDeltaEvent if sub else CustomEvent
    own: dict[str, Any] = {"delta": "a"} if sub else {"name": "a"}
    return cls(seq=seq, sub=sub, attempt=attempt, task_id=task_id, **own)


def cursors_after(cursor: str, *events: Event) -> list[str]:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(*(on_next(210 + n, each) for n, each in enumerate(events)))
    messages: list[Any] = [*scheduler.start(lambda: source.pipe(after(cursor))).messages]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 1000)]
    values: list[Event] = [message.value.value for message in messages]
    return [
        f"gap {each.reason}" if isinstance(each, GapEvent) else f"{each.attempt}.{each.seq}.{each.sub}"
        for each in values
    ]


WHOLE = [make_event(1), make_event(2), make_event(2, 1), make_event(2, 2), make_event(3)]


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
def test_events_up_to_the_cursor_are_skipped(cursor: str, expected: list[str]) -> None:  # L132
    assert cursors_after(cursor, *WHOLE) == expected


def test_reader_of_the_previous_attempt_continues_without_a_gap() -> None:
    assert cursors_after("run/1.3.0", make_event(4, attempt=2), make_event(5, attempt=2))[-2:] == ["2.4.0", "2.5.0"]


def test_cursor_beyond_the_remaining_events_yields_a_gap() -> None:  # L133
    assert cursors_after("run/1.7.0", make_event(4, attempt=2), make_event(5, attempt=2)) == [
        "gap lost-attempt",
        "2.4.0",
        "2.5.0",
    ]


def test_cursor_of_another_run_yields_a_gap() -> None:  # L133
    assert cursors_after("other/1.1.0", *WHOLE)[:2] == ["gap unknown-cursor", "1.1.0"]


@pytest.mark.parametrize("cursor", ["", "7", "run/1", "run/1.2", "run/1.2.x", "run/1.2.3 "])
def test_after_rejects_a_string_that_is_not_a_cursor(cursor: str) -> None:
    with pytest.raises(ConfigurationError, match="a cursor must have the form"):
        after(cursor)
