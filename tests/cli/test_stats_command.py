"""Command `stats`."""

from __future__ import annotations

import json
from collections.abc import Sequence

from typing_extensions import Unpack

from rxloop import Agent, MemoryEventLog
from rxloop.cli.commands.stats import load_stats
from rxloop.pipeline.records import RunQuery, RunRecord
from rxloop.testing import ScriptedModel
from support.cli_workspace import Workspace


def test_stats_show_tools_and_states_of_an_agent(workspace: Workspace) -> None:
    workspace.run("run", "Weather in Oslo?", "--tools", "kit:get_weather")
    workspace.run("run", "Weather in Rome?", "--tools", "kit:get_weather")
    workspace.run("run", "Please pay.", "--tools", "kit:pay", code=3)
    lines = workspace.run("stats").stdout.splitlines()
    assert lines[0].split() == ["AGENT", "RUNS", "TOKENS", "COST", "STATES"]
    assert lines[1].split()[1] == "3"
    assert "2 completed" in lines[1]
    assert "1 input-required" in lines[1]
    names = ["TOOL", "CALLS", "FAILED", "CORRECTED", "REPEATED", "MEDIAN", "P95", "PREDICTED", "FAILURES"]
    assert lines[2].split() == names
    assert lines[3].split()[:5] == ["get_weather", "2", "1", "0", "0"]
    assert lines[3].endswith("0 of 0     1 error")


def test_stats_are_written_as_json(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    [line] = workspace.run("stats", "--json").stdout.splitlines()
    stats = json.loads(line)
    assert (stats["runs"], stats["states"], stats["sequences"]) == (1, {"completed": 1}, [])
    assert stats["dollars"] is None
    assert {"agent", "tokens", "tools"} <= stats.keys()


def test_stats_can_be_limited_to_an_agent(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    [line] = workspace.run("stats", "--json").stdout.splitlines()
    assert workspace.run("stats", "--json", "--agent", json.loads(line)["agent"]).stdout.splitlines() == [line]
    missing = workspace.run("stats", "--agent", "nobody")
    assert (missing.stdout, missing.stderr.strip()) == ("", "no runs of the agent 'nobody'")


async def test_stats_omit_runs_that_are_deleted_in_the_meantime() -> None:
    class Log(MemoryEventLog):
        async def list_runs(self, **query: Unpack[RunQuery]) -> Sequence[RunRecord]:
            records = await super().list_runs(**query)
            await self.delete(records[0].task_id)
            return records

    log = Log()
    for _ in range(2):
        await Agent(ScriptedModel("Hello."), log=log, name="guide").run("Hi")
    [agent] = await load_stats(log, None)
    assert agent["runs"] == 1
