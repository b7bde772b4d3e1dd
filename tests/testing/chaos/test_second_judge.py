"""Two judges who know nothing of each other say the same of real plays, and condemn workers with a broken engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rxloop.pipeline.event_log import EventLog
from rxloop.testing.chaos import Chaos, Report
from rxloop.testing.chaos import chaos as kit
from rxloop.testing.chaos.checker import Judge
from rxloop.testing.chaos.report import Kind, Witness
from support.chaos.sql_checker import Violations, find_violations
from support.postgres.server import database

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(480)]


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


async def play(dsn: str, agent: str, monkeypatch: pytest.MonkeyPatch, **faults: Any) -> tuple[Report, Violations]:
    """Play, and judge twice."""
    heard: list[Witness] = []
    async with Chaos(agent, dsn, workers=4, lease=1) as chaos:

        class Listening(Judge):
            async def judge(self, log: EventLog, witnesses: Sequence[Witness]) -> None:
                # One that writes what it may not would do so between the two verdicts, too.
                await asyncio.gather(*(worker.kill() for worker in chaos.workers))
                heard.extend(witnesses)
                await super().judge(log, witnesses)

        monkeypatch.setattr(kit, "Judge", Listening)
        report = await chaos.play(
            *("Go", "Go and ask"), runs=40, seconds=10, expect="Done.", patience=40, keep=True, **faults
        )
        return report, find_violations(dsn, Path(chaos._folder.name), heard)


async def play_until_condemned(
    postgres: str, agent: str, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[Kind], **faults: Any
) -> tuple[Report, Violations]:
    """Play until there is a fault of these kinds, three times at most: chance decides whether a kill brings one out."""
    for remaining in (2, 1, 0):
        with database(postgres) as own:
            report, second = await play(own, agent, monkeypatch, **faults)
        if not remaining or any(report.kinds[kind] for kind in kinds):
            break
    return report, second


def first(report: Report) -> Violations:
    return {(wrong.kind, wrong.task_id or "") for wrong in report.wrong}


async def test_both_judges_acquit_workers_that_are_killed_frozen_and_stopped(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, second = await play(
        dsn, "support.workers.clerk:clerk", monkeypatch, kill_every=1.5, freeze_every=2, stop_every=4
    )
    assert report.faults.total() >= 3
    assert (first(report), second) == (set(), set())


async def test_both_judges_condemn_a_worker_that_writes_though_it_has_lost_its_turn(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"kill_every": None, "freeze_every": 0.7}
    report, second = await play_until_condemned(
        postgres, "support.chaos.mutants:unfenced", monkeypatch, ("broken", "lost"), **faults
    )
    assert report.kinds["broken"] + report.kinds["lost"]
    assert second
    # The first one knows the whole grammar of the protocol; what else is wrong with a run whose log is broken depends
    # on where one looks.
    broken = {task_id for kind, task_id in first(report) if kind == "broken"}
    assert {task_id for _, task_id in first(report) ^ second} <= broken


async def test_both_judges_condemn_a_worker_that_begins_calls_again(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"kill_every": 0.8, "freeze_every": None}
    report, second = await play_until_condemned(
        postgres, "support.chaos.mutants:repeating", monkeypatch, ("effect",), **faults
    )
    assert report.kinds["effect"]
    assert first(report) == second


async def test_both_judges_condemn_a_worker_that_does_not_wait_for_the_log(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"kill_every": 0.8, "freeze_every": None}
    report, second = await play_until_condemned(
        postgres, "support.chaos.mutants:hasty", monkeypatch, ("effect", "lost"), **faults
    )
    assert report.kinds["effect"] + report.kinds["lost"]
    assert first(report) == second
