"""Runs shared by the tests of the viewer."""

from __future__ import annotations

import pytest

from rxloop import EventLog, MemoryEventLog
from support.viewer_runs import record_weather_run
from support.viewer_talk import record_conversation_run


@pytest.fixture(scope="module")
def weather() -> tuple[EventLog, str]:
    """Log with the run of the weather desk, and the id of this run."""
    log = MemoryEventLog()
    return log, record_weather_run(log)


@pytest.fixture(scope="module")
def conversation() -> tuple[EventLog, str]:
    """Log with a run that has all parts of a conversation, and the id of this run."""
    log = MemoryEventLog()
    return log, record_conversation_run(log)
