"""Events that come from elsewhere: of other runs, made once for many runs, or not fit to be published."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pydantic import ValidationError

from rxloop import (
    Agent,
    CustomEvent,
    MemoryEventLog,
    MessageAddedEvent,
    RunContext,
    StatusUpdateEvent,
    op,
    tool,
)
from rxloop.pipeline.requests import IterationEnd, ModelRequest, Signal
from rxloop.testing import ScriptedModel, call
from support.runs import collect


async def test_the_events_of_a_nested_run_are_told_and_leave_the_run_alone() -> None:
    # L10
    child = Agent(ScriptedModel(call("unknown"), "child says"), name="child")

    @tool
    async def delegate(ctx: RunContext[None]) -> str:
        """Asks another agent."""
        run = child.run("sub q")
        async for event in run:
            ctx.emit(event)
        return (await run).output

    model = ScriptedModel(call("delegate"), "parent says")
    run = Agent(model, tools=[delegate]).run("q")
    events = await collect(run)
    result = await run

    assert result.output == "parent says"
    assert [message.text for message in result.messages] == ["q", "", "child says", "parent says"]
    theirs = [event for event in events if event.task_id != run.task_id]
    assert theirs
    assert {event.parent_task_id for event in theirs} == {run.task_id}
    ours = [event for event in events if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None]
    assert [event.state for event in ours] == ["working", "completed"]


async def test_an_event_that_is_kept_as_a_constant_serves_any_number_of_runs() -> None:
    # L85
    done = CustomEvent(name="done")

    @op.on(IterationEnd)
    async def say(request: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield done
        yield request

    @tool
    async def tell(ctx: RunContext[None]) -> str:
        """Tells."""
        ctx.emit(done)
        return "told"

    for _ in range(2):
        model = ScriptedModel(call("tell"), "ok")
        run = Agent(model, tools=[tell], loop=op.standard(at_end=[say])).run("q")
        events = await collect(run)
        assert {event.task_id for event in events} == {run.task_id}
        assert sum(event.kind == "custom" for event in events) == 3
    assert done == CustomEvent(name="done")


def test_a_message_that_is_added_is_neither_the_models_nor_a_tools() -> None:
    for role in ("assistant", "tool"):
        with pytest.raises(ValidationError, match="role"):
            MessageAddedEvent(role=role, content="x")  # type: ignore[arg-type]


async def test_an_event_that_cannot_be_folded_leaves_no_hole() -> None:
    # L1
    broken = MessageAddedEvent.model_construct(kind="message-added", role="tool", content="x", metadata={})

    @tool
    async def odd(ctx: RunContext[None]) -> str:
        """Emits what does not fit."""
        ctx.emit(broken)
        return "never"

    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("odd"), "done"), tools=[odd], log=log).run("q")
    events = await collect(run)
    durable = [event.seq for event in events if event.durable]
    assert durable == list(range(1, len(durable) + 1))
    assert (await run).output == "done"
    assert [event.seq for event in await log.read(run.task_id)] == durable


async def test_a_message_that_an_operator_adds_before_a_request_is_in_that_request() -> None:
    @op.on(ModelRequest)
    async def in_french(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield MessageAddedEvent(content="Answer in French.")
        yield request

    model = ScriptedModel("Oui.")
    result = await Agent(model, loop=op.standard(before_model=[in_french])).run("q")
    assert [message.text for message in model.requests[0].messages] == ["q", "Answer in French."]
    assert result.output == "Oui."


async def test_a_message_that_is_added_goes_behind_what_an_operator_put_in_the_place_of_the_history() -> None:
    @op.on(ModelRequest)
    async def shortened(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield MessageAddedEvent(content="Be brief.")
        yield request.replace(messages=list(request.messages)[-1:])

    model = ScriptedModel("Yes.")
    await Agent(model, loop=op.standard(before_model=[shortened])).run(["a", "b"])
    assert [message.text for message in model.requests[0].messages] == ["b", "Be brief."]
