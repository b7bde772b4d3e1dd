"""Continuing thinking sessions by their ids."""

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


async def collect_answers(tool: Any, *thoughts: dict[str, Any], name: str = NAME) -> list[dict[str, Any]]:
    """Send thoughts to the tool in a new conversation, and return its results."""
    model = ScriptedModel(*(call(name, **each) for each in thoughts), "Done.")
    events = [event async for event in Agent(model, tools=[tool], thoughts=False).run("Think.")]
    return [event.result for event in events if isinstance(event, ToolCompleteEvent)]


def list_lengths(results: list[dict[str, Any]]) -> list[int]:
    return [each["thoughtHistoryLength"] for each in results]


async def test_tool_with_the_id_of_a_result_continues_its_session() -> None:
    first = await collect_answers(sequential_thinking(), thought(1, 4))
    session_id = first[0]["sessionId"]
    first += await collect_answers(sequential_thinking(), thought(1, 4))
    gc.collect()
    results = await collect_answers(sequential_thinking(session_id), thought(2, 4), thought(3, 4))
    results += await collect_answers(sequential_thinking(session_id=session_id), thought(4, 4, needed=False))
    assert list_lengths(first) == [1, 1]
    assert list_lengths(results) == [2, 3, 4]
    assert {each["sessionId"] for each in results} == {session_id}
    assert not any("warnings" in each for each in results)
    session = await sequential_thinking(session_id).session()
    assert [each.thought_number for each in session.thoughts] == [1, 2, 3, 4]


async def test_tools_with_shared_sessions_continue_a_session() -> None:
    sessions = ThinkingSessions(MemoryArtifacts())
    first = await collect_answers(sequential_thinking(sessions=sessions), thought(1, 4))
    session_id = first[0]["sessionId"]
    first += await collect_answers(
        sequential_thinking(session_id, sessions=sessions), thought(2, 4), thought(3, 4), thought(4, 4)
    )
    assert list_lengths(first) == [1, 2, 3, 4]
    assert [each.session_id for each in await sessions.all_sessions()] == [session_id]
    assert len(await sessions.get_session(session_id)) == 4


async def test_model_continues_a_session_by_passing_its_id() -> None:
    # T26
    tool = sequential_thinking()
    first = await tool.call(thought(1), RunContext())
    results = await tool.call(thought(2, sessionId=first.value["sessionId"]), RunContext())
    assert results.value["thoughtHistoryLength"] == 2


async def test_cleared_session_is_continued_by_its_new_id() -> None:
    tool = sequential_thinking()
    first = await collect_answers(tool, thought(1), thought(1, clearSession=True))
    assert first[1]["sessionId"] != first[0]["sessionId"]
    results = await collect_answers(sequential_thinking(first[1]["sessionId"]), thought(2))
    assert list_lengths(results) == [2]


async def test_strategic_thinking_is_continued_by_its_id() -> None:
    first = await collect_answers(strategic_thinking("linear"), thought(1, 9), name="strategic_thinking")
    tool = strategic_thinking("linear", session_id=first[0]["sessionId"])
    results = await collect_answers(tool, thought(2, 9), name="strategic_thinking")
    assert list_lengths(results) == [2]
    assert results[0]["stage"] != first[0]["stage"]


async def test_unknown_id_is_reported_as_a_new_session() -> None:
    results = await collect_answers(sequential_thinking(new_id()), thought(3))
    assert [each["code"] for each in results[0]["warnings"]] == ["session_new"]


async def test_session_name_is_private_to_a_tool_without_shared_sessions() -> None:
    assert list_lengths(await collect_answers(sequential_thinking("planner"), thought(1))) == [1]
    assert list_lengths(await collect_answers(sequential_thinking("planner"), thought(1))) == [1]
    sessions = ThinkingSessions(MemoryArtifacts())
    for count in (1, 2):
        assert list_lengths(
            await collect_answers(sequential_thinking("planner", sessions=sessions), thought(count))
        ) == [count]


@pytest.mark.parametrize("name", ["a\nb", "x" * 201])
def test_invalid_session_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="session_id="):
        sequential_thinking(name)
