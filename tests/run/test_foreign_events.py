"""Foreign, shared and invalid events."""

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


async def test_emitted_events_of_another_run_are_published_without_side_effects() -> None:
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
    foreign_events = [event for event in events if event.task_id != run.task_id]
    assert foreign_events
    assert {event.parent_task_id for event in foreign_events} == {run.task_id}
    own_statuses = [event for event in events if isinstance(event, StatusUpdateEvent) and event.parent_task_id is None]
    assert [event.state for event in own_statuses] == ["working", "completed"]


async def test_constant_event_can_be_emitted_in_any_number_of_runs() -> None:
    # L85
    shared_event = CustomEvent(name="done")

    @op.on(IterationEnd)
    async def emit_custom_event(request: IterationEnd, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield shared_event
        yield request

    @tool
    async def tell(ctx: RunContext[None]) -> str:
        """Tells."""
        ctx.emit(shared_event)
        return "told"

    for _ in range(2):
        model = ScriptedModel(call("tell"), "ok")
        run = Agent(model, tools=[tell], loop=op.standard(at_end=[emit_custom_event])).run("q")
        events = await collect(run)
        assert {event.task_id for event in events} == {run.task_id}
        assert sum(event.kind == "custom" for event in events) == 3
    assert shared_event == CustomEvent(name="done")


def test_added_message_cannot_have_the_role_assistant_or_tool() -> None:
    for role in ("assistant", "tool"):
        with pytest.raises(ValidationError, match="role"):
            MessageAddedEvent(role=role, content="x")  # type: ignore[arg-type]


async def test_event_that_cannot_be_folded_leaves_no_sequence_gap() -> None:
    # L1
    broken = MessageAddedEvent.model_construct(kind="message-added", role="tool", content="x", metadata={})

    @tool
    async def odd(ctx: RunContext[None]) -> str:
        """Emit an invalid event."""
        ctx.emit(broken)
        return "never"

    log = MemoryEventLog()
    run = Agent(ScriptedModel(call("odd"), "done"), tools=[odd], log=log).run("q")
    events = await collect(run)
    durable = [event.seq for event in events if event.durable]
    assert durable == list(range(1, len(durable) + 1))
    assert (await run).output == "done"
    assert [event.seq for event in await log.read(run.task_id)] == durable


async def test_message_added_before_a_request_is_in_that_request() -> None:
    @op.on(ModelRequest)
    async def request_french(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield MessageAddedEvent(content="Answer in French.")
        yield request

    model = ScriptedModel("Oui.")
    result = await Agent(model, loop=op.standard(before_model=[request_french])).run("q")
    assert [message.text for message in model.requests[0].messages] == ["q", "Answer in French."]
    assert result.output == "Oui."


async def test_added_message_follows_a_replaced_history() -> None:
    @op.on(ModelRequest)
    async def shorten_history(request: ModelRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
        yield MessageAddedEvent(content="Be brief.")
        yield request.replace(messages=list(request.messages)[-1:])

    model = ScriptedModel("Yes.")
    await Agent(model, loop=op.standard(before_model=[shorten_history])).run(["a", "b"])
    assert [message.text for message in model.requests[0].messages] == ["b", "Be brief."]
