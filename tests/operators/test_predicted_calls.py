"""Requests of runs that use `op.predict_context`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest

from rxloop import (
    Agent,
    ConfigurationError,
    Event,
    Limits,
    MemoryEventLog,
    ModelRequest,
    ModelSettings,
    RunContext,
    ToolRequest,
    op,
    tool,
)
from rxloop.errors import EventLogError, RunError, ToolError
from rxloop.memory import Experience, Memory
from rxloop.memory.tool_history import RunCalls, ToolHistory
from rxloop.pipeline.requests import Signal
from rxloop.protocol.visibility import PREDICTED
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call

TASK = "Weather in Oslo?"
READ, WRITE = call("get_weather", city="Oslo"), call("book", hotel="Grand")


class Tools:
    """Tools that count their calls."""

    def __init__(self, *, read_only: bool = True, approve: bool = False) -> None:
        self.calls: list[str] = []

        @tool(read_only=read_only, idempotent=True, approve=approve)
        def get_weather(city: str) -> str:
            """Return the weather in a city."""
            self.calls.append(city)
            return "18 C"

        @tool
        def book(hotel: str) -> str:
            """Book a hotel."""
            self.calls.append(hotel)
            return "Booked."

        self.all = [get_weather, book]


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


async def learn(log: MemoryEventLog, *answers: Any, prompt: str = TASK, runs: int = 2) -> None:
    """Add earlier runs with these answers of the model."""
    for _ in range(runs):
        await Agent(ScriptedModel(*answers), log=log, tools=Tools().all).run(prompt, owner="ann")


def make_agent(log: MemoryEventLog, tools: Tools, model: ScriptedModel, *guards: Any, **options: Any) -> Agent[None]:
    predict = op.predict_context(Experience(Memory(log)), **options)
    loop = op.standard(before_model=[predict], before_tools=guards)
    return Agent(model, log=log, tools=tools.all, loop=loop)


async def test_calls_of_similar_runs_are_made_before_the_first_model_call(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools, model = Tools(), ScriptedModel("It is 18 C.")
    result = await make_agent(log, tools, model).run(TASK, owner="ann")
    assert tools.calls == ["Oslo"]
    [request] = model.requests
    assert [message.role for message in request.messages] == ["user", "assistant", "tool"]
    assert request.messages[1].tool_calls[0].arguments == {"city": "Oslo"}
    assert request.messages[2].text == "18 C"
    assert [each.role for each in result.messages] == ["user", "assistant", "tool", "assistant"]


async def test_predicted_message_is_marked_in_the_log_but_not_for_clients(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    result = await make_agent(log, Tools(), ScriptedModel("It is 18 C.")).run(TASK, owner="ann")
    marked = [event for event in await log.read(result.task_id) if PREDICTED in event.metadata]
    assert [event.kind for event in marked] == ["content-complete"]
    public = marked[0].to_public()
    assert public is not None
    assert public.metadata == {}


async def test_model_is_called_first_if_no_call_is_predicted(log: MemoryEventLog) -> None:
    tools, model = Tools(), ScriptedModel("Hello.")
    await make_agent(log, tools, model).run(TASK, owner="ann")
    assert tools.calls == []
    assert [message.role for message in model.requests[0].messages] == ["user"]


async def test_calls_are_not_predicted_from_runs_of_other_owners(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools = Tools()
    await make_agent(log, tools, ScriptedModel("Hello.")).run(TASK, owner="bob")
    assert tools.calls == []


@pytest.mark.parametrize("options", [{"read_only": False}, {"approve": True}])
async def test_tools_with_effects_or_approvals_are_not_called(log: MemoryEventLog, options: dict[str, bool]) -> None:
    await learn(log, READ, "18 C.")
    tools = Tools(**options)
    await make_agent(log, tools, ScriptedModel("Hello.")).run(TASK, owner="ann")
    assert tools.calls == []


async def test_guards_apply_to_predicted_calls(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")

    @op.on(ToolRequest)
    async def refuse(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
        yield request.refuse("Not today.")

    tools, model = Tools(), ScriptedModel("Sorry.")
    await make_agent(log, tools, model, refuse).run(TASK, owner="ann")
    assert tools.calls == []
    assert model.requests[0].messages[-1].text == "Not today."


async def test_limits_are_not_reached_because_of_predicted_calls(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")

    @op.on(ToolRequest)
    async def refuse(request: ToolRequest, ctx: RunContext[None]) -> AsyncIterator[Signal]:
        yield request.refuse("Not today.")

    for limits in (Limits(tool_failures=1), Limits(iterations=1)):
        agent = make_agent(log, Tools(), ScriptedModel("Sorry."), refuse)
        assert (await agent.run(TASK, owner="ann", limits=limits)).output == "Sorry."


async def test_only_the_first_request_of_a_run_is_predicted(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools, model = Tools(), ScriptedModel(WRITE, "Booked.")
    await make_agent(log, tools, model).run(TASK, owner="ann")
    assert tools.calls == ["Oslo", "Grand"]
    assert len(model.requests) == 2


async def test_forced_tool_choice_is_left_to_the_model(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools = Tools()
    agent = make_agent(log, tools, ScriptedModel(WRITE, "Booked."))
    await agent.run(TASK, owner="ann", settings=ModelSettings(tool_choice="required"))
    assert tools.calls == ["Grand"]


async def test_missed_predictions_are_not_repeated(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools = Tools()
    for _ in range(6):
        await make_agent(log, tools, ScriptedModel("I cannot tell.")).run(TASK, owner="ann")
    assert 1 <= len(tools.calls) <= 3
    history = ToolHistory()
    for record in await log.list_runs():
        run = RunCalls()
        run.add(await log.read(record.task_id))
        history.add(run)
    assert (history.tools["get_weather"].hits, history.tools["get_weather"].misses) == (0, len(tools.calls))


async def test_used_predictions_are_repeated(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools = Tools()
    for _ in range(6):
        await make_agent(log, tools, ScriptedModel("It is 18 C.")).run(TASK, owner="ann")
    assert len(tools.calls) == 6


async def test_calls_of_a_conversation_have_different_ids(log: MemoryEventLog) -> None:
    await learn(log, READ, call("get_weather", city="Rome"), "18 C.")
    agent = make_agent(log, Tools(), ScriptedModel(*["It is 18 C."] * 2))
    await agent.run(TASK, owner="ann", context_id="c")
    result = await agent.run(TASK, owner="ann", context_id="c")
    ids = {each.id for message in result.messages for each in message.tool_calls}
    assert len(ids) == 4


async def test_steering_message_is_not_predicted(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools = Tools()

    def steer(request: ModelRequest) -> Any:
        run.send(TASK)
        return WRITE

    run = make_agent(log, tools, ScriptedModel(steer, "Booked.")).run("Book a room", owner="ann")
    await run
    assert tools.calls == ["Grand"]


async def test_resumed_run_keeps_the_predicted_results_if_the_prediction_has_changed(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    tools = Tools()
    run = make_agent(log, tools, ScriptedModel(ToolError("no model"))).run(TASK, owner="ann")
    with pytest.raises(RunError, match="no model"):
        await run
    events = await log.read(run.task_id)
    end = next(index for index, event in enumerate(events) if event.kind == "tool-complete") + 1
    crashed = MemoryEventLog()
    await crashed.append(run.task_id, events[:end], expected_seq=0)
    await learn(crashed, call("get_weather", city="Rome"), "18 C.")
    model = ScriptedModel("It is 18 C.")
    result = await make_agent(crashed, tools, model).resume(run.task_id)
    assert tools.calls == ["Oslo"]
    assert [message.role for message in model.requests[0].messages] == ["user", "assistant", "tool"]
    assert [*fold_all(await crashed.read(run.task_id)).messages] == [*result.messages]


async def test_request_is_sent_unchanged_if_the_log_of_the_memory_is_not_readable(
    log: MemoryEventLog, caplog: pytest.LogCaptureFixture
) -> None:
    class BrokenLog(MemoryEventLog):
        async def list_runs(self, **query: Any) -> Any:
            raise EventLogError("disk error", retryable=False)

    tools, model = Tools(), ScriptedModel("Hello.")
    loop = op.standard(before_model=[op.predict_context(Experience(Memory(BrokenLog())))])
    await Agent(model, log=log, tools=tools.all, loop=loop).run(TASK, owner="ann")
    assert len(model.requests) == 1
    assert "Failed to predict tool calls of run" in caplog.text
    assert "disk error" in caplog.text


@pytest.mark.parametrize(("options", "count"), [({}, 2), ({"calls": 1}, 1), ({"tokens": 1}, 1)])
async def test_number_of_calls_and_tokens_are_limited(log: MemoryEventLog, options: dict[str, int], count: int) -> None:
    await learn(log, READ, call("get_weather", city="Rome"), "18 C.")
    tools = Tools()
    await make_agent(log, tools, ScriptedModel("It is 18 C."), **options).run(TASK, owner="ann")
    # Calls are made at the same time.
    assert sorted(tools.calls) == ["Oslo", "Rome"][:count]


def test_source_must_be_an_experience() -> None:
    with pytest.raises(ConfigurationError, match="source must be an Experience, got <Memory of"):
        op.predict_context(cast("Any", Memory(MemoryEventLog())))


@pytest.mark.parametrize("options", [{"calls": 0}, {"tokens": -1}, {"calls": None}, {"tokens": 0.5}])
def test_limits_must_be_positive(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="must be an integer of at least 1, got"):
        op.predict_context(Experience(Memory(MemoryEventLog())), **options)


async def test_predicted_run_is_replayed_from_its_events(log: MemoryEventLog) -> None:
    await learn(log, READ, "18 C.")
    result = await make_agent(log, Tools(), ScriptedModel("It is 18 C.")).run(TASK, owner="ann")
    events: Sequence[Event] = await log.read(result.task_id)
    assert [*fold_all(events).messages] == [*result.messages]
    assert [event.kind for event in events][2:6] == ["content-complete", "tool-start", "tool-complete", "checkpoint"]
