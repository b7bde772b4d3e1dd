from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import Place, rule
from rxloop.demo.offline import serve_in_thread
from rxloop.testing import OfflineModel


@pytest.fixture(scope="session")
def offline() -> Iterator[OfflineModel]:
    """An offline model in a thread of its own."""
    model = OfflineModel(rules=[rule])
    stop = serve_in_thread(model)
    yield model
    stop()


@pytest.fixture
def place(offline: OfflineModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A folder of its own for the command, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path, offline.base_url)
