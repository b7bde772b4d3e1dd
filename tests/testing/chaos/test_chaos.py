"""Workers in processes of their own, killed and frozen while they carry out runs.

`RXLOOP_CHAOS_KILLS=1000 pytest tests/testing/chaos` goes on until so many are killed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from postgres import database
from rxloop.errors import ConfigurationError
from rxloop.testing.chaos import Chaos

KILLS = int(os.environ.get("RXLOOP_CHAOS_KILLS", "2"))


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


@pytest.mark.service("postgres")
@pytest.mark.timeout(240 + 8 * KILLS)
async def test_whatever_happens_to_workers_each_run_comes_to_its_end_and_each_bill_is_paid_once(dsn: str) -> None:
    done: Counter[str] = Counter()
    async with Chaos("workers.clerk:clerk", dsn) as chaos:
        while done["kill"] < KILLS:
            report = await chaos.play(
                "Go",
                "Go and ask",
                runs=30,
                seconds=9,
                kill_every=2,
                freeze_every=4,
                stop_every=6,
                seed=done["kill"] + 1,
            )
            done += report.faults
            if KILLS > 2:
                print(dict(done), report, flush=True)
            report.check()
            assert report.runs == 30
            assert report.effects > 50
            assert report.acknowledged > 50


async def test_what_cannot_be_played_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="two workers at least"):
        Chaos("workers.clerk:clerk", "postgresql://localhost/app", workers=1)
    with pytest.raises(ConfigurationError, match="module:object"):
        Chaos("clerk", "postgresql://localhost/app")
    with pytest.raises(ConfigurationError, match="must be an Agent"):
        Chaos("workers.clerk:ROUNDS", "postgresql://localhost/app")
