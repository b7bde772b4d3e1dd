"""Worker processes that are killed and frozen while they execute runs.

`RXLOOP_CHAOS_KILLS=1000 pytest -s tests/testing/chaos/test_chaos.py` kills this number of workers, about 40 per minute,
and prints a report.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rxloop.errors import ConfigurationError
from rxloop.testing.chaos import Chaos, Fault, Report
from rxloop.testing.chaos.faults import kill
from support.postgres.server import database

KILLS = int(os.environ.get("RXLOOP_CHAOS_KILLS", "0"))
PACE: dict[str, Any] = {"kill_every": 1.4, "freeze_every": 4.5, "stop_every": 30.0}
"""1,000 kills and 300 freezes in half an hour, not counting the time in which runs become idle."""
MAX_SECONDS = 300.0
"""Maximum duration of a scenario. A lost job delays the end of each scenario by up to 30 seconds."""


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


@pytest.mark.service("postgres")
@pytest.mark.timeout(240)
async def test_runs_end_and_pay_each_bill_once_when_workers_die(dsn: str) -> None:
    async with Chaos("support.workers.clerk:clerk", dsn) as chaos:
        report = await chaos.run_scenario(
            *("Go", "Go and ask"), runs=30, seconds=9, kill_every=2, freeze_every=4, stop_every=6, expect="Done."
        )
    report.check()
    assert report.faults.total() >= 2
    assert report.runs == 30
    assert report.effects > 50
    assert report.acknowledged > 50


@pytest.mark.service("postgres")
@pytest.mark.timeout(120)
async def test_runs_that_are_executing_at_the_time_limit_are_only_unfinished(dsn: str) -> None:
    async with Chaos("support.workers.clerk:clerk", dsn) as chaos:
        report = await chaos.run_scenario(
            *("Go", "Go and ask"), runs=60, seconds=1, kill_every=0.5, freeze_every=None, expect="Done.", time_limit=0.2
        )
    assert {violation.kind for violation in report.violations} == {"unfinished"}
    with pytest.raises(AssertionError, match="was not idle when the time limit ended"):
        report.check()


@pytest.mark.service("postgres")
@pytest.mark.skipif(not KILLS, reason="takes long: set RXLOOP_CHAOS_KILLS to the number of kills")
@pytest.mark.timeout(300 + 8 * KILLS)
async def test_runs_have_no_violations_after_many_kills(dsn: str) -> None:
    total, started, violations = Report(), time.monotonic(), list[str]()
    async with Chaos("support.workers.clerk:clerk", dsn, workers=6) as chaos:
        while (left := KILLS - total.faults["kill"]) > 0:
            seconds, seed = min(PACE["kill_every"] * max(left, 10), MAX_SECONDS), total.faults["kill"]
            report = await chaos.run_scenario(
                *("Go", "Go and ask"), runs=round(3 * seconds), seconds=seconds, expect="Done.", seed=seed, **PACE
            )
            total += report
            violations += [f"seed {seed}: {each}" for each in report.violations]
            print(f"{time.monotonic() - started:.0f} s: {report}", *violations, sep="\n  ", flush=True)
    print(f"total, in {time.monotonic() - started:.0f} s: {total}", flush=True)
    total.check()


async def test_invalid_options_raise_configuration_errors() -> None:
    with pytest.raises(ConfigurationError, match="at least 2 workers"):
        Chaos("support.workers.clerk:clerk", "postgresql://localhost/app", workers=1)
    with pytest.raises(ConfigurationError, match="module:object"):
        Chaos("clerk", "postgresql://localhost/app")
    with pytest.raises(ConfigurationError, match="must be an agent"):
        Chaos("support.workers.clerk:ROUNDS", "postgresql://localhost/app")
    with pytest.raises(ConfigurationError, match="no workers outside its block"):
        await Chaos("support.workers.clerk:clerk", "postgresql://localhost/app").run_scenario("Go")
    with pytest.raises(ConfigurationError, match="interval of the fault 'hiccup' must be positive, got 0"):
        Fault("hiccup", 0, kill)
