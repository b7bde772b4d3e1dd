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
from support.runs import marble_letters, outcome
from support.virtual_models import ColdModel, failing_answer, on_error, on_next, summarize, text_answer

POLICY = Retry(attempts=3, first=20, longest=100, jitter=0)


def seen(*answers: list[Any], policy: Retry = POLICY, disposed: int = 1000) -> tuple[list[tuple[int, str]], ColdModel]:
    scheduler = TestScheduler()
    model = ColdModel(scheduler, *answers)
    source: Observable[Event] = Observable(
        lambda observer, given=None: model.call(REQUEST).subscribe(observer, scheduler=given)
    )
    result = scheduler.start(lambda: retrying(policy)(source), disposed=disposed)
    return summarize(result.messages), model


def test_a_failure_is_news_on_the_stream_and_the_call_is_sent_again_after_the_wait() -> None:
    # L67
    messages, model = seen(failing_answer(RateLimited("busy")), failing_answer(ServerError("oops")), text_answer("hi"))
    assert messages == [
        (210, "failed rate_limited 20"),
        (240, "failed server 40"),
        (290, "hi"),
        (295, "complete"),
        (295, "|"),
    ]
    assert model.times == [(200, 210), (230, 240), (280, 295)]


def test_the_wait_is_the_one_that_the_vendor_asks_for() -> None:
    # L67
    messages, model = seen(failing_answer(RateLimited("busy", retry_after=77)), text_answer("hi"))
    assert messages[0] == (210, "failed rate_limited 77")
    assert model.times[1][0] == 287


@pytest.mark.parametrize(
    "error", [BadRequest("no"), ProviderTimeout("late"), RateLimited("busy", retry_after=101), ValueError("a bug")]
)
def test_what_will_not_pass_is_the_error_at_once(error: Exception) -> None:
    messages, model = seen(failing_answer(error), text_answer("hi"))
    assert messages == [(210, f"# {error}")]
    assert model.times == [(200, 210)]


def test_a_timeout_at_the_vendors_passes_and_ours_does_not() -> None:
    assert POLICY.wait(ProviderTimeout("408", status=408), 1) == 20
    assert POLICY.wait(ProviderTimeout("no bytes"), 1) is None


def test_the_last_failure_is_the_error_of_the_call() -> None:
    messages, model = seen(
        failing_answer(Overloaded("one")), failing_answer(Overloaded("two")), failing_answer(Overloaded("three"))
    )
    assert messages == [(210, "failed overloaded 20"), (240, "failed overloaded 40"), (290, "# three")]
    assert len(model.times) == 3


def test_nothing_is_sent_again_once_anything_of_the_answer_was_delivered() -> None:
    # L67
    broken = [on_next(10, ContentDeltaEvent(delta="h")), on_error(20, ServerError("cut"))]
    messages, model = seen(broken, text_answer("hi"))
    assert messages == [(210, "h"), (220, "# cut")]
    assert len(model.times) == 1


def test_news_from_further_in_and_counts_of_tokens_are_not_the_answer() -> None:
    inner = LLMFailedEvent(error=ErrorInfo(code="server", message="502"), retryable=True, retry_in=1)
    first = [on_next(3, inner), on_next(4, UsageEvent(output_tokens=2)), on_error(5, ServerError("oops"))]
    messages, model = seen(first, text_answer("hi"))
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
def test_disposing_ends_the_call_or_the_wait(disposed: int, times: list[tuple[int, int]]) -> None:
    # L67
    patient = Retry(first=30, jitter=0)
    messages, model = seen(
        failing_answer(ServerError("oops")), text_answer("hi", at=50), policy=patient, disposed=disposed
    )
    assert model.times[:1] == times
    assert len(model.times) == 1
    assert len(messages) == (disposed > 210)


async def test_a_subscriber_that_leaves_at_the_news_ends_it() -> None:
    calls: list[Any] = []

    def subscribe(observer: Any, scheduler: Any = None) -> Disposable:
        calls.append(observer)
        observer.on_error(ServerError("oops"))
        return Disposable()

    answer = await collect(retrying(Retry(first=0))(Observable(subscribe)).pipe(ops.take(1)))
    assert len(answer.events) == len(calls) == 1


def test_a_wait_never_grows_beyond_the_longest() -> None:
    assert 45 <= (Retry(attempts=5000).wait(RateLimited("busy"), 4000) or 0) <= 60


def test_any_number_of_failures_inside_subscribe_keeps_a_flat_stack() -> None:
    calls: list[Any] = []

    def subscribe(observer: Any, scheduler: Any = None) -> Disposable:
        calls.append(observer)
        observer.on_error(ServerError("oops"))
        return Disposable()

    with virtual_time() as time:

        async def all_of_it() -> int:
            answer = await collect(retrying(Retry(attempts=3000, first=0))(Observable(subscribe)))
            return len(answer.events)

        assert time.run(all_of_it()) == 2999
    assert len(calls) == 3000


class Flaky:
    """Fails so often, then answers; through the operator, as a provider would."""

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
        """Nothing to close."""


def test_a_run_waits_by_its_own_time_and_shows_what_happened() -> None:
    # L67
    model = Flaky(RateLimited("busy", retry_after=30), policy=Retry(attempts=2))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        result = time.run(run)
        assert time.now == 30
        events = time.run(collect_all(run))
    assert result.output == "hi"
    assert marble_letters(events) == "twleckF"
    failure = next(event for event in events if isinstance(event, LLMFailedEvent))
    assert (failure.step, failure.retry_in, failure.retryable, failure.public) == ("1", 30, True, False)


async def collect_all(run: Any) -> list[Event]:
    return [event async for event in run]


def test_a_run_whose_model_stays_busy_fails_with_the_last_error() -> None:
    model = Flaky(*[RateLimited("busy")] * 3, policy=Retry(attempts=3, first=1, jitter=0))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        with pytest.raises(RunError) as caught:
            time.run(run)
        assert time.now == 3
        events = time.run(collect_all(run))
    assert caught.value.code == "rate_limited"
    assert marble_letters(events) == "twleeecF"


@pytest.mark.parametrize("attempts", [1, 2, 3])
def test_every_request_that_failed_is_told_with_its_number_code_and_status(attempts: int) -> None:
    errors = [RateLimited("busy", status=429), Overloaded("full", status=503), RateLimited("busy", status=429)]
    model = Flaky(*errors[:attempts], policy=Retry(attempts=attempts, first=1, jitter=0))
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


def test_a_run_that_is_cancelled_while_it_waits_ends_at_once_and_closes_its_message() -> None:
    model = Flaky(RateLimited("busy"), policy=Retry(attempts=2, first=50, jitter=0))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        time.at(10, run.cancel)
        result = time.run(outcome(run))
        assert time.now == 10
        events = time.run(collect_all(run))
    assert result.state == "canceled"
    assert marble_letters(events) == "twlecF"
    assert len(model.requests) == 1


def test_a_request_that_is_too_long_is_sent_again_under_pressure_also_behind_other_failures() -> None:
    model = Flaky(ServerError("oops"), ContextLengthExceeded("too long"), policy=Retry(first=1, jitter=0))
    with virtual_time() as time:
        run = Agent(model).run("Hi")
        result = time.run(run)
        events = time.run(collect_all(run))
    assert result.output == "hi"
    assert marble_letters(events) == "twleelckF"
    assert [request.pressure for request in model.requests] == [0, 0, 1]
    assert {event.step for event in events if isinstance(event, LLMCallEvent)} == {"1"}


async def test_a_provider_that_reports_a_failure_and_then_nothing_is_an_error_of_the_pipeline() -> None:
    class Silent(Flaky):
        def call(self, request: ModelRequest) -> Observable[Event]:
            self.requests.append(request)
            return emit(LLMFailedEvent(error=ErrorInfo(code="server", message="502"), retryable=True))

    model = Silent(policy=POLICY)
    with pytest.raises(RunError, match="content-complete"):
        await Agent(model).run("Hi")
    assert len(model.requests) == 1


async def test_the_failures_of_a_real_endpoint_are_on_the_stream(server: Server) -> None:
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
