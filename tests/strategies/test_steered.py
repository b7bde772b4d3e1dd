"""What is said to a run that a strategy makes enters the main line, and is answered there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rxloop import Agent, Event, MemoryEventLog, ModelRequest, Run, StageEvent, op
from rxloop.strategies import StrategyRun, self_consistency, step_back, strategy
from rxloop.testing import ScriptedModel
from support.runs import collect, copy_first_events, shape
from support.strategy_cases import CASES, Case, add, find_open_items, turn_by_step

every = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def scripted(case: Case) -> ScriptedModel:
    """Answers as the case does; on the main line, once it has heard something, it says so."""
    told = turn_by_step(case.turns)

    def answer(request: ModelRequest) -> Any:
        if request.branch is None and any(message.text == "And in Bergen?" for message in request.messages):
            return "5"
        return told(request)

    return ScriptedModel(*[answer] * 40)


def steered(run: Run[Any], fits: Callable[[Event], bool]) -> None:
    said: list[bool] = []

    def on_next(event: Event) -> None:
        if not said and fits(event):
            said.append(True)
            run.send("And in Bergen?")

    run.events.subscribe(on_next)


@every
async def test_what_is_said_at_any_event_is_answered_and_stands_once_in_the_history(case: Case) -> None:
    agent = Agent(scripted(case), tools=[add], strategy=case.strategy())
    whole = (await collect(agent.run("How much?")))[-1].seq
    for seq in range(2, whole):
        run = Agent(scripted(case), tools=[add], strategy=case.strategy()).run("How much?")
        steered(run, lambda event, seq=seq: event.durable and event.seq == seq)
        events = [event async for event in run.pipe(op.grammar())]
        result = await run
        history = shape(result.messages)

        assert result.output == "5", seq
        assert history.count("user: And in Bergen?") == 1
        assert history[0] == "user: How much?"
        assert history[-1] == "assistant: 5"
        assert find_open_items(events) == set()


async def test_the_answer_of_a_vote_stands_before_what_its_voters_have_not_heard() -> None:
    case = next(case for case in CASES if case.name == "self_consistency")
    run = Agent(scripted(case), strategy=self_consistency(samples=3)).run("How much?")
    steered(run, lambda event: isinstance(event, StageEvent))

    assert shape((await run).messages) == [
        "user: How much?",
        "assistant: 4",
        "user: And in Bergen?",
        "assistant: 5",
    ]


async def test_a_conclusion_hears_what_was_said_before_it() -> None:
    case = next(case for case in CASES if case.name == "step_back")
    run = Agent(scripted(case), strategy=step_back()).run("How much?")
    steered(run, lambda event: isinstance(event, StageEvent))

    assert shape((await run).messages) == ["user: How much?", "user: And in Bergen?", "assistant: 5"]


async def test_what_is_said_when_the_strategy_has_its_answer_makes_no_second_one_of_it() -> None:
    runs: list[Run[str]] = []

    @strategy
    async def slow(run: StrategyRun) -> str:
        answer = await run.conclude("Answer.")
        runs[0].send("And in Bergen?")
        return answer

    runs.append(Agent(ScriptedModel("4", "5"), strategy=slow).run("How much?"))

    assert shape((await runs[0]).messages) == [
        "user: How much?",
        "assistant: 4",
        "user: And in Bergen?",
        "assistant: 5",
    ]


async def test_a_resumed_vote_has_the_same_history() -> None:
    case = next(case for case in CASES if case.name == "self_consistency")
    log = MemoryEventLog()
    run = Agent(scripted(case), strategy=self_consistency(samples=3), log=log).run("How much?")
    steered(run, lambda event: isinstance(event, StageEvent))
    history = shape((await run).messages)
    events = await log.read(run.task_id)
    said = next(event.seq for event in events if event.kind == "message-added")
    for seq in range(said, len(events)):
        cut = await copy_first_events(log, run.task_id, seq)
        agent = Agent(scripted(case), strategy=self_consistency(samples=3), log=cut)
        assert shape((await agent.resume(run.task_id)).messages) == history, seq
