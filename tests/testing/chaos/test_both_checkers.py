"""Two independent checkers agree on real scenarios, and both find workers with a broken engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rxloop.pipeline.event_log import EventLog
from rxloop.testing.chaos import Chaos, Report
from rxloop.testing.chaos import chaos as kit
from rxloop.testing.chaos.checker import Checker
from rxloop.testing.chaos.report import Kind, Witness
from support.chaos.sql_checker import Violations, find_violations
from support.postgres.server import database

pytestmark = [pytest.mark.service("postgres"), pytest.mark.timeout(480)]


@pytest.fixture
def dsn(postgres: str) -> Iterator[str]:
    with database(postgres) as own:
        yield own


async def run_scenario(
    dsn: str, agent: str, monkeypatch: pytest.MonkeyPatch, **faults: Any
) -> tuple[Report, Violations]:
    """Run a scenario and check it with both checkers."""
    observed: list[Witness] = []
    async with Chaos(agent, dsn, workers=4, lease=1) as chaos:

        class StoppingChecker(Checker):
            async def check(self, log: EventLog, witnesses: Sequence[Witness]) -> None:
                # A broken worker could write to the log between the two checks.
                await asyncio.gather(*(worker.kill() for worker in chaos.workers))
                observed.extend(witnesses)
                await super().check(log, witnesses)

        monkeypatch.setattr(kit, "Checker", StoppingChecker)
        report = await chaos.run_scenario(
            *("Go", "Go and ask"), runs=40, seconds=10, expect="Done.", time_limit=40, keep=True, **faults
        )
        return report, find_violations(dsn, Path(chaos._folder.name), observed)


async def run_until_violation(
    postgres: str, agent: str, monkeypatch: pytest.MonkeyPatch, kinds: Sequence[Kind], **faults: Any
) -> tuple[Report, Violations]:
    """Run up to three scenarios until a violation is found, since it depends on the timing of the faults."""
    for remaining in (2, 1, 0):
        with database(postgres) as own:
            report, second = await run_scenario(own, agent, monkeypatch, **faults)
        if not remaining or any(report.kinds[kind] for kind in kinds):
            break
    return report, second


def to_violations(report: Report) -> Violations:
    return {(violation.kind, violation.task_id or "") for violation in report.violations}


async def test_both_checkers_accept_workers_that_are_killed_frozen_and_stopped(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, second = await run_scenario(
        dsn, "support.workers.clerk:clerk", monkeypatch, kill_every=1.5, freeze_every=2, stop_every=4
    )
    assert report.faults.total() >= 3
    assert (to_violations(report), second) == (set(), set())


async def test_both_checkers_find_a_worker_that_writes_after_losing_its_lease(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"kill_every": None, "freeze_every": 0.7}
    report, second = await run_until_violation(
        postgres, "support.chaos.mutants:unfenced", monkeypatch, ("broken", "lost"), **faults
    )
    assert report.kinds["broken"] + report.kinds["lost"]
    assert second
    # The SQL checker does not validate the grammar, so broken logs can have different violations.
    broken = {task_id for kind, task_id in to_violations(report) if kind == "broken"}
    assert {task_id for _, task_id in to_violations(report) ^ second} <= broken


async def test_both_checkers_find_a_worker_that_repeats_calls(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = {"kill_every": 0.8, "freeze_every": None}
    report, second = await run_until_violation(
        postgres, "support.chaos.mutants:repeating", monkeypatch, ("effect",), **faults
    )
    assert report.kinds["effect"]
    assert to_violations(report) == second


async def test_both_checkers_find_a_worker_that_does_not_wait_for_the_log(
    postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = {"kill_every": 0.8, "freeze_every": None}
    report, second = await run_until_violation(
        postgres, "support.chaos.mutants:hasty", monkeypatch, ("effect", "lost"), **faults
    )
    assert report.kinds["effect"] + report.kinds["lost"]
    assert to_violations(report) == second
