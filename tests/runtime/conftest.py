"""Fixtures of the tests in this folder."""

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
    """URL of a database of this test."""
    with database(postgres) as own:
        yield own
