"""Event logs for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from rxloop import PostgresEventLog
from support.postgres.logs import MakeLog
from support.postgres.server import new_schema


@pytest.fixture
async def new_log(postgres: str) -> AsyncIterator[MakeLog]:
    """Factory of Postgres logs that share a schema."""
    logs: list[PostgresEventLog] = []
    every: dict[str, Any] = {"schema": new_schema()}

    def make(address: str = postgres, **options: Any) -> PostgresEventLog:
        logs.append(PostgresEventLog(address, **{**every, **options}))
        return logs[-1]

    yield make
    for log in logs:
        await log.aclose()
