"""Edited tool arguments in the output of all adapters."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from rxloop import Agent, RunContext, Signal, ToolRequest, client_tool, op, tool
from rxloop.testing import ScriptedModel, call
from support import api_server
from support.clients import agui, ai_sdk, openai
from support.clients.agui_posts import post
from support.clients.mcp import ERAS, serve_mcp

NEW_PATH = "/srv/a.txt"


@op.on(ToolRequest)
async def move_to_home(request: ToolRequest, ctx: RunContext[Any]) -> AsyncIterator[Signal]:
    yield request.replace(path=NEW_PATH)


@tool
async def read_file(path: str) -> str:
    """Read a file."""
    return "text"


@tool(name="read_file", approve=True)
async def read_approved(path: str) -> str:
    """Read a file."""
    return "text"


read_by_client = client_tool("read_file", {"type": "object", "properties": {"path": {"type": "string"}}})


def make_clerk(read: Any = read_file) -> Agent[Any, Any]:
    model = ScriptedModel(call("read_file", path="a.txt"), "Done.")
    return Agent(model, tools=[read], thoughts=False, name="clerk", loop=op.standard(before_tools=[move_to_home]))


async def request_page(agent: Agent[Any, Any]) -> list[dict[str, Any]]:
    body = {"id": "c", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "Read"}]}]}
    async with ai_sdk.serve_pages(agent) as served:
        headers = {"authorization": "Bearer ann-key"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=30) as client:
            answer = await client.post("/api/chat", json={**body, "trigger": "submit-message"})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: {")]
    return [json.loads(line) for line in lines]


async def test_ui_stream_shows_written_and_executed_arguments() -> None:  # P20
    chunks = await request_page(make_clerk())

    inputs = [chunk["input"] for chunk in chunks if chunk["type"] == "tool-input-available"]
    assert inputs == [{"path": "a.txt"}, {"path": NEW_PATH}]


@pytest.mark.parametrize("read", [read_approved, read_by_client])
async def test_ui_stream_asks_about_the_executed_arguments(read: Any) -> None:  # P20
    chunks = await request_page(make_clerk(read))

    inputs = [chunk["input"] for chunk in chunks if chunk["type"] == "tool-input-available"]
    assert inputs[-1] == {"path": NEW_PATH}
    kinds = [chunk["type"] for chunk in chunks]
    if "tool-approval-request" in kinds:
        assert kinds.index("tool-approval-request") > max(
            index for index, kind in enumerate(kinds) if kind == "tool-input-available"
        )


async def test_agui_shows_written_and_executed_arguments() -> None:  # P20
    async with agui.serve_agui(make_clerk()) as served:
        _, events = await post(served.url, make_agui_body())

    assert "".join(event["delta"] for event in events if event["type"] == "TOOL_CALL_ARGS") == '{"path":"a.txt"}'
    [revised] = [event for event in events if event["type"] == "CUSTOM"]
    assert revised["name"] == "rxloop.tool-call-revised"
    assert revised["value"]["arguments"] == {"path": NEW_PATH}
    [result] = [event for event in events if event["type"] == "TOOL_CALL_RESULT"]
    assert NEW_PATH in result["content"]
    assert result["toolCallId"] == revised["value"]["toolCallId"]


async def test_agui_client_gets_its_tool_call_with_the_executed_arguments() -> None:  # P20
    async with agui.serve_agui(make_clerk(read_by_client)) as served:
        _, events = await post(served.url, make_agui_body())

    snapshot = [event for event in events if event["type"] == "MESSAGES_SNAPSHOT"][-1]
    [tool_call] = [each for message in snapshot["messages"] for each in message.get("toolCalls", ())]
    assert json.loads(tool_call["function"]["arguments"]) == {"path": NEW_PATH}


def make_agui_body() -> dict[str, Any]:
    return {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "m", "role": "user", "content": "Go."}],
        "state": {},
        "tools": [],
        "context": [],
        "forwardedProps": {},
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_openai_responses_show_the_executed_arguments(stream: bool) -> None:  # P20
    async with openai.serve_openai(make_clerk()) as served, served.client() as client:
        answer: Any = await client.responses.create(model="clerk", input="Read", stream=stream)
        if stream:
            answer = [event async for event in answer][-1].response

    [item] = [each for each in answer.output if each.type == "mcp_call"]
    assert json.loads(item.arguments) == {"path": NEW_PATH}
    assert NEW_PATH in item.output


async def test_openai_responses_ask_about_the_executed_arguments() -> None:  # P20
    async with openai.serve_openai(make_clerk(read_approved)) as served, served.client() as client:
        answer: Any = await client.responses.create(model="clerk", input="Read")

    [item] = [each for each in answer.output if each.type == "mcp_approval_request"]
    assert json.loads(item.arguments) == {"path": NEW_PATH}


async def test_http_api_shows_the_executed_arguments_in_events_and_messages() -> None:  # P20
    async with api_server.serve_api(make_clerk()) as served:
        headers = {"authorization": "Bearer ann-key"}
        async with httpx.AsyncClient(base_url=served.url, headers=headers, timeout=20) as client:
            run = (await client.post("/runs?wait=10", json={"input": "Read"})).json()
            events = (await client.get(f"/runs/{run['taskId']}/events")).text
            messages = (await client.get(f"/contexts/{run['contextId']}/messages")).text

    started = next(line for line in events.splitlines() if '"tool-start"' in line and line.startswith("data:"))
    assert json.loads(started.removeprefix("data:"))["call"]["arguments"] == {"path": NEW_PATH}
    assert "a.txt" in messages
    assert NEW_PATH in messages


@pytest.mark.parametrize("mode", ERAS)
async def test_mcp_progress_shows_the_executed_arguments(mode: str) -> None:  # P20
    steps: list[str | None] = []

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        steps.append(message)

    async with serve_mcp(make_clerk()) as served, served.client(mode) as client:
        await client.call_tool("clerk", {"prompt": "Read"}, progress_callback=on_progress)

    assert any(NEW_PATH in (step or "") for step in steps)
