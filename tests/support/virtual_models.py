"""Providers in virtual time, based on cold observables of a test scheduler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reactivex import Observable
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import ContentCompleteEvent, ContentDeltaEvent, Event, LLMFailedEvent, UsageEvent

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error


class ColdModel:
    """Provider with scripted observables. The last one is repeated."""

    def __init__(self, scheduler: TestScheduler, *answers: list[Recorded[Any]], name: str = "cold") -> None:
        self.name = name
        self.answers = [scheduler.create_cold_observable(*answer) for answer in answers]
        self.calls: list[ModelRequest] = []
        self.closed = 0

    def call(self, request: ModelRequest) -> Observable[Event]:
        self.calls.append(request)
        return self.answers[min(len(self.calls), len(self.answers)) - 1]

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def times(self) -> list[tuple[int, int]]:
        """Times of each subscription."""
        return sorted((each.subscribe, each.unsubscribe) for answer in self.answers for each in answer.subscriptions)


def text_answer(text: str, at: int = 10, usage: UsageEvent | None = None) -> list[Recorded[Any]]:
    """Return a text delta, followed by the end of the message five frames later."""
    counted = [] if usage is None else [on_next(at + 5, usage)]
    complete = ContentCompleteEvent(content=text)
    return [on_next(at, ContentDeltaEvent(delta=text)), *counted, on_next(at + 5, complete), on_completed(at + 5)]


def failing_answer(error: Exception, at: int = 10) -> list[Recorded[Any]]:
    """Return an error without prior output."""
    return [on_error(at, error)]


def summarize(messages: list[Recorded[Any]]) -> list[tuple[int, str]]:
    """Return the notifications in short form with their times."""
    return [(int(message.time), _word(message.value)) for message in messages]


def _word(notification: Any) -> str:
    if notification.kind == "C":
        return "|"
    if notification.kind == "E":
        return f"# {notification.exception}"
    event = notification.value
    if isinstance(event, LLMFailedEvent):
        return f"failed {event.error.code} {event.retry_in:g}"
    if isinstance(event, ContentDeltaEvent):
        return event.delta
    if isinstance(event, UsageEvent):
        return f"usage {event.output_tokens} {event.metadata.get('model')}"
    return "complete"
