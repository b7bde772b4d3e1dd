"""Fixtures for runtime tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rxloop import MemoryEventLog
from support.postgres.server import database


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    """Database URL."""
    with database(postgres) as own:
        yield own
