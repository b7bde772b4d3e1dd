"""Thinking sessions in persistent stores."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from rxloop import Agent, SqliteEventLog, sequential_thinking
from rxloop.errors import EventLogError
from rxloop.storage import FolderArtifacts, PostgresArtifacts, SqliteArtifacts
from rxloop.testing import ScriptedModel, call
from rxloop.thinking import ThinkingSessions
from support.postgres.server import clear_log
from support.sequential_thoughts import thought

MAKERS = {"folder": FolderArtifacts, "sqlite": SqliteArtifacts, "postgres": PostgresArtifacts}
THINKER = [sys.executable, str(Path(__file__).with_name("thinker.py"))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "sessions.db"


async def test_session_continues_after_a_restart(path: Path) -> None:
    # T41
    first = ThinkingSessions(SqliteArtifacts(path))
    await first.think(thought(1), session_id="s")
    await first.think(thought(2, branchFromThought=1, branchId="b", isRevision=True, revisesThought=9), session_id="s")
    stored_session = (await first.think(thought(3, needed=False), session_id="s", call_id="c")).session
    await first.aclose()
    second = ThinkingSessions(SqliteArtifacts(path))
    session = await second.get_session("s")
    assert session.thoughts == stored_session.thoughts
    assert session.branches == stored_session.branches
    assert session.status == stored_session.status
    assert session.version == stored_session.version
    assert session.created == stored_session.created
    assert session.used == stored_session.used
    assert len((await second.think(thought(4), session_id="s", call_id="c")).session) == 3
    assert len((await second.think(thought(4), session_id="s")).session) == 4
    await second.aclose()


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
def test_session_is_unchanged_after_a_crash_during_a_write(kind: str, path: Path) -> None:
    # T42
    command = [*THINKER, kind, str(path), "a", "3", "crash"]
    completed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=30)
    assert completed.returncode == -9
    assert completed.stdout.split() == ["1", "2"]

    async def check_session() -> None:
        sessions = ThinkingSessions(MAKERS[kind](str(path)))
        assert [each.thought for each in (await sessions.get_session("shared")).thoughts] == ["a1", "a2"]
        assert len((await sessions.think(thought(3), session_id="shared")).session) == 3
        await sessions.aclose()

    asyncio.run(check_session())


def think_in_processes(kind: str, path: str) -> None:
    """Check that three processes can write to a session, without lost or repeated thoughts."""
    names, count = ["a", "b", "c"], 40
    running = [
        subprocess.Popen([*THINKER, kind, path, name, str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for name in names
    ]
    indexes: list[int] = []
    for process in running:
        out, problems = process.communicate(timeout=60)
        assert process.returncode == 0
        assert problems == b""
        indexes += map(int, out.split())
    assert sorted(indexes) == list(range(1, count * len(names) + 1))

    async def check_session() -> None:
        sessions = ThinkingSessions(MAKERS[kind](path))
        output = [each.thought for each in (await sessions.get_session("shared")).thoughts]
        for name in names:
            assert [each for each in output if each[0] == name] == [f"{name}{n}" for n in range(1, count + 1)]
        await sessions.aclose()

    asyncio.run(check_session())


@pytest.mark.parametrize("kind", ["folder", "sqlite"])
def test_processes_share_a_session_without_losses(kind: str, path: Path) -> None:
    # T43
    think_in_processes(kind, str(path))


@pytest.mark.service("postgres")
def test_processes_share_a_session_in_postgres_without_losses(postgres: str) -> None:
    # T43
    think_in_processes("postgres", clear_log(postgres))


async def test_sessions_and_runs_can_share_a_file(path: Path) -> None:
    log = SqliteEventLog(path)
    sessions = ThinkingSessions(log.artifacts)
    tool = sequential_thinking("planner", sessions=sessions)
    model = ScriptedModel(*(call("sequentialthinking", **thought(n)) for n in range(1, 6)), "Done.")
    async with Agent(model, tools=[tool], log=log) as agent:
        result = await agent.run("Plan.")
    assert len(result.thoughts) == len(await tool.session()) == 5
    assert [record.state for record in await log.list_runs()] == ["completed"]
    await sessions.aclose()
    await log.aclose()


async def test_foreign_file_is_refused_and_unchanged(path: Path) -> None:
    path.write_text("this is a text file, not a database\n" * 50)
    content = path.read_bytes()
    sessions = ThinkingSessions(SqliteArtifacts(path))
    with pytest.raises(EventLogError, match="not a SQLite file"):
        await sessions.think(thought())
    assert path.read_bytes() == content
    await sessions.aclose()


async def test_missing_folder_is_named(tmp_path: Path) -> None:
    sessions = ThinkingSessions(SqliteArtifacts(tmp_path / "nowhere" / "s.db"))
    with pytest.raises(EventLogError, match="check that its folder exists"):
        await sessions.get_session("s")
    await sessions.aclose()


async def test_closed_store_can_be_used_again(path: Path) -> None:
    sessions = ThinkingSessions(SqliteArtifacts(path, fsync="full"))
    for n in (1, 2):
        await sessions.think(thought(n), session_id="s")
        await sessions.aclose()
    assert len(await sessions.get_session("s")) == 2
    await sessions.aclose()
