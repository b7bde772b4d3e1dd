"""What holds for each of the nine strategies."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    ContentCompleteEvent,
    Event,
    LimitReached,
    Limits,
    LLMCallEvent,
    MemoryEventLog,
    RunCancelled,
    SqliteEventLog,
    Usage,
)
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import STRATEGIES
from rxloop.strategies.catalog import load_strategy
from rxloop.testing import ScriptedModel, frames, turn
from support.runs import collect, copy_first_events, shape
from support.strategy_cases import (
    CASES,
    Case,
    add,
    count_strategy_events,
    find_open_items,
    is_legal,
    list_thoughts,
    stage_path,
    turn_by_step,
)

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def agent_of(
    case: Case, log: Any = None, *, model: ScriptedModel | None = None
) -> tuple[Agent[None, str], ScriptedModel]:
    model = model or ScriptedModel(*[turn_by_step(case.turns)] * 20)
    return Agent(model, tools=[add], strategy=case.strategy(), log=log), model


def test_the_cases_are_the_nine() -> None:
    assert [case.name for case in CASES] == list(STRATEGIES)


@every
async def test_it_answers_with_the_published_number_of_model_calls(case: Case) -> None:
    agent, model = agent_of(case)
    result = await agent.run("How much is two and two?")
    assert result.output == case.answer
    assert len(model.requests) == case.calls
    assert shape(result.messages) == ["user: How much is two and two?", f"assistant: {case.answer}"]


@every
async def test_its_stages_follow_the_table_from_the_first_to_the_last(case: Case) -> None:
    # T85
    events = await collect(agent_of(case)[0].run("How much is two and two?"))
    assert is_legal(stage_path(events), case.name)


@every
async def test_its_thoughts_are_linked_to_thoughts_and_calls_that_there_are(case: Case) -> None:
    events = await collect(agent_of(case)[0].run("How much is two and two?"))
    thoughts = list_thoughts(events)
    assert thoughts
    assert len({each.thought_id for each in thoughts}) == len(thoughts)
    known: set[str | None] = {None}
    for thought in thoughts:
        assert thought.source == "strategy"
        assert thought.related_to in known
        known.add(thought.thought_id)


@every
async def test_it_resumes_after_any_event_and_asks_and_says_nothing_twice(case: Case) -> None:
    log = MemoryEventLog()
    whole = await agent_of(case, log)[0].run("How much is two and two?")
    events = await log.read(whole.task_id)
    for held in range(2, len(events)):
        cut = await copy_first_events(log, whole.task_id, held)
        known = {event.step for event in events[:held] if isinstance(event, ContentCompleteEvent)}
        agent, model = agent_of(case, cut)
        result = await agent.resume(whole.task_id)
        again = await cut.read(whole.task_id)
        assert result.output == case.answer
        assert not known & {request.step for request in model.requests}
        assert count_strategy_events(again) == count_strategy_events(events)
        assert [event.seq for event in again] == list(range(1, len(again) + 1))
        assert shape(result.messages) == shape(whole.messages)
        steps = [event.step for event in again if isinstance(event, ContentCompleteEvent)]
        assert len(steps) == len(set(steps))


async def cancelled(case: Case, number: int, log: Any = None) -> tuple[str, list[Event], ScriptedModel]:
    """A run that is cancelled while its model says something for the `number`th time."""

    def turn_of(request: ModelRequest) -> Any:
        return frames("--half") if len(model.requests) == number else case.turns[request.step]

    model = ScriptedModel(*[turn_of] * 20)
    run = agent_of(case, log, model=model)[0].run("How much is two and two?")
    events: list[Event] = []
    async for event in run:
        events.append(event)
        if sum(isinstance(each, LLMCallEvent) for each in events) == number:
            run.cancel()
    with pytest.raises(RunCancelled):
        await run
    return run.task_id, events, model


@every
async def test_cancelled_at_any_model_call_it_leaves_nothing_open(case: Case) -> None:
    for number in range(1, case.calls + 1):
        _, events, model = await cancelled(case, number)
        assert find_open_items(events) == set()
        assert model.open == 0
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-")]


@every
async def test_what_is_cancelled_goes_on_from_a_file(case: Case, tmp_path: Path) -> None:
    for number in range(1, case.calls + 1):
        async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
            task_id, events, _ = await cancelled(case, number, log)
        told = {
            event.step
            for event in events
            if isinstance(event, ContentCompleteEvent) and event.finish_reason != "canceled"
        }
        async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
            agent, model = agent_of(case, log)
            result = await agent.resume(task_id)
            assert result.output == case.answer
            assert not told & {request.step for request in model.requests}
            assert is_legal(stage_path(await log.read(task_id)), case.name)


@pytest.mark.parametrize("case", CASES[:-1], ids=lambda case: case.name)
async def test_the_limit_of_iterations_counts_the_model_calls_of_all_lines(case: Case) -> None:
    for most in range(1, case.calls):
        agent, model = agent_of(case)
        with pytest.raises(LimitReached) as raised:
            await agent.run("How much is two and two?", limits=Limits(iterations=most))
        assert raised.value.code == "max_iterations"
        assert len(model.requests) == most
    agent, model = agent_of(case)
    assert (await agent.run("Hm?", limits=Limits(iterations=case.calls))).output == case.answer


@every
async def test_the_limit_of_tokens_counts_those_of_all_lines(case: Case) -> None:
    def costly(request: ModelRequest) -> Any:
        said = case.turns[request.step]
        parts = said if isinstance(said, list) else [said]
        texts = [part for part in parts if isinstance(part, str)]
        calls = [part for part in parts if not isinstance(part, str)]
        return turn("".join(texts), calls=calls, usage=Usage(input_tokens=90, output_tokens=10))

    agent, _ = agent_of(case, model=ScriptedModel(*[costly] * 20))
    assert (await agent.run("How much?")).usage.total_tokens == 100 * case.calls
    # All samples of self-consistency are on their way before the first one tells what it has cost.
    agent, model = agent_of(case, model=ScriptedModel(*[costly] * 20))
    with pytest.raises(LimitReached) as raised:
        await agent.run("How much?", limits=Limits(tokens=100))
    assert raised.value.code == "tokens"
    assert len(model.requests) == 1


@every
async def test_it_is_chosen_by_name(case: Case) -> None:
    model = ScriptedModel(*[turn_by_step(case.turns)] * 3, name="scripted")
    for run in (
        Agent(model, tools=[add], strategy=case.name).run("How much?"),
        Agent(model, tools=[add]).run("How much?", strategy=case.name),
    ):
        async with run:
            async for event in run:
                if event.kind == "stage":
                    assert vars(event)["strategy"] == case.name
                    break


def test_an_alias_will_do_and_an_unknown_name_is_refused_with_the_nine() -> None:
    # T55, T56
    assert getattr(load_strategy("base_sequential"), "__name__", "") == "linear"
    assert getattr(load_strategy("Tree-of-Thoughts"), "__name__", "") == "tree_of_thoughts"
    with pytest.raises(ConfigurationError, match=", ".join(STRATEGIES)):
        Agent(ScriptedModel(), strategy="tree")
