"""Compatibility with MCP servers of other projects."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from rxloop import Agent
from rxloop.protocol.events import InputRequiredEvent, ToolProgressEvent
from rxloop.testing import ScriptedModel, call
from rxloop.tools.mcp import MCPServer, mcp
from support.mcp_servers.runs import child_processes, collect_events, results
from support.processes.services import mcp_program

pytestmark = pytest.mark.service("mcp-servers")


def make_server(name: str, *args: str, **options: Any) -> MCPServer:
    return mcp(str(mcp_program(name)), *args, **options)


async def test_content_of_all_kinds_is_read() -> None:
    calls = [
        call("everything__echo", message="hi"),
        call("everything__get-sum", a=2, b=3),
        call("everything__get-tiny-image"),
        call("everything__get-structured-content", location="New York"),
        call("everything__get-resource-links", count=2),
        call("everything__get-resource-reference", resourceType="Text", resourceId=1),
        call("everything__get-sum", a="two"),
        call("everything__get-env"),
    ]
    server = make_server("mcp-server-everything", env={"SHOP_TOKEN": "planted-0451"})
    events = await collect_events(calls, server)
    echo, total, image, structured, links, resource, wrong, env = results(events)
    assert echo.content == "Echo: hi" == echo.result
    assert "5" in total.content
    assert "[image/png, " in image.content
    assert [each["type"] for each in image.result] == ["text", "image", "text"]
    assert structured.result["conditions"] == "Cloudy"
    assert "demo://resource/" in links.content
    assert "[demo://resource/dynamic/text/1]\n" in resource.content
    assert not wrong.success
    assert "expected number" in wrong.content
    assert '"SHOP_TOKEN": "[redacted]"' in env.content
    assert all(b"planted-0451" not in event.to_json() for event in events)
    assert "planted-0451" not in repr(server)


async def test_progress_and_forms_of_the_older_protocol_work() -> None:
    calls = [call("everything__trigger-long-running-operation", duration=0.2, steps=4)]
    server = make_server("mcp-server-everything")
    events = await collect_events(calls, server)
    fractions = [event.fraction or 0 for event in events if isinstance(event, ToolProgressEvent)]
    assert fractions == sorted(fractions)
    assert fractions[0] == 0.25
    calls_with_form = [call("everything__trigger-elicitation-request")]
    events = await collect_events(calls_with_form, server, on_input=lambda question: {"name": "Ann", "check": True})
    assert "Ann" in results(events)[0].content
    assert [event.input.call is not None for event in events if isinstance(event, InputRequiredEvent)] == [True]
    declined = await collect_events(calls_with_form, server)
    assert '"action": "decline"' in results(declined)[0].content


async def test_sampling_over_the_older_protocol_works() -> None:
    model = ScriptedModel(call("everything__trigger-sampling-request", prompt="Hi"), "Lent.", "done")
    async with Agent(model, tools=[make_server("mcp-server-everything", sampling=True)], thoughts=False) as agent:
        run = agent.run("Go.")
        [sampled] = results([event async for event in run.events])
    assert "Lent." in sampled.content


async def test_rapid_list_changes_cause_few_listings() -> None:
    async with Agent(ScriptedModel(), tools=[make_server("mcp-server-everything")]) as agent:
        for turns in range(3):
            calls = [call("everything__echo", message=str(turns))]
            run = agent.run("Go.", model=ScriptedModel(calls, "done"))
            assert results([event async for event in run.events])[0].success


async def test_file_memory_and_thinking_servers_work(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Hello.")
    servers = [
        make_server("mcp-server-filesystem", str(tmp_path), hide=["move_file"], approve="destructive"),
        make_server("mcp-server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}),
        make_server("mcp-server-sequential-thinking", prefix="think_"),
    ]
    thought: dict[str, Any] = {"thought": "So.", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    calls = [
        call("filesystem__read_text_file", path=str(tmp_path / "a.txt")),
        call("filesystem__move_file", source="a", destination="b"),
        call("filesystem__write_file", path=str(tmp_path / "b.txt"), content="x"),
        call("memory__create_entities", entities=[{"name": "Ann", "entityType": "person", "observations": []}]),
        call("memory__read_graph"),
        call("think_sequentialthinking", **thought),
    ]
    model = ScriptedModel(calls, "done")
    async with Agent(model, tools=servers, thoughts=False) as agent:
        run = agent.run("Go.", on_input=lambda question: True)
        events = [event async for event in run.events]
    read, hidden, written, created, graph, thinking = results(events)
    assert read.content == "Hello."
    assert "There is no tool 'filesystem__move_file'" in hidden.content
    assert written.success
    assert created.success
    assert graph.success
    assert thinking.success
    call_events = [event.input.call for event in events if isinstance(event, InputRequiredEvent)]
    assert [each and each.name for each in call_events] == ["filesystem__write_file"], "reading needs no approval"


async def test_python_servers_work(tmp_path: Path) -> None:
    git = await asyncio.create_subprocess_exec("git", "init", "-q", str(tmp_path))
    await git.wait()
    calls = [
        call("time__get_current_time", timezone="Europe/Oslo"),
        call("git__git_status", repo_path=str(tmp_path)),
        call("fetch__fetch", url="http://127.0.0.1:9/"),
    ]
    names = ["mcp-server-time", "mcp-server-git", "mcp-server-fetch"]
    time, status, fetched = results(await collect_events(calls, *map(make_server, names)))
    assert "Europe/Oslo" in time.content
    assert status.success
    assert not fetched.success


async def test_server_killed_during_a_call_is_restarted() -> None:
    before = child_processes()
    model = ScriptedModel(
        call("everything__trigger-long-running-operation", duration=60, steps=60),
        call("everything__echo", message="again"),
        "done",
    )
    async with Agent(model, tools=[make_server("mcp-server-everything")], thoughts=False) as agent:
        run = agent.run("Go.")
        events: list[Any] = []
        async for event in run.events:
            events.append(event)
            if isinstance(event, ToolProgressEvent):
                for server in child_processes() - before:
                    os.kill(server, signal.SIGKILL)
    killed, again = results(events)
    assert not killed.success
    assert "broke" in killed.content, "also when it was called again, since it only reads"
    assert again.content == "Echo: again"
    assert child_processes() == before
