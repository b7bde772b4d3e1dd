"""Fake clock, and a fixture with each artifact store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator
from pathlib import Path

import pytest

from rxloop.pipeline.artifacts import ArtifactStore
from rxloop.storage import FolderArtifacts, MemoryArtifacts, PostgresArtifacts, SqliteArtifacts
from rxloop.support.tasks import CLOCK
from support.fake_clock import FakeClock
from support.postgres.server import clear_log


@pytest.fixture
def clock() -> Generator[FakeClock]:
    clock = FakeClock()
    token = CLOCK.set(clock)
    yield clock
    CLOCK.reset(token)


@pytest.fixture(params=["memory", "folder", "sqlite", pytest.param("postgres", marks=pytest.mark.service("postgres"))])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ArtifactStore]:
    if request.param == "postgres":
        store = PostgresArtifacts(clear_log(request.getfixturevalue("postgres")))
    elif request.param == "sqlite":
        store = SqliteArtifacts(tmp_path / "sessions.db")
    elif request.param == "folder":
        store = FolderArtifacts(tmp_path / "sessions")
    else:
        store = MemoryArtifacts()
    yield store
    await store.aclose()
