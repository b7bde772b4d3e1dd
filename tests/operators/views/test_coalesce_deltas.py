from collections.abc import Callable
from itertools import groupby
from typing import Any, cast

import pytest
import reactivex as rx
from hypothesis import given
from hypothesis import strategies as st
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.errors import ConfigurationError
from rxloop.operators.views.text import coalesce_deltas
from rxloop.protocol.events import (
    ContentDeltaEvent,
    CustomEvent,
    Event,
    ThoughtDeltaEvent,
    ToolCallDeltaEvent,
)
from rxloop.providers.codecs.text import make_text_delta

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error

OTHER = CustomEvent(name="other")


def delta(text: str, **fields: Any) -> ContentDeltaEvent:
    return ContentDeltaEvent(delta=text, **fields)


def fragment(text: str, index: int = 0) -> ToolCallDeltaEvent:
    return ToolCallDeltaEvent(index=index, tool_call_id=f"call{index}", name="f", fragment=text)


def text_of_delta(event: Event) -> str:
    match event:
        case ContentDeltaEvent() | ThoughtDeltaEvent():
            return event.delta
        case ToolCallDeltaEvent():
            return event.fragment
        case _:
            return event.kind


def coalesce(*events: Event) -> list[Event]:
    seen: list[Event] = []
    rx.from_iterable(events).pipe(coalesce_deltas()).subscribe(seen.append)
    return seen


def test_adjacent_deltas_are_merged_until_another_event() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, delta("a")),
        on_next(220, delta("b")),
        on_next(230, OTHER),
        on_next(240, delta("c")),
        on_next(250, delta("d")),
        on_completed(260),
    )

    seen = scheduler.start(lambda: source.pipe(coalesce_deltas()))

    assert seen.messages == [
        on_next(230, delta("ab")),
        on_next(230, OTHER),
        on_next(260, delta("cd")),
        on_completed(260),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 260)]


def test_merged_delta_has_the_numbers_of_its_newest_delta() -> None:
    seen = coalesce(delta("a", seq=3, sub=1, index=0, timestamp=5), delta("b", seq=3, sub=2, index=1, timestamp=7))

    assert seen == [delta("ab", seq=3, sub=2, index=1, timestamp=7)]


def test_single_delta_is_emitted_unchanged() -> None:
    lone = delta("a")

    assert coalesce(lone)[0] is lone


def test_unvalidated_deltas_of_a_provider_are_merged() -> None:
    seen = coalesce(*(make_text_delta(ContentDeltaEvent, text, index, "1") for index, text in enumerate("abc")))

    assert seen == [delta("abc", index=2, step="1")]
    assert b'"delta":"abc"' in seen[0].to_json()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (delta("a"), ThoughtDeltaEvent(delta="b")),
        (delta("a", step="1"), delta("b", step="2")),
        (delta("a", step="1", branch="x"), delta("b", step="1", branch="y")),
        (delta("a", task_id="1"), delta("b", task_id="2", parent_task_id="1")),
        (fragment("a", 0), fragment("b", 1)),
    ],
)
def test_deltas_of_different_sources_are_not_merged(first: Event, second: Event) -> None:
    assert coalesce(first, second, first) == [first, second, first]


def test_fragments_of_one_call_are_merged() -> None:
    assert coalesce(fragment('{"a'), fragment('":1}'), fragment("{}", 1)) == [fragment('{"a":1}'), fragment("{}", 1)]


def test_collected_deltas_are_emitted_before_an_error() -> None:
    scheduler = TestScheduler()
    failure = RuntimeError("broken")
    source = scheduler.create_hot_observable(on_next(210, delta("a")), on_next(220, delta("b")), on_error(230, failure))

    seen = scheduler.start(lambda: source.pipe(coalesce_deltas()))

    assert seen.messages == [on_next(230, delta("ab")), on_error(230, failure)]


def test_window_emits_the_first_delta_at_once_and_then_one_per_window() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        *(on_next(210 + 10 * at, delta(text)) for at, text in enumerate("abcdefg")), on_next(400, delta("h"))
    )

    seen = scheduler.start(lambda: source.pipe(coalesce_deltas(35)), disposed=500)

    assert seen.messages == [
        on_next(210, delta("a")),
        on_next(245, delta("bcd")),
        on_next(280, delta("efg")),
        on_next(400, delta("h")),
    ]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 500)]


def test_other_events_are_not_delayed_by_the_window() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        on_next(210, delta("a")), on_next(220, delta("b")), on_next(225, OTHER), on_next(230, delta("c"))
    )

    seen = scheduler.start(lambda: source.pipe(coalesce_deltas(50)))

    assert seen.messages == [
        on_next(210, delta("a")),
        on_next(225, delta("b")),
        on_next(225, OTHER),
        on_next(260, delta("c")),
    ]


def test_collected_deltas_are_emitted_at_the_end() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, delta("a")), on_next(220, delta("b")), on_completed(230))

    seen = scheduler.start(lambda: source.pipe(coalesce_deltas(50)))

    assert seen.messages == [on_next(210, delta("a")), on_next(230, delta("b")), on_completed(230)]


def test_nothing_is_emitted_after_disposal() -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, delta("a")), on_next(220, delta("b")))

    seen = scheduler.start(lambda: source.pipe(coalesce_deltas(50)), disposed=230)

    assert seen.messages == [on_next(210, delta("a"))]
    assert source.subscriptions == [ReactiveTest.subscribe(200, 230)]


@pytest.mark.parametrize("end", [on_completed(220), on_error(220, RuntimeError("broken")), on_next(220, delta("a"))])
def test_no_timer_outlives_the_subscription(end: Recorded[Any]) -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(on_next(210, delta("a")), end)
    timers: list[bool] = []
    scheduler.schedule_absolute(240, lambda *_: timers.extend(not item.is_cancelled() for item, _ in queue.items))
    queue = scheduler._queue

    scheduler.start(lambda: source.pipe(coalesce_deltas(50)), disposed=230)

    assert timers
    assert not any(timers)


def test_each_subscriber_of_a_stored_view_has_its_own_buffer() -> None:
    view = coalesce_deltas()
    source = rx.from_iterable([delta("a"), delta("b")])
    seen: list[Event] = []

    source.pipe(view).subscribe(seen.append)
    source.pipe(view).subscribe(seen.append)

    assert seen == [delta("ab"), delta("ab")]


@given(
    st.lists(
        st.one_of(
            st.builds(delta, st.text(), step=st.sampled_from(["1", "2"])),
            st.builds(ThoughtDeltaEvent, delta=st.text()),
            st.builds(fragment, st.text(), st.integers(0, 1)),
            st.just(OTHER),
        )
    ),
    st.sampled_from([None, 1, 3, 100]),
)
def test_text_and_order_are_preserved(events: list[Event], window: float | None) -> None:
    scheduler = TestScheduler()
    source = scheduler.create_hot_observable(
        *(on_next(201 + at, event) for at, event in enumerate(events)), on_completed(201 + len(events))
    )

    seen = scheduler.start(lambda: source.pipe(coalesce_deltas(window)), disposed=10_000)

    def group_texts(stream: list[Event]) -> list[tuple[Any, str]]:
        def source_key(event: Event) -> Any:
            call = event.tool_call_id if isinstance(event, ToolCallDeltaEvent) else None
            return event.kind, event.step, call

        return [(where, "".join(map(text_of_delta, group))) for where, group in groupby(stream, source_key)]

    *messages, end = cast("list[Any]", seen.messages)
    values = [message.value.value for message in messages]
    assert end == on_completed(201 + len(events))
    assert group_texts(values) == group_texts(events)
    if window is None:
        assert len([value for value in values if value is not OTHER]) == len(
            [where for where, _ in group_texts(events) if where[0] != OTHER.kind]
        )


@pytest.mark.parametrize("window", [0, -1])
def test_coalesce_deltas_rejects_a_window_that_is_not_positive(window: float) -> None:
    with pytest.raises(ConfigurationError, match="window must be a positive number"):
        coalesce_deltas(window)
