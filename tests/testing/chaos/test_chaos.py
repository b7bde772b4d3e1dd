"""Workers in processes of their own, killed and frozen while they carry out runs.

`RXLOOP_CHAOS_KILLS=1000 pytest -s tests/testing/chaos/test_chaos.py` goes on until so many are killed, at 40
a minute, and ends with what came of all of it.
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
"""What 1,000 kills and 300 freezes in half an hour come to, beside the time in which runs come to rest."""
LONGEST = 300.0
"""Seconds of one play: long, since runs whose bell died with a worker keep its end waiting for half a minute."""


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


@pytest.mark.service("postgres")
@pytest.mark.timeout(240)
async def test_whatever_happens_to_workers_each_run_comes_to_its_end_and_each_bill_is_paid_once(dsn: str) -> None:
    async with Chaos("support.workers.clerk:clerk", dsn) as chaos:
        report = await chaos.play(
            *("Go", "Go and ask"), runs=30, seconds=9, kill_every=2, freeze_every=4, stop_every=6, expect="Done."
        )
    report.check()
    assert report.faults.total() >= 2
    assert report.runs == 30
    assert report.effects > 50
    assert report.acknowledged > 50


@pytest.mark.service("postgres")
@pytest.mark.skipif(not KILLS, reason="takes long: set RXLOOP_CHAOS_KILLS to the number of kills")
@pytest.mark.timeout(300 + 8 * KILLS)
async def test_as_many_kills_as_one_likes_do_no_harm(dsn: str) -> None:
    total, begun, wrong = Report(), time.monotonic(), list[str]()
    async with Chaos("support.workers.clerk:clerk", dsn, workers=6) as chaos:
        while (left := KILLS - total.faults["kill"]) > 0:
            seconds, seed = min(PACE["kill_every"] * max(left, 10), LONGEST), total.faults["kill"]
            report = await chaos.play(
                *("Go", "Go and ask"), runs=round(3 * seconds), seconds=seconds, expect="Done.", seed=seed, **PACE
            )
            total += report
            wrong += [f"seed {seed}: {each}" for each in report.wrong]
            print(f"{time.monotonic() - begun:.0f} s: {report}", *wrong, sep="\n  ", flush=True)
    print(f"all of it, in {time.monotonic() - begun:.0f} s: {total}", flush=True)
    total.check()


async def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="two workers at least"):
        Chaos("support.workers.clerk:clerk", "postgresql://localhost/app", workers=1)
    with pytest.raises(ConfigurationError, match="module:object"):
        Chaos("clerk", "postgresql://localhost/app")
    with pytest.raises(ConfigurationError, match="must be an Agent"):
        Chaos("support.workers.clerk:ROUNDS", "postgresql://localhost/app")
    with pytest.raises(ConfigurationError, match="no workers yet"):
        await Chaos("support.workers.clerk:clerk", "postgresql://localhost/app").play("Go")
    with pytest.raises(ConfigurationError, match="one hiccup to the next are more than 0, not 0"):
        Fault("hiccup", 0, kill)
