from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from reactivex import operators as ops

from rxloop.operators.views.filters import after
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
from support.run_checks import Recorder, positions

CALL = ToolCall(id="call_1", name="tool")


class Numbers:
    """Stamps events as a run does, and publishes them."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.seq = self.sub = 0
        self.published: list[Event] = []

    def put(self, event: Event) -> Event:
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
        return self.put(CustomEvent(name=name))

    def delta(self, text: str, step: str = "1", index: int = 0) -> Event:
        return self.put(make_text_delta(ContentDeltaEvent, text, index, step))

    def complete(self, step: str = "1") -> Event:
        return self.put(ContentCompleteEvent(content="", step=step))


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def numbers(hub: Hub) -> Numbers:
    return Numbers(hub)


def test_every_subscriber_gets_every_event_once_in_order(hub: Hub, numbers: Numbers) -> None:  # L11
    first, second = Recorder(hub.events), Recorder(hub.events)
    for _ in range(3):
        numbers.custom()
    hub.complete()
    assert first.events == second.events == numbers.published
    assert first.completed
    assert second.completed


def test_a_subscription_that_was_disposed_gets_nothing_more(hub: Hub, numbers: Numbers) -> None:
    recorder = Recorder(hub.events)
    numbers.custom()
    recorder.subscription.dispose()
    numbers.custom()
    assert len(recorder.events) == 1
    assert hub.subscribers == 0


def test_a_late_subscriber_gets_the_durable_events_and_what_is_open(hub: Hub, numbers: Numbers) -> None:  # L12
    numbers.custom()
    numbers.delta("a", step="1")
    numbers.complete("1")
    numbers.delta("b", step="2")
    numbers.custom()
    numbers.delta("c", step="2")
    late = Recorder(hub.events)
    assert positions(late.events) == [(1, 1, 0), (1, 2, 0), (1, 2, 1), (1, 3, 0), (1, 3, 1)]
    numbers.delta("d", step="2")
    assert [event.delta for event in late.events if isinstance(event, ContentDeltaEvent)] == ["b", "c", "d"]


def test_a_late_subscriber_gets_the_progress_of_open_calls_only(hub: Hub, numbers: Numbers) -> None:  # L12
    for index in (0, 1):
        numbers.put(ToolProgressEvent(call=CALL, index=index, step="1", message=f"at {index}"))
    numbers.put(ToolCompleteEvent(call=CALL, index=0, step="1", success=True, content=""))
    late = Recorder(hub.events)
    assert [event.message for event in late.events if isinstance(event, ToolProgressEvent)] == ["at 1"]


def test_nothing_transient_is_kept_behind_the_final_event(hub: Hub, numbers: Numbers) -> None:
    numbers.delta("a")
    numbers.put(StatusUpdateEvent(state="canceled", final=True))
    assert [event.kind for event in Recorder(hub.events).events] == ["status-update"]


def test_a_second_call_of_a_step_makes_the_deltas_of_the_first_void(hub: Hub, numbers: Numbers) -> None:
    about: dict[str, Any] = {"model": "m", "message_count": 1, "tool_count": 0, "estimated_input_tokens": 1}
    numbers.put(LLMCallEvent(step="1", iteration=1, **about))
    numbers.delta("wrong")
    numbers.put(LLMCallEvent(step="1", iteration=1, **about))
    numbers.delta("right")
    assert hub.get_open_text("t", "1") == "right"
    late = Recorder(hub.events)
    assert [event.delta for event in late.events if isinstance(event, ContentDeltaEvent)] == ["right"]


def test_what_is_published_during_a_delivery_comes_behind_it_for_all(hub: Hub, numbers: Numbers) -> None:
    def echo(event: Event) -> None:
        if isinstance(event, CustomEvent) and event.name == "call":
            numbers.custom("echo")

    before = Recorder(hub.events)
    hub.events.subscribe(echo)
    behind = Recorder(hub.events)
    numbers.custom("call")
    assert [event.name for event in before.events] == ["call", "echo"]
    assert before.events == behind.events


def test_publishing_from_a_callback_ten_thousand_deep_keeps_the_stack_flat(hub: Hub, numbers: Numbers) -> None:
    def again(_: Event) -> None:
        if numbers.seq < 10_000:
            numbers.custom()

    hub.events.subscribe(again)
    numbers.custom()
    assert [event.seq for event in Recorder(hub.events).events] == list(range(1, 10_001))


def test_what_is_published_while_a_late_subscriber_is_told_the_past_reaches_it_too(
    hub: Hub, numbers: Numbers
) -> None:  # L12
    numbers.custom("first")
    numbers.custom("second")
    seen: list[str] = []

    def echo(event: Event) -> None:
        assert isinstance(event, CustomEvent)
        seen.append(event.name)
        if event.name == "first":
            numbers.custom("echo")

    other = Recorder(hub.events)
    hub.events.subscribe(echo)
    assert seen == ["first", "second", "echo"]
    assert [event.name for event in other.events] == ["first", "second", "echo"]


def test_the_end_that_comes_while_a_late_subscriber_is_told_the_past_reaches_it_last(
    hub: Hub, numbers: Numbers
) -> None:
    numbers.custom()
    numbers.custom()
    told: list[str] = []

    def end(event: Event) -> None:
        if not told:
            hub.complete()
        told.append(str(event.seq))

    hub.events.subscribe(end, on_completed=lambda: told.append("end"))
    assert told == ["1", "2", "end"]


def test_subscribing_during_a_delivery_misses_nothing_and_doubles_nothing(hub: Hub, numbers: Numbers) -> None:  # L12
    late = Recorder()

    def subscribe(event: Event) -> None:
        if event.seq == 2:
            numbers.custom("from the callback")
            hub.events.subscribe(late)

    hub.events.subscribe(subscribe)
    for _ in range(3):
        numbers.custom()
    assert late.events == numbers.published


def test_a_subscriber_that_disposes_itself_hurts_nobody(hub: Hub, numbers: Numbers) -> None:
    seen: list[int] = []

    def once(event: Event) -> None:
        seen.append(event.seq)
        subscription.dispose()

    subscription = hub.events.subscribe(once)
    other = Recorder(hub.events)
    numbers.custom()
    numbers.custom()
    assert seen == [1]
    assert len(other.events) == 2


def test_a_subscriber_that_disposes_another_one_during_the_delivery_keeps_the_event_from_it(
    hub: Hub, numbers: Numbers
) -> None:
    hub.events.subscribe(lambda _: other.subscription.dispose())
    other = Recorder(hub.events)
    numbers.custom()
    assert other.events == []


def test_a_subscriber_that_raises_is_detached_and_logged(
    hub: Hub, numbers: Numbers, caplog: pytest.LogCaptureFixture
) -> None:  # L14
    def fails(event: Event) -> None:
        raise ZeroDivisionError("a bug of the subscriber")

    before = Recorder(hub.events)
    hub.events.subscribe(fails)
    after = Recorder(hub.events)
    with caplog.at_level(logging.ERROR, "rxloop"):
        numbers.custom()
    numbers.custom()
    assert before.events == after.events == numbers.published
    [record] = [record for record in caplog.records if record.name == "rxloop"]
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError
    assert hub.subscribers == 2


def test_a_subscriber_that_raises_is_told_by_its_own_on_error_alone(hub: Hub, numbers: Numbers) -> None:  # L14
    def fails(event: Event) -> Event:
        raise ZeroDivisionError

    def view(source: Any) -> Any:
        """As a view might be that has a bug, and no try around it."""
        return ops.do_action(lambda _: None)(source)

    told = Recorder()
    told.on_next = fails  # type: ignore[method-assign]
    view(hub.events).subscribe(told)
    other = Recorder(hub.events)
    numbers.custom()
    assert isinstance(told.error, ZeroDivisionError)
    assert other.error is None
    assert hub.subscribers == 1


def test_a_subscriber_that_raises_while_it_is_told_the_past_is_detached(hub: Hub, numbers: Numbers) -> None:  # L14
    numbers.custom()

    def fails(event: Event) -> None:
        raise ZeroDivisionError

    errors: list[Exception] = []
    hub.events.subscribe(fails, errors.append)
    assert hub.subscribers == 0
    assert [type(error) for error in errors] == [ZeroDivisionError]
    numbers.custom()


def test_the_result_of_a_cancelled_task_asked_for_in_a_callback_is_that_subscribers_error(
    hub: Hub, numbers: Numbers
) -> None:  # L14
    def asks(event: Event) -> None:
        raise asyncio.CancelledError

    hub.events.subscribe(asks)
    other = Recorder(hub.events)
    numbers.custom()
    numbers.custom()
    assert other.events == numbers.published
    assert hub.subscribers == 1


def test_a_subscriber_that_raises_at_the_end_keeps_the_end_from_nobody(hub: Hub, numbers: Numbers) -> None:  # L14
    def fails() -> None:
        raise ZeroDivisionError

    hub.events.subscribe(on_completed=fails)
    other = Recorder(hub.events)
    hub.complete()
    assert other.completed


def test_an_error_at_the_end_reaches_present_and_later_subscribers(hub: Hub) -> None:
    present = Recorder(hub.events)
    error = ValueError("refused")
    hub.complete(error)
    assert present.error is error
    assert Recorder(hub.events).error is error


def test_the_end_that_is_announced_during_a_delivery_comes_behind_what_waits(hub: Hub, numbers: Numbers) -> None:
    def end(event: Event) -> None:
        if event.seq == 1:
            numbers.custom()
            hub.complete()

    hub.events.subscribe(end)
    other = Recorder(hub.events)
    numbers.custom()
    assert len(other.events) == 2
    assert other.completed


def test_memory_is_bounded_and_a_late_subscriber_is_told_what_it_misses() -> None:
    hub = Hub(retain=3)
    numbers = Numbers(hub)
    for _ in range(10):
        numbers.custom()
    late = Recorder(hub.events)
    gap, *rest = late.events
    assert isinstance(gap, GapEvent)
    assert (gap.reason, gap.count) == ("trimmed", 7)
    assert [event.seq for event in rest] == [8, 9, 10]
    assert hub.trimmed == 7


def test_the_gap_has_the_place_of_the_last_event_that_is_missing() -> None:  # L1, L133
    hub = Hub(retain=3)
    numbers = Numbers(hub)
    for _ in range(10):
        numbers.custom()
    gap = Recorder(hub.events).events[0]
    assert (gap.task_id, gap.context_id, gap.attempt, gap.seq) == ("t", "c", 1, 7)
    assert sorted(positions(Recorder(hub.events).events)) == positions(Recorder(hub.events).events)


def test_a_reader_who_was_there_all_the_time_gets_no_gap() -> None:
    hub = Hub(retain=3)
    numbers = Numbers(hub)
    recorder = Recorder(hub.events)
    for _ in range(10):
        numbers.custom()
    assert recorder.events == numbers.published


def test_the_deltas_of_an_open_message_are_merged_when_there_are_too_many() -> None:
    hub = Hub(retain_open=4)
    numbers = Numbers(hub)
    for letter in "abcdefghij":
        numbers.delta(letter)
    late = Recorder(hub.events)
    assert "".join(event.delta for event in late.events) == "abcdefghij"
    assert len(late.events) <= 5
    assert hub.get_open_text("t", "1") == "abcdefghij"
    assert positions(late.events) == sorted(positions(late.events))


@pytest.mark.parametrize("many", [3_000, 10_000])
def test_a_reader_that_comes_back_into_a_long_message_gets_the_rest_of_it_and_nothing_twice(
    hub: Hub, numbers: Numbers, many: int
) -> None:  # L132
    numbers.custom()
    for number in range(many):
        numbers.delta(f"{number} ", index=number)
    for at in (0, 1, 7, 16, 2_000, 4_095, 4_097, many - 2_500, many - 1, many):
        if at <= many:
            cursor = numbers.published[at].cursor
            rest = Recorder(hub.events.pipe(after(cursor))).events
            assert "".join(delta_text(event) or "" for event in rest) == "".join(f"{n} " for n in range(at, many))
            assert not any(isinstance(event, GapEvent) for event in rest)


def test_what_is_thought_and_called_in_a_long_message_is_merged_and_not_lost(numbers: Numbers) -> None:  # L12, L132
    numbers.hub = hub = Hub(retain_open=64)
    for number in range(1_000):
        numbers.put(make_text_delta(ThoughtDeltaEvent, f"{number} ", number, "1"))
        for index in (0, 1):
            numbers.put(ToolCallDeltaEvent(index=index, tool_call_id="c", name="t", fragment=f"{number},", step="1"))
        numbers.delta(f"{number};", index=number)
    late = Recorder(hub.events)
    assert len(late.events) <= 64 + 4
    assert positions(late.events) == sorted(set(positions(late.events)))
    assert text_of(late.events) == text_of(numbers.published)
    for place in (0, 1, 500, 2_001, 3_998):
        rest = Recorder(hub.events.pipe(after(numbers.published[place].cursor))).events
        assert text_of(rest) == text_of(numbers.published[place + 1 :])


def test_a_long_thought_does_not_run_on_in_the_next_one(numbers: Numbers) -> None:  # L12
    numbers.hub = hub = Hub(retain=10, retain_open=16)
    for thought in "ab":
        for number in range(100):
            numbers.put(make_text_delta(ThoughtDeltaEvent, thought, number, "1"))
            if number == 50:
                numbers.custom("beside it")
        late = [event for event in Recorder(hub.events).events if isinstance(event, ThoughtDeltaEvent)]
        assert "".join(event.delta for event in late) == thought * 100
        numbers.put(ThoughtStreamEvent(thought_id=thought, content=thought * 100, source="reasoning", step="1"))
    for number in range(100):
        numbers.delta("c", index=number)
    late = Recorder(hub.events).events
    assert positions(late) == sorted(set(positions(late)))
    assert "".join(event.delta for event in late if isinstance(event, ContentDeltaEvent)) == "c" * 100
    assert "".join(event.delta for event in late if isinstance(event, ThoughtDeltaEvent)) == "b" * 100


def text_of(events: Sequence[Event]) -> dict[tuple[str, int], str]:
    """The text of each of the things that stream side by side."""
    found: dict[tuple[str, int], str] = {}
    for event in events:
        key = event.kind, event.index if isinstance(event, ToolCallDeltaEvent) else 0
        found[key] = found.get(key, "") + (delta_text(event) or "")
    return found


def test_a_long_message_beside_which_much_else_happens_is_bounded_and_cheap(numbers: Numbers) -> None:
    numbers.hub = hub = Hub(retain=10, retain_open=64)
    for number in range(500):
        numbers.custom()
        numbers.delta(f"{number} ", index=number)
    [opened] = vars(hub)["_open"].values()
    assert opened.count <= 64
    late = [event for event in Recorder(hub.events).events if isinstance(event, ContentDeltaEvent)]
    assert len(late) <= 65
    assert "".join(event.delta for event in late) == "".join(f"{number} " for number in range(500))


def test_a_late_subscriber_gets_each_of_many_deltas_as_it_was(hub: Hub, numbers: Numbers) -> None:  # L12
    numbers.custom()
    for number in range(1_000):
        numbers.delta(str(number), index=number)
    assert Recorder(hub.events).events == numbers.published
    assert hub.get_open_text("t", "1") == "".join(map(str, range(1_000)))


def test_the_text_of_one_message_does_not_mix_with_that_of_another(hub: Hub, numbers: Numbers) -> None:
    numbers.delta("a", step="x/1")
    numbers.delta("b", step="x/2")
    assert hub.get_open_text("t", "x/1") == "a"
    assert hub.get_open_text("t", "x/2") == "b"
    assert hub.get_open_text("other", "x/2") == ""
