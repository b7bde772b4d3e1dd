"""Messages sent to a run during a strategy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rxloop import Agent, Event, MemoryEventLog, ModelRequest, Run, StageEvent, op
from rxloop.strategies import StrategyRun, self_consistency, step_back, strategy
from rxloop.testing import ScriptedModel
from support.runs import collect, copy_first_events, shape
from support.strategy_cases import CASES, Case, add, find_open_items, turn_by_step

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def make_model(case: Case) -> ScriptedModel:
    """Return a model that plays the case. On the main branch, it answers the sent message with 5."""
    play = turn_by_step(case.turns)

    def answer(request: ModelRequest) -> Any:
        if request.branch is None and any(message.text == "And in Bergen?" for message in request.messages):
            return "5"
        return play(request)

    return ScriptedModel(*[answer] * 40)


def send_when(run: Run[Any], matches: Callable[[Event], bool]) -> None:
    sent: list[bool] = []

    def on_next(event: Event) -> None:
        if not sent and matches(event):
            sent.append(True)
            run.send("And in Bergen?")

    run.events.subscribe(on_next)


@each_case
async def test_message_sent_at_any_event_is_answered_and_once_in_the_history(case: Case) -> None:
    agent = Agent(make_model(case), tools=[add], strategy=case.strategy())
    last_seq = (await collect(agent.run("How much?")))[-1].seq
    for seq in range(2, last_seq):
        run = Agent(make_model(case), tools=[add], strategy=case.strategy()).run("How much?")
        send_when(run, lambda event, seq=seq: event.durable and event.seq == seq)
        events = [event async for event in run.pipe(op.grammar())]
        result = await run
        history = shape(result.messages)

        assert result.output == "5", seq
        assert history.count("user: And in Bergen?") == 1
        assert history[0] == "user: How much?"
        assert history[-1] == "assistant: 5"
        assert find_open_items(events) == set()


async def test_message_during_a_vote_follows_the_answer_of_the_vote() -> None:
    case = next(case for case in CASES if case.name == "self_consistency")
    run = Agent(make_model(case), strategy=self_consistency(samples=3)).run("How much?")
    send_when(run, lambda event: isinstance(event, StageEvent))

    assert shape((await run).messages) == [
        "user: How much?",
        "assistant: 4",
        "user: And in Bergen?",
        "assistant: 5",
    ]


async def test_conclusion_includes_earlier_messages() -> None:
    case = next(case for case in CASES if case.name == "step_back")
    run = Agent(make_model(case), strategy=step_back()).run("How much?")
    send_when(run, lambda event: isinstance(event, StageEvent))

    assert shape((await run).messages) == ["user: How much?", "user: And in Bergen?", "assistant: 5"]


async def test_message_after_the_conclusion_is_answered_separately() -> None:
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


async def test_resumed_vote_has_the_same_history() -> None:
    case = next(case for case in CASES if case.name == "self_consistency")
    log = MemoryEventLog()
    run = Agent(make_model(case), strategy=self_consistency(samples=3), log=log).run("How much?")
    send_when(run, lambda event: isinstance(event, StageEvent))
    history = shape((await run).messages)
    events = await log.read(run.task_id)
    message_seq = next(event.seq for event in events if event.kind == "message-added")
    for seq in range(message_seq, len(events)):
        partial_log = await copy_first_events(log, run.task_id, seq)
        agent = Agent(make_model(case), strategy=self_consistency(samples=3), log=partial_log)
        assert shape((await agent.resume(run.task_id)).messages) == history, seq
