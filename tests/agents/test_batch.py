"""A run for each item of a batch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest
import reactivex as rx
from reactivex import operators as ops
from reactivex.subject import Subject

from rxloop import Agent, MemoryEventLog, ModelRequest, NotFinished, Outcome, RunContext, tool
from rxloop.errors import ConfigurationError, RunError, ServerError
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.run_checks import nothing_left, settled, until


def question(request: ModelRequest) -> str:
    return str(request.messages[-1].text)


def echo(line: str = "----{}|", **options: Any) -> Agent[None, str]:
    """An agent that answers with the question, after 100 ms, or fails if it is asked to."""

    def answer(request: ModelRequest) -> Any:
        asked = question(request)
        return ServerError("503") if "fail" in asked else turn(frames(line.replace("{}", asked)))

    return Agent(ScriptedModel(*[answer] * 500), **options)


def asked(agent: Agent[Any, Any]) -> list[str]:
    model: Any = agent.model
    return [question(request) for request in model.requests]


def carried_out(stream: Any) -> list[Outcome[Any, Any]]:
    with virtual_time() as time:

        async def main() -> list[Outcome[Any, Any]]:
            return [outcome async for outcome in stream()]

        return time.run(main())


def test_the_outcomes_come_in_the_order_of_their_ends_each_with_its_item_and_key() -> None:
    def answer(request: ModelRequest) -> Any:
        return turn(frames("-" * int(question(request)) + "x|"))

    agent = Agent(ScriptedModel(*[answer] * 3))
    outcomes = carried_out(lambda: agent.map([9, 1, 4], prompt=str, key=lambda item: item * 10))
    assert [(outcome.item, outcome.key, outcome.output) for outcome in outcomes] == [
        (1, "10", "x"),
        (4, "40", "x"),
        (9, "90", "x"),
    ]


def test_a_failure_is_a_value_and_the_others_go_on() -> None:
    outcomes = carried_out(lambda: echo().map(["a", "fail", "b"]))
    failed = next(outcome for outcome in outcomes if outcome.error is not None)
    assert failed.item == failed.key == "fail"
    with pytest.raises(RunError, match="503"):
        _ = failed.output
    assert failed.result is not None
    assert sorted(outcome.output for outcome in outcomes if outcome.error is None) == ["a", "b"]


def test_a_prompt_that_cannot_be_made_fails_its_item_alone() -> None:
    letters: list[dict[str, str]] = [{"text": "a"}, {}, {"text": ""}]
    outcomes = carried_out(lambda: echo().map(letters, prompt=lambda letter: letter["text"]))
    assert sorted(type(outcome.error).__name__ for outcome in outcomes) == [
        "ConfigurationError",
        "KeyError",
        "NoneType",
    ]
    assert [outcome.output for outcome in outcomes if outcome.error is None] == ["a"]


def test_there_are_never_more_runs_than_allowed() -> None:
    agent = echo()
    most = 0
    with virtual_time() as time:

        async def main() -> None:
            nonlocal most
            model: Any = agent.model
            async for _ in agent.map(map(str, range(10)), concurrency=3):
                most = max(most, model.open)

        time.run(main())
        assert most <= 3
        assert round(time.now, 3) == 4 * 0.125


async def test_an_endless_batch_is_held_back_by_a_slow_reader() -> None:
    taken = 0

    async def endless() -> AsyncGenerator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield str(taken)

    agent = Agent(ScriptedModel(*[question] * 10_000))
    reader = aiter(agent.map(endless(), concurrency=3))
    await anext(reader)
    await settled(2000)
    # Those that wait to be read, and those that were under way when it became too much.
    assert taken <= 3 + 3 + 2
    before = taken
    for _ in range(20):
        await anext(reader)
    await settled(200)
    assert before < taken <= 20 + 8 + 1
    await reader.aclose()
    await nothing_left()


async def test_a_batch_that_is_closed_cancels_its_runs_and_closes_its_items() -> None:
    closed = False

    async def source() -> AsyncGenerator[str]:
        nonlocal closed
        try:
            yield "fast"
            yield "slow"
            await asyncio.sleep(3600)
        finally:
            closed = True

    def answer(request: ModelRequest) -> Any:
        return "done" if question(request) == "fast" else frames("-a")

    model = ScriptedModel(*[answer] * 2)
    reader = aiter(Agent(model).map(source()))
    assert (await anext(reader)).output == "done"
    await until(lambda: model.open)
    await reader.aclose()
    await until(lambda: closed and not model.open)
    await nothing_left()


def test_what_the_items_raise_comes_after_the_outcomes_of_what_was_begun() -> None:
    def items() -> Iterator[str]:
        yield "a"
        raise OSError("the disk is gone")

    outcomes: list[Any] = []
    with virtual_time() as time, pytest.raises(OSError, match="the disk is gone"):
        time.run(echo().map(items()).pipe(ops.do_action(outcomes.append)))
    assert [outcome.output for outcome in outcomes] == ["a"]


def test_the_items_may_be_an_observable() -> None:
    questions: Subject[str] = Subject()
    agent = echo()
    with virtual_time() as time:

        async def main() -> list[str]:
            return [outcome.output async for outcome in agent.map(questions, concurrency=1)]

        time.at(0.0, lambda: [questions.on_next(item) for item in "abc"])
        time.at(1.0, lambda: questions.on_next("d"))
        time.at(1.1, questions.on_completed)
        assert time.run(main()) == ["a", "b", "c", "d"]


async def test_a_batch_that_is_disposed_lets_go_of_the_observable() -> None:
    questions: Subject[str] = Subject()
    subscription = echo().map(questions).subscribe()
    assert len(questions.observers) == 1
    subscription.dispose()
    assert questions.observers == []
    await settled()


async def test_items_of_an_observable_of_the_stock_kind() -> None:
    agent = Agent(ScriptedModel(*[question] * 5))
    outcomes = [outcome async for outcome in agent.map(rx.range(0, 5), prompt=str)]
    assert sorted(outcome.item for outcome in outcomes) == [0, 1, 2, 3, 4]


def test_what_is_done_comes_out_of_the_log_and_is_not_asked_again() -> None:
    log = MemoryEventLog()
    first, second = echo(log=log), echo(log=log)
    carried_out(lambda: first.map(["a", "b"], name="letters"))
    outcomes = carried_out(lambda: second.map(["b", "c"], name="letters"))
    assert sorted(outcome.output for outcome in outcomes) == ["b", "c"]
    assert asked(second) == ["c"]


def test_another_name_or_prompt_is_another_run_and_so_is_one_without_a_name() -> None:
    agent = echo(log=MemoryEventLog())
    carried_out(lambda: agent.map(["a"], name="first"))
    carried_out(lambda: agent.map(["a"], name="again"))
    carried_out(lambda: agent.map(["a"], name="first", prompt=lambda item: item * 2))
    carried_out(lambda: agent.map(["a"]))
    carried_out(lambda: agent.map(["a"]))
    assert asked(agent) == ["a", "a", "aa", "a", "a"]


def test_a_name_without_a_log_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the batch 'letters' needs a log"):
        echo().map(["a"], name="letters")


def test_what_was_begun_goes_on_with_what_has_no_answer() -> None:
    looked: list[str] = []

    @tool
    async def look() -> str:
        """Look."""
        looked.append("once")
        return "seen"

    def answer(request: ModelRequest) -> Any:
        return call("look") if request.messages[-1].role == "user" else frames("-never")

    log = MemoryEventLog()
    with virtual_time() as time:

        async def crash() -> None:
            reader = aiter(Agent(ScriptedModel(*[answer] * 2), tools=[look], log=log).map(["a"], name="n"))
            waiting = asyncio.ensure_future(anext(reader))
            await asyncio.sleep(1)
            waiting.cancel()
            await reader.aclose()

        time.run(crash())
        time.advance(1)
    outcomes = carried_out(lambda: Agent(ScriptedModel("done"), tools=[look], log=log).map(["a"], name="n"))
    assert [outcome.output for outcome in outcomes] == ["done"]
    assert looked == ["once"]


def test_what_failed_by_something_that_passes_is_tried_once_more() -> None:
    log = MemoryEventLog()
    carried_out(lambda: Agent(ScriptedModel(ServerError("503")), log=log).map(["a"], name="n"))
    outcomes = carried_out(lambda: Agent(ScriptedModel("at last"), log=log).map(["a"], name="n"))
    assert [outcome.output for outcome in outcomes] == ["at last"]


def test_two_items_of_one_key_are_one_run() -> None:
    agent = echo(log=MemoryEventLog())
    outcomes = carried_out(lambda: agent.map(["a", "a", "a"], name="n", concurrency=2))
    assert [outcome.output for outcome in outcomes] == ["a", "a", "a"]
    assert asked(agent) == ["a"]


def test_without_a_name_each_item_is_asked() -> None:
    agent = echo()
    assert len(carried_out(lambda: agent.map(["a", "a"]))) == 2
    assert asked(agent) == ["a", "a"]


async def test_a_run_that_waits_for_input_is_an_outcome_too() -> None:
    @tool
    async def need(ctx: RunContext) -> str:
        """Ask."""
        return str(await ctx.ask("Which?", str))

    agent = Agent(ScriptedModel(call("need")), tools=[need], log=MemoryEventLog())
    outcome = await agent.map(["?"])
    assert outcome.result is not None
    assert len(outcome.result.pending) == 1
    with pytest.raises(NotFinished):
        _ = outcome.output


async def test_the_record_of_a_run_says_which_item_it_was_for() -> None:
    log = MemoryEventLog()
    agent = Agent(ScriptedModel("a"), log=log)
    items = [{"id": 7}]
    outcome = await agent.map(items, name="n", prompt=lambda item: f"item {item['id']}", key=lambda item: item["id"])
    assert outcome.result is not None
    [task, *_] = await log.read(outcome.result.task_id)
    assert task.metadata["batch"] == {"name": "n", "key": "7"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("items", ["a text", 7, None])
def test_what_is_no_batch_is_refused(items: Any) -> None:
    with pytest.raises(ConfigurationError, match="items must be an iterable"):
        echo().map(items)


def test_no_room_for_a_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1, not 0"):
        echo().map(["a"], concurrency=0)


def test_items_that_are_no_prompts_are_refused_once_before_anything_is_asked() -> None:
    agent = echo()
    with pytest.raises(ConfigurationError, match=r"\{.id.: 1\}.*or pass prompt="):
        agent.map(["a", {"id": 1}])
    letters: list[Any] = [{"id": 1}, {"id": 2}]
    with pytest.raises(ConfigurationError, match=r"\{.id.: 1\}.*or pass prompt="):
        carried_out(lambda: agent.map(iter(letters)))
    assert asked(agent) == []


def test_items_that_can_be_read_once_are_not_asked_a_second_time_in_silence() -> None:
    agent = echo()
    batch = agent.map(item for item in ["a", "b"])
    assert len(carried_out(lambda: batch)) == 2
    with pytest.raises(ConfigurationError, match="can be read only once"):
        carried_out(lambda: batch)
    listed = agent.map(["a", "b"])
    assert len(carried_out(lambda: listed)) == len(carried_out(lambda: listed)) == 2


def test_a_batch_that_is_carried_out_twice_at_once_asks_each_item_once() -> None:
    agent = echo(log=MemoryEventLog())
    with virtual_time() as time:

        async def one() -> list[str]:
            return sorted([outcome.output async for outcome in agent.map(["a", "b"], name="n")])

        async def both() -> list[list[str]]:
            return [*await asyncio.gather(one(), one())]

        assert time.run(both()) == [["a", "b"], ["a", "b"]]
    assert sorted(asked(agent)) == ["a", "b"]


def test_a_key_that_would_be_another_one_tomorrow_fails_its_item() -> None:
    [outcome] = carried_out(lambda: echo().map(["a"], key=lambda _: object()))  # type: ignore[arg-type, return-value]
    assert (outcome.item, outcome.key) == ("a", "")
    assert "a text or a number" in str(outcome.error)
