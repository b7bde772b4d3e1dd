"""A clock that tests set, and each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from postgres import emptied
from rxloop.eventlog import PostgresSessionStore, SqliteSessionStore
from rxloop.pipeline.seams import SessionStore
from rxloop.stream.clock import CLOCK
from rxloop.thinking.sessions import MemorySessionStore

MINUTE = 60_000


class FakeClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.time = 1_700_000_000_000

    def now(self) -> int:
        return self.time

    def monotonic(self) -> float:
        return self.time / 1_000


@pytest.fixture
def clock() -> Generator[FakeClock]:
    clock = FakeClock()
    token = CLOCK.set(clock)
    yield clock
    CLOCK.reset(token)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    if request.param == "postgres":
        store = PostgresSessionStore(emptied(request.getfixturevalue("postgres")))
    elif request.param == "sqlite":
        store = SqliteSessionStore(tmp_path / "sessions.db")
    else:
        store = MemorySessionStore()
    yield store
    await store.aclose()
