"""Concurrent model calls in a strategy."""

import asyncio
from typing import Any

import pytest

from rxloop import Agent, ContentCompleteEvent, Event, LimitReached, Limits, LLMCallEvent, ProviderError, RunError
from rxloop.errors import ContextLengthExceeded, ServerError
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, frames, turn, virtual_time
from support.runs import collect
from support.strategy_cases import ask_text, echo, find_open_items, in_turn


def test_concurrent_asks_take_the_time_of_the_slowest_and_keep_their_order() -> None:
    @strategy
    async def beside(run: StrategyRun) -> str:
        return " ".join(await run.gather(*(ask_text(run, name) for name in "abc")))

    def answer_late(request: ModelRequest) -> Any:
        return frames({"a": "----a|", "b": "--b|", "c": "-c|"}[request.branch or ""])

    with virtual_time() as time:

        async def main() -> str:
            return (await Agent(ScriptedModel(answer_late, answer_late, answer_late), strategy=beside).run("Q")).output

        assert time.run(main()) == "a b c"
        assert time.now == pytest.approx(0.125)


def test_gather_respects_max_concurrent() -> None:
    max_open = 0

    @strategy
    async def narrow(run: StrategyRun) -> str:
        return "".join(await run.gather(*(ask_text(run, str(name)) for name in range(5)), max_concurrent=2))

    def reply(request: ModelRequest) -> Any:
        nonlocal max_open
        max_open = max(max_open, model.open + 1)
        return frames("--x|")

    model = ScriptedModel(*[reply] * 5)
    with virtual_time() as time:

        async def main() -> str:
            return (await Agent(model, strategy=narrow).run("Q")).output

        assert time.run(main()) == "xxxxx"
    assert max_open == 2


def test_gather_closes_the_rest_when_until_is_satisfied() -> None:
    @strategy
    async def first(run: StrategyRun) -> str:
        texts = await run.gather(*(ask_text(run, name) for name in "abc"), until=lambda texts: len(texts) > 0)
        return f"{texts} {model.open}"

    def reply(request: ModelRequest) -> Any:
        return frames("--b|" if request.branch == "b" else "-x----|")

    model = ScriptedModel(reply, reply, reply)
    with virtual_time() as time:

        async def main() -> list[Event]:
            return await collect(Agent(model, strategy=first).run("Q"))

        events = time.run(main())
    messages = [event for event in events if isinstance(event, ContentCompleteEvent)]
    assert [(each.branch, each.content, each.finish_reason) for each in messages] == [
        ("b", "b", "stop"),
        ("a", "x", "canceled"),
        ("c", "x", "canceled"),
        (None, "['b'] 0", "stop"),
    ]


async def test_gather_starts_nothing_after_until_is_satisfied() -> None:
    @strategy
    async def first(run: StrategyRun) -> str:
        return str(
            await run.gather(*(ask_text(run, name) for name in "abc"), max_concurrent=1, until=lambda texts: True)
        )

    model = ScriptedModel("A")
    assert (await Agent(model, strategy=first).run("Q")).output == "['A']"


def test_timeout_around_an_ask_closes_it() -> None:
    @strategy
    async def hasty(run: StrategyRun) -> str:
        try:
            async with asyncio.timeout(0.1):
                await run.ask("Slow?")
        except TimeoutError:
            return "too slow"
        return "?"

    model = ScriptedModel(frames("--x-----------|"))
    with virtual_time() as time:

        async def main() -> list[Event]:
            return await collect(Agent(model, strategy=hasty).run("Q"))

        events = time.run(main())
    assert find_open_items(events) == set()
    assert model.open == 0
    assert [each.content for each in events if isinstance(each, ContentCompleteEvent)] == ["x", "too slow"]


async def test_ask_in_a_custom_task_ends_with_the_run() -> None:
    tasks: list[asyncio.Task[Any]] = []

    @strategy
    async def careless(run: StrategyRun) -> str:
        tasks.append(asyncio.create_task(run.ask("Slow?")))
        return (await asyncio.shield(tasks[0])).text

    model = ScriptedModel(frames("--x"))
    run = Agent(model, strategy=careless).run("Q")
    events: list[Event] = []
    async for event in run:
        events.append(event)
        if isinstance(event, LLMCallEvent):
            run.cancel()
    assert find_open_items(events) == set()
    await asyncio.wait(tasks, timeout=5)
    assert tasks[0].cancelled()
    assert model.open == 0


async def test_thought_of_a_cancelled_strategy_is_not_published() -> None:
    @strategy
    async def talkative(run: StrategyRun) -> str:
        try:
            return (await run.ask("?")).text
        finally:
            run.thought("Oh.")

    run = Agent(ScriptedModel(frames("--x")), strategy=talkative).run("Q")
    kinds: list[str] = []
    async for event in run:
        kinds.append(event.kind)
        if isinstance(event, LLMCallEvent):
            run.cancel()
    assert kinds[-3:] == ["llm-call", "content-complete", "status-update"]


# -- failures and limits


async def test_strategy_may_continue_after_a_failed_model_call() -> None:
    @strategy
    async def patient(run: StrategyRun) -> str:
        try:
            await run.ask("One?")
        except ProviderError as error:
            return (await run.ask(f"{error.code}. Two?")).text
        return "?"

    run = Agent(ScriptedModel(ServerError("down"), echo), strategy=patient).run("Q")
    events = await collect(run)
    assert (await run).output == "patient/2: server. Two?"
    assert find_open_items(events) == set()


async def test_unhandled_failure_of_a_model_call_fails_the_run() -> None:
    run = Agent(ScriptedModel(ServerError("down")), strategy=in_turn).run("Q")
    with pytest.raises(RunError) as raised:
        await run
    assert raised.value.code == "server"


async def test_request_that_is_too_long_is_repeated_in_the_same_step() -> None:
    model = ScriptedModel(ContextLengthExceeded("too long"), echo, echo, "Done.")
    run = Agent(model, strategy=in_turn).run("Q", limits=Limits(iterations=3))
    assert (await run).output == "Done."
    assert [(request.step, request.pressure) for request in model.requests][:2] == [("in_turn/1", 0), ("in_turn/1", 1)]


async def test_limit_cannot_be_caught_as_a_provider_error() -> None:
    @strategy
    async def stubborn(run: StrategyRun) -> str:
        while True:
            try:
                await run.ask("Again?", branch=f"stubborn/{run.calls}")
            except ProviderError:
                continue

    model = ScriptedModel(*[echo] * 9)
    with pytest.raises(LimitReached):
        await Agent(model, strategy=stubborn).run("Q", limits=Limits(iterations=4))
    assert len(model.requests) == 4


@pytest.mark.parametrize(
    "first", [ContextLengthExceeded("too long"), turn(text="", finish_reason="tool_calls")], ids=["too-long", "no-call"]
)
async def test_invalid_message_does_not_count_as_an_answer(first: Any) -> None:
    @strategy
    async def once(run: StrategyRun) -> str:
        return (await run.ask("One?", tools=True, max_calls=1)).text

    assert (await Agent(ScriptedModel(first, "Here."), strategy=once).run("Q")).output == "Here."
