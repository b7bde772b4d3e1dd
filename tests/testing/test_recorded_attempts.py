"""Recorded runs of several attempts, and answers that were cut off, as models."""

import asyncio
from typing import Any

import pytest

from rxloop import Agent, ContentDeltaEvent, Event, MemoryEventLog, Run, RunCancelled, op
from rxloop.pipeline.requests import ModelRequest
from rxloop.state.fold import fold_all
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, frames, turn, virtual_time
from support.runs import collect, copy_first_events, outcome, shape
from support.strategy_cases import CASES, turn_by_step
from support.weather import TOOLS


@pytest.mark.parametrize("kept", [True, False])
def test_what_was_cancelled_stays_open_where_it_was_cut(kept: bool) -> None:
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("--It is--7 C.|"))).run("Go")
        time.at(0.08, run.cancel)
        first = [event for event in time.run(collect(run)) if event.durable or kept]
        model = ScriptedModel.from_events(first)
        again = Agent(model).run("Go")
        open_: list[int] = []
        time.at(1, lambda: (open_.append(model.open), again.cancel()))
        events = time.run(collect(again))
        with pytest.raises(RunCancelled):
            time.run(again.result())
    assert (open_, model.open) == ([1], 0)
    assert "".join(each.delta for each in events if isinstance(each, ContentDeltaEvent)) == "It is"


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("resumed", [True, False])
def test_what_was_interrupted_can_be_interrupted_there_again(kept: bool, resumed: bool) -> None:
    def interrupt(run: Run[str]) -> list[Event]:
        time.at(time.now + 0.1, lambda: run.send("In Bergen!", interrupt=True))
        return [event for event in time.run(collect(run)) if event.durable or kept]

    with virtual_time() as time:
        log = MemoryEventLog()
        agent = Agent(ScriptedModel(turn(frames("-It is-------7 C.|"), reasoning="Hm."), "9 C."), log=log)
        first = interrupt(agent.run("Go"))
        if resumed:
            place = next(event.seq for event in first if event.kind == "content-complete")
            log = time.run(copy_first_events(log, first[0].task_id, place))
            time.run(Agent(ScriptedModel("9 C."), log=log).resume(first[0].task_id).result())
            first = list(time.run(log.read(first[0].task_id)))
        events = interrupt(Agent(ScriptedModel.from_events(first), log=MemoryEventLog()).run("Go"))
    assert shape(fold_all(events).messages) == [
        "user: Go",
        "assistant: It is",
        "user: In Bergen!",
        "assistant: 9 C.",
    ]


def test_what_was_cancelled_and_asked_for_again_has_the_later_answer() -> None:
    log = MemoryEventLog()
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("--It is--7 C.|")), log=log).run("Go")
        time.at(0.08, run.cancel)
        time.run(outcome(run))
        time.run(Agent(ScriptedModel("8 C."), log=log).resume(run.task_id))
        model = ScriptedModel.from_events(time.run(log.read(run.task_id)))
        result = time.run(Agent(model).run("Go"), timeout=1)
    assert (result.output, len(model.requests)) == ("8 C.", 1)


def test_a_line_that_was_cancelled_and_asked_again_has_the_later_answer() -> None:
    case = next(case for case in CASES if case.name == "self_consistency")
    log = MemoryEventLog()

    def agent(*turns: Any, **fields: Any) -> Agent:
        return Agent(ScriptedModel(*turns), strategy=case.strategy(), **fields)

    with virtual_time() as time:
        run = agent(*[frames("-Answer: -9|")] * 3, log=log).run("2 + 2?")
        time.at(0.06, run.cancel)
        time.run(outcome(run))
        time.run(agent(*[turn_by_step(case.turns)] * 3, log=log).resume(run.task_id))
        model = ScriptedModel.from_events(time.run(log.read(run.task_id)))
        result = time.run(Agent(model, strategy=case.strategy()).run("2 + 2?"), timeout=1)
    assert (result.output, len(model.requests)) == (case.answer, 3)


def test_what_an_operator_cut_off_is_there_to_be_cut_off_again() -> None:
    def agent(model: ScriptedModel) -> Agent:
        @strategy
        async def twice(run: StrategyRun) -> str:
            try:
                async with asyncio.timeout(1):
                    await run.ask("First?", branch="a")
            except TimeoutError:
                pass
            return await run.conclude("none")

        return Agent(model, strategy=twice)

    with virtual_time() as time:
        first = time.run(collect(agent(ScriptedModel(frames("-a-"), "b")).run("Go")))
        began = time.now
        time.run(collect(agent(ScriptedModel.from_events(first)).run("Go").pipe(op.compare(first))))
        assert time.now == began + 1


async def test_the_answers_of_all_attempts_of_a_run_are_there() -> None:
    log = MemoryEventLog()
    script = [[call("get_weather", city="Oslo"), call("sure")], call("get_weather", city="Bergen"), "done"]
    paused = await Agent(ScriptedModel(script[0]), tools=TOOLS, log=log).run("Go")
    then = Agent(ScriptedModel(*script[1:]), tools=TOOLS, log=log)
    result = await then.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    whole = await log.read(result.task_id)

    model = ScriptedModel.from_events(whole)
    again = Agent(model, tools=TOOLS).run("Go", on_input=lambda question: True)
    await again.pipe(op.compare(whole))
    assert (await again).output == "done"
    assert shape((await again).messages) == shape(result.messages)


WHOLE = 17


@pytest.mark.parametrize("held", range(1, WHOLE))
async def test_wherever_a_run_was_cut_and_resumed_its_recording_answers_as_one_run(held: int) -> None:
    script = [turn("I look.", calls=[call("get_weather", city="Oslo")]), call("sure"), "done"]

    def turns(request: ModelRequest) -> Any:
        return script[sum(message.role == "assistant" for message in request.messages)]

    def agent(log: MemoryEventLog, **fields: Any) -> Agent:
        return Agent(ScriptedModel(*[turns] * 3), tools=TOOLS, log=log)

    log = MemoryEventLog()
    task_id = (await agent(log).run("Go", on_input=lambda question: True)).task_id
    assert len(await log.read(task_id)) == WHOLE + 1
    log = await copy_first_events(log, task_id, held)
    await agent(log).resume(task_id, on_input=lambda question: True)

    model = ScriptedModel.from_events(await log.read(task_id))
    result = await Agent(model, tools=TOOLS).run("Go", on_input=lambda question: True)
    assert result.output == "done"
    assert len(model.requests) == 3
