from __future__ import annotations

from typing import Any

import pytest
from reactivex import Observable
from reactivex import operators as ops
from reactivex.disposable import Disposable
from reactivex.testing import TestScheduler

from rxloop import Agent, RunError
from rxloop.errors import BadRequest, ContextLengthExceeded, Overloaded, ProviderTimeout, RateLimited, ServerError
from rxloop.pipeline.requests import ModelRequest
from rxloop.protocol.events import (
    ContentCompleteEvent,
    ContentDeltaEvent,
    Event,
    LLMCallEvent,
    LLMFailedEvent,
    UsageEvent,
)
from rxloop.protocol.messages import ErrorInfo
from rxloop.providers import Retry, retrying
from rxloop.stream.sources import emit
from rxloop.testing import virtual_time
from support.http_server import REQUEST, Reply, Server, chat_model, collect, streamed_text, text_reply
from support.runs import format_marbles, outcome
from support.virtual_models import ColdModel, failing_answer, on_error, on_next, summarize, text_answer

POLICY = Retry(attempts=3, first=20, longest=100, jitter=0)


def call_with_retry(
    *answers: list[Any], policy: Retry = POLICY, disposed: int = 1000
) -> tuple[list[tuple[int, str]], ColdModel]:
    scheduler = TestScheduler()
    model = ColdModel(scheduler, *answers)
    source: Observable[Event] = Observable(
        lambda observer, given=None: model.call(REQUEST).subscribe(observer, scheduler=given)
    )
    result = scheduler.start(lambda: retrying(policy)(source), disposed=disposed)
    return summarize(result.messages), model


def test_failure_is_published_and_the_call_is_retried_after_a_delay() -> None:
    # L67
    messages, model = call_with_retry(
        failing_answer(RateLimited("busy")), failing_answer(ServerError("oops")), text_answer("hi")
    )
    assert messages == [
        (210, "failed rate_limited 20"),
        (240, "failed server 40"),
        (290, "hi"),
        (295, "complete"),
        (295, "|"),
    ]
    assert model.times == [(200, 210), (230, 240), (280, 295)]


def test_retry_uses_the_delay_requested_by_the_vendor() -> None:
    # L67
    messages, model = call_with_retry(failing_answer(RateLimited("busy", retry_after=77)), text_answer("hi"))
    assert messages[0] == (210, "failed rate_limited 77")
    assert model.times[1][0] == 287


@pytest.mark.parametrize(
    "error", [BadRequest("no"), ProviderTimeout("late"), RateLimited("busy", retry_after=101), ValueError("a bug")]
)
def test_permanent_failure_is_not_retried(error: Exception) -> None:
    messages, model = call_with_retry(failing_answer(error), text_answer("hi"))
    assert messages == [(210, f"# {error}")]
    assert model.times == [(200, 210)]


def test_retry_repeats_vendor_timeouts_but_not_local_timeouts() -> None:
    assert POLICY.wait(ProviderTimeout("408", status=408), 1) == 20
    assert POLICY.wait(ProviderTimeout("no bytes"), 1) is None


def test_last_failure_is_the_error_of_the_call() -> None:
    messages, model = call_with_retry(
        failing_answer(Overloaded("one")), failing_answer(Overloaded("two")), failing_answer(Overloaded("three"))
    )
    assert messages == [(210, "failed overloaded 20"), (240, "failed overloaded 40"), (290, "# three")]
    assert len(model.times) == 3


def test_call_is_not_retried_after_content_was_delivered() -> None:
    # L67
    broken = [on_next(10, ContentDeltaEvent(delta="h")), on_error(20, ServerError("cut"))]
    messages, model = call_with_retry(broken, text_answer("hi"))
    assert messages == [(210, "h"), (220, "# cut")]
    assert len(model.times) == 1


def test_inner_failures_and_usage_do_not_prevent_a_retry() -> None:
    inner = LLMFailedEvent(error=ErrorInfo(code="server", message="502"), retryable=True, retry_in=1)
    first = [on_next(3, inner), on_next(4, UsageEvent(output_tokens=2)), on_error(5, ServerError("oops"))]
    messages, model = call_with_retry(first, text_answer("hi"))
    assert [word for _, word in messages] == [
        "failed server 1",
        "usage 2 None",
        "failed server 20",
        "hi",
        "complete",
        "|",
    ]
    assert len(model.times) == 2


@pytest.mark.parametrize(("disposed", "times"), [(205, [(200, 205)]), (220, [(200, 210)]), (235, [(200, 210)])])
def test_dispose_ends_the_call_or_the_delay(disposed: int, times: list[tuple[int, int]]) -> None:
    # L67
    patient = Retry(first=30, jitter=0)
    messages, model = call_with_retry(
        failing_answer(ServerError("oops")), text_answer("hi", at=50), policy=patient, disposed=disposed
    )
    assert model.times[:1] == times
    assert len(model.times) == 1
    assert len(messages) == (disposed > 210)


async def test_subscriber_that_leaves_after_a_failure_event_stops_the_retries() -> None:
    calls: list[Any] = []

    def subscribe(observer: Any, scheduler: Any = None) -> Disposable:
        calls.append(observer)
        observer.on_error(ServerError("oops"))
        return Disposable()

    answer = await collect(retrying(Retry(first=0))(Observable(subscribe)).pipe(ops.take(1)))
    assert len(answer.events) == len(calls) == 1


def test_retry_delay_is_bounded() -> None:
    assert 45 <= (Retry(attempts=5000).wait(RateLimited("busy"), 4000) or 0) <= 60


def test_many_synchronous_failures_keep_a_flat_stack() -> None:
    calls: list[Any] = []

    def subscribe(observer: Any, scheduler: Any = None) -> Disposable:
        calls.append(observer)
        observer.on_error(ServerError("oops"))
        return Disposable()

    with virtual_time() as time:

        async def call_repeatedly() -> int:
            answer = await collect(retrying(Retry(attempts=3000, first=0))(Observable(subscribe)))
            return len(answer.events)

        assert time.run(call_repeatedly()) == 2999
    assert len(calls) == 3000


class FlakyModel:
    """Model that fails a number of times through the retry operator, then answers."""

    name = "flaky"

    def __init__(self, *errors: Exception, policy: Retry) -> None:
        self.errors = list(errors)
        self.policy = policy
        self.requests: list[ModelRequest] = []

    def call(self, request: ModelRequest) -> Observable[Event]:
        def subscribe(observer: Any, scheduler: Any = None) -> Any:
            self.requests.append(request)
            if self.errors:
                observer.on_error(self.errors.pop(0))
                return None
            return emit(ContentDeltaEvent(delta="hi"), ContentCompleteEvent(content="hi")).subscribe(observer)

        return retrying(self.policy)(Observable(subscribe))

    async def aclose(self) -> None:
        pass


def test_run_waits_in_its_own_time_and_publishes_the_failure() -> None:
    # L67
    model = FlakyModel(RateLimited("busy", retry_after=30), policy=Retry(attempts=2))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        result = time.run(run)
        assert time.now == 30
        events = time.run(collect_all(run))
    assert result.output == "hi"
    assert format_marbles(events) == "twleckF"
    failure = next(event for event in events if isinstance(event, LLMFailedEvent))
    assert (failure.step, failure.retry_in, failure.retryable, failure.public) == ("1", 30, True, False)


async def collect_all(run: Any) -> list[Event]:
    return [event async for event in run]


def test_run_fails_with_the_last_error_of_a_busy_model() -> None:
    model = FlakyModel(*[RateLimited("busy")] * 3, policy=Retry(attempts=3, first=1, jitter=0))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        with pytest.raises(RunError) as caught:
            time.run(run)
        assert time.now == 3
        events = time.run(collect_all(run))
    assert caught.value.code == "rate_limited"
    assert format_marbles(events) == "twleeecF"


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_each_failed_request_is_published_with_number_code_and_status(attempts: int) -> None:
    errors = [RateLimited("busy", status=429), Overloaded("full", status=503), RateLimited("busy", status=429)]
    model = FlakyModel(*errors[:attempts], policy=Retry(attempts=attempts, first=1, jitter=0))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        with pytest.raises(RunError):
            time.run(run)
        failed = [event for event in time.run(collect_all(run)) if isinstance(event, LLMFailedEvent)]
    assert [(event.step, event.tries, event.error.code, event.status) for event in failed] == [
        ("1", 1, "rate_limited", 429),
        ("1", 2, "overloaded", 503),
        ("1", 3, "rate_limited", 429),
    ][:attempts]
    assert [event.retry_in for event in failed] == [*[1, 2, 4][: attempts - 1], None]
    assert all(event.retryable for event in failed)


def test_run_cancelled_during_a_delay_ends_at_once_and_closes_its_message() -> None:
    model = FlakyModel(RateLimited("busy"), policy=Retry(attempts=2, first=50, jitter=0))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        time.at(10, run.cancel)
        result = time.run(outcome(run))
        assert time.now == 10
        events = time.run(collect_all(run))
    assert result.state == "canceled"
    assert format_marbles(events) == "twlecF"
    assert len(model.requests) == 1


def test_request_that_is_too_long_is_repeated_with_pressure_despite_retries() -> None:
    model = FlakyModel(ServerError("oops"), ContextLengthExceeded("too long"), policy=Retry(first=1, jitter=0))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        result = time.run(run)
        events = time.run(collect_all(run))
    assert result.output == "hi"
    assert format_marbles(events) == "twleelckF"
    assert [request.pressure for request in model.requests] == [0, 0, 1]
    assert {event.step for event in events if isinstance(event, LLMCallEvent)} == {"1"}


async def test_provider_that_ends_after_a_failure_event_is_a_pipeline_error() -> None:
    class Silent(FlakyModel):
        def call(self, request: ModelRequest) -> Observable[Event]:
            self.requests.append(request)
            return emit(LLMFailedEvent(error=ErrorInfo(code="server", message="502"), retryable=True))

    model = Silent(policy=POLICY)
    with pytest.raises(RunError, match="content-complete"):
        await Agent(model).run("Hi")
    assert len(model.requests) == 1


async def test_failures_of_a_real_endpoint_are_published(server: Server) -> None:
    # L67
    busy = Reply([b'{"error": {"message": "busy"}}'], 429, {"retry-after": "0"}, "application/json")
    server.answer(busy, Reply([b"<html>"], 503, content_type="text/html"), text_reply("third", " time"))
    provider = chat_model(server, retry=Retry(first=0))
    answer = await collect(provider.call(REQUEST))
    assert answer.error is None
    assert streamed_text(answer) == "third time"
    codes = [event.error.code for event in answer.events if isinstance(event, LLMFailedEvent)]
    assert codes == ["rate_limited", "overloaded"]
    await provider.aclose()
