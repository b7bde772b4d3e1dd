"""Answers that a model splits with the finish reason `pause`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from rxloop import Agent, CheckpointEvent, LimitReached, Limits, LLMCallEvent, MemoryEventLog, op, tool
from rxloop.operators.loop.iterate import iterate
from rxloop.pipeline.requests import ModelRequest
from rxloop.strategies import StrategyRun, strategy
from rxloop.testing import ScriptedModel, call, turn
from support.runs import collect, outcome, shape

PIECE = turn("I search.", finish_reason="pause", raw_finish_reason="pause_turn")


class City(BaseModel):
    name: str


async def test_paused_answer_continues_with_its_message_in_the_history() -> None:
    model = ScriptedModel(PIECE, turn("And search.", finish_reason="pause"), "It rains.")
    run = Agent(model).run("Weather?")
    events = await collect(run.pipe(op.grammar()))
    result = await run
    assert [shape(request.messages) for request in model.requests] == [
        ["user: Weather?"],
        ["user: Weather?", "assistant: I search."],
        ["user: Weather?", "assistant: I search.", "assistant: And search."],
    ]
    assert result.output == "It rains."
    assert result.finish_reason == "stop"
    assert shape(result.messages)[1:] == ["assistant: I search.", "assistant: And search.", "assistant: It rains."]
    assert [event.step for event in events if isinstance(event, LLMCallEvent)] == ["1", "2", "3"]
    assert [event.iteration for event in events if isinstance(event, CheckpointEvent)] == [1, 2, 3]


async def test_text_stream_contains_all_parts_of_a_paused_answer() -> None:
    run = Agent(ScriptedModel(PIECE, "It rains.")).run("Weather?")
    assert "".join([text async for text in run.text()]) == "I search.It rains."


async def test_each_pause_counts_as_an_iteration() -> None:
    model = ScriptedModel(*[PIECE] * 9)
    with pytest.raises(LimitReached) as caught:
        await Agent(model, limits=Limits(iterations=3)).run("Weather?")
    assert len(model.requests) == 3
    assert caught.value.result.reason == "max_iterations"
    assert caught.value.result.content == "I search."
    assert caught.value.result.finish_reason == "pause"


async def test_paused_message_with_tool_calls_runs_the_tools() -> None:
    @tool
    async def look() -> str:
        return "rain"

    model = ScriptedModel(turn("I look.", calls=[call("look")], finish_reason="pause"), "It rains.")
    result = await Agent(model, tools=[look]).run("Weather?")
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]


async def test_fork_after_a_pause_continues_with_the_next_part() -> None:
    log = MemoryEventLog()
    model = ScriptedModel(PIECE, "It rains.", "It snows.")
    agent = Agent(model, log=log)
    first = await agent.run("Weather?")
    at = next(event.seq for event in await log.read(first.task_id) if event.kind == "content-complete")
    result = await agent.fork(first.task_id, at)
    assert result.output == "It snows."
    assert shape(model.requests[2].messages) == ["user: Weather?", "assistant: I search."]


async def test_message_sent_during_a_pause_follows_the_paused_part() -> None:
    def count_messages(request: ModelRequest) -> Any:
        return str(len(request.messages))

    def send_and_pause(request: ModelRequest) -> Any:
        run.send("In Oslo.")
        return PIECE

    run = Agent(ScriptedModel(send_and_pause, count_messages)).run("Weather?")
    result = await run
    assert shape(result.messages) == ["user: Weather?", "assistant: I search.", "user: In Oslo.", "assistant: 3"]


async def test_paused_part_is_not_a_typed_answer() -> None:
    model = ScriptedModel(turn('{"name": "Os', finish_reason="pause"), '{"name": "Oslo"}')
    agent = Agent(model, output_type=City)
    run = agent.run("Where?")
    values = [value async for value in run.pipe(op.partial(City)) if isinstance(value, City)]
    assert values == [City(name="Oslo")]
    assert (await run).output == City(name="Oslo")
    assert [message.role for message in model.requests[1].messages] == ["user", "assistant"]


async def test_iterations_of_iterate_are_whole_messages() -> None:
    model = ScriptedModel(PIECE, "It rains.")
    result = await Agent(model, strategy=lambda loop: iterate(loop, 1)).run("Weather?")
    assert result.output == "It rains."


async def test_strategy_gets_whole_messages_from_a_model_that_pauses() -> None:
    @strategy
    async def twice(run: StrategyRun) -> str:
        draft = await run.ask("Draft?", max_calls=1)
        return await run.conclude(f"Better than {draft.text}?")

    model = ScriptedModel(PIECE, "A draft.", PIECE, "An answer.")
    result = await outcome(Agent(model, strategy=twice).run("Weather?"))
    assert result.output == "An answer."
    assert model.requests[2].tail[-1].text == "Better than A draft.?"
    assert shape(model.requests[3].messages) == ["user: Weather?"]
    assert shape(model.requests[3].tail)[-2:] == ["user: Better than A draft.?", "assistant: I search."]
