"""Run states after each event, with and without internal data."""

from __future__ import annotations

import pytest

from rxloop import Agent, MemoryEventLog, tool
from rxloop.client import Client
from rxloop.errors import ApiError
from rxloop.protocol.visibility import select_public_messages
from rxloop.recorded.replay import history
from rxloop.state.fold import fold_all
from rxloop.testing import ScriptedModel, call
from rxloop.tools import goal_tool
from support.api_server import serve_api


@tool(approve=True)
async def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


@tool(hidden=True)
async def peek() -> str:
    """Look secretly."""
    return "seen in secret"


async def test_state_after_each_event_folds_the_visible_events() -> None:
    log = MemoryEventLog()
    script = ([call("peek"), call("pay", amount=5)], "It is paid.")
    agent = Agent(ScriptedModel(*script), tools=[pay, peek], instructions="Be brief.", thoughts=False, name="clerk")
    async with serve_api(agent, log=log) as served:
        async with Client(served.url, token="ann-key") as ann, Client(served.url, token="root-key") as root:
            run = await ann.start(None, "Pay 5", context_id="talk", wait=10)
            waiting = await ann.state(run.task_id)
            await ann.answer(run.task_id, {run.pending[0].input_id: True}, wait=10)
            events = await log.read(run.task_id)
            for seq in range(1, len(events) + 1):
                full_state = fold_all(events[:seq])
                public_state, internal_state = (
                    await ann.state(run.task_id, seq),
                    await root.state(run.task_id, seq, internal=True),
                )
                assert public_state.messages == list(select_public_messages(full_state.messages))
                assert internal_state.messages == list(full_state.messages)
                assert public_state.state == full_state.state
                assert public_state.iteration == full_state.iteration
                assert public_state.seq == seq
                assert [each.name for each in public_state.calls] == [
                    each.name for each in internal_state.calls if not each.hidden
                ]
                assert "peek" not in public_state.model_dump_json()
            last = await ann.state(run.task_id)
            assert last.messages == await history(log, "talk", public=True)
            with pytest.raises(ApiError) as unknown_event:
                await ann.state(run.task_id, len(events) + 1)
            with pytest.raises(ApiError) as forbidden:
                await ann.state(run.task_id, internal=True)
    assert [each.name for each in waiting.calls] == ["pay"]
    assert [each.input_id for each in waiting.pending] == [run.pending[0].input_id]
    assert last.state == "completed"
    assert last.content == "It is paid."
    assert last.calls == []
    assert unknown_event.value.status == 422
    assert list(unknown_event.value.fields) == ["seq"]
    assert forbidden.value.status == 403


async def test_state_contains_the_goals_of_earlier_runs_until_they_change() -> None:
    changes = [{"id": "trip", "title": "Plan the trip"}], [{"id": "trip", "status": "done"}]
    script = (call("update_goals", goals=changes[0]), "Planned.", call("update_goals", goals=changes[1]), "Done.")
    agent = Agent(ScriptedModel(*script), tools=[goal_tool], name="clerk")
    async with serve_api(agent) as served, Client(served.url, token="ann-key") as ann:
        first = await ann.start(None, "Plan", context_id="talk", wait=10)
        second = await ann.start(None, "Finish", context_id="talk", wait=10)
        other = await ann.start(None, "Hi", context_id="other")
        changed = [event.seq for event in await ann.events(second.task_id) if event.kind == "goals-updated"]
        states = [await ann.state(second.task_id, seq) for seq in (1, changed[0] - 1, changed[0])]
        assert [[(goal.title, goal.status) for goal in state.goals] for state in states] == [
            [("Plan the trip", "pending")],
            [("Plan the trip", "pending")],
            [("Plan the trip", "done")],
        ]
        assert (await ann.state(first.task_id, 1)).goals == []
        assert (await ann.state(other.task_id, 1)).goals == []
