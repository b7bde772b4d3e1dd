"""Models from recorded runs with several attempts or incomplete answers."""

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


@pytest.mark.parametrize("keep_deltas", [True, False])
def test_recorded_answer_of_a_cancelled_run_stays_open(keep_deltas: bool) -> None:
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("--It is--7 C.|"))).run("Go")
        time.at(0.08, run.cancel)
        first = [event for event in time.run(collect(run)) if event.durable or keep_deltas]
        model = ScriptedModel.from_events(first)
        again = Agent(model).run("Go")
        open_streams: list[int] = []
        time.at(1, lambda: (open_streams.append(model.open), again.cancel()))
        events = time.run(collect(again))
        with pytest.raises(RunCancelled):
            time.run(again.result())
    assert (open_streams, model.open) == ([1], 0)
    assert "".join(each.delta for each in events if isinstance(each, ContentDeltaEvent)) == "It is"


@pytest.mark.parametrize("keep_deltas", [True, False])
@pytest.mark.parametrize("resumed", [True, False])
def test_recorded_interrupted_answer_can_be_interrupted_again(keep_deltas: bool, resumed: bool) -> None:
    def interrupt(run: Run[str]) -> list[Event]:
        time.at(time.now + 0.1, lambda: run.send("In Bergen!", interrupt=True))
        return [event for event in time.run(collect(run)) if event.durable or keep_deltas]

    with virtual_time() as time:
        log = MemoryEventLog()
        agent = Agent(ScriptedModel(turn(frames("-It is-------7 C.|"), reasoning="Hm."), "9 C."), log=log)
        first = interrupt(agent.run("Go"))
        if resumed:
            seq = next(event.seq for event in first if event.kind == "content-complete")
            log = time.run(copy_first_events(log, first[0].task_id, seq))
            time.run(Agent(ScriptedModel("9 C."), log=log).resume(first[0].task_id).result())
            first = list(time.run(log.read(first[0].task_id)))
        events = interrupt(Agent(ScriptedModel.from_events(first), log=MemoryEventLog()).run("Go"))
    assert shape(fold_all(events).messages) == [
        "user: Go",
        "assistant: It is",
        "user: In Bergen!",
        "assistant: 9 C.",
    ]


def test_recording_of_a_resumed_run_has_the_later_answer() -> None:
    log = MemoryEventLog()
    with virtual_time() as time:
        run = Agent(ScriptedModel(frames("--It is--7 C.|")), log=log).run("Go")
        time.at(0.08, run.cancel)
        time.run(outcome(run))
        time.run(Agent(ScriptedModel("8 C."), log=log).resume(run.task_id))
        model = ScriptedModel.from_events(time.run(log.read(run.task_id)))
        result = time.run(Agent(model).run("Go"), timeout=1)
    assert (result.output, len(model.requests)) == ("8 C.", 1)


def test_recording_of_a_resumed_branch_has_the_later_answer() -> None:
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


def test_recorded_answer_that_timed_out_times_out_again() -> None:
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
        started = time.now
        time.run(collect(agent(ScriptedModel.from_events(first)).run("Go").pipe(op.compare(first))))
        assert time.now == started + 1


async def test_recording_has_the_answers_of_all_attempts() -> None:
    log = MemoryEventLog()
    script = [[call("get_weather", city="Oslo"), call("sure")], call("get_weather", city="Bergen"), "done"]
    paused = await Agent(ScriptedModel(script[0]), tools=TOOLS, log=log).run("Go")
    second = Agent(ScriptedModel(*script[1:]), tools=TOOLS, log=log)
    result = await second.resume(paused.task_id, inputs={paused.pending[0].input_id: True})
    events = await log.read(result.task_id)

    model = ScriptedModel.from_events(events)
    again = Agent(model, tools=TOOLS).run("Go", on_input=lambda question: True)
    await again.pipe(op.compare(events))
    assert (await again).output == "done"
    assert shape((await again).messages) == shape(result.messages)


RUN_LENGTH = 17


@pytest.mark.parametrize("length", range(1, RUN_LENGTH))
async def test_recording_of_a_run_resumed_after_any_event_answers_like_one_run(length: int) -> None:
    script = [turn("I look.", calls=[call("get_weather", city="Oslo")]), call("sure"), "done"]

    def turns(request: ModelRequest) -> Any:
        return script[sum(message.role == "assistant" for message in request.messages)]

    def agent(log: MemoryEventLog, **fields: Any) -> Agent:
        return Agent(ScriptedModel(*[turns] * 3), tools=TOOLS, log=log)

    log = MemoryEventLog()
    task_id = (await agent(log).run("Go", on_input=lambda question: True)).task_id
    assert len(await log.read(task_id)) == RUN_LENGTH + 1
    log = await copy_first_events(log, task_id, length)
    await agent(log).resume(task_id, on_input=lambda question: True)

    model = ScriptedModel.from_events(await log.read(task_id))
    result = await Agent(model, tools=TOOLS).run("Go", on_input=lambda question: True)
    assert result.output == "done"
    assert len(model.requests) == 3
