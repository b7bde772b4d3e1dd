"""Command `runs` and run lookup by id."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rxloop import Agent, ConfigurationError, MemoryEventLog, Runtime, SqliteEventLog, StatusUpdateEvent, TaskEvent
from rxloop.cli.commands.inspect import format_age
from rxloop.cli.database import find_context, find_run, open_database, read_first_event, shorten_ids
from rxloop.errors import EventLogError, UnknownRun
from rxloop.testing import ScriptedModel
from support.cli_workspace import Workspace
from support.queues import MemoryQueue


def make_events(task_id: str, context_id: str = "c", created: int = 0) -> TaskEvent:
    return TaskEvent(
        task_id=task_id,
        context_id=context_id,
        seq=1,
        attempt=1,
        timestamp=created,
        messages=[],
        model="m",
        agent_name="a",
    )


async def make_log(*task_ids: str) -> MemoryEventLog:
    log = MemoryEventLog()
    for number, task_id in enumerate(task_ids):
        await log.append(task_id, [make_events(task_id, f"context-{task_id}", number)], expected_seq=0)
    return log


def test_runs_are_listed_with_their_questions_newest_first(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    workspace.run("run", "Please pay.", "--tools", "kit:pay", code=3)
    head, first, second = workspace.run("runs").stdout.splitlines()
    assert head.split() == ["RUN", "STARTED", "STATE", "AGENT", "MODEL", "QUESTION"]
    assert "input-required" in first
    assert first.endswith("  Please pay.")
    assert "just now" in second
    assert second.endswith("  2 + 2")


def test_runs_are_listed_with_the_program_version_that_started_them(workspace: Workspace) -> None:
    async def start(version: str | None) -> None:
        log = SqliteEventLog(workspace.database)
        async with Runtime({"a": Agent(ScriptedModel("x"))}, log=log, queue=MemoryQueue(), version=version) as runtime:
            await runtime.start("a", "2 + 2")

    asyncio.run(start(None))
    asyncio.run(start("7"))
    _, newest, oldest = workspace.run("runs").stdout.splitlines()
    assert "  a (7)  " in newest
    assert "(" not in oldest
    assert [row["version"] for row in workspace.rows()] == ["7", None]


def test_listed_short_id_selects_the_run(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    workspace.run("run", "3 + 3")
    for line, question in zip(workspace.run("runs").stdout.splitlines()[1:], ("3 + 3", "2 + 2"), strict=True):
        assert f"> {question}" in workspace.run("show", line.split()[0]).stdout


def test_runs_can_be_filtered_by_conversation_and_state(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2")
    workspace.run("run", "Please pay.", "--tools", "kit:pay", code=3)
    [waiting] = workspace.rows("--unfinished")
    assert waiting["state"] == "input-required"
    context = workspace.rows()[-1]["contextId"]
    assert [row["question"] for row in workspace.rows("--context", context[-7:])] == ["2 + 2"]
    assert "no run" not in workspace.run("runs", "--context", "zzz", code=1).stdout


def test_long_list_is_truncated_with_a_note(workspace: Workspace) -> None:
    for _ in range(3):
        workspace.run("run", "2 + 2")
    done = workspace.run("runs", "--limit", "2")
    assert (len(done.stdout.splitlines()), done.stderr) == (3, "and 1 more: --limit 0 lists all\n")
    assert len(workspace.rows("--limit", "0")) == 3


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs",),
        ("show", "last"),
        ("replay", "last"),
        ("resume", "last"),
        ("fork", "last", "--at", "1"),
        ("diff", "a", "b"),
        ("graph", "last"),
        ("export", "last"),
        ("chat", "--context", "x"),
    ],
)
def test_reading_commands_report_a_missing_database_without_creating_it(
    workspace: Workspace, arguments: tuple[str, ...]
) -> None:
    done = workspace.run(*arguments, code=1)
    assert f"no database at {workspace.database}" in done.stderr
    assert done.stdout == ""
    assert not workspace.database.exists()


def test_database_option_overrides_the_environment(workspace: Workspace) -> None:
    other = workspace.folder / "deep/er/other.db"
    done = workspace.run("run", "2 + 2", "--db", str(other))
    assert f"--db {other}" in done.stderr
    assert not workspace.database.exists()
    assert workspace.run("runs", "--db", str(other)).stdout.endswith("2 + 2\n")


def test_default_database_is_in_the_data_folder_of_the_user(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2", RXLOOP_DB="")
    assert [path.name for path in (workspace.folder / "data/rxloop").glob("*.db")] == ["runs.db"]


def test_database_folder_is_private(workspace: Workspace) -> None:
    workspace.run("run", "2 + 2", RXLOOP_DB="")
    assert (workspace.folder / "data/rxloop").stat().st_mode & 0o777 == 0o700


async def test_error_names_the_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EventLogError, match=r"cannot create the folder of the database .*file/runs\.db"):
        async with open_database(str(tmp_path / "file/runs.db"), write=True):
            pass


async def test_run_is_found_by_prefix_or_suffix() -> None:
    log = await make_log("abc-123", "abd-124")
    assert [(await find_run(log, given)).task_id for given in ("abc", "124", "abd-124")] == [
        "abc-123",
        "abd-124",
        "abd-124",
    ]
    assert await find_context(log, "123") == "context-abc-123"


async def test_complete_id_is_found_even_if_it_is_a_prefix_of_another_id() -> None:
    assert (await find_run(await make_log("abc", "abcd"), "abc")).task_id == "abc"


async def test_last_selects_the_run_that_was_started_last() -> None:
    assert (await find_run(await make_log("b", "a"), "last")).task_id == "a"
    with pytest.raises(UnknownRun, match="'last'"):
        await find_run(MemoryEventLog(), "last")


async def test_ambiguous_id_lists_the_matching_runs() -> None:
    with pytest.raises(ConfigurationError, match=r"'ab' matches 2 runs: .*\(abc-123\), .*\(abd-124\)$"):
        await find_run(await make_log("abc-123", "abd-124"), "ab")


@pytest.mark.parametrize("given", ["x", ""])
async def test_unknown_id_is_reported(given: str) -> None:
    with pytest.raises(UnknownRun, match=f"no run with the id '{given}'"):
        await find_run(await make_log("abc"), given)


@given(st.lists(st.text("ab1-", min_size=1, max_size=12), min_size=1, max_size=12, unique=True))
async def test_every_short_id_selects_only_its_run(ids: list[str]) -> None:
    log = await make_log(*ids)
    for task_id, short in shorten_ids(ids).items():
        assert (await find_run(log, short)).task_id == task_id


async def test_read_first_event_reads_a_single_event() -> None:
    log = await make_log("a")
    end = StatusUpdateEvent(task_id="a", context_id="c", seq=2, attempt=1, state="completed", final=True)
    await log.append("a", [end], expected_seq=1)
    first = await read_first_event(log, "a")
    assert first is not None
    assert first.model == "m"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "just now"),
        (-5, "just now"),
        (5, "5 seconds ago"),
        (59, "59 seconds ago"),
        (60, "1 minute ago"),
        (7_199, "1 hour ago"),
        (7_200, "2 hours ago"),
        (86_400, "1 day ago"),
        (6 * 86_400, "6 days ago"),
        (30 * 86_400, "2001-08-10"),
    ],
)
def test_format_age(seconds: int, expected: str) -> None:
    now = 1_000_000_000.0
    assert format_age(round((now - seconds) * 1000), now) == expected
