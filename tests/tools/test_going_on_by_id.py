"""The id of a tool's result, and a tool that is made with it: the thoughts go on, whichever object has them."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from rxloop import Agent, RunContext, ToolCompleteEvent, sequential_thinking, strategic_thinking
from rxloop.errors import ConfigurationError
from rxloop.storage import MemoryArtifacts
from rxloop.testing import ScriptedModel, call
from rxloop.thinking import ThinkingSessions
from rxloop.thinking.sessions.session_artifacts import new_id
from support.sequential_thoughts import thought

NAME = "sequentialthinking"


async def answers(tool: Any, *thoughts: dict[str, Any], name: str = NAME) -> list[dict[str, Any]]:
    """What the tool answers to these thoughts of a model, in a conversation of its own."""
    model = ScriptedModel(*(call(name, **each) for each in thoughts), "Done.")
    events = [event async for event in Agent(model, tools=[tool], thoughts=False).run("Think.")]
    return [event.result for event in events if isinstance(event, ToolCompleteEvent)]


def lengths(told: list[dict[str, Any]]) -> list[int]:
    return [each["thoughtHistoryLength"] for each in told]


async def test_a_tool_made_with_the_id_of_a_result_goes_on_with_its_session() -> None:
    first = await answers(sequential_thinking(), thought(1, 4))
    session_id = first[0]["sessionId"]
    first += await answers(sequential_thinking(), thought(1, 4))
    gc.collect()
    told = await answers(sequential_thinking(session_id), thought(2, 4), thought(3, 4))
    told += await answers(sequential_thinking(session_id=session_id), thought(4, 4, needed=False))
    assert (lengths(first), lengths(told)) == ([1, 1], [2, 3, 4])
    assert {each["sessionId"] for each in told} == {session_id}
    assert not any("warnings" in each for each in told)
    session = await sequential_thinking(session_id).session()
    assert [each.thought_number for each in session.thoughts] == [1, 2, 3, 4]


async def test_so_it_does_where_the_tools_share_their_sessions() -> None:
    sessions = ThinkingSessions(MemoryArtifacts())
    begun = await answers(sequential_thinking(sessions=sessions), thought(1, 4))
    session_id = begun[0]["sessionId"]
    begun += await answers(
        sequential_thinking(session_id, sessions=sessions), thought(2, 4), thought(3, 4), thought(4, 4)
    )
    assert lengths(begun) == [1, 2, 3, 4]
    assert [each.session_id for each in await sessions.all_sessions()] == [session_id]
    assert len(await sessions.get_session(session_id)) == 4


async def test_so_it_does_within_a_run_by_the_word_of_the_model() -> None:
    # T26
    tool = sequential_thinking()
    first = await tool.call(thought(1), RunContext())
    told = await tool.call(thought(2, sessionId=first.value["sessionId"]), RunContext())
    assert told.value["thoughtHistoryLength"] == 2


async def test_a_session_that_was_cleared_goes_on_by_its_id() -> None:
    tool = sequential_thinking()
    begun = await answers(tool, thought(1), thought(1, clearSession=True))
    assert begun[1]["sessionId"] != begun[0]["sessionId"]
    told = await answers(sequential_thinking(begun[1]["sessionId"]), thought(2))
    assert lengths(told) == [2]


async def test_the_flow_of_a_strategy_goes_on_by_its_id() -> None:
    begun = await answers(strategic_thinking("linear"), thought(1, 9), name="strategic_thinking")
    tool = strategic_thinking("linear", session_id=begun[0]["sessionId"])
    told = await answers(tool, thought(2, 9), name="strategic_thinking")
    assert lengths(told) == [2]
    assert told[0]["stage"] != begun[0]["stage"]


async def test_an_id_that_leads_nowhere_any_more_says_so() -> None:
    told = await answers(sequential_thinking(new_id()), thought(3))
    assert [each["code"] for each in told[0]["warnings"]] == ["session_new"]


async def test_a_name_is_the_tools_own_unless_it_shares_its_sessions() -> None:
    assert lengths(await answers(sequential_thinking("planner"), thought(1))) == [1]
    assert lengths(await answers(sequential_thinking("planner"), thought(1))) == [1]
    sessions = ThinkingSessions(MemoryArtifacts())
    for count in (1, 2):
        assert lengths(await answers(sequential_thinking("planner", sessions=sessions), thought(count))) == [count]


@pytest.mark.parametrize("name", ["a\nb", "x" * 201])
def test_a_name_is_short_and_without_control_characters(name: str) -> None:
    with pytest.raises(ConfigurationError, match="session_id="):
        sequential_thinking(name)
