"""Goals in requests and in the state of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent, ConfigurationError, MemoryEventLog, RunState, SqliteEventLog, op
from rxloop.state import fold
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call
from rxloop.tools import Goal, GoalsUpdatedEvent, goal_tool
from support.long_runs import collect_run, look, look_calls

PLAN = [{"id": "crate", "title": "Find the crate"}, {"id": "places", "title": "Look at 9 places", "parent": "crate"}]
LIST = "[Goals, as they are now]\n- crate (pending): Find the crate\n  - places (pending): Look at 9 places"


def make_agent(model: ScriptedModel, *initial: Any, **options: Any) -> Agent[None, str]:
    options.setdefault("tools", [goal_tool, look])
    return Agent(model, loop=op.standard(before_model=[op.goals(*initial)]), **options)


def list_layers(model: ScriptedModel) -> list[list[str]]:
    return [[message.text for message in request.tail] for request in model.requests]


async def test_goals_are_at_the_end_of_requests_only() -> None:
    model = ScriptedModel(call("update_goals", goals=PLAN), *look_calls(2), "Done.")
    result = await make_agent(model).run("Find the crate.")
    assert list_layers(model) == [[], [LIST], [LIST], [LIST]]
    assert not any("[Goals" in message.text for message in result.messages)


async def test_requests_are_unchanged_without_goals() -> None:
    plain, model = (ScriptedModel(*look_calls(2), "Done.") for _ in range(2))
    await Agent(plain, tools=[look]).run("Find the crate.")
    await make_agent(model, tools=[look]).run("Find the crate.")
    assert [request.replace(ctx=plain.requests[0].ctx) for request in model.requests] == [
        request.replace(ctx=plain.requests[0].ctx) for request in plain.requests
    ]


async def test_list_is_the_same_message_until_the_goals_change() -> None:
    done = call("update_goals", goals=[{"id": "places", "status": "done"}])
    model = ScriptedModel(call("update_goals", goals=PLAN), *look_calls(2), done, *look_calls(1), "Done.")
    await make_agent(model).run("Find the crate.")
    layers = [request.tail[0] for request in model.requests[1:]]
    assert layers[0] is layers[1] is layers[2]
    assert layers[3] is layers[4]
    assert "places (done)" in layers[3].text


async def test_layer_is_omitted_when_all_goals_are_dropped() -> None:
    model = ScriptedModel(call("update_goals", goals=[{"id": "a", "title": "A", "status": "dropped"}]), "Done.")
    await make_agent(model).run("Find the crate.")
    assert list_layers(model) == [[], []]


async def test_initial_goals_are_published_once() -> None:
    model = ScriptedModel(*look_calls(2), "Done.")
    events = [event async for event in make_agent(model, *PLAN).run("Find the crate.")]
    assert [event.step for event in events if isinstance(event, GoalsUpdatedEvent)] == ["1"]
    assert list_layers(model) == [[LIST]] * 3


def test_invalid_initial_goals_are_rejected() -> None:
    with pytest.raises(ConfigurationError, match="unknown goal 'b'"):
        op.goals({"id": "a", "title": "A", "parent": "b"})


async def test_goals_are_counted_as_notes_of_the_request() -> None:
    model = ScriptedModel("Done.")
    events = await collect_run(model, op.goals(*PLAN))  # pyright: ignore[reportArgumentType]
    [parts] = [event.parts for event in events if event.kind == "llm-call"]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]
    assert parts.note > 0  # pyright: ignore[reportUnknownMemberType]
    assert parts.workspace == 0  # pyright: ignore[reportUnknownMemberType]


def script() -> ScriptedModel:
    return ScriptedModel(call("update_goals", goals=PLAN), *look_calls(1), "Done.", *["Done again."] * 3)


async def test_resumed_run_keeps_its_goals() -> None:
    log, model = MemoryEventLog(), script()
    agent = make_agent(model, log=log)
    run = agent.run("Find the crate.")
    async for event in run:
        if event.kind == "goals-updated":
            run.cancel()
    result = await agent.resume(run.task_id)
    assert result.output == "Done."
    assert list_layers(model)[-1] == [LIST]


async def test_fork_keeps_the_goals_before_its_start() -> None:
    log, model = MemoryEventLog(), script()
    agent = make_agent(model, log=log)
    result = await agent.run("Find the crate.")
    events = await log.read(result.task_id)
    updated = next(event.seq for event in events if isinstance(event, GoalsUpdatedEvent))
    before = next(event.seq for event in events if event.kind == "llm-call") - 1
    seq = next(event.seq for event in events if event.kind == "checkpoint" and event.seq > updated)
    await agent.fork(result.task_id, at=seq)
    assert list_layers(model)[-1] == [LIST]
    await agent.fork(result.task_id, at=before)
    assert list_layers(model)[-1] == []


async def test_next_run_of_a_conversation_inherits_the_goals(tmp_path: Path) -> None:
    model = script()
    for prompt in ("Find the crate.", "And now?", "And now?", "And now?"):
        # The new log has no cached conversation, and reads the stored one.
        log = SqliteEventLog(tmp_path / "log.db")
        await make_agent(model, log=log).run(prompt, context_id="c")
        await log.aclose()
    assert list_layers(model) == [[], *[[LIST]] * 5]


async def test_goals_are_folded_from_the_events_of_a_conversation() -> None:
    log, model = MemoryEventLog(), script()
    task_ids = [(await make_agent(model, log=log).run(text, context_id="c")).task_id for text in ("Find it.", "And?")]
    state = RunState()
    for task_id in task_ids:
        for event in await log.read(task_id):
            state = fold(state, event)
    assert state.goals is not None
    assert [goal.id for goal in state.goals] == ["crate", "places"]


async def test_nested_agent_has_its_own_goals() -> None:
    inner = ScriptedModel(call("update_goals", goals=[{"id": "own", "title": "Own"}]), "Found.")
    helper = make_agent(inner, name="helper", tools=[goal_tool])
    model = ScriptedModel(call("helper", prompt="Look."), "Done.")
    await make_agent(model, *PLAN, tools=[helper.as_tool(description="Helps.")]).run("Find the crate.")
    assert list_layers(inner) == [[], ["[Goals, as they are now]\n- own (pending): Own"]]
    assert list_layers(model) == [[LIST], [LIST]]


def test_goals_of_branches_belong_to_the_run() -> None:
    event = GoalsUpdatedEvent(goals=[Goal(id="a", title="A")], branch="b", step="b/1")
    state = fold_all([event])
    assert state.goals == RunState().with_run_values(state).goals == tuple(event.goals)
