from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rxloop.testing import OfflineModel
from support.cli_workspace import Workspace, rule
from support.offline_server import serve_offline


@pytest.fixture(scope="session")
def offline() -> OfflineModel:
    """An offline model that knows what these tests ask."""
    return OfflineModel(rules=[rule])


@pytest.fixture(scope="session")
def offline_url(offline: OfflineModel) -> Iterator[str]:
    """The address at which it is served."""
    with serve_offline(offline) as url:
        yield url


@pytest.fixture
def workspace(offline_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A folder of its own for the command, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return Workspace(tmp_path, offline_url)
