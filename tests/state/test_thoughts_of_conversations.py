"""A thought may refer to one of an earlier turn of its conversation."""

from __future__ import annotations

from typing import Any

import pytest

from rxloop import Agent, MemoryEventLog, SqliteEventLog, TaskEvent, ThoughtGraph, ThoughtStreamEvent
from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.events import ContentCompleteEvent, Event
from rxloop.protocol.messages import Message, ToolCall
from rxloop.state.fold import fold_all
from rxloop.state.run_state import RunState
from rxloop.testing import ScriptedModel, call


def say(text: str, **fields: Any) -> Any:
    return call("think_aloud", thought=text, thought_type="planning", **fields)


async def conversation(log: EventLog, *turns: list[Any]) -> list[ScriptedModel]:
    models = [ScriptedModel(each, "Done.") for each in turns]
    for model in models:
        await Agent(model, log=log).run("Go on.", context_id="c")
    return models


def answers(model: ScriptedModel) -> list[str]:
    return [message.text for message in model.requests[-1].messages if message.role == "tool"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_thought_of_an_earlier_turn_is_known_and_its_id_taken(kind: str, tmp_path: Any) -> None:  # L21, L22
    log: Any = MemoryEventLog() if kind == "memory" else SqliteEventLog(tmp_path / "log.db")
    later = [say("As planned.", related_to="plan"), say("Anew.", thought_id="plan"), say("No id.")]
    _, _, last = await conversation(log, [say("First this.", thought_id="plan")], [], later)
    said = answers(last)[1:]
    assert not any("warning" in each for each in said)
    assert "plan-2" in said[1]
    runs = await log.list_runs(context_id="c")
    events: list[Event] = [event for run in runs for event in await log.read(run.task_id)]
    graph = ThoughtGraph.of(events)
    assert [(edge.source, edge.target) for edge in graph.edges] == [("plan", graph[1].thought_id)]
    assert [each.thought_id for each in graph][2] == "plan-2"
    await log.aclose()


async def test_the_warning_names_ids_of_earlier_turns(tmp_path: Any) -> None:  # L21
    log = MemoryEventLog()
    _, last = await conversation(log, [say("First.", thought_id="check-units")], [say("So.", related_to="check-unit")])
    assert "the nearest ids are check-units" in answers(last)[-1]


async def test_an_id_that_is_no_id_costs_no_more_than_a_short_one() -> None:
    (model,) = await conversation(MemoryEventLog(), [say("So.", related_to="x" * 50_000)])
    (said,) = answers(model)
    assert len(said) < 500


def test_of_a_very_long_conversation_the_newest_ids_are_kept() -> None:
    state = RunState()
    for run in range(3_000):
        ids: Any = {"task_id": f"r{run}", "context_id": "c"}
        task = TaskEvent(model="m", agent_name="a", messages=[Message(role="user", content="?")], seq=1, **ids)
        made = ContentCompleteEvent(tool_calls=[ToolCall(id=f"c{run}", name="look")], step="1", seq=2, **ids)
        state = fold_all([task, made, ThoughtStreamEvent(thought_id=f"t{run}", content="So.", seq=3, **ids)], state)
        assert len(state.earlier) <= 2_000
    assert {"t2998", "c2998", "t2600"} <= set(state.earlier)
    assert "t10" not in state.earlier
