"""Fixtures of the tests in this folder."""

from __future__ import annotations

import pytest

from rxloop import MemoryEventLog


@pytest.fixture
def log() -> MemoryEventLog:
    return MemoryEventLog()
