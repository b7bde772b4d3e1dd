"""Runs shared by the tests of the viewer."""

from __future__ import annotations

import pytest

from rxloop import EventLog, MemoryEventLog
from support.viewer_runs import record_weather_run


@pytest.fixture(scope="module")
def weather() -> tuple[EventLog, str]:
    """Log with the run of the weather desk, and the id of this run."""
    log = MemoryEventLog()
    return log, record_weather_run(log)
