from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace, rule
from support.offline_server import serve_offline


@pytest.fixture(scope="session")
def offline() -> OfflineModel:
    """Offline model with answers for these tests."""
    return OfflineModel(rules=[rule])


@pytest.fixture(scope="session")
def offline_url(offline: OfflineModel) -> Iterator[str]:
    """URL of the offline model."""
    with serve_offline(offline) as url:
        yield url


@pytest.fixture
def workspace(offline_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Temporary current folder."""
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path, offline_url)
