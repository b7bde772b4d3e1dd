from __future__ import annotations

from typing import Any

import pytest
from reactivex import operators as ops
from reactivex.testing import TestScheduler

from rxloop import Agent, errors
from rxloop.errors import ConfigurationError
from rxloop.pipeline.interfaces import Provider
from rxloop.protocol.events import ContentDeltaEvent, LLMFailedEvent, UsageEvent
from rxloop.providers import Retry, fallback, openai_chat
from support.http_server import REQUEST, Reply, Server, chat_model, collect, start_server, streamed_text, text_reply
from support.virtual_models import ColdModel, failing_answer, on_error, on_next, summarize, text_answer


def ask(*answers: list[Any], disposed: int = 1000) -> tuple[list[tuple[int, str]], list[ColdModel]]:
    scheduler = TestScheduler()
    models = [ColdModel(scheduler, answer, name=f"m{number}") for number, answer in enumerate(answers)]
    result = scheduler.start(lambda: fallback(*models).call(REQUEST), disposed=disposed)
    return summarize(result.messages), models


@pytest.mark.parametrize(
    "error",
    [
        errors.AuthenticationError("key"),
        errors.PermissionDenied("quota"),
        errors.UnknownModel("what"),
        errors.ContextLengthExceeded("long"),
        errors.ContentFiltered("no"),
        errors.RateLimited("busy"),
        errors.Overloaded("full"),
        errors.ServerError("oops"),
        errors.ProviderTimeout("late"),
        errors.ProviderConnectionError("broke"),
        errors.ProviderProtocolError("what"),
    ],
)
def test_fallback_calls_the_next_model_after_a_model_failure(error: errors.ProviderError) -> None:
    messages, models = ask(failing_answer(error), text_answer("hi"))
    assert messages == [(210, f"failed {error.code} 0"), (220, "hi"), (225, "complete"), (225, "|")]
    assert [model.times for model in models] == [[(200, 210)], [(210, 225)]]


@pytest.mark.parametrize("error", [errors.BadRequest("wrong"), ConfigurationError("wrong"), ValueError("a bug")])
def test_fallback_fails_at_once_after_an_invalid_request(error: Exception) -> None:
    messages, models = ask(failing_answer(error), text_answer("hi"))
    assert messages == [(210, "# wrong" if "wrong" in str(error) else "# a bug")]
    assert models[1].calls == []


def test_fallback_reports_the_error_of_the_last_model() -> None:
    one, two, three = errors.RateLimited("one"), errors.ServerError("two"), errors.RateLimited("three")
    messages, _ = ask(failing_answer(one), failing_answer(two), failing_answer(three))
    assert messages == [(210, "failed rate_limited 0"), (220, "failed server 0"), (230, "# three")]


def test_fallback_does_not_restart_an_answer_that_has_begun() -> None:
    broken = [on_next(10, ContentDeltaEvent(delta="h")), on_error(20, errors.ServerError("cut"))]
    messages, models = ask(broken, text_answer("hi"))
    assert messages == [(210, "h"), (220, "# cut")]
    assert models[1].calls == []


def test_fallback_reports_usage_per_model() -> None:
    first = [on_next(5, UsageEvent(output_tokens=1)), on_error(10, errors.ServerError("oops"))]
    messages, _ = ask(first, text_answer("hi", usage=UsageEvent(output_tokens=2)))
    assert [word for _, word in messages if word.startswith("usage")] == ["usage 1 m0", "usage 2 m1"]


def test_dispose_ends_the_current_model_call() -> None:
    messages, models = ask(failing_answer(errors.ServerError("oops")), text_answer("hi", at=100), disposed=250)
    assert messages == [(210, "failed server 0")]
    assert models[1].times == [(210, 250)]


def test_subscriber_that_leaves_after_a_failure_event_stops_the_fallback() -> None:
    scheduler = TestScheduler()
    models = [ColdModel(scheduler, failing_answer(errors.ServerError("oops"))), ColdModel(scheduler, text_answer("hi"))]
    call = fallback(*models).call(REQUEST).pipe(ops.take(1))
    assert summarize(scheduler.start(lambda: call).messages) == [(210, "failed server 0"), (210, "|")]
    assert models[1].calls == []


async def test_fallback_accepts_model_strings_and_closes_all_models() -> None:
    both = fallback("zai:glm-4.7", "openai:gpt-5")
    assert both.name == "fallback(zai:glm-4.7, openai:gpt-5)"
    checked: Provider = both
    assert isinstance(checked, Provider)
    scheduler = TestScheduler()
    models = [ColdModel(scheduler, []), ColdModel(scheduler, [])]
    await fallback(*models).aclose()
    assert [model.closed for model in models] == [1, 1]
    with pytest.raises(ConfigurationError, match="at least one"):
        fallback()


async def test_fallback_closes_all_models_when_one_fails_to_close() -> None:
    class Stuck(ColdModel):
        async def aclose(self) -> None:
            raise OSError("stuck")

    scheduler = TestScheduler()
    last = ColdModel(scheduler, [])
    with pytest.raises(OSError, match="stuck"):
        await fallback(Stuck(scheduler, []), last).aclose()
    assert last.closed == 1


async def test_fallback_handles_an_exception_raised_by_call() -> None:
    class Raising(ColdModel):
        def call(self, request: Any) -> Any:
            raise errors.ServerError("oops")

    scheduler = TestScheduler()
    model = fallback(Raising(scheduler, []), Raising(scheduler, []))
    answer = await collect(model.call(REQUEST))
    assert isinstance(answer.error, errors.ServerError)
    assert len(answer.events) == 1


async def test_run_continues_with_the_other_vendor(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # L67
    monkeypatch.delenv("ZAI_API_KEY", raising=False)
    server.answer(Reply([b"{}"], 500, content_type="application/json"))
    async with start_server() as other:
        other.answer(text_reply("from", " the other"))
        at_once = Retry(attempts=1)
        models = fallback(
            openai_chat(preset="zai"), chat_model(server, retry=at_once), chat_model(other, retry=at_once)
        )
        run = Agent(models).run("Hi")
        result = await run
        failures = [event.error.code async for event in run if isinstance(event, LLMFailedEvent)]
        await models.aclose()
    assert result.output == "from the other"
    assert failures == ["authentication", "server"]


async def test_fallback_does_not_complete_a_dropped_answer(server: Server) -> None:
    server.answer(text_reply("Hel", end="drop", finished=False))
    scheduler = TestScheduler()
    other = ColdModel(scheduler, [])
    model = fallback(chat_model(server), other)
    answer = await collect(model.call(REQUEST))
    assert streamed_text(answer) == "Hel"
    assert isinstance(answer.error, errors.ProviderConnectionError)
    assert other.calls == []
    await model.aclose()
