"""Common behaviour of all strategies."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

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

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def make_agent(
    case: Case, log: Any = None, *, model: ScriptedModel | None = None
) -> tuple[Agent[None, str], ScriptedModel]:
    model = model or ScriptedModel(*[turn_by_step(case.turns)] * 20)
    return Agent(model, tools=[add], strategy=case.strategy(), log=log), model


def test_cases_cover_all_strategies() -> None:
    assert [case.name for case in CASES] == list(STRATEGIES)


@each_case
async def test_strategy_answers_with_the_documented_number_of_model_calls(case: Case) -> None:
    agent, model = make_agent(case)
    result = await agent.run("How much is two and two?")
    assert result.output == case.answer
    assert len(model.requests) == case.calls
    assert shape(result.messages) == ["user: How much is two and two?", f"assistant: {case.answer}"]


@each_case
async def test_stages_of_a_run_are_legal(case: Case) -> None:
    # T85
    events = await collect(make_agent(case)[0].run("How much is two and two?"))
    assert is_legal(stage_path(events), case.name)


@each_case
async def test_thoughts_are_related_to_earlier_thoughts(case: Case) -> None:
    events = await collect(make_agent(case)[0].run("How much is two and two?"))
    thoughts = list_thoughts(events)
    assert thoughts
    assert len({each.thought_id for each in thoughts}) == len(thoughts)
    known: set[str | None] = {None}
    for thought in thoughts:
        assert thought.source == "strategy"
        assert thought.related_to in known
        known.add(thought.thought_id)


@each_case
async def test_run_resumed_after_any_event_repeats_nothing(case: Case) -> None:
    log = MemoryEventLog()
    complete_result = await make_agent(case, log)[0].run("How much is two and two?")
    events = await log.read(complete_result.task_id)
    for event_count in range(2, len(events)):
        partial_log = await copy_first_events(log, complete_result.task_id, event_count)
        known = {event.step for event in events[:event_count] if isinstance(event, ContentCompleteEvent)}
        agent, model = make_agent(case, partial_log)
        result = await agent.resume(complete_result.task_id)
        all_events = await partial_log.read(complete_result.task_id)
        assert result.output == case.answer
        assert not known & {request.step for request in model.requests}
        assert count_strategy_events(all_events) == count_strategy_events(events)
        assert [event.seq for event in all_events] == list(range(1, len(all_events) + 1))
        assert shape(result.messages) == shape(complete_result.messages)
        steps = [event.step for event in all_events if isinstance(event, ContentCompleteEvent)]
        assert len(steps) == len(set(steps))


async def run_until_cancelled(case: Case, number: int, log: Any = None) -> tuple[str, list[Event], ScriptedModel]:
    """Cancel a run during its model call `number`."""

    def select_turn(request: ModelRequest) -> Any:
        return frames("--half") if len(model.requests) == number else case.turns[request.step]

    model = ScriptedModel(*[select_turn] * 20)
    run = make_agent(case, log, model=model)[0].run("How much is two and two?")
    events: list[Event] = []
    async for event in run:
        events.append(event)
        if sum(isinstance(each, LLMCallEvent) for each in events) == number:
            run.cancel()
    with pytest.raises(RunCancelled):
        await run
    return run.task_id, events, model


@each_case
async def test_run_cancelled_at_any_model_call_leaves_nothing_open(case: Case) -> None:
    for number in range(1, case.calls + 1):
        _, events, model = await run_until_cancelled(case, number)
        assert find_open_items(events) == set()
        assert model.open == 0
        assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("rxloop-")]


@each_case
async def test_cancelled_run_is_resumed_from_a_file(case: Case, tmp_path: Path) -> None:
    for number in range(1, case.calls + 1):
        async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
            task_id, events, _ = await run_until_cancelled(case, number, log)
        completed_steps = {
            event.step
            for event in events
            if isinstance(event, ContentCompleteEvent) and event.finish_reason != "canceled"
        }
        async with aclosing(SqliteEventLog(tmp_path / "runs.db")) as log:
            agent, model = make_agent(case, log)
            result = await agent.resume(task_id)
            assert result.output == case.answer
            assert not completed_steps & {request.step for request in model.requests}
            assert is_legal(stage_path(await log.read(task_id)), case.name)


@pytest.mark.parametrize("case", CASES[:-1], ids=lambda case: case.name)
async def test_iteration_limit_counts_model_calls_of_all_branches(case: Case) -> None:
    for limit in range(1, case.calls):
        agent, model = make_agent(case)
        with pytest.raises(LimitReached) as raised:
            await agent.run("How much is two and two?", limits=Limits(iterations=limit))
        assert raised.value.code == "max_iterations"
        assert len(model.requests) == limit
    agent, model = make_agent(case)
    assert (await agent.run("Hm?", limits=Limits(iterations=case.calls))).output == case.answer


@each_case
async def test_token_limit_counts_tokens_of_all_branches(case: Case) -> None:
    def make_costly_turn(request: ModelRequest) -> Any:
        script_turn = case.turns[request.step]
        parts = script_turn if isinstance(script_turn, list) else [script_turn]
        texts = [part for part in parts if isinstance(part, str)]
        calls = [part for part in parts if not isinstance(part, str)]
        return turn("".join(texts), calls=calls, usage=Usage(input_tokens=90, output_tokens=10))

    agent, _ = make_agent(case, model=ScriptedModel(*[make_costly_turn] * 20))
    assert (await agent.run("How much?")).usage.total_tokens == 100 * case.calls
    agent, model = make_agent(case, model=ScriptedModel(*[make_costly_turn] * 20))
    with pytest.raises(LimitReached) as raised:
        await agent.run("How much?", limits=Limits(tokens=100))
    assert raised.value.code == "tokens"
    assert len(model.requests) == 1


@each_case
async def test_strategy_can_be_chosen_by_name(case: Case) -> None:
    model = ScriptedModel(*[turn_by_step(case.turns)] * 3, name="scripted")
    for run in (
        Agent(model, tools=[add], strategy=cast(Any, case.name)).run("How much?"),
        Agent(model, tools=[add]).run("How much?", strategy=cast(Any, case.name)),
    ):
        async with run:
            async for event in run:
                if event.kind == "stage":
                    assert vars(event)["strategy"] == case.name
                    break


def test_alias_is_accepted_and_unknown_name_is_refused_with_all_names() -> None:
    # T55, T56
    assert getattr(load_strategy("base_sequential"), "__name__", "") == "linear"
    assert getattr(load_strategy("Tree-of-Thoughts"), "__name__", "") == "tree_of_thoughts"
    with pytest.raises(ConfigurationError, match=", ".join(STRATEGIES)):
        Agent(ScriptedModel(), strategy=cast(Any, "tree"))
