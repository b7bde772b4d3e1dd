from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop.operators.views.after import after
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    CustomEvent,
    Event,
    GapEvent,
    LLMCallEvent,
    StatusUpdateEvent,
    ThoughtDeltaEvent,
    ThoughtStreamEvent,
    ToolCallDeltaEvent,
    ToolCompleteEvent,
    ToolProgressEvent,
)
from rxloop.protocol.messages import ToolCall
from rxloop.providers.codecs.text import make_text_delta
from rxloop.stream.deltas import delta_text
from rxloop.stream.hub import Hub
from rxloop.stream.sources import DURABLE, select_events
from support.run_checks import Recorder, positions

CALL = ToolCall(id="call_1", name="tool")


def durable_view(source: Any) -> Any:
    """Return the source."""
    return source


vars(durable_view)[DURABLE] = True


class Publisher:
    """Publisher that numbers events like a run."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.seq = self.sub = 0
        self.published: list[Event] = []

    def publish(self, event: Event) -> Event:
        if event.durable:
            self.seq, self.sub = self.seq + 1, 0
        else:
            self.sub += 1
        event = event.model_copy(
            update={"task_id": "t", "context_id": "c", "attempt": 1, "seq": self.seq, "sub": self.sub}
        )
        self.published.append(event)
        self.hub.publish(event)
        return event

    def custom(self, name: str = "x") -> Event:
        return self.publish(CustomEvent(name=name))

    def delta(self, text: str, step: str = "1", index: int = 0) -> Event:
        return self.publish(make_text_delta(ContentDeltaEvent, text, index, step))

    def complete(self, step: str = "1") -> Event:
        return self.publish(ContentCompleteEvent(content="", step=step))


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def publisher(hub: Hub) -> Publisher:
    return Publisher(hub)


def test_every_subscriber_gets_every_event_once_in_order(hub: Hub, publisher: Publisher) -> None:  # L11
    first, second = Recorder(hub.events), Recorder(hub.events)
    for _ in range(3):
        publisher.custom()
    hub.complete()
    assert first.events == second.events == publisher.published
    assert first.completed
    assert second.completed


def test_subscriber_of_durable_events_gets_no_transient_events_and_is_isolated(hub: Hub, publisher: Publisher) -> None:
    first = publisher.custom()
    publisher.delta("before")
    durable, every = Recorder(select_events(hub.events, durable_view)), Recorder(hub.events)
    publisher.delta("after")
    last = publisher.custom()
    assert hub.subscribers == 2
    assert durable.events == [first, last]
    assert every.events == publisher.published
    durable.subscription.dispose()
    assert hub.subscribers == 1
    later = Recorder(select_events(hub.events, durable_view))
    hub.complete()
    assert later.events == [first, last]
    assert later.completed
    assert Recorder(select_events(hub.events)).events == publisher.published


def test_failing_subscriber_of_durable_events_is_detached(hub: Hub, publisher: Publisher) -> None:
    def fail(event: Event) -> None:
        raise ValueError("broken")

    select_events(hub.events, durable_view).subscribe(fail)
    after_failure = Recorder(hub.events)
    publisher.custom()
    publisher.custom()
    assert hub.subscribers == 1
    assert after_failure.events == publisher.published


def test_disposed_subscription_gets_nothing_more(hub: Hub, publisher: Publisher) -> None:
    recorder = Recorder(hub.events)
    publisher.custom()
    recorder.subscription.dispose()
    publisher.custom()
    assert len(recorder.events) == 1
    assert hub.subscribers == 0


def test_late_subscriber_gets_durable_events_and_open_deltas(hub: Hub, publisher: Publisher) -> None:  # L12
    publisher.custom()
    publisher.delta("a", step="1")
    publisher.complete("1")
    publisher.delta("b", step="2")
    publisher.custom()
    publisher.delta("c", step="2")
    late = Recorder(hub.events)
    assert positions(late.events) == [(1, 1, 0), (1, 2, 0), (1, 2, 1), (1, 3, 0), (1, 3, 1)]
    publisher.delta("d", step="2")
    assert [event.delta for event in late.events if isinstance(event, ContentDeltaEvent)] == ["b", "c", "d"]


def test_late_subscriber_gets_the_progress_of_open_calls_only(hub: Hub, publisher: Publisher) -> None:  # L12
    for index in (0, 1):
        publisher.publish(ToolProgressEvent(call=CALL, index=index, step="1", message=f"at {index}"))
    publisher.publish(ToolCompleteEvent(call=CALL, index=0, step="1", success=True, content=""))
    late = Recorder(hub.events)
    assert [event.message for event in late.events if isinstance(event, ToolProgressEvent)] == ["at 1"]


def test_no_transient_events_are_kept_after_the_final_event(hub: Hub, publisher: Publisher) -> None:
    publisher.delta("a")
    publisher.publish(StatusUpdateEvent(state="canceled", final=True))
    assert [event.kind for event in Recorder(hub.events).events] == ["status-update"]


def test_second_call_of_a_step_discards_the_deltas_of_the_first(hub: Hub, publisher: Publisher) -> None:
    about: dict[str, Any] = {"model": "m", "message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    publisher.publish(LLMCallEvent(step="1", iteration=1, **about))
    publisher.delta("wrong")
    publisher.publish(LLMCallEvent(step="1", iteration=1, **about))
    publisher.delta("right")
    assert hub.get_open_text("t", "1") == "right"
    late = Recorder(hub.events)
    assert [event.delta for event in late.events if isinstance(event, ContentDeltaEvent)] == ["right"]


def test_event_published_during_a_delivery_follows_it_for_all_subscribers(hub: Hub, publisher: Publisher) -> None:
    def echo(event: Event) -> None:
        if isinstance(event, CustomEvent) and event.name == "call":
            publisher.custom("echo")

    before = Recorder(hub.events)
    hub.events.subscribe(echo)
    after = Recorder(hub.events)
    publisher.custom("call")
    assert [event.name for event in before.events] == ["call", "echo"]
    assert before.events == after.events


def test_nested_publishing_ten_thousand_deep_keeps_the_stack_flat(hub: Hub, publisher: Publisher) -> None:
    def publish_again(_: Event) -> None:
        if publisher.seq < 10_000:
            publisher.custom()

    hub.events.subscribe(publish_again)
    publisher.custom()
    assert [event.seq for event in Recorder(hub.events).events] == list(range(1, 10_001))


def test_event_published_during_a_replay_reaches_the_late_subscriber(hub: Hub, publisher: Publisher) -> None:  # L12
    publisher.custom("first")
    publisher.custom("second")
    seen: list[str] = []

    def echo(event: Event) -> None:
        assert isinstance(event, CustomEvent)
        seen.append(event.name)
        if event.name == "first":
            publisher.custom("echo")

    other = Recorder(hub.events)
    hub.events.subscribe(echo)
    assert seen == ["first", "second", "echo"]
    assert [event.name for event in other.events] == ["first", "second", "echo"]


def test_end_during_a_replay_reaches_the_late_subscriber_last(hub: Hub, publisher: Publisher) -> None:
    publisher.custom()
    publisher.custom()
    notifications: list[str] = []

    def end(event: Event) -> None:
        if not notifications:
            hub.complete()
        notifications.append(str(event.seq))

    hub.events.subscribe(end, on_completed=lambda: notifications.append("end"))
    assert notifications == ["1", "2", "end"]


def test_subscription_during_a_delivery_misses_and_repeats_nothing(hub: Hub, publisher: Publisher) -> None:  # L12
    late = Recorder()

    def subscribe(event: Event) -> None:
        if event.seq == 2:
            publisher.custom("from the callback")
            hub.events.subscribe(late)

    hub.events.subscribe(subscribe)
    for _ in range(3):
        publisher.custom()
    assert late.events == publisher.published


def test_subscriber_that_disposes_itself_does_not_affect_others(hub: Hub, publisher: Publisher) -> None:
    seen: list[int] = []

    def record_once(event: Event) -> None:
        seen.append(event.seq)
        subscription.dispose()

    subscription = hub.events.subscribe(record_once)
    other = Recorder(hub.events)
    publisher.custom()
    publisher.custom()
    assert seen == [1]
    assert len(other.events) == 2


def test_subscriber_disposed_during_a_delivery_does_not_get_the_event(hub: Hub, publisher: Publisher) -> None:
    hub.events.subscribe(lambda _: other.subscription.dispose())
    other = Recorder(hub.events)
    publisher.custom()
    assert other.events == []


def test_subscriber_that_raises_is_detached_and_logged(
    hub: Hub, publisher: Publisher, caplog: pytest.LogCaptureFixture
) -> None:  # L14
    def fail(event: Event) -> None:
        raise ZeroDivisionError("a bug of the subscriber")

    before = Recorder(hub.events)
    hub.events.subscribe(fail)
    after = Recorder(hub.events)
    with caplog.at_level(logging.ERROR, "rxloop"):
        publisher.custom()
    publisher.custom()
    assert before.events == after.events == publisher.published
    [record] = [record for record in caplog.records if record.name == "rxloop"]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert hub.subscribers == 2


def test_exception_of_a_subscriber_is_passed_to_its_own_on_error_only(hub: Hub, publisher: Publisher) -> None:  # L14
    def fail(event: Event) -> Event:
        raise ZeroDivisionError

    def add_view(source: Any) -> Any:
        """Pass events through an operator that does not catch exceptions."""
        return ops.do_action(lambda _: None)(source)

    subscriber = Recorder()
    subscriber.on_next = fail  # type: ignore[method-assign]
    add_view(hub.events).subscribe(subscriber)
    other = Recorder(hub.events)
    publisher.custom()
    assert isinstance(subscriber.error, ZeroDivisionError)
    assert other.error is None
    assert hub.subscribers == 1


def test_subscriber_that_raises_during_a_replay_is_detached(hub: Hub, publisher: Publisher) -> None:  # L14
    publisher.custom()

    def fail(event: Event) -> None:
        raise ZeroDivisionError

    errors: list[Exception] = []
    hub.events.subscribe(fail, errors.append)
    assert hub.subscribers == 0
    assert [type(error) for error in errors] == [ZeroDivisionError]
    publisher.custom()


def test_cancelled_error_in_a_callback_is_an_error_of_that_subscriber(hub: Hub, publisher: Publisher) -> None:  # L14
    def raise_cancelled(event: Event) -> None:
        raise asyncio.CancelledError

    hub.events.subscribe(raise_cancelled)
    other = Recorder(hub.events)
    publisher.custom()
    publisher.custom()
    assert other.events == publisher.published
    assert hub.subscribers == 1


def test_exception_at_the_end_does_not_affect_other_subscribers(hub: Hub, publisher: Publisher) -> None:  # L14
    def fail() -> None:
        raise ZeroDivisionError

    hub.events.subscribe(on_completed=fail)
    other = Recorder(hub.events)
    hub.complete()
    assert other.completed


def test_error_at_the_end_reaches_present_and_later_subscribers(hub: Hub) -> None:
    present = Recorder(hub.events)
    error = ValueError("refused")
    hub.complete(error)
    assert present.error is error
    assert Recorder(hub.events).error is error


def test_end_announced_during_a_delivery_follows_pending_events(hub: Hub, publisher: Publisher) -> None:
    def end(event: Event) -> None:
        if event.seq == 1:
            publisher.custom()
            hub.complete()

    hub.events.subscribe(end)
    other = Recorder(hub.events)
    publisher.custom()
    assert len(other.events) == 2
    assert other.completed


def test_late_subscriber_gets_a_gap_for_trimmed_events() -> None:
    hub = Hub(retain=3)
    publisher = Publisher(hub)
    for _ in range(10):
        publisher.custom()
    late = Recorder(hub.events)
    gap, *remaining = late.events
    assert isinstance(gap, GapEvent)
    assert gap.reason == "trimmed"
    assert gap.count == 7
    assert [event.seq for event in remaining] == [8, 9, 10]
    assert hub.trimmed == 7


def test_gap_has_the_position_of_the_last_missing_event() -> None:  # L1, L133
    hub = Hub(retain=3)
    publisher = Publisher(hub)
    for _ in range(10):
        publisher.custom()
    gap = Recorder(hub.events).events[0]
    assert gap.task_id == "t"
    assert gap.context_id == "c"
    assert gap.attempt == 1
    assert gap.seq == 7
    assert sorted(positions(Recorder(hub.events).events)) == positions(Recorder(hub.events).events)


def test_early_subscriber_gets_no_gap() -> None:
    hub = Hub(retain=3)
    publisher = Publisher(hub)
    recorder = Recorder(hub.events)
    for _ in range(10):
        publisher.custom()
    assert recorder.events == publisher.published


def test_deltas_of_an_open_message_are_merged_above_the_limit() -> None:
    hub = Hub(retain_open=4)
    publisher = Publisher(hub)
    for character in "abcdefghij":
        publisher.delta(character)
    late = Recorder(hub.events)
    assert "".join(event.delta for event in late.events) == "abcdefghij"
    assert len(late.events) <= 5
    assert hub.get_open_text("t", "1") == "abcdefghij"
    assert positions(late.events) == sorted(positions(late.events))


@pytest.mark.parametrize("many", [3_000, 10_000])
def test_returning_reader_gets_the_rest_of_a_long_message_once(
    hub: Hub, publisher: Publisher, many: int
) -> None:  # L132
    publisher.custom()
    for number in range(many):
        publisher.delta(f"{number} ", index=number)
    for at in (0, 1, 7, 16, 2_000, 4_095, 4_097, many - 2_500, many - 1, many):
        if at <= many:
            cursor = publisher.published[at].cursor
            remaining = Recorder(hub.events.pipe(after(cursor))).events
            assert "".join(delta_text(event) or "" for event in remaining) == "".join(f"{n} " for n in range(at, many))
            assert not any(isinstance(event, GapEvent) for event in remaining)


def test_thoughts_and_calls_of_a_long_message_are_merged_without_loss(publisher: Publisher) -> None:  # L12, L132
    publisher.hub = hub = Hub(retain_open=64)
    for number in range(1_000):
        publisher.publish(make_text_delta(ThoughtDeltaEvent, f"{number} ", number, "1"))
        for index in (0, 1):
            publisher.publish(
                ToolCallDeltaEvent(index=index, tool_call_id="c", name="t", fragment=f"{number},", step="1")
            )
        publisher.delta(f"{number};", index=number)
    late = Recorder(hub.events)
    assert len(late.events) <= 64 + 4
    assert positions(late.events) == sorted(set(positions(late.events)))
    assert collect_text(late.events) == collect_text(publisher.published)
    for index in (0, 1, 500, 2_001, 3_998):
        remaining = Recorder(hub.events.pipe(after(publisher.published[index].cursor))).events
        assert collect_text(remaining) == collect_text(publisher.published[index + 1 :])


def test_long_thought_is_not_merged_into_the_next_one(publisher: Publisher) -> None:  # L12
    publisher.hub = hub = Hub(retain=10, retain_open=16)
    for thought in "ab":
        for number in range(100):
            publisher.publish(make_text_delta(ThoughtDeltaEvent, thought, number, "1"))
            if number == 50:
                publisher.custom("beside it")
        late = [event for event in Recorder(hub.events).events if isinstance(event, ThoughtDeltaEvent)]
        assert "".join(event.delta for event in late) == thought * 100
        publisher.publish(ThoughtStreamEvent(thought_id=thought, content=thought * 100, source="reasoning", step="1"))
    for number in range(100):
        publisher.delta("c", index=number)
    late = Recorder(hub.events).events
    assert positions(late) == sorted(set(positions(late)))
    assert "".join(event.delta for event in late if isinstance(event, ContentDeltaEvent)) == "c" * 100
    assert "".join(event.delta for event in late if isinstance(event, ThoughtDeltaEvent)) == "b" * 100


def collect_text(events: Sequence[Event]) -> dict[tuple[str, int], str]:
    """Return the text of each concurrent stream of deltas."""
    texts: dict[tuple[str, int], str] = {}
    for event in events:
        key = event.kind, event.index if isinstance(event, ToolCallDeltaEvent) else 0
        texts[key] = texts.get(key, "") + (delta_text(event) or "")
    return texts


def test_memory_of_a_long_message_among_many_events_is_bounded(publisher: Publisher) -> None:
    publisher.hub = hub = Hub(retain=10, retain_open=64)
    for number in range(500):
        publisher.custom()
        publisher.delta(f"{number} ", index=number)
    [opened] = vars(hub)["_open"].values()
    assert opened.count <= 64
    late = [event for event in Recorder(hub.events).events if isinstance(event, ContentDeltaEvent)]
    assert len(late) <= 65
    assert "".join(event.delta for event in late) == "".join(f"{number} " for number in range(500))


def test_late_subscriber_gets_many_deltas_unchanged(hub: Hub, publisher: Publisher) -> None:  # L12
    publisher.custom()
    for number in range(1_000):
        publisher.delta(str(number), index=number)
    assert Recorder(hub.events).events == publisher.published
    assert hub.get_open_text("t", "1") == "".join(map(str, range(1_000)))


def test_open_text_is_separate_for_each_message(hub: Hub, publisher: Publisher) -> None:
    publisher.delta("a", step="x/1")
    publisher.delta("b", step="x/2")
    assert hub.get_open_text("t", "x/1") == "a"
    assert hub.get_open_text("t", "x/2") == "b"
    assert hub.get_open_text("other", "x/2") == ""
