from collections.abc import Callable
from typing import Any, cast

import pytest
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.errors import ConfigurationError
from rxloop.operators.views.filters import thoughts
from rxloop.protocol.events import ContentDeltaEvent, ThoughtDeltaEvent, ThoughtStreamEvent

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed = ReactiveTest.on_completed


def thought(content: str, **fields: Any) -> ThoughtStreamEvent:
    return ThoughtStreamEvent(thought_id=content, content=content, **fields)


PLAN = thought("plan", thought_type="planning", verbosity="brief", confidence=0.9)
DOUBT = thought("doubt", thought_type="critique", verbosity="normal", confidence=0.2)
CHOICE = thought("choice", thought_type="decision", verbosity="detailed", confidence=0.5)
PLAIN = thought("plain", verbosity="normal")


def filter_thoughts(**filters: Any) -> list[str]:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, PLAN), on_next(220, DOUBT), on_next(230, CHOICE), on_next(240, PLAIN), on_completed(250)
    )
    seen = scheduler.start(lambda: source.pipe(thoughts(**filters)))
    *values, end = cast("list[Any]", seen.messages)
    assert end == on_completed(250)
    assert source.subscriptions == [ReactiveTest.subscribe(200, 250)]
    return [message.value.value.content for message in values]


def test_only_thoughts_pass() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, ContentDeltaEvent(delta="a")), on_next(220, ThoughtDeltaEvent(delta="b")), on_next(230, PLAIN)
    )

    seen = scheduler.start(lambda: source.pipe(thoughts()))

    assert seen.messages == [on_next(230, PLAIN)]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ["plan", "doubt", "choice", "plain"]),
        ({"types": ["planning", "decision"]}, ["plan", "choice"]),
        ({"types": {"critique"}}, ["doubt"]),
        ({"types": "thinking"}, ["plain"]),
        ({"types": []}, []),
        ({"min_confidence": 0.5}, ["plan", "choice"]),
        ({"min_confidence": 0}, ["plan", "doubt", "choice"]),
        ({"verbosity": "brief"}, ["plan"]),
        ({"verbosity": "normal"}, ["plan", "doubt", "plain"]),
        ({"verbosity": "detailed"}, ["plan", "doubt", "choice", "plain"]),
        ({"types": ["planning", "decision"], "min_confidence": 0.5, "verbosity": "normal"}, ["plan"]),
    ],
)
def test_only_matching_thoughts_pass(filters: dict[str, Any], expected: list[str]) -> None:  # L38
    assert filter_thoughts(**filters) == expected


@pytest.mark.parametrize(
    ("filters", "value"),
    [
        ({"types": ["planing", "decision"]}, "planing"),
        ({"types": "plan"}, "plan"),
        ({"min_confidence": 50}, "50"),
        ({"verbosity": "loud"}, "loud"),
    ],
)
def test_thoughts_rejects_an_invalid_filter(filters: dict[str, Any], value: str) -> None:
    with pytest.raises(ConfigurationError, match=value):
        thoughts(**filters)
