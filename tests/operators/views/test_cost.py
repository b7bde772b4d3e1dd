from collections.abc import Callable
from typing import Any

import pytest
from reactivex.testing import ReactiveTest, Recorded, TestScheduler

from rxloop import Agent, errors, fallback, op
from rxloop.protocol.events import ContentCompleteEvent, Event, LLMCallEvent, UsageEvent
from rxloop.protocol.messages import Usage
from rxloop.providers import Price
from rxloop.providers.catalog import LONG_KEPT
from rxloop.providers.script import ScriptedModel, turn
from rxloop.stream.sources import emit

on_next: Callable[[int, Any], Recorded[Any]] = ReactiveTest.on_next
on_completed, on_error = ReactiveTest.on_completed, ReactiveTest.on_error

TABLE = {"a": Price(input=1, output=10), "b": Price(input=2, output=20, cached=0.5)}
MILLION = 1_000_000


def call_event(model: str, step: str = "1", task_id: str = "t") -> LLMCallEvent:
    return LLMCallEvent(
        step=step,
        task_id=task_id,
        iteration=1,
        model=model,
        message_count=1,
        tool_count=0,
        estimated_input_tokens=1,
    )


def usage_event(
    step: str = "1", task_id: str = "t", model: str | None = None, *, input_tokens: int = 0, output_tokens: int = 0
) -> UsageEvent:
    return UsageEvent(
        step=step,
        task_id=task_id,
        metadata={} if model is None else {"model": model},
        input_tokens=input_tokens,
        output_tokens=output_tokens,
    )


def total_costs(*events: Event) -> list[float]:
    sums: list[float] = []
    emit(*events).pipe(op.cost(TABLE)).subscribe(sums.append)
    return sums


def test_each_usage_adds_the_price_of_its_model() -> None:
    scheduler = TestScheduler()
    xs = scheduler.create_hot_observable(
        on_next(210, call_event("a")),
        on_next(220, usage_event(input_tokens=MILLION, output_tokens=MILLION)),
        on_next(230, ContentCompleteEvent(step="1", task_id="t")),
        on_next(240, call_event("b", "2")),
        on_next(250, usage_event("2", input_tokens=MILLION)),
        on_completed(260),
    )
    result = scheduler.start(lambda: xs.pipe(op.cost(TABLE)))
    assert result.messages == [on_next(220, 11.0), on_next(250, 13.0), on_completed(260)]


def test_cached_tokens_have_their_own_price_or_the_input_price() -> None:
    usage = Usage(input_tokens=MILLION, cached_tokens=MILLION // 2, output_tokens=MILLION, reasoning_tokens=MILLION)
    assert TABLE["a"].of(usage) == 11
    assert TABLE["b"].of(usage) == pytest.approx(1 + 0.25 + 20)
    assert TABLE["b"].of(Usage(cached_tokens=MILLION)) == 0


def test_model_without_a_price_adds_nothing_and_warns_once() -> None:
    with pytest.warns(errors.UnpricedModel, match="'unknown' has no price") as warned:
        assert total_costs(call_event("unknown"), usage_event(input_tokens=9), usage_event(input_tokens=9)) == [0]
    assert len(warned) == 1
    priced = call_event("a"), usage_event(output_tokens=MILLION)
    with pytest.warns(errors.RxloopWarning):
        assert total_costs(call_event("unknown", "0"), usage_event("0", input_tokens=9), *priced) == [10]


def test_each_model_without_a_price_is_named() -> None:
    with pytest.warns(errors.UnpricedModel) as warned:
        total_costs(
            call_event("one"), usage_event(), call_event("two"), usage_event(), call_event("one"), usage_event()
        )
    assert [str(each.message).split("'")[1] for each in warned] == ["one", "two"]


def test_cache_writes_are_priced_by_their_lifetime() -> None:
    price = Price(input=4, output=20, cached=0.5, cache_write=5, cache_write_long=8)
    call = call_event("m")
    quarter = MILLION // 4
    short = usage_event(input_tokens=MILLION).model_copy(
        update={"cached_tokens": quarter, "cache_write_tokens": 2 * quarter}
    )
    long, odd = (short.model_copy(update={"metadata": {LONG_KEPT: count}}) for count in (quarter, "many"))
    for event, dollars in ((short, 1 + 0.125 + 2.5), (long, 1 + 0.125 + 1.25 + 2), (odd, 1 + 0.125 + 2.5)):
        sums: list[float] = []
        emit(call, event).pipe(op.cost({"m": price})).subscribe(sums.append)
        assert sums == [pytest.approx(dollars)]


def test_tier_of_a_long_request_is_chosen_per_call() -> None:
    price = Price(input=1, output=10, above=(MILLION, Price(input=2, output=15)))
    sums: list[float] = []
    short, long = usage_event(input_tokens=MILLION), usage_event(input_tokens=2 * MILLION, output_tokens=MILLION)
    emit(call_event("m"), short, short, long).pipe(op.cost({"m": price})).subscribe(sums.append)
    assert sums == [1, 2, 2 + 4 + 15]


def test_custom_prices_take_precedence_over_known_prices() -> None:
    sums: list[float] = []
    model_name = "openai_responses:gpt-5-2025-08-07"
    both = (
        call_event(model_name),
        usage_event(output_tokens=MILLION),
        call_event("a", "2"),
        usage_event("2", output_tokens=MILLION),
    )
    emit(*both).pipe(op.cost(TABLE)).subscribe(sums.append)
    emit(*both[:2]).pipe(op.cost({"openai:gpt-5": Price(1, 1)})).subscribe(sums.append)
    assert sums == [10, 20, 1]


async def test_run_without_usage_costs_nothing() -> None:
    assert await Agent(ScriptedModel("Hello")).run("Hi").pipe(op.cost()) == 0


def test_model_named_by_the_usage_takes_precedence_over_the_called_model() -> None:
    assert total_costs(call_event("fallback(a, b)"), usage_event(model="a", output_tokens=MILLION)) == [10]
    with pytest.warns(errors.UnpricedModel, match="unknown"):
        assert total_costs(call_event("a"), usage_event(model="unknown", output_tokens=MILLION)) == [0]


def test_concurrent_calls_and_nested_runs_are_priced_separately() -> None:
    both = (call_event("a", "tot/1"), call_event("b", "tot/2"), call_event("b", "tot/1", task_id="child"))
    sums = total_costs(
        *both,
        usage_event("tot/2", input_tokens=MILLION),
        usage_event("tot/1", input_tokens=MILLION),
        usage_event("tot/1", task_id="child", input_tokens=MILLION),
    )
    assert sums == [2, 3, 5]


def test_error_passes() -> None:
    scheduler = TestScheduler()
    oops = ValueError("oops")
    xs = scheduler.create_hot_observable(on_error(210, oops))
    assert scheduler.start(lambda: xs.pipe(op.cost())).messages == [on_error(210, oops)]


def test_each_subscriber_has_its_own_sum() -> None:
    view = op.cost(TABLE)
    source = emit(call_event("a"), usage_event(output_tokens=MILLION))
    sums: list[float] = []
    for _ in range(2):
        view(source).subscribe(sums.append)
    assert sums == [10, 10]


async def test_cost_is_computed_when_the_first_model_of_a_fallback_failed() -> None:
    usage = Usage(input_tokens=1000, output_tokens=500)
    broken = ScriptedModel(errors.ServerError("oops"), name="zai:glm-4.7")
    model = fallback(broken, ScriptedModel(turn("hi", usage=usage), name="openai:gpt-5"))
    async with Agent(model).run("Hi") as run:
        sums = [dollars async for dollars in run.pipe(op.cost())]
    assert sums == [pytest.approx((1000 * 1.25 + 500 * 10) / MILLION)]
