"""References of thoughts to earlier turns of their conversation."""

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


def think(text: str, **fields: Any) -> Any:
    return call("think_aloud", thought=text, thought_type="planning", **fields)


async def run_turns(log: EventLog, *turns: list[Any]) -> list[ScriptedModel]:
    models = [ScriptedModel(each, "Done.") for each in turns]
    for model in models:
        await Agent(model, log=log).run("Go on.", context_id="c")
    return models


def list_tool_answers(model: ScriptedModel) -> list[str]:
    return [message.text for message in model.requests[-1].messages if message.role == "tool"]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_thought_of_an_earlier_turn_can_be_referenced_and_its_id_is_taken(
    kind: str, tmp_path: Any
) -> None:  # L21, L22
    log: Any = MemoryEventLog() if kind == "memory" else SqliteEventLog(tmp_path / "log.db")
    later = [think("As planned.", related_to="plan"), think("Anew.", thought_id="plan"), think("No id.")]
    _, _, last = await run_turns(log, [think("First this.", thought_id="plan")], [], later)
    replies = list_tool_answers(last)[1:]
    assert not any("warning" in each for each in replies)
    assert "plan-2" in replies[1]
    runs = await log.list_runs(context_id="c")
    events: list[Event] = [event for run in runs for event in await log.read(run.task_id)]
    graph = ThoughtGraph.of(events)
    assert [(edge.source, edge.target) for edge in graph.edges] == [("plan", graph[1].thought_id)]
    assert [each.thought_id for each in graph][2] == "plan-2"
    await log.aclose()


async def test_warning_suggests_ids_of_earlier_turns(tmp_path: Any) -> None:  # L21
    log = MemoryEventLog()
    _, last = await run_turns(log, [think("First.", thought_id="check-units")], [think("So.", related_to="check-unit")])
    assert "the nearest ids are check-units" in list_tool_answers(last)[-1]


async def test_long_invalid_id_is_shortened_in_the_warning() -> None:
    (model,) = await run_turns(MemoryEventLog(), [think("So.", related_to="x" * 50_000)])
    (reply,) = list_tool_answers(model)
    assert len(reply) < 500


def test_only_the_newest_ids_of_a_very_long_conversation_are_kept() -> None:
    state = RunState()
    for run in range(3_000):
        ids: Any = {"task_id": f"r{run}", "context_id": "c"}
        task = TaskEvent(model="m", agent_name="a", messages=[Message(role="user", content="?")], seq=1, **ids)
        content = ContentCompleteEvent(tool_calls=[ToolCall(id=f"c{run}", name="look")], step="1", seq=2, **ids)
        state = fold_all([task, content, ThoughtStreamEvent(thought_id=f"t{run}", content="So.", seq=3, **ids)], state)
        assert len(state.earlier) <= 2_000
    assert {"t2998", "c2998", "t2600"} <= set(state.earlier)
    assert "t10" not in state.earlier
