"""Terminal output for nested agents."""

from __future__ import annotations

import asyncio

from rxloop import SqliteEventLog
from rxloop.cli.options import ThoughtLevel
from rxloop.cli.render import describe
from rxloop.testing import call
from support.cli_workspace import Workspace
from support.nested_agents import editor, researcher, search, turn_with_usage
from support.runs import collect


async def test_lines_of_nested_agents_start_with_the_agent_path() -> None:
    inner = researcher(name="inner")
    turns = [[call("inner", prompt="deeper")], turn_with_usage("M.")]
    middle = researcher(*turns, name="middle", tools=[inner.as_tool(), search])
    events = await collect(editor(middle.as_tool("research")).run("q"))
    lines = [line.plain for event in events if (line := describe(event, ThoughtLevel.all)) is not None]
    assert [line.partition("  ")[0] for line in lines] == [
        '→ research(prompt="Oslo?")',
        "~ middle started",
        'middle → inner(prompt="deeper")',
        "middle ~ inner started",
        'middle > inner → search(question="Oslo")',
        "middle > inner ← search Oslo: found",
        "middle ~ inner completed",
        "middle ← inner A capital.",
        "~ middle completed",
        "← research M.",
    ]


def test_run_with_nested_agents_can_be_imported(workspace: Workspace) -> None:
    async def write() -> None:
        inner = researcher(name="inner")
        turns = [[call("inner", prompt="deeper")], turn_with_usage("M.")]
        middle = researcher(*turns, name="middle", tools=[inner.as_tool(), search])
        log = SqliteEventLog(workspace.database)
        await editor(middle.as_tool("research"), log=log).run("q")
        await log.aclose()

    asyncio.run(write())
    lines = workspace.run("export", "last", "--full").stdout
    workspace.run("import", "-", "--trusted", "--db", "other.db", stdin=lines)
    assert workspace.run("export", "last", "--full", "--db", "other.db").stdout == lines
