"""Event logs for tests of memories."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rxloop import EventLog, MemoryEventLog, PostgresEventLog, SqliteEventLog
from support.postgres.server import clear_log


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
async def log(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EventLog]:
    """Empty event log."""
    match request.param:
        case "memory":
            log: EventLog = MemoryEventLog()
        case "sqlite":
            log = SqliteEventLog(tmp_path / "runs.db")
        case _:
            log = PostgresEventLog(clear_log(request.getfixturevalue("postgres")))
    yield log
    await log.aclose()
