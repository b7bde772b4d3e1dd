"""Client tools and nested runs over the HTTP API."""

from __future__ import annotations

from typing import Any

from rxloop import Agent, ToolCompleteEvent
from rxloop.client import Client
from rxloop.testing import ScriptedModel, call
from support.api_server import serve_api


async def test_client_tool_pauses_the_run() -> None:
    show_map = {"name": "show_map", "description": "Show a city.", "parameters": {"type": "object", "properties": {}}}
    agent = Agent(ScriptedModel(call("show_map"), "There it is."), thoughts=False, name="clerk")
    async with serve_api(agent) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Where is Oslo?", tools=[show_map], wait=10)
        [question] = run.pending
        assert question.input_kind == "tool"
        assert question.call is not None
        assert question.call.name == "show_map"
        finished = await client.answer(run.task_id, {question.input_id: {"shown": True}}, wait=10)
        results = [each async for each in client.follow(run.task_id) if isinstance(each, ToolCompleteEvent)]
    assert finished.content == "There it is."
    assert [each.result for each in results] == [{"shown": True}]


async def test_events_of_nested_runs_are_optional() -> None:
    child: Agent[Any, Any] = Agent(ScriptedModel("It is 7 C."), thoughts=False, name="weather")
    tool = child.as_tool("ask_weather", description="Knows the weather.")
    parent = Agent(
        ScriptedModel(call("ask_weather", prompt="Oslo?"), "7 C."), tools=[tool], thoughts=False, name="clerk"
    )
    async with serve_api(parent) as served, Client(served.url, token="ann-key") as client:
        run = await client.start("clerk", "Weather?", wait=10)
        all_events = [each async for each in client.follow(run.task_id)]
        top_level = [each async for each in client.follow(run.task_id, nested=False)]
        assert top_level == [each for each in all_events if each.parent_task_id is None]
        nested = [each for each in all_events if each.parent_task_id is not None]
        assert {each.agent_path for each in nested} == {("weather",)}
        # A reader can resume after any event, including events of the nested run.
        for position, event in enumerate(all_events[:-1], start=1):
            remaining = [each async for each in client.follow(run.task_id, after=event.cursor)]
            assert [*all_events[:position], *remaining] == all_events
    assert run.content == "7 C."
