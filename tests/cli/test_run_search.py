"""Option `--grep` of `rxloop runs`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from rxloop.pipeline.event_log import EventLog
from rxloop.protocol.events import Event
from rxloop.recorded.summary import search_runs
from rxloop.storage import SqliteEventLog
from support.cli_workspace import Workspace


def list_questions(workspace: Workspace, *arguments: str) -> list[str]:
    return [row["question"] for row in workspace.rows(*arguments)]


@pytest.fixture
def searched(workspace: Workspace) -> Workspace:
    """Workspace with three runs."""
    workspace.run("run", "What is 2 + 2?")
    workspace.run("run", "STRASSE in Oslo?")
    workspace.run("run", "Compare the weather in Oslo and Bergen.", "--tools", "kit:get_weather")
    return workspace


def test_questions_and_answers_are_searched_in_any_case(searched: Workspace) -> None:
    assert list_questions(searched, "--grep", "straße") == ["STRASSE in Oslo?"]
    assert list_questions(searched, "--grep", "WARMER THAN") == ["Compare the weather in Oslo and Bergen."]
    assert len(list_questions(searched, "--grep", "oslo")) == 2
    assert "no matching runs" in searched.run("runs", "--grep", "nowhere").stderr


def test_tool_results_are_not_searched(searched: Workspace) -> None:
    assert list_questions(searched, "--grep", '"unit"') == []


def test_tool_names_are_searched(searched: Workspace) -> None:
    assert list_questions(searched, "--grep", "GET_WEATHER") == ["Compare the weather in Oslo and Bergen."]


def test_search_is_combined_with_other_filters(searched: Workspace) -> None:
    context = searched.rows()[1]["contextId"]
    assert list_questions(searched, "--grep", "oslo", "--context", context) == ["STRASSE in Oslo?"]
    assert list_questions(searched, "--grep", "oslo", "--unfinished") == []
    done = searched.run("runs", "--grep", "oslo", "--limit", "1")
    assert "Compare the weather" in done.stdout
    assert done.stderr == "and more: --limit 0 lists all\n"


def test_search_ends_at_the_limit(searched: Workspace) -> None:
    read: list[str] = []

    class CountingLog(SqliteEventLog):
        async def follow(self, task_id: str, **options: Any) -> AsyncGenerator[Event]:
            read.append(task_id)
            async for event in super().follow(task_id, **options):
                yield event

    async def find_first(log: EventLog) -> str:
        matches = search_runs(log, "oslo")
        try:
            return (await anext(matches)).task_id
        finally:
            await matches.aclose()
            await log.aclose()

    first = asyncio.run(find_first(CountingLog(searched.database)))
    assert read == [first]
