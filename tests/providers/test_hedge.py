from __future__ import annotations

import asyncio
from typing import Any

import pytest
from reactivex import operators as ops
from reactivex.testing import TestScheduler

from rxloop import Agent, errors
from rxloop.errors import ConfigurationError
from rxloop.protocol.events import ContentDeltaEvent, LLMFailedEvent, UsageEvent
from rxloop.protocol.messages import ErrorInfo
from rxloop.providers import hedge
from support.http_server import (
    REQUEST,
    Reply,
    Server,
    active_connections,
    chat_model,
    collect,
    start_server,
    streamed_text,
    text_reply,
)
from support.virtual_models import ColdModel, failing_answer, on_completed, on_error, on_next, summarize, text_answer


def race(
    first: list[Any], second: list[Any], *, after: float = 30, disposed: int = 1000
) -> tuple[list[tuple[int, str]], ColdModel, ColdModel]:
    scheduler = TestScheduler()
    a, b = ColdModel(scheduler, first, name="a"), ColdModel(scheduler, second, name="b")
    result = scheduler.start(lambda: hedge(a, b, after=after).call(REQUEST), disposed=disposed)
    return summarize(result.messages), a, b


def test_hedge_calls_only_the_first_model_when_it_is_quick() -> None:
    messages, a, b = race(text_answer("a", at=29), text_answer("b"))
    assert messages == [(229, "a"), (234, "complete"), (234, "|")]
    assert a.times == [(200, 234)]
    assert b.calls == []


def test_hedge_cancels_the_first_model_when_the_second_is_quicker() -> None:
    messages, a, b = race(text_answer("a", at=60), text_answer("b", at=10))
    assert messages == [(240, "b"), (245, "complete"), (245, "|")]
    assert a.times == [(200, 240)]
    assert b.times == [(230, 245)]


def test_hedge_cancels_the_second_model_when_the_first_answers_first() -> None:
    messages, a, b = race(text_answer("a", at=35), text_answer("b", at=10))
    assert messages == [(235, "a"), (240, "complete"), (240, "|")]
    assert a.times == [(200, 240)]
    assert b.times == [(230, 235)]


def test_hedge_calls_the_second_model_at_once_after_an_early_failure() -> None:
    messages, _, b = race(failing_answer(errors.ServerError("oops"), at=5), text_answer("b"))
    assert messages == [(205, "failed server 0"), (215, "b"), (220, "complete"), (220, "|")]
    assert b.times == [(205, 220)]


@pytest.mark.parametrize("loser", ["a", "b"])
def test_hedge_continues_with_the_remaining_model_after_a_failure(loser: str) -> None:
    failure = failing_answer(errors.Overloaded("full"), at=40 if loser == "a" else 10)
    messages, _, _ = race(failure, text_answer("b", at=30)) if loser == "a" else race(text_answer("a", at=60), failure)
    assert messages == [
        (240, "failed overloaded 0"),
        (260, "b" if loser == "a" else "a"),
        (265, "complete"),
        (265, "|"),
    ]


def test_hedge_reports_the_last_error_when_both_models_fail() -> None:
    messages, _, _ = race(
        failing_answer(errors.ServerError("a"), at=50), failing_answer(errors.RateLimited("b"), at=10)
    )
    assert messages == [(240, "failed rate_limited 0"), (250, "# a")]


def test_hedge_ends_after_an_invalid_request() -> None:
    messages, _, b = race(failing_answer(errors.BadRequest("wrong"), at=40), text_answer("b", at=50))
    assert messages == [(240, "# wrong")]
    assert b.times == [(230, 240)]
    messages, _, b = race(failing_answer(errors.BadRequest("wrong"), at=5), text_answer("b", at=50))
    assert messages == [(205, "# wrong")]
    assert b.calls == []


def test_hedge_reports_an_error_of_the_winner() -> None:
    broken = [on_next(10, ContentDeltaEvent(delta="h")), on_error(20, errors.ServerError("cut"))]
    messages, _, b = race(broken, text_answer("b"))
    assert messages == [(210, "h"), (220, "# cut")]
    assert b.calls == []


def test_hedge_reports_known_usage_of_both_models() -> None:
    # The loser reports usage before any content.
    loser = [on_next(20, UsageEvent(output_tokens=1)), on_next(90, ContentDeltaEvent(delta="a")), on_completed(95)]
    messages, _, _ = race(loser, text_answer("b", usage=UsageEvent(output_tokens=2)))
    assert messages == [(220, "usage 1 a"), (240, "b"), (245, "usage 2 b"), (245, "complete"), (245, "|")]


def test_retries_of_a_model_are_reported_but_do_not_win() -> None:
    news = LLMFailedEvent(error=ErrorInfo(code="server", message="502"), retryable=True, retry_in=1)
    messages, a, _ = race([on_next(5, news), *text_answer("a", at=60)], text_answer("b"))
    assert [word for _, word in messages] == ["failed server 1", "b", "complete", "|"]
    assert a.times == [(200, 240)]


def test_empty_answer_wins() -> None:
    messages, a, b = race([on_completed(40)], text_answer("b", at=50))
    assert messages == [(240, "|")]
    assert (a.times, b.times) == ([(200, 240)], [(230, 240)])


@pytest.mark.parametrize(("disposed", "b_times"), [(220, []), (235, [(230, 235)])])
def test_dispose_ends_both_calls(disposed: int, b_times: list[tuple[int, int]]) -> None:
    messages, a, b = race(text_answer("a", at=90), text_answer("b", at=90), disposed=disposed)
    assert messages == []
    assert a.times == [(200, disposed)]
    assert b.times == b_times


def test_subscriber_that_leaves_after_a_failure_event_stops_the_hedge() -> None:
    scheduler = TestScheduler()
    a, b = ColdModel(scheduler, failing_answer(errors.ServerError("oops"))), ColdModel(scheduler, text_answer("b"))
    call = hedge(a, b, after=30).call(REQUEST).pipe(ops.take(1))
    assert summarize(scheduler.start(lambda: call).messages) == [(210, "failed server 0"), (210, "|")]
    assert b.calls == []


def test_hedge_calls_both_models_at_once_without_a_delay() -> None:
    messages, a, b = race(text_answer("a", at=20), text_answer("b", at=10), after=0)
    assert messages[0] == (210, "b")
    assert (a.times[0][0], b.times[0][0]) == (200, 200)


async def test_hedge_has_both_names_and_closes_both_models() -> None:
    assert hedge("zai:glm-4.7", "openai:gpt-5", after=1).name == "hedge(zai:glm-4.7, openai:gpt-5)"
    with pytest.raises(ConfigurationError, match="-1"):
        hedge("zai", "openai", after=-1)
    scheduler = TestScheduler()
    a, b = ColdModel(scheduler, []), ColdModel(scheduler, [])
    await hedge(a, b, after=1).aclose()
    assert (a.closed, b.closed) == (1, 1)


async def test_sockets_of_the_loser_are_closed(server: Server) -> None:
    server.answer(Reply(end="hang"))
    async with start_server() as other:
        other.answer(text_reply("quick", " answer"))
        slow, quick = chat_model(server), chat_model(other)
        model = hedge(slow, quick, after=0.02)
        answer = await collect(model.call(REQUEST))
        assert streamed_text(answer) == "quick answer"
        async with asyncio.timeout(1):
            await server.all_closed.wait()
        assert len(server.requests) == 1
        assert active_connections(slow) == active_connections(quick) == []
        await model.aclose()


async def test_run_uses_the_first_answer(server: Server) -> None:
    server.answer(Reply(end="hang"))
    async with start_server() as other:
        other.answer(text_reply("quick"))
        model = hedge(chat_model(server), chat_model(other), after=0.02)
        result = await Agent(model).run("Hi")
        async with asyncio.timeout(1):
            await server.all_closed.wait()
        await model.aclose()
    assert result.output == "quick"
